//! Rows of pages from which any page can be taken out: two, linked through one table of eight bytes per page.

use uzram::{Error, ErrorKind, Result};

/// A row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Row {
    /// Stored pages that did not shrink.
    Raw = 0,
    /// Other stored pages, the one that was stored first in front.
    Cold = 1,
}

const ROWS: usize = 2;

/// The rows.
#[derive(Debug)]
pub(super) struct Order {
    /// The neighbours of each page, before and behind; itself if it is in no row. The last ones are the rows' own: their
    /// neighbours are a row's last and first.
    links: Vec<[u32; 2]>,
}

impl Order {
    /// # Errors
    /// [`ErrorKind::NoMemory`].
    pub fn new(pages: usize) -> Result<Order> {
        let mut links = Vec::new();
        links.try_reserve_exact(pages + ROWS).map_err(|_| {
            let text = format!("no memory for the order of {pages} pages; choose a smaller length");
            Error::new(ErrorKind::NoMemory, text)
        })?;
        links.extend((0..(pages + ROWS) as u32).map(|at| [at, at]));
        Ok(Order { links })
    }

    /// Puts `page`, which is in no row, behind all others of `row`.
    pub fn push(&mut self, row: Row, page: usize) {
        debug_assert_eq!(self.links[page], [page as u32; 2]);
        let own = self.own(row);
        let last = self.links[own][0];
        self.links[page] = [last, own as u32];
        self.links[last as usize][1] = page as u32;
        self.links[own][0] = page as u32;
    }

    /// Takes `page` out of its row, if it is in one.
    pub fn remove(&mut self, page: usize) {
        let [before, behind] = self.links[page];
        self.links[before as usize][1] = behind;
        self.links[behind as usize][0] = before;
        self.links[page] = [page as u32; 2];
    }

    /// Takes the first page of `row`.
    pub fn pop(&mut self, row: Row) -> Option<usize> {
        let own = self.own(row);
        let first = self.links[own][1] as usize;
        (first != own).then(|| {
            self.remove(first);
            first
        })
    }

    fn own(&self, row: Row) -> usize {
        self.links.len() - ROWS + row as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_in_their_order_and_leave_from_anywhere() {
        let mut order = Order::new(10).unwrap();
        for page in [3, 0, 9, 4] {
            order.push(Row::Cold, page);
        }
        order.push(Row::Raw, 7);
        for page in [0, 4, 0, 5] {
            order.remove(page);
        }
        order.push(Row::Cold, 0);
        let mut all = |row| -> Vec<usize> { std::iter::from_fn(|| order.pop(row)).collect() };
        assert_eq!(all(Row::Cold), [3, 9, 0]);
        assert_eq!(all(Row::Raw), [7]);
        assert_eq!(all(Row::Raw), []);
    }
}
