//! Taking over a store whose process died between any two instructions.
//!
//! The slot words are the only truth: locks are broken, every object that a word names is adopted by
//! a new pool over the same arena, and what no word names is dropped. Only the tests do this so
//! far; the layout is what they keep honest.

use super::*;
use crate::page::PageIndex;
use crate::region::Region;
use crate::store::slot::Words;

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
        let memory = arena::Memory {
            region: remains.arena,
        };
        let store = Store::over(config, &pool_config, table, memory)?;
        for index in (0..slots).map(PageIndex) {
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
        }
        store.pool.adopted();
        Ok(store)
    }
}
