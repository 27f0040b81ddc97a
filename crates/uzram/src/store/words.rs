//! The words of the slot table: in a region, or, under the model checker, objects that it tracks.

use crate::error::{Error, ErrorKind};

pub(crate) use imp::Words;

pub(crate) fn too_many() -> Error {
    Error::new(
        ErrorKind::NoMemory,
        "the slot table exceeds the address space",
    )
}

#[cfg(not(uzram_shuttle))]
mod imp {
    use crate::error::Result;
    use crate::region::{Backing, Region};
    use crate::store::lock::Word;

    #[derive(Debug)]
    pub(crate) struct Words {
        region: Region,
    }

    impl Words {
        pub(crate) fn reserve(words: u64, backing: Backing) -> Result<Words> {
            let bytes = words.checked_mul(size_of::<Word>() as u64);
            let bytes = bytes
                .and_then(|bytes| usize::try_from(bytes).ok())
                .ok_or_else(super::too_many)?;
            Ok(Words {
                region: Region::reserve(bytes, backing)?,
            })
        }

        pub(crate) fn populate(&self) -> Result<()> {
            self.region.populate(0..self.region.length_bytes())
        }

        /// Words that go back at once: those of a page of the system.
        pub(crate) fn page_words(&self) -> usize {
            self.region.page_bytes() / size_of::<Word>()
        }

        /// Drops the page that begins with the word at `place`; false if the system keeps it.
        pub(crate) fn release(&self, place: usize) -> bool {
            let start = place * size_of::<Word>();
            self.region.release(start..start + self.region.page_bytes())
        }

        #[inline]
        pub(crate) fn at(&self, place: usize) -> &Word {
            &self.region.words()[place]
        }

        #[cfg(test)]
        pub(crate) fn over(region: Region) -> Words {
            Words { region }
        }

        /// The first word from `place` on in a page of the table that is there.
        #[cfg(test)]
        pub(crate) fn next_resident(&self, place: u64) -> Option<u64> {
            let offset = self.region.next_data(place as usize * size_of::<Word>())?;
            Some((offset / size_of::<Word>()) as u64)
        }

        #[cfg(test)]
        pub(crate) fn region(&self) -> &Region {
            &self.region
        }
    }
}

#[cfg(uzram_shuttle)]
mod imp {
    use shuttle::rand::Rng;

    use crate::error::Result;
    use crate::region::Backing;
    use crate::store::lock::Word;
    use crate::sync::Ordering;

    #[derive(Debug)]
    pub(crate) struct Words {
        words: Vec<Word>,
    }

    impl Words {
        pub(crate) fn reserve(words: u64, _backing: Backing) -> Result<Words> {
            Ok(Words {
                words: (0..words).map(|_| Word::new(0)).collect(),
            })
        }

        pub(crate) fn populate(&self) -> Result<()> {
            Ok(())
        }

        /// In a model a page is a word.
        pub(crate) fn page_words(&self) -> usize {
            1
        }

        /// A system may refuse.
        pub(crate) fn release(&self, place: usize) -> bool {
            let drops = shuttle::rand::thread_rng().gen_bool(0.8);
            if drops {
                self.words[place].store(0, Ordering::SeqCst);
            }
            drops
        }

        pub(crate) fn at(&self, place: usize) -> &Word {
            &self.words[place]
        }
    }
}
