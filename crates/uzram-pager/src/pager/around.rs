//! How many pages a fault brings: more while the faults of a thread go on with the same stride, in either direction.

/// Most pages that one fault brings.
pub(super) const AROUND_MAX: usize = 32;
/// Threads whose last fault is remembered.
const THREADS: usize = 8;

/// The last fault of some threads.
#[derive(Debug, Default)]
pub(super) struct Around {
    last: [Last; THREADS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Last {
    thread: u32,
    page: usize,
    stride: isize,
    brought: usize,
}

/// Pages with the same distance from each to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// Never 0.
    pub stride: isize,
    pub pages: usize,
}

impl Window {
    /// The `nth` page from `page` on, if there can be one.
    pub fn page(&self, page: usize, nth: usize) -> Option<usize> {
        page.checked_add_signed(self.stride.checked_mul(nth as isize)?)
    }
}

impl Around {
    /// The pages to bring for a fault of `thread` on `page`, which is the first of them.
    pub fn want(&self, thread: u32, page: usize) -> Window {
        let last = &self.last[thread as usize % THREADS];
        if last.thread != thread || last.brought == 0 {
            return Window {
                stride: 1,
                pages: 1,
            };
        }
        let brought = Window {
            stride: last.stride,
            pages: last.brought,
        };
        if brought.page(last.page, last.brought) == Some(page) {
            let pages = (2 * last.brought).min(AROUND_MAX);
            return Window { pages, ..brought };
        }
        // A guess, which the next fault confirms or not.
        let stride = page.wrapping_sub(last.page) as isize;
        let stride = if stride == 0 { 1 } else { stride };
        Window { stride, pages: 1 }
    }

    /// Notes that `thread` got the first `count` pages of a window from `page` on.
    pub fn brought(&mut self, thread: u32, page: usize, stride: isize, count: usize) {
        self.last[thread as usize % THREADS] = Last {
            thread,
            page,
            stride,
            brought: count,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages brought by a fault.
    fn fault(around: &mut Around, thread: u32, page: usize) -> usize {
        let window = around.want(thread, page);
        around.brought(thread, page, window.stride, window.pages);
        window.pages
    }

    #[test]
    fn the_window_doubles_while_faults_keep_a_stride_and_falls_at_once() {
        for (stride, counts) in [
            (1, [1, 2, 4, 8, 16, 32, 32]),
            (4, [1, 1, 2, 4, 8, 16, 32]),
            (-3, [1, 1, 2, 4, 8, 16, 32]),
        ] {
            let (mut around, mut page) = (Around::default(), 1000_usize);
            for count in counts {
                assert_eq!(fault(&mut around, 7, page), count, "{stride}");
                page = page.checked_add_signed(stride * count as isize).unwrap();
            }
            assert_eq!(around.want(7, page + 1).pages, 1);
            assert_eq!(around.want(8, page).pages, 1);
        }
    }

    #[test]
    fn one_thread_does_not_disturb_another() {
        let mut around = Around::default();
        around.brought(1, 10, 1, 4);
        around.brought(2, 500, 1, 1);
        assert_eq!(around.want(1, 14).pages, 8);
        assert_eq!(around.want(2, 501).pages, 2);
        around.brought(1 + THREADS as u32, 14, 1, 1);
        assert_eq!(around.want(1, 15).pages, 1);
    }

    #[test]
    fn a_window_does_not_wrap_around() {
        let back = Window {
            stride: -10,
            pages: 4,
        };
        assert_eq!(back.page(25, 2), Some(5));
        assert_eq!(back.page(25, 3), None);
        let mut around = Around::default();
        around.brought(3, 40, 1, 1);
        assert_eq!(around.want(3, 40).stride, 1, "the same page again");
    }
}
