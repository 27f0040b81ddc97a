//! The look at a unit before it is compressed: is it made of words, as heaps are?

/// Lines looked at per unit, spread evenly and each at another place of its part.
const LINES: usize = 8;
const LINE_BYTES: usize = 64;

/// Small words, of the 64 looked at, from which a unit is tried as words. In the mean text has
/// none, pages of SQLite one or less, and heaps 35 and more.
const SMALL_FROM: u32 = 24;
/// Bits of a pointer of a process, and more than most counts have.
const SMALL_BITS: u32 = 48;

/// Whether `unit` is worth a try as words. A wrong answer costs time or density and nothing else.
pub(super) fn is_words(unit: &[u8]) -> bool {
    let (lines, _) = unit.as_chunks::<LINE_BYTES>();
    let part = lines.len() / LINES;
    let sample =
        (0..LINES).filter_map(|nth| lines.get(nth * part + nth * 5 % LINES * part / LINES));
    sample.map(small_words).sum::<u32>() >= SMALL_FROM
}

fn small_words(line: &[u8; LINE_BYTES]) -> u32 {
    let words = line.as_chunks().0.iter();
    let small = |word: &[u8; 8]| u32::from(u64::from_le_bytes(*word) >> SMALL_BITS == 0);
    words.map(small).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(word: impl Fn(u64) -> u64) -> Vec<u8> {
        (0..512).flat_map(|at| word(at).to_le_bytes()).collect()
    }

    #[test]
    fn pointers_and_numbers_are_words_and_text_and_noise_are_not() {
        assert!(is_words(&unit(|at| 0x7f12_3400_0000 + at * 48)));
        assert!(is_words(&unit(|at| at * at)));
        let text: Vec<u8> = b"fn main() { let it = 1; }\n"
            .iter()
            .copied()
            .cycle()
            .take(4096)
            .collect();
        assert!(!is_words(&text));
        assert!(!is_words(&uzram_testkit::noise(1, 4096)));
        assert!(!is_words(&[b'x'; 63]), "too short for a look");
        is_words(&[b'x'; 511]);
    }
}
