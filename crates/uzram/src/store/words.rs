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
    use std::ops::Range;
    use std::os::fd::OwnedFd;

    use crate::error::Result;
    use crate::region::{Backing, Region};
    use crate::store::lock::Word;

    #[derive(Debug)]
    pub(crate) struct Words {
        region: Region,
    }

    impl Words {
        pub(crate) fn reserve(words: u64, backing: Backing) -> Result<Words> {
            Ok(Words {
                region: Region::reserve(length_bytes(words)?, backing)?,
            })
        }

        #[cfg(test)]
        pub(crate) fn over(region: Region) -> Words {
            Words { region }
        }

        /// The words of a table that another process made.
        pub(crate) fn attach(file: OwnedFd, words: u64) -> Result<Words> {
            Ok(Words {
                region: Region::attach(file, length_bytes(words)?, "table")?,
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

        /// The next words of `places` in pages of the table that are there; some behind a page's end are not.
        pub(crate) fn next_resident(&self, places: Range<u64>) -> Option<Range<u64>> {
            let word_bytes = size_of::<Word>();
            let start = places.start as usize * word_bytes;
            let data = self.region.next_data(start)?;
            let first = ((data.start / word_bytes) as u64).max(places.start);
            let end = (data.end.div_ceil(word_bytes) as u64).min(places.end);
            (first < end).then_some(first..end)
        }

        pub(crate) fn region(&self) -> &Region {
            &self.region
        }
    }

    fn length_bytes(words: u64) -> Result<usize> {
        let bytes = words.checked_mul(size_of::<Word>() as u64);
        bytes
            .and_then(|bytes| usize::try_from(bytes).ok())
            .ok_or_else(super::too_many)
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
