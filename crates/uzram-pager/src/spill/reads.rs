//! Pages that are read from the file. The pager asks, the reading thread reads, and the pager fetches.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use uzram::PageIndex;

use crate::mapping::PAGE_BYTES;

/// Most reads at a time. Further faults wait for one of them.
const READS_MAX: usize = 8;

/// Memory of a page.
pub(crate) type Bytes = Box<[u8]>;

/// The state of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// It is under way, or waits for its turn.
    Awaited,
    /// Its bytes, to be given back by [`Reads::put_back`] or [`Reads::give`].
    Done(Bytes),
    /// The file cannot be read there, or has other bytes.
    Failed,
}

/// The reads under way.
#[derive(Debug)]
pub(crate) struct Reads {
    places: Mutex<Places>,
    is_wanted: Condvar,
    /// Places that are not free: mostly none.
    used: AtomicUsize,
}

#[derive(Debug)]
struct Places {
    places: [Place; READS_MAX],
    free: Vec<Bytes>,
    is_ending: bool,
}

#[derive(Debug, Default)]
struct Place {
    page: usize,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Free,
    Wanted,
    Reading,
    /// The page has changed since: its bytes are nobody's.
    Dropped,
    Done(Bytes),
    Failed,
}

impl Reads {
    pub fn new() -> Reads {
        let bytes = || vec![0; PAGE_BYTES].into_boxed_slice();
        Reads {
            places: Mutex::new(Places {
                places: Default::default(),
                free: (0..READS_MAX).map(|_| bytes()).collect(),
                is_ending: false,
            }),
            is_wanted: Condvar::new(),
            used: AtomicUsize::new(0),
        }
    }

    /// The state of the read of `page`, which begins with the first question.
    pub fn ask(&self, page: usize) -> Read {
        let mut places = self.lock();
        let Some(at) = places.find(page) else {
            if places.begin(page) {
                self.used.fetch_add(1, Ordering::Relaxed);
                self.is_wanted.notify_one();
            }
            return Read::Awaited;
        };
        let place = &mut places.places[at];
        match std::mem::take(&mut place.state) {
            State::Done(bytes) => {
                self.used.fetch_sub(1, Ordering::Relaxed);
                Read::Done(bytes)
            }
            State::Failed => {
                self.used.fetch_sub(1, Ordering::Relaxed);
                Read::Failed
            }
            other => {
                place.state = other;
                Read::Awaited
            }
        }
    }

    /// Gives the memory of a read back.
    pub fn give(&self, bytes: Bytes) {
        self.lock().free.push(bytes);
    }

    /// Undoes the answer to a question, so that the next one gets the same.
    pub fn put_back(&self, page: usize, bytes: Bytes) {
        let mut places = self.lock();
        let free = |place: &Place| matches!(place.state, State::Free);
        match places.places.iter().position(free) {
            Some(at) => {
                self.used.fetch_add(1, Ordering::Relaxed);
                let state = State::Done(bytes);
                places.places[at] = Place { page, state };
            }
            // It is read again.
            None => places.free.push(bytes),
        }
    }

    /// Notes that `page` changes: what is read of it is of no use.
    pub fn forget(&self, page: usize) {
        if self.used.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut places = self.lock();
        let Some(at) = places.find(page) else {
            return;
        };
        let state = &mut places.places[at].state;
        *state = match std::mem::take(state) {
            State::Reading => State::Dropped,
            other => {
                self.used.fetch_sub(1, Ordering::Relaxed);
                if let State::Done(bytes) = other {
                    places.free.push(bytes);
                }
                return;
            }
        };
    }

    /// The next page to read, and where to. None: there will be no more.
    pub(super) fn next(&self) -> Option<(PageIndex, Bytes)> {
        let mut places = self.lock();
        loop {
            if places.is_ending {
                return None;
            }
            let is_wanted = |place: &Place| matches!(place.state, State::Wanted);
            if let Some(at) = places.places.iter().position(is_wanted) {
                let bytes = places.free.pop().expect("one for each place");
                let place = &mut places.places[at];
                place.state = State::Reading;
                return Some((PageIndex(place.page as u64), bytes));
            }
            let waited = self.is_wanted.wait(places);
            places = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes that a page was read, or could not be.
    pub(super) fn done(&self, page: PageIndex, bytes: Bytes, is_read: bool) {
        let mut places = self.lock();
        let is_mine = |place: &Place| {
            let is_read = matches!(place.state, State::Reading | State::Dropped);
            is_read && place.page as u64 == page.0
        };
        let Some(at) = places.places.iter().position(is_mine) else {
            return places.free.push(bytes);
        };
        let state = &mut places.places[at].state;
        if matches!(state, State::Reading) && is_read {
            *state = State::Done(bytes);
            return;
        }
        *state = match state {
            State::Reading => State::Failed,
            _ => {
                self.used.fetch_sub(1, Ordering::Relaxed);
                State::Free
            }
        };
        places.free.push(bytes);
    }

    pub(super) fn end(&self) {
        self.lock().is_ending = true;
        self.is_wanted.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    /// The place of a read of `page` that is still of use.
    fn find(&self, page: usize) -> Option<usize> {
        let is_it = |place: &Place| {
            place.page == page && !matches!(place.state, State::Free | State::Dropped)
        };
        self.places.iter().position(is_it)
    }

    /// Takes a place for `page`; false if none is free.
    fn begin(&mut self, page: usize) -> bool {
        let mut places = self.places.iter_mut();
        let free = places.find(|place| matches!(place.state, State::Free));
        let is_free = free.is_some();
        if let Some(place) = free {
            *place = Place {
                page,
                state: State::Wanted,
            };
        }
        is_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_once_and_not_if_it_changes_meanwhile() {
        let reads = Reads::new();
        assert_eq!(reads.ask(7), Read::Awaited);
        assert_eq!(reads.ask(7), Read::Awaited);
        let (page, mut bytes) = reads.next().unwrap();
        assert_eq!(page.0, 7);
        bytes.fill(1);
        // It changes, and is asked for again while the old bytes are read.
        reads.forget(7);
        assert_eq!(reads.ask(7), Read::Awaited);
        reads.done(page, bytes, true);
        assert_eq!(reads.ask(7), Read::Awaited, "those are old bytes");
        let (page, mut bytes) = reads.next().unwrap();
        bytes.fill(2);
        reads.done(page, bytes, true);
        let Read::Done(bytes) = reads.ask(7) else {
            panic!("it was read")
        };
        assert!(bytes.iter().all(|byte| *byte == 2));
        reads.put_back(7, bytes);
        reads.forget(7);
        assert_eq!(reads.used.load(Ordering::Relaxed), 0);
        assert_eq!(reads.lock().free.len(), READS_MAX);
    }

    #[test]
    fn reads_have_a_limit_and_failures_are_told_once() {
        let reads = Reads::new();
        for page in 0..READS_MAX + 1 {
            assert_eq!(reads.ask(page), Read::Awaited);
        }
        for _ in 0..READS_MAX {
            let (page, bytes) = reads.next().unwrap();
            reads.done(page, bytes, page.0 % 2 == 0);
        }
        assert!(matches!(reads.ask(0), Read::Done(_)));
        assert_eq!(reads.ask(1), Read::Failed);
        assert_eq!(reads.ask(1), Read::Awaited);
        reads.end();
        assert_eq!(reads.next(), None);
    }
}
