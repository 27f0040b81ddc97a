//! Pages for those who have none of their own yet, as corpora.

use uzram_testkit::pages;

use crate::corpus::Corpus;

/// The corpora that are measured where none is named.
pub(crate) fn corpora() -> Vec<Corpus> {
    pages::synthetic()
        .map(|(name, pages)| named(name, &pages))
        .into()
}

/// As fio's `buffer_compress_percentage` makes them; less than 100.
pub(crate) fn fio(percentage: usize, pages: usize) -> Corpus {
    let name = format!("fio-compress-{percentage}");
    named(&name, &pages::fio(percentage, pages))
}

fn named(name: &str, pages: &[u8]) -> Corpus {
    Corpus::new(name, pages).expect("no generator makes same-filled pages only")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpora_are_of_several_kinds() {
        let corpora = corpora();
        assert!(corpora.len() >= 3);
        for corpus in &corpora {
            assert_eq!(corpus.total_pages(), pages::SYNTHETIC_PAGES);
        }
        assert!(corpora[1].same_filled_pages() > pages::SYNTHETIC_PAGES / 20);
        assert_eq!(fio(50, 4).pages(), pages::fio(50, 4));
    }
}
