//! A place of the pager's table of ranges, which signal handlers read without a lock.

#[path = "../../../crates/uzram-pager/src/signal/place.rs"]
mod place;

use std::ptr::NonNull;

use loom::sync::Arc;
use loom::thread;

use self::place::Place;
use crate::check;

static FIRST: u32 = 1;
static SECOND: u32 = 2;

/// The owner's range goes, and another memory's comes to the same place, while a handler looks. The handler is the
/// spawned thread: loom does not let a thread run before the first access of the one that spawned it.
fn no_reader_mixes_two_ranges(address: usize, expected: &'static u32) {
    check(move || {
        let place = Arc::new(Place::default());
        assert!(place.take());
        place.set(100, 200, server(&FIRST));
        let handler = Arc::clone(&place);
        let handler = thread::spawn(move || {
            let found = handler.find::<u32>(address);
            assert!(found.is_none_or(|server| server == NonNull::from(expected)));
        });
        place.give_back();
        assert!(place.take());
        place.set(150, 300, server(&SECOND));
        handler.join().unwrap();
    });
}

fn server(server: &'static u32) -> *mut () {
    (&raw const *server).cast_mut().cast()
}

#[test]
fn an_address_of_the_range_that_goes() {
    no_reader_mixes_two_ranges(120, &FIRST);
}

#[test]
fn an_address_of_the_range_that_comes() {
    no_reader_mixes_two_ranges(250, &SECOND);
}

#[test]
fn a_place_has_one_owner() {
    check(|| {
        let place = Arc::new(Place::default());
        let takes: Vec<_> = (0..2)
            .map(|_| {
                let place = Arc::clone(&place);
                thread::spawn(move || place.take())
            })
            .collect();
        let taken = takes.into_iter().map(|take| take.join().unwrap());
        assert_eq!(taken.filter(|is_taken| *is_taken).count(), 1);
    });
}

/// The next owner's changes come after the last one's: two at once would leave an even version between them.
#[test]
fn the_next_owner_counts_on() {
    check(|| {
        let place = Arc::new(Place::default());
        let owners = [(100, &FIRST), (300, &SECOND)].map(|(start, serving)| {
            let place = Arc::clone(&place);
            thread::spawn(move || {
                if place.take() {
                    place.set(start, start + 100, server(serving));
                    place.give_back();
                }
            })
        });
        owners.into_iter().for_each(|owner| owner.join().unwrap());
        assert!(place.find::<u32>(150).is_none());
        assert!(place.take());
        place.set(1, 2, server(&FIRST));
        assert!(place.find::<u32>(1).is_some(), "the version is even");
    });
}
