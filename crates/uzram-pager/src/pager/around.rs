//! How many pages a fault brings: more while the faults of a thread go upwards without a gap.

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
    /// The page behind those that were brought.
    end: usize,
    brought: usize,
}

impl Around {
    /// How many pages to bring from `page` on, for a fault of `thread`.
    pub fn want(&self, thread: u32, page: usize) -> usize {
        let last = &self.last[thread as usize % THREADS];
        match last.thread == thread && last.end == page && last.brought > 0 {
            true => (2 * last.brought).min(AROUND_MAX),
            false => 1,
        }
    }

    /// Notes that `thread` got `count` pages from `page` on.
    pub fn brought(&mut self, thread: u32, page: usize, count: usize) {
        self.last[thread as usize % THREADS] = Last {
            thread,
            end: page + count,
            brought: count,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_doubles_while_faults_are_sequential_and_falls_at_once() {
        let mut around = Around::default();
        let mut page = 100;
        let mut windows = Vec::new();
        for _ in 0..8 {
            let want = around.want(7, page);
            around.brought(7, page, want);
            windows.push(want);
            page += want;
        }
        assert_eq!(windows, [1, 2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(around.want(8, page), 1);
        assert_eq!(around.want(7, page + 1), 1);
    }
}
