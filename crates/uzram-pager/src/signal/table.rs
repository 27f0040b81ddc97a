//! The memory that an address belongs to: a table that a handler reads without a lock.
//!
//! A place is changed only while nobody may touch its range, so a reader passes over one that changes under its eyes. A child
//! after a fork, which has none of the ranges, finds the table empty.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use uzram::{Error, ErrorKind, Result};

use super::place::Place;

/// Most ranges of a process.
pub(super) const RANGES_MAX: usize = 64;

/// Ranges of addresses, each with a pointer to what serves it.
#[derive(Debug)]
pub(super) struct Table<T> {
    places: NonNull<[Place; RANGES_MAX]>,
    served_by: std::marker::PhantomData<*const T>,
}

// SAFETY: the places are atomics that are never freed; pointers to servers go in and out, and nothing else.
unsafe impl<T: Sync> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Table<T> {}

impl<T> Table<T> {
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    pub fn new() -> Result<Table<T>> {
        let refused = |errno: Errno| {
            let text = "no memory for a table of compressed memories";
            Error::new(ErrorKind::NoMemory, text).with_source(errno)
        };
        let bytes = size_of::<[Place; RANGES_MAX]>();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let at = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe { rustix::mm::mmap_anonymous(at, bytes, access, MapFlags::PRIVATE) };
        let at = at.map_err(refused)?;
        // SAFETY: changes what a child sees of the mapping just made.
        unsafe { rustix::mm::madvise(at, bytes, Advice::LinuxWipeOnFork) }.map_err(refused)?;
        Ok(Table {
            places: NonNull::new(at.cast()).expect("mmap does not return page zero"),
            served_by: std::marker::PhantomData,
        })
    }

    /// Notes that `server` serves the addresses from `start` to before `end`. None: the table is full.
    pub fn add(&self, start: usize, end: usize, server: NonNull<T>) -> Option<usize> {
        let at = self.places().iter().position(Place::take)?;
        self.places()[at].set(start, end, server.as_ptr().cast());
        Some(at)
    }

    /// Forgets what [`Table::add`] noted at `at`.
    pub fn remove(&self, at: usize) {
        self.places()[at].give_back();
    }

    /// The server of `address`.
    pub fn find(&self, address: usize) -> Option<NonNull<T>> {
        self.places().iter().find_map(|place| place.find(address))
    }

    fn places(&self) -> &[Place; RANGES_MAX] {
        // SAFETY: mapped for good; zeroes, or what `set` has left.
        unsafe { self.places.as_ref() }
    }
}

/// The table of the process.
pub(super) fn of_process<T>(table: &'static OnceLock<Table<T>>) -> Result<&'static Table<T>> {
    match table.get() {
        Some(table) => Ok(table),
        None => {
            let new = Table::new()?;
            Ok(table.get_or_init(|| new))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_its_range_alone_and_the_table_has_an_end() {
        let table = Table::<u32>::new().unwrap();
        let server = NonNull::from(&7_u32);
        let added = |at: usize| table.add(at * 100, at * 100 + 50, server);
        let places: Vec<usize> = (1..=RANGES_MAX).map(|at| added(at).unwrap()).collect();
        assert_eq!(added(1000), None);
        for (address, is_found) in [(99, false), (100, true), (149, true), (150, false)] {
            assert_eq!(table.find(address).is_some(), is_found, "{address}");
        }
        table.remove(places[0]);
        assert_eq!(table.find(100), None);
        assert_eq!(table.find(200), Some(server));
        assert_eq!(added(1000), Some(places[0]));
    }

    #[test]
    fn a_place_that_changes_is_passed_over() {
        let table = Table::<u32>::new().unwrap();
        let at = table.add(100, 200, NonNull::from(&7_u32)).unwrap();
        // As its writer leaves it for a moment.
        table.places()[at].begin_change();
        assert_eq!(table.find(150), None);
    }

    #[test]
    fn a_child_finds_the_table_empty() {
        let table = Table::<u32>::new().unwrap();
        table.add(100, 200, NonNull::from(&7_u32)).unwrap();
        // SAFETY: the child reads memory and ends.
        match unsafe { libc::fork() } {
            0 => {
                let is_found = table.find(150).is_some();
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(is_found)) }
            }
            child => {
                let mut status = -1;
                // SAFETY: waits for the child made above.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!(status, 0);
                assert!(table.find(150).is_some());
            }
        }
    }
}
