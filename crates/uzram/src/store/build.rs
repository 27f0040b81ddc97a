//! From options to a store.

use super::Store;
#[cfg(not(uzram_shuttle))]
use super::{Recovery, Remains};
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

    /// Opens the store of a process that is gone, which was made with these options and [outlives](StoreBuilder::outliving) its
    /// process. Every write that was complete is there; one that was under way is done or not. The limit is what it was. No
    /// content is read. It takes as long as looking through the table of pages.
    ///
    /// ```
    /// use uzram::{PageIndex, Store};
    ///
    /// let options = Store::builder().size(1 << 20).outliving(true);
    /// let store = options.clone().build()?;
    /// store.write(PageIndex(7), &[1; 4096])?;
    /// let remains = store.remains()?.expect("it outlives its process");
    /// drop(store); // Or its process, with the descriptors kept by another.
    ///
    /// let (store, recovery) = options.recover(remains)?;
    /// assert_eq!((recovery.generation, recovery.pages), (2, 1));
    /// let mut page = [0; 4096];
    /// store.read(PageIndex(7), &mut page)?;
    /// assert_eq!(page, [1; 4096]);
    /// # Ok::<(), uzram::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) while another process has the store, and nothing has changed then;
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for descriptors that are not a store's memory, for options that
    /// differ from the store's, and for a store of another format;
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) for a damaged superblock;
    /// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory), after which it can be tried again; else as
    /// [`StoreBuilder::build`]. Damage elsewhere is no error: [`Recovery`] counts the pages that are lost.
    #[cfg(not(uzram_shuttle))]
    pub fn recover(self, remains: Remains) -> Result<(Store, Recovery)> {
        Store::recover(self.outliving(true).parse()?, remains)
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
