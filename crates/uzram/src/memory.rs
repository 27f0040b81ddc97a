//! Fallible allocation, and the one place where tests make allocations fail.
//!
//! Every allocation that a write can cause goes through [`boxed`], [`boxed_slice`], [`push`],
//! `region.rs` or a library that reports failure; each asks [`gate`] first.

#![allow(unsafe_code)]

use crate::error::{Error, ErrorKind, Result};

/// A box of `value`. The standard library's `Box::new` ends the process instead of failing.
///
/// # Errors
/// [`ErrorKind::NoMemory`].
pub(crate) fn boxed<T>(value: T) -> Result<Box<T>> {
    let mut items = Vec::new();
    reserve(&mut items, 1)?;
    items.push(value);
    // No allocation: a vector of exactly one item is its slice.
    let only = Box::into_raw(items.into_boxed_slice()).cast::<T>();
    // SAFETY: it comes from a box of exactly one `T`, made by the same allocator with the layout of a
    // `T`, and nothing else owns it.
    Ok(unsafe { Box::from_raw(only) })
}

/// A boxed slice of `length` copies of `value`.
///
/// # Errors
/// [`ErrorKind::NoMemory`].
pub(crate) fn boxed_slice<T: Clone>(length: usize, value: T) -> Result<Box<[T]>> {
    let mut items = Vec::new();
    reserve(&mut items, length)?;
    items.resize(length, value);
    Ok(items.into_boxed_slice())
}

/// Appends `item`.
///
/// # Errors
/// [`ErrorKind::NoMemory`]; `items` is unchanged.
pub(crate) fn push<T>(items: &mut Vec<T>, item: T) -> Result<()> {
    if items.len() == items.capacity() {
        reserve(items, items.len().clamp(4, 1 << 16))?;
    }
    items.push(item);
    Ok(())
}

/// Makes room for `additional` more items.
///
/// # Errors
/// [`ErrorKind::NoMemory`].
pub(crate) fn reserve<T>(items: &mut Vec<T>, additional: usize) -> Result<()> {
    gate()?;
    items.try_reserve_exact(additional).map_err(|_| no_memory())
}

/// Fails if a test asked for this allocation to fail.
///
/// # Errors
/// [`ErrorKind::NoMemory`].
#[inline]
pub(crate) fn gate() -> Result<()> {
    #[cfg(test)]
    if fault::take() {
        return Err(no_memory());
    }
    Ok(())
}

fn no_memory() -> Error {
    Error::new(
        ErrorKind::NoMemory,
        "the system gave no memory; free some or set a mem_limit",
    )
}

/// Countdown to a failing allocation, per thread.
#[cfg(test)]
pub(crate) mod fault {
    use std::cell::Cell;

    thread_local! {
        static REMAINING: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Lets `allocations` allocations of this thread succeed and makes the next one fail, once.
    pub(crate) fn fail_after(allocations: u64) {
        REMAINING.set(Some(allocations));
    }

    /// Stops injecting; true if the failure had not happened yet.
    pub(crate) fn disarm() -> bool {
        REMAINING.take().is_some()
    }

    pub(super) fn take() -> bool {
        match REMAINING.get() {
            Some(0) => {
                REMAINING.set(None);
                true
            }
            Some(remaining) => {
                REMAINING.set(Some(remaining - 1));
                false
            }
            None => false,
        }
    }
}
