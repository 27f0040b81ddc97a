//! From options to a store.

use super::Store;
#[cfg(feature = "lab")]
use super::{StoreWith, lock::SlotLock};
#[cfg(feature = "lab")]
use crate::codec::streams::{Stream, StreamPolicy};
use crate::config::StoreBuilder;
use crate::error::Result;

impl StoreBuilder {
    /// Makes the store. Memory is taken as pages are written, addresses now.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for size 0 or options that contradict each other,
    /// [`ErrorKind::UnknownName`](crate::ErrorKind::UnknownName) with the known names,
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory) if the address space or memory does not suffice.
    pub fn build(self) -> Result<Store> {
        Store::new(self.parse()?)
    }

    /// A store with another slot lock, and with `streams` in place of its compression's.
    ///
    /// # Errors
    /// As [`StoreBuilder::build`].
    #[cfg(feature = "lab")]
    pub fn build_with<L: SlotLock, S: StreamPolicy<Stream>>(
        self,
        streams: S,
    ) -> Result<StoreWith<L, S>> {
        StoreWith::new(self.parse()?, streams)
    }
}
