//! The compressed pages of all processes. A page that a program and its children have in common is stored once.

use std::fs::File;
use std::sync::Arc;

use uzram::{PageIndex, Result, Store};

use crate::spill::Spill;
use crate::units::PAGE_BYTES;

/// A stored page, by its index in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Object(u32);

/// The store, and how many address spaces have each of its pages.
pub(crate) struct Objects {
    store: Arc<Store>,
    spill: Option<Spill>,
    owners: Vec<u32>,
    free: Vec<u32>,
}

/// Pages that the store can hold at most: 4 TiB. Its tables grow with what is used.
const PAGES_MAX: u64 = 1 << 30;

impl Objects {
    /// None yet. Those that do not compress go to `spill`, if there is one.
    ///
    /// # Errors
    /// [`uzram::ErrorKind::UnknownName`] for an algorithm that there is not; a backing file's.
    pub(crate) fn new(algorithm: &str, spill: Option<File>) -> Result<Objects> {
        let mut builder = Store::builder()
            .size(PAGES_MAX * PAGE_BYTES as u64)
            .algorithm(algorithm);
        let spills = spill.is_some();
        if let Some(file) = spill {
            builder = builder.backing_file(file);
        }
        let store = Arc::new(builder.build()?);
        let spill = spills
            .then(|| Spill::begin(Arc::clone(&store)))
            .transpose()?;
        Ok(Objects {
            store,
            spill,
            owners: Vec::new(),
            free: Vec::new(),
        })
    }

    /// Stores `page`, which has one owner then.
    ///
    /// # Errors
    /// The store's: no memory.
    pub(crate) fn put(&mut self, page: &[u8]) -> Result<Object> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.owners.push(0);
                self.owners.len() as u32 - 1
            }
        };
        if let Err(error) = self.store.write(PageIndex(index.into()), page) {
            self.free.push(index);
            return Err(error);
        }
        self.owners[index as usize] = 1;
        Ok(Object(index))
    }

    /// Reads `object` into `page`.
    ///
    /// # Errors
    /// The store's: damaged.
    pub(crate) fn get(&self, object: Object, page: &mut [u8]) -> Result<()> {
        self.store.read(PageIndex(object.0.into()), page)
    }

    /// One more has it.
    pub(crate) fn keep(&mut self, object: Object) {
        self.owners[object.0 as usize] += 1;
    }

    /// One less has it. Without owners its memory is free.
    pub(crate) fn drop(&mut self, object: Object) {
        let owners = &mut self.owners[object.0 as usize];
        *owners -= 1;
        if *owners == 0 {
            // A trim fails for an index beyond the size only.
            let _ = self.store.trim(PageIndex(object.0.into()));
            self.free.push(object.0);
        }
    }

    /// Pages that are stored.
    pub(crate) fn pages(&self) -> usize {
        self.owners.len() - self.free.len()
    }

    /// Lets those that do not compress go to the file. If too many wait for that it takes some time.
    pub(crate) fn spill(&self) {
        if let Some(spill) = &self.spill {
            spill.note(self.store.stats().huge_pages);
        }
    }

    /// The reason why pages stay in memory that could be in the file, once.
    pub(crate) fn spill_failure(&self) -> Option<String> {
        self.spill.as_ref()?.failure()
    }

    /// The store.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_lives_as_long_as_it_has_owners() {
        let mut objects = Objects::new("lz4", None).unwrap();
        let (first, second) = ([1; PAGE_BYTES], [2; PAGE_BYTES]);
        let one = objects.put(&first).unwrap();
        let two = objects.put(&second).unwrap();
        objects.keep(one);
        objects.drop(one);
        let mut page = [0; PAGE_BYTES];
        objects.get(one, &mut page).unwrap();
        assert_eq!(page, first);
        objects.drop(one);
        assert_eq!(objects.pages(), 1);
        let three = objects.put(&first).unwrap();
        assert_eq!(three, one);
        objects.get(two, &mut page).unwrap();
        assert_eq!(page, second);
    }
}
