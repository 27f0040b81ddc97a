//! Doubly linked lists of numbers, each of which is in one list at most.
//!
//! Eight bytes per number, in a table that is reserved once: nothing is allocated afterwards.

use uzram::{Error, ErrorKind, Result};

/// No number.
const NONE: u32 = u32::MAX;

/// `N` lists.
#[derive(Debug)]
pub(super) struct Lists<const N: usize> {
    heads: [u32; N],
    /// The number before and the one behind.
    links: Vec<[u32; 2]>,
}

impl<const N: usize> Lists<N> {
    /// Empty lists of numbers below `most`.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    pub fn new(most: usize) -> Result<Lists<N>> {
        let links = reserved(most)?;
        let heads = [NONE; N];
        Ok(Lists { heads, links })
    }

    pub fn head(&self, list: usize) -> Option<usize> {
        some(self.heads[list])
    }

    /// The number behind `number` in its list.
    pub fn next(&self, number: usize) -> Option<usize> {
        some(self.links[number][1])
    }

    /// Puts `number`, which is in no list, at the head of `list`.
    pub fn push(&mut self, list: usize, number: usize) {
        if self.links.len() <= number {
            self.links.resize(number + 1, [NONE; 2]);
        }
        let next = std::mem::replace(&mut self.heads[list], number as u32);
        self.links[number] = [NONE, next];
        if let Some(next) = some(next) {
            self.links[next][0] = number as u32;
        }
    }

    /// Takes `number` out of `list`, which it is in.
    pub fn remove(&mut self, list: usize, number: usize) {
        let [previous, next] = self.links[number];
        match some(previous) {
            Some(previous) => self.links[previous][1] = next,
            None => self.heads[list] = next,
        }
        if let Some(next) = some(next) {
            self.links[next][0] = previous;
        }
    }
}

fn some(number: u32) -> Option<usize> {
    (number != NONE).then_some(number as usize)
}

/// An empty table with room for `count` items, so that it grows without an allocation.
///
/// # Errors
/// [`ErrorKind::NoMemory`].
pub(super) fn reserved<T>(count: usize) -> Result<Vec<T>> {
    let mut items = Vec::new();
    items.try_reserve_exact(count).map_err(|_| {
        let text =
            format!("no memory for a heap's tables of {count} pages; choose a smaller length");
        Error::new(ErrorKind::NoMemory, text)
    })?;
    Ok(items)
}
