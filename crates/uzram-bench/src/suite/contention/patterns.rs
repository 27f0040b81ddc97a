//! The tests of iozone and fio: an order of places, and what is done there.

use crate::rng::Rng;

/// iozone's `-j`: records from one read to the next in a stride read.
const STRIDE_RECORDS: u32 = 17;

/// One of the tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Test {
    /// In case names.
    pub(crate) name: &'static str,
    /// As it stands in the published tables.
    pub(crate) published: &'static str,
    pub(crate) order: Order,
    pub(crate) action: Action,
}

/// Places in which order; each place once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Forward,
    Reverse,
    Stride,
    Random,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Write,
    Read,
    /// Threads are readers and writers by turns, the first one reads: iozone's mixed workload.
    ByThread,
    /// Each operation is a read or a write: fio's rw.
    ByOperation,
}

impl Action {
    /// Whether thread `thread` writes at all.
    pub(crate) fn writes(self, thread: usize) -> bool {
        match self {
            Action::Write | Action::ByOperation => true,
            Action::Read => false,
            Action::ByThread => thread % 2 == 1,
        }
    }
}

/// iozone's tests in its order, without fwrite and fread: those go through the C library's buffers and the page
/// cache, of which there are none here.
pub(crate) const IOZONE: [Test; 11] = [
    test(
        "initial-write",
        "Initial write",
        Order::Forward,
        Action::Write,
    ),
    test("rewrite", "Rewrite", Order::Forward, Action::Write),
    test("read", "Read", Order::Forward, Action::Read),
    test("re-read", "Re-read", Order::Forward, Action::Read),
    test("reverse-read", "Reverse Read", Order::Reverse, Action::Read),
    test("stride-read", "Stride read", Order::Stride, Action::Read),
    test("random-read", "Random read", Order::Random, Action::Read),
    test("mixed", "Mixed workload", Order::Random, Action::ByThread),
    test("random-write", "Random write", Order::Random, Action::Write),
    test("pwrite", "Pwrite", Order::Forward, Action::Write),
    test("pread", "Pread", Order::Forward, Action::Read),
];

/// fio's tests of the published comparison of locks.
pub(crate) const FIO: [Test; 4] = [
    test("seq-write", "seq-write", Order::Forward, Action::Write),
    test("seq-read", "seq-read", Order::Forward, Action::Read),
    test("seq-rw", "seq-rw", Order::Forward, Action::ByOperation),
    test("rand-rw", "rand-rw", Order::Random, Action::ByOperation),
];

const fn test(name: &'static str, published: &'static str, order: Order, action: Action) -> Test {
    Test {
        name,
        published,
        order,
        action,
    }
}

impl Order {
    /// All places of a file of `records`, in this order.
    pub(crate) fn places(self, records: u32, rng: &mut Rng) -> Vec<u32> {
        match self {
            Order::Forward => (0..records).collect(),
            Order::Reverse => (0..records).rev().collect(),
            Order::Stride => {
                let from = |start: u32| (start..records).step_by(STRIDE_RECORDS as usize);
                (0..STRIDE_RECORDS).flat_map(from).collect()
            }
            Order::Random => {
                let mut places: Vec<u32> = (0..records).collect();
                rng.shuffle(&mut places);
                places
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_visits_every_place_once() {
        for order in [Order::Forward, Order::Reverse, Order::Stride, Order::Random] {
            for records in [1, 16, 17, 18, 100] {
                let mut places = order.places(records, &mut Rng::new(3));
                if (order, records) == (Order::Stride, 100) {
                    assert_eq!(places[..7], [0, 17, 34, 51, 68, 85, 1]);
                }
                places.sort_unstable();
                assert!(places.into_iter().eq(0..records), "{order:?}");
            }
        }
    }

    #[test]
    fn in_the_mixed_workload_the_first_thread_reads() {
        assert_eq!(
            [0, 1, 2].map(|thread| Action::ByThread.writes(thread)),
            [false, true, false]
        );
    }
}
