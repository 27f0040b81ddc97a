//! Pages to measure on: files of whole 4 KiB pages, or the built-in synthetic ones.
//!
//! The synthetic corpora let the tool work anywhere and give the same bytes everywhere. They
//! imitate real pages and do not replace them: quote figures from captured pages.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};
use crate::rng::Rng;

/// Size of a page, in bytes. The suites measure units of 4 KiB, as their peers store.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Pages that a capture takes from one place.
const RUN_PAGES: usize = 16;
/// Largest corpus read, in bytes.
const CORPUS_MAX_BYTES: u64 = 4 << 30;
/// Pages of each synthetic corpus.
const SYNTHETIC_PAGES: usize = 2048;

/// Pages under a name, same-filled ones apart.
#[derive(Clone, Debug)]
pub(crate) struct Corpus {
    pub(crate) name: String,
    /// Pages that some 64-bit word does not fill; never empty.
    pages: Vec<u8>,
    /// The run in which each of them was captured.
    runs: Vec<u32>,
    /// Pages that repeat one 64-bit word: the kernel's zram stores them for nothing.
    same_filled: Vec<u8>,
}

impl Corpus {
    /// Reads a file of whole pages.
    pub(crate) fn load(path: &Path) -> Result<Corpus> {
        let shown = path.display();
        let failed = |error| Error::Usage(format!("corpus {shown}: {error}; name a file of pages"));
        let mut file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(Error::Usage(format!("corpus {shown}: not a regular file")));
        }
        let length_bytes = metadata.len();
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

    /// The built-in corpora.
    pub(crate) fn synthetic() -> Vec<Corpus> {
        let kinds: [(&str, MakePage); 3] = [
            ("synthetic-text", text_page),
            ("synthetic-heap", heap_page),
            ("synthetic-mixed", mixed_page),
        ];
        let corpora = kinds.iter().enumerate().map(|(seed, (name, make))| {
            let mut rng = Rng::new(seed as u64);
            let mut bytes = vec![0; SYNTHETIC_PAGES * PAGE_BYTES];
            for page in bytes.chunks_exact_mut(PAGE_BYTES) {
                make(&mut rng, page);
            }
            Corpus::new(name, &bytes).expect("no generator makes only same-filled pages")
        });
        corpora.collect()
    }

    /// Pages as fio's `buffer_compress_percentage=PERCENTAGE refill_buffers` writes them.
    ///
    /// Of each 512 bytes (fio's default `buffer_compress_chunk`) `percentage` in a hundred are zero
    /// and the others random, and no two pages are alike.
    pub(crate) fn fio(percentage: usize, pages: usize) -> Corpus {
        const COMPRESS_CHUNK_BYTES: usize = 512;
        let random_bytes = COMPRESS_CHUNK_BYTES * (100 - percentage.min(100)) / 100;
        let mut rng = Rng::new(0x0f10);
        let mut bytes = vec![0; pages * PAGE_BYTES];
        for chunk in bytes.chunks_exact_mut(COMPRESS_CHUNK_BYTES) {
            rng.fill(&mut chunk[..random_bytes]);
        }
        Corpus {
            name: format!("fio-compress-{percentage}"),
            runs: (0..pages).map(run_of).collect(),
            pages: bytes,
            same_filled: Vec::new(),
        }
    }

    fn new(name: &str, bytes: &[u8]) -> Result<Corpus> {
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
    pub(crate) fn total_pages(&self) -> usize {
        (self.pages.len() + self.same_filled.len()) / PAGE_BYTES
    }

    pub(crate) fn same_filled_pages(&self) -> usize {
        self.same_filled.len() / PAGE_BYTES
    }

    /// The pages that are not same-filled, one after another.
    pub(crate) fn pages(&self) -> &[u8] {
        &self.pages
    }

    /// The pages that are not same-filled, of every other run and of the rest: neighbours resemble
    /// each other, so what is learned from one half must be judged by the other.
    pub(crate) fn halves(&self) -> [Vec<&[u8]>; 2] {
        let mut halves = [Vec::new(), Vec::new()];
        for (page, run) in self.pages.chunks_exact(PAGE_BYTES).zip(&self.runs) {
            halves[*run as usize % 2].push(page);
        }
        halves
    }

    /// The same-filled pages, one after another.
    pub(crate) fn same_filled(&self) -> &[u8] {
        &self.same_filled
    }
}

/// The run to which the page at `place` of a capture belongs.
fn run_of(place: usize) -> u32 {
    (place / RUN_PAGES) as u32
}

/// Gives corpora of the same name numbers, so that the cases of a report have distinct names.
pub(crate) fn make_names_distinct(corpora: &mut [Corpus]) {
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

/// Fills a page of a synthetic corpus.
type MakePage = fn(&mut Rng, &mut [u8]);

/// Words by falling frequency, in lines with indents.
fn text_page(rng: &mut Rng, page: &mut [u8]) {
    const WORDS: usize = 700;
    let mut at = 0;
    while at < page.len() {
        // The square skews the draw to the frequent words.
        let draw = rng.below(WORDS);
        let word = draw * draw / WORDS;
        let mut letters = Rng::new(word as u64);
        let length = 2 + letters.below(3 + word / 80);
        let separator = if rng.below(9) == 0 { b'\n' } else { b' ' };
        for position in 0..=length {
            let Some(byte) = page.get_mut(at + position) else {
                break;
            };
            *byte = if position == length {
                separator
            } else {
                b'a' + letters.below(26) as u8
            };
        }
        at += length + 1;
    }
}

/// Objects of a managed heap: a type pointer, a reference count, pointers to neighbours, small
/// integers, short strings; one page in eight was freed and cleared.
fn heap_page(rng: &mut Rng, page: &mut [u8]) {
    const ARENA_BASE: u64 = 0x7f3a_5c00_0000;
    if rng.below(8) == 0 {
        page.fill(0);
        return;
    }
    let types: Vec<u64> = (0..5).map(|n| 0x55d0_1c00_a000 + n * 0x1a0).collect();
    let locality = rng.below(1 << 14) as u64 * 4096;
    for object in page.chunks_exact_mut(64) {
        for (field, bytes) in object.chunks_exact_mut(8).enumerate() {
            let word = match (field, rng.below(10)) {
                (0, _) => 1 + rng.below(3) as u64,
                (1, _) => types[rng.below(types.len())],
                (_, 0..=3) => ARENA_BASE + locality + rng.below(1 << 12) as u64 * 16,
                (_, 4..=5) => rng.below(1000) as u64,
                (_, 6) => u64::from_le_bytes(*b"name=val") ^ (rng.below(64) as u64) << 40,
                (_, 7) => rng.next(),
                _ => 0,
            };
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Half the pages hold nothing but random bytes, as compressed or encrypted data does.
fn mixed_page(rng: &mut Rng, page: &mut [u8]) {
    match rng.below(4) {
        0 => text_page(rng, page),
        1 => heap_page(rng, page),
        _ => rng.fill(page),
    }
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
    fn the_synthetic_corpora_are_the_same_everywhere_and_of_several_kinds() {
        let corpora = Corpus::synthetic();
        let again = Corpus::synthetic();
        assert!(corpora.len() >= 3);
        for (corpus, twin) in corpora.iter().zip(&again) {
            assert_eq!(corpus.pages(), twin.pages());
            assert_eq!(corpus.total_pages(), SYNTHETIC_PAGES);
        }
        let sums = corpora.iter().map(|corpus| {
            corpus
                .pages()
                .iter()
                .fold(0u32, |sum, &b| sum.rotate_left(5) ^ u32::from(b))
        });
        let sums: Vec<u32> = sums.collect();
        assert_eq!(
            sums,
            [0xdc28_f005, 0x0ad0_30c9, 0xa5e8_c37b],
            "the generators changed: older figures do not compare"
        );
        assert!(corpora[1].same_filled_pages() > SYNTHETIC_PAGES / 20);
    }

    #[test]
    fn fio_pages_are_half_random_half_zero_in_each_512_bytes() {
        let corpus = Corpus::fio(50, 4);
        for chunk in corpus.pages().chunks_exact(512) {
            assert!(chunk[256..].iter().all(|&byte| byte == 0));
            assert!(chunk[..256].iter().filter(|&&byte| byte == 0).count() < 10);
        }
        assert_ne!(corpus.pages()[..4096], corpus.pages()[4096..8192]);
    }

    #[test]
    fn equal_names_get_numbers() {
        let mut corpora = vec![Corpus::fio(50, 1); 3];
        make_names_distinct(&mut corpora);
        let names: Vec<&str> = corpora.iter().map(|corpus| corpus.name.as_str()).collect();
        assert_eq!(
            names,
            ["fio-compress-50", "fio-compress-50-2", "fio-compress-50-3"]
        );
    }
}
