//! WKdm, the codec made for pages of a program's words, from the paper that published it: Wilson, Kaplan and
//! Smaragdakis, "The Case for Compressed Caching in Virtual Memory Systems", USENIX 1999.
//!
//! A page is words of 32 bits. A direct-mapped dictionary of 16 recent words is looked up by a word's upper 22
//! bits. Each word gets a tag of two bits: zero, all of an entry, the upper 22 bits of an entry, or none.
//! The four kinds of parts lie apart: tags, whole words, places in the dictionary (four bits each), and the lower
//! ten bits of partial matches, three to a word of 32 bits. The header has the lengths of the last three.
//!
//! The paper's hash is a table of random numbers in which each place stands equally often. A multiplication
//! by an odd number spreads as evenly.

/// Words of the dictionary.
const ENTRIES: usize = 16;
const LOW_BITS: u32 = 10;
const LOW_MASK: u32 = (1 << LOW_BITS) - 1;
/// Partial matches that share a word.
const LOWS_A_WORD: usize = 3;
const WORD_BYTES: usize = 4;
/// Lengths: whole words, places, partial matches.
const HEADER_BYTES: usize = 3 * 2;
/// Words of a page of 4 KiB, the only size.
const WORDS: usize = 1024;
const PAGE_BYTES: usize = WORDS * WORD_BYTES;
const TAGS_BYTES: usize = WORDS / 4;

const ZERO: u8 = 0;
const PARTIAL: u8 = 1;
const MISS: u8 = 2;
const EXACT: u8 = 3;

/// The lists that a page becomes, reused for the next one.
pub(crate) struct Wkdm {
    tags: [u8; WORDS],
    misses: [u32; WORDS],
    places: [u8; WORDS],
    lows: [u32; WORDS],
}

impl Wkdm {
    pub(crate) fn new() -> Box<Wkdm> {
        Box::new(Wkdm {
            tags: [0; WORDS],
            misses: [0; WORDS],
            places: [0; WORDS],
            lows: [0; WORDS],
        })
    }

    /// Compresses a page of 4 KiB into the start of `packed`; the length in bytes, `None` if that is too short.
    pub(crate) fn compress(&mut self, page: &[u8; PAGE_BYTES], packed: &mut [u8]) -> Option<usize> {
        let mut dictionary = [0u32; ENTRIES];
        let (mut misses, mut places, mut lows) = (0, 0, 0);
        for (bytes, tag) in page.as_chunks::<WORD_BYTES>().0.iter().zip(&mut self.tags) {
            let word = u32::from_le_bytes(*bytes);
            if word == 0 {
                *tag = ZERO;
                continue;
            }
            let place = place_of(word);
            let known = dictionary[place];
            if known == word {
                *tag = EXACT;
                self.places[places] = place as u8;
                places += 1;
                continue;
            }
            dictionary[place] = word;
            if known >> LOW_BITS == word >> LOW_BITS {
                *tag = PARTIAL;
                self.places[places] = place as u8;
                self.lows[lows] = word & LOW_MASK;
                places += 1;
                lows += 1;
            } else {
                *tag = MISS;
                self.misses[misses] = word;
                misses += 1;
            }
        }
        self.pack([misses, places, lows], packed)
    }

    fn pack(&self, lengths: [usize; 3], packed: &mut [u8]) -> Option<usize> {
        let [misses, places, lows] = lengths;
        let mut out = Writer { packed, at: 0 };
        for length in lengths {
            out.put((length as u16).to_le_bytes())?;
        }
        for four in self.tags.as_chunks::<4>().0 {
            out.put([four[0] | four[1] << 2 | four[2] << 4 | four[3] << 6])?;
        }
        for word in &self.misses[..misses] {
            out.put(word.to_le_bytes())?;
        }
        for pair in self.places[..places].chunks(2) {
            out.put([pair[0] | pair.get(1).unwrap_or(&0) << 4])?;
        }
        for some in self.lows[..lows].chunks(LOWS_A_WORD) {
            let shifted = (0..).zip(some).map(|(nth, low)| low << (nth * LOW_BITS));
            out.put(shifted.sum::<u32>().to_le_bytes())?;
        }
        Some(out.at)
    }

    /// Fills `page` from all of `packed`; `None` if that is no page.
    pub(crate) fn decompress(&mut self, packed: &[u8], page: &mut [u8; PAGE_BYTES]) -> Option<()> {
        let [misses, places, lows] = self.unpack(packed)?;
        let mut misses = self.misses[..misses].iter();
        let mut places = self.places[..places].iter();
        let mut lows = self.lows[..lows].iter();
        let mut dictionary = [0u32; ENTRIES];
        let words = page.as_chunks_mut::<WORD_BYTES>().0.iter_mut();
        for (bytes, tag) in words.zip(&self.tags) {
            let word = match *tag {
                ZERO => 0,
                EXACT => dictionary[usize::from(*places.next()?) % ENTRIES],
                MISS => {
                    let word = *misses.next()?;
                    dictionary[place_of(word)] = word;
                    word
                }
                _ => {
                    let entry = &mut dictionary[usize::from(*places.next()?) % ENTRIES];
                    *entry = *entry & !LOW_MASK | lows.next()?;
                    *entry
                }
            };
            *bytes = word.to_le_bytes();
        }
        Some(())
    }

    /// Spreads the lists out; their lengths. Each may be filled to a whole group beyond its length.
    fn unpack(&mut self, packed: &[u8]) -> Option<[usize; 3]> {
        let (header, rest) = packed.split_at_checked(HEADER_BYTES)?;
        let length =
            |nth: usize| usize::from(u16::from_le_bytes([header[2 * nth], header[2 * nth + 1]]));
        let lengths = [length(0), length(1), length(2)];
        if lengths.iter().any(|length| *length > WORDS) {
            return None;
        }
        let (tags, rest) = rest.split_at_checked(TAGS_BYTES)?;
        let (misses, rest) = rest.split_at_checked(lengths[0] * WORD_BYTES)?;
        let (places, lows) = rest.split_at_checked(lengths[1].div_ceil(2))?;
        if lows.len() != lengths[2].div_ceil(LOWS_A_WORD) * WORD_BYTES {
            return None;
        }
        for (four, byte) in self.tags.as_chunks_mut::<4>().0.iter_mut().zip(tags) {
            *four = [0, 2, 4, 6].map(|shift| byte >> shift & 3);
        }
        for (word, bytes) in self.misses.iter_mut().zip(misses.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        for (pair, byte) in self.places.chunks_mut(2).zip(places) {
            pair.copy_from_slice(&[byte & 0xf, byte >> 4]);
        }
        for (three, bytes) in self.lows.chunks_mut(LOWS_A_WORD).zip(lows.as_chunks().0) {
            let packed = u32::from_le_bytes(*bytes);
            for (nth, low) in (0..).zip(three) {
                *low = packed >> (nth * LOW_BITS) & LOW_MASK;
            }
        }
        Some(lengths)
    }
}

/// Where the dictionary has a word, by its upper bits.
fn place_of(word: u32) -> usize {
    usize::from(((word >> LOW_BITS) as u8).wrapping_mul(0x9d) >> 4)
}

/// Bytes from the start of a buffer on.
struct Writer<'a> {
    packed: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) -> Option<()> {
        *self.packed.get_mut(self.at..)?.first_chunk_mut()? = bytes;
        self.at += N;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uzram_testkit::Rng;

    fn pack(page: &[u8; PAGE_BYTES]) -> Vec<u8> {
        let mut packed = vec![0; 2 * PAGE_BYTES];
        let length = Wkdm::new().compress(page, &mut packed).unwrap();
        packed.truncate(length);
        packed
    }

    fn page(word: impl FnMut(usize) -> u32) -> [u8; PAGE_BYTES] {
        let words: Vec<u8> = (0..WORDS).map(word).flat_map(u32::to_le_bytes).collect();
        words.try_into().unwrap()
    }

    #[test]
    fn each_kind_of_word_takes_what_the_paper_says() {
        let fixed = HEADER_BYTES + TAGS_BYTES;
        // A zero: nothing. A miss: four bytes. An exact match: half a byte. A partial one: with ten bits more.
        assert_eq!(pack(&page(|_| 0)).len(), fixed);
        assert_eq!(
            pack(&page(|_| 0xdead_beef)).len(),
            fixed + 4 + 1023_usize.div_ceil(2)
        );
        let partial = pack(&page(|nth| 0xdead_b000 + nth as u32 % 2 * 7));
        assert_eq!(
            partial.len(),
            fixed + 4 + 1023_usize.div_ceil(2) + 1023 / 3 * 4
        );
        let upper = pack(&page(|nth| (nth as u32 + 1) << 18));
        assert_eq!(upper.len(), fixed + 4 * 1024);
    }

    #[test]
    fn pages_come_back_and_mutated_ones_never_panic() {
        let (mut rng, mut wkdm) = (Rng::new(0x3d), Wkdm::new());
        for round in 0..400 {
            let spread = 1 + round % 32;
            let original = page(|_| {
                let kinds = [
                    0,
                    0x1234_5400 | rng.below(1 << spread.min(10)) as u32,
                    rng.below_u64(1 << spread) as u32,
                ];
                kinds[rng.below(3)]
            });
            let mut packed = pack(&original);
            let mut back = [0xff; PAGE_BYTES];
            wkdm.decompress(&packed, &mut back).unwrap();
            assert_eq!(back, original);
            let at = rng.below(packed.len());
            assert_eq!(
                wkdm.decompress(&packed[..at], &mut back),
                None,
                "cut to {at}"
            );
            packed[at] ^= 1 << rng.below(8);
            let _ = wkdm.decompress(&packed, &mut back);
        }
    }

    #[test]
    fn a_short_buffer_is_refused() {
        let original = page(|nth| (nth as u32).wrapping_mul(0x9e37_79b9));
        let length = pack(&original).len();
        for shorter in [0, 5, 100, 1000, length - 1] {
            let mut packed = vec![0; shorter];
            assert_eq!(
                Wkdm::new().compress(&original, &mut packed),
                None,
                "{shorter}"
            );
        }
    }
}
