//! The look at a unit before it is compressed: is it made of words, as heaps are?

/// Lines looked at per unit, spread evenly and each at another place of its part.
const LINES: usize = 8;
const LINE_BYTES: usize = 64;

/// Small words, in eighths of those that are not zero, from which a unit is tried as words. In the mean text has none, and
/// heaps more than half. Zeroes say nothing: the rest of a file's last page is zero, whatever the file is.
const SMALL_EIGHTHS: u32 = 3;
/// Words looked at.
const ALL: u32 = (LINES * LINE_BYTES / 8) as u32;
/// Bits of a pointer of a process, and more than most counts have.
const SMALL_BITS: u32 = 48;

/// Whether `unit` is worth a try as words. A wrong answer costs time or density and nothing else.
pub(super) fn is_words(unit: &[u8]) -> bool {
    // Zeroes are small, too. Where there are too few of both, which says so for text at once, nothing else is counted.
    let small = count(unit, |word| word >> SMALL_BITS == 0);
    8 * small >= SMALL_EIGHTHS * ALL && {
        let zero = count(unit, |word| word == 0);
        8 * (small - zero) >= SMALL_EIGHTHS * (ALL - zero)
    }
}

/// How many of the words looked at are as asked.
#[inline]
fn count(unit: &[u8], is_it: impl Fn(u64) -> bool) -> u32 {
    let (lines, _) = unit.as_chunks::<LINE_BYTES>();
    let part = lines.len() / LINES;
    let sample =
        (0..LINES).filter_map(|nth| lines.get(nth * part + nth * 5 % LINES * part / LINES));
    sample
        .map(|line| {
            let words = line.as_chunks().0.iter();
            let one = |word: &[u8; 8]| u32::from(is_it(u64::from_le_bytes(*word)));
            words.map(one).sum::<u32>()
        })
        .sum()
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
        // The rest of a file's last page.
        let tail = [&text[..1000], &[0; 3096]].concat();
        assert!(!is_words(&tail));
        assert!(is_words(&unit(|at| if at < 300 { 0 } else { at * 48 })));
        assert!(!is_words(&[b'x'; 63]), "too short for a look");
        is_words(&[b'x'; 511]);
    }
}
