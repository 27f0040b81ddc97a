//! Taking over a store whose process died between any two instructions.
//!
//! The slot words are the only truth: locks are broken, a new pool over the same arena adopts
//! every object that a word names, and the rest is dropped. Only the tests do this so far. They
//! keep the layout honest.

use super::*;
use crate::page::PageIndex;
use crate::region::Region;
use crate::store::words::Words;

/// The memory of a store, as file descriptors that outlive it.
pub(crate) struct Remains {
    pub words: Region,
    pub arena: Region,
}

impl Store {
    pub(crate) fn recover(config: StoreConfig, remains: Remains) -> Result<Store> {
        let pool_config = config.pool_config();
        let slots = config.disksize_bytes >> config.unit.shift();
        let table = SlotTable::over(Words::over(remains.words), slots)?;
        table.break_locks();
        let made = Store::over(config, &pool_config, table, remains.arena)?;
        let store = &made.inner;
        let mut next = store.table.next_touched(0);
        while next < slots {
            let index = PageIndex(next);
            next = store.table.next_touched(next + 1);
            let guard = store.table.lock(index)?;
            if let Entry::Raw(handle) | Entry::Packed(handle) = guard.entry() {
                store.pool.adopt(handle)?;
                if let Some(cell) = store.checksum_cell(index) {
                    cell.store(crc32fast::hash(store.pool.bytes(handle)), Ordering::Relaxed);
                }
            }
            store
                .counters
                .add_all(counted(&Entry::Empty, guard.entry()));
            store.count_flags(Flags::NONE, guard.flags());
        }
        store.pool.adopted();
        Ok(made)
    }
}
