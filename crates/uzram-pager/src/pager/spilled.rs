//! The pager's state where pages go to a file.

use std::sync::Arc;

use uzram::Result;

use super::order::Order;
use crate::spill::Disk;

/// The pager's side of the file.
#[derive(Debug)]
pub(super) struct Spilled {
    pub disk: Arc<Disk>,
    /// The stored pages that are not in the file.
    pub order: Order,
    /// The store took no page.
    pub is_full: bool,
}

impl Spilled {
    /// # Errors
    /// [`ErrorKind::NoMemory`](uzram::ErrorKind::NoMemory).
    pub fn new(disk: Arc<Disk>, pages: usize) -> Result<Spilled> {
        Ok(Spilled {
            disk,
            order: Order::new(pages)?,
            is_full: false,
        })
    }
}
