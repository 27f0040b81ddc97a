//! Pages to measure on: files of whole 4 KiB pages.

use std::io::Read;
use std::path::Path;

use uzram::file::open_regular;

use crate::error::{Error, Result};

/// Size of a page, in bytes. The suites measure units of 4 KiB, as their peers store.
pub const PAGE_BYTES: usize = 4096;
/// Pages that a capture takes from one place.
const RUN_PAGES: usize = 16;
/// Largest corpus read, in bytes.
const CORPUS_MAX_BYTES: u64 = 4 << 30;

/// Pages under a name, same-filled ones apart.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// The file's name without its ending, or that of the generator.
    pub name: String,
    /// Pages that some 64-bit word does not fill; never empty.
    pages: Vec<u8>,
    /// The run in which each of them was captured.
    runs: Vec<u32>,
    /// Pages that repeat one 64-bit word: the kernel's zram stores them for nothing.
    same_filled: Vec<u8>,
}

impl Corpus {
    /// Reads a file of whole pages.
    pub fn load(path: &Path) -> Result<Corpus> {
        let shown = path.display();
        let failed = |error| Error::Usage(format!("corpus {shown}: {error}; name a file of pages"));
        let mut file = open_regular(path).map_err(failed)?;
        let length_bytes = file.metadata().map_err(failed)?.len();
        let refused = match length_bytes {
            0 => Some("empty; it must hold whole 4096-byte pages".to_owned()),
            n if n % PAGE_BYTES as u64 != 0 => {
                Some(format!("{n} bytes; must be a multiple of 4096"))
            }
            n if n > CORPUS_MAX_BYTES => Some(format!("{n} bytes; at most {CORPUS_MAX_BYTES}")),
            _ => None,
        };
        if let Some(why) = refused {
            return Err(Error::Usage(format!("corpus {shown}: {why}")));
        }
        let mut bytes = vec![0; length_bytes as usize];
        file.read_exact(&mut bytes).map_err(failed)?;
        let name = path.file_stem().unwrap_or(path.as_os_str());
        Corpus::new(&name.to_string_lossy(), &bytes)
    }

    /// Pages under a name.
    ///
    /// # Errors
    /// [`Error::Usage`] if no page is left without the same-filled ones.
    pub fn new(name: &str, bytes: &[u8]) -> Result<Corpus> {
        let (mut pages, mut runs, mut same_filled) = (Vec::new(), Vec::new(), Vec::new());
        for (place, page) in bytes.chunks_exact(PAGE_BYTES).enumerate() {
            if is_same_filled(page) {
                same_filled.extend_from_slice(page);
            } else {
                pages.extend_from_slice(page);
                runs.push(run_of(place));
            }
        }
        if pages.is_empty() {
            let why = "every page repeats one word; there is nothing to compress";
            return Err(Error::Usage(format!("corpus {name}: {why}")));
        }
        Ok(Corpus {
            name: name.to_owned(),
            pages,
            runs,
            same_filled,
        })
    }

    /// Number of pages, same-filled ones included.
    pub fn total_pages(&self) -> usize {
        (self.pages.len() + self.same_filled.len()) / PAGE_BYTES
    }

    /// Number of same-filled pages.
    pub fn same_filled_pages(&self) -> usize {
        self.same_filled.len() / PAGE_BYTES
    }

    /// The pages that are not same-filled, one after another.
    pub fn pages(&self) -> &[u8] {
        &self.pages
    }

    /// The pages that are not same-filled, of every other run and of the rest: neighbours resemble
    /// each other, so results from one half must be judged by the other.
    pub fn halves(&self) -> [Vec<&[u8]>; 2] {
        let mut halves = [Vec::new(), Vec::new()];
        for (page, run) in self.pages.chunks_exact(PAGE_BYTES).zip(&self.runs) {
            halves[*run as usize % 2].push(page);
        }
        halves
    }

    /// The same-filled pages, one after another.
    pub fn same_filled(&self) -> &[u8] {
        &self.same_filled
    }
}

/// The run to which the page at `place` of a capture belongs.
fn run_of(place: usize) -> u32 {
    (place / RUN_PAGES) as u32
}

/// Gives corpora of the same name numbers, so that the cases of a report have distinct names.
pub fn make_names_distinct(corpora: &mut [Corpus]) {
    for at in 1..corpora.len() {
        let (before, rest) = corpora.split_at_mut(at);
        let name = rest[0].name.clone();
        let mut number = 1;
        while before.iter().any(|other| other.name == rest[0].name) {
            number += 1;
            rest[0].name = format!("{name}-{number}");
        }
    }
}

/// Whether one 64-bit word fills the page: the kernel's notion, wider than uzram's 32-bit one.
fn is_same_filled(page: &[u8]) -> bool {
    page[8..] == page[..page.len() - 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(bytes: Option<&[u8]>) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pages");
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        let error = Corpus::load(&path).unwrap_err();
        assert_eq!(error.exit_status(), 2);
        let text = error.to_string();
        assert!(
            text.contains("x.pages") || text.contains("corpus x"),
            "{text}"
        );
        assert!(!text.contains('\n'), "{text}");
        text
    }

    #[test]
    fn a_file_that_is_no_corpus_is_refused_in_one_line() {
        assert!(refused(None).contains("No such file"));
        assert!(refused(Some(&[])).contains("empty"));
        assert!(refused(Some(&[1; 4097])).contains("4097 bytes; must be a multiple of 4096"));
        assert!(refused(Some(&[7; 8192])).contains("every page repeats one word"));
        let folder = tempfile::tempdir().unwrap();
        let error = Corpus::load(folder.path()).unwrap_err();
        assert!(error.to_string().contains("not a regular file"));
    }

    #[test]
    fn same_filled_pages_are_taken_out_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mixed.pages");
        let mut bytes = vec![0; 3 * PAGE_BYTES];
        bytes[PAGE_BYTES..2 * PAGE_BYTES]
            .iter_mut()
            .enumerate()
            .for_each(|(at, byte)| *byte = (at % 8) as u8);
        bytes[2 * PAGE_BYTES + 100] = 1;
        std::fs::write(&path, &bytes).unwrap();
        let corpus = Corpus::load(&path).unwrap();
        assert_eq!(corpus.name, "mixed");
        assert_eq!((corpus.total_pages(), corpus.same_filled_pages()), (3, 2));
        assert_eq!(corpus.pages(), &bytes[2 * PAGE_BYTES..]);
        assert_eq!(corpus.same_filled(), &bytes[..2 * PAGE_BYTES]);
    }

    #[test]
    fn halves_share_no_run() {
        let page = |n: usize| {
            let mut page = vec![n as u8; PAGE_BYTES];
            page[0] = !page[0];
            page
        };
        let mut bytes: Vec<u8> = (0..40).flat_map(page).collect();
        bytes[3 * PAGE_BYTES] = 3;
        let [even, odd] = Corpus::new("x", &bytes).unwrap().halves().map(|half| {
            let numbers = half.iter().map(|page| page[1]);
            numbers.collect::<Vec<u8>>()
        });
        let expected = (0..3).chain(4..16).chain(32..40);
        assert_eq!(even, expected.collect::<Vec<u8>>());
        assert_eq!(odd, (16..32).collect::<Vec<u8>>());
    }

    #[test]
    fn equal_names_get_numbers() {
        let mut corpora =
            vec![Corpus::new("pages", &uzram_testkit::noise(1, PAGE_BYTES)).unwrap(); 3];
        make_names_distinct(&mut corpora);
        let names: Vec<&str> = corpora.iter().map(|corpus| corpus.name.as_str()).collect();
        assert_eq!(names, ["pages", "pages-2", "pages-3"]);
    }
}
