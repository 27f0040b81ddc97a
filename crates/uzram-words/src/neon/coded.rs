//! Coded words in NEON: the choice of neighbours, and the bytes that are left of the words.

use core::arch::aarch64::*;

use super::lists::{put_masks, take_masks};
use super::register::{Four, apart, both, load_group, not_zero, number, store_group, together};
use crate::decode::Source;
use crate::encode::{LEAD, Room, Scratch};
use crate::error::Error;
use crate::format::{DENSE, LANES, PAGE_WORDS, selector_bits};
use crate::shared::{Ahead, eight};

/// The coded words of a page, in whole groups.
pub(super) type Words = [u64; PAGE_WORDS + LANES];

/// As [`encode::page`](crate::encode::page) writes coded words.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn put_coded<const LEVEL: u8>(
    count: usize,
    scratch: &mut Scratch,
    out: &mut Room,
    start: usize,
) -> usize {
    let bits = selector_bits(LEVEL);
    let groups = count.div_ceil(LANES);
    let Scratch {
        coded,
        masks,
        rest_bytes,
        ..
    } = scratch;
    coded[LEAD + count..LEAD + groups * LANES].fill(0);
    let mut earlier = [Turned::new(zero_group()); 2];
    let mut length = 0;
    for (group, words) in coded[LEAD..].as_chunks().0[..groups].iter().enumerate() {
        let own = load_group(words);
        let selectors = select::<LEVEL>(own, earlier);
        let other = neighbours::<LEVEL>(selectors, earlier.map(|group| group.by_none));
        let rest = both(own, other, |own, other| veorq_u8(own, other));
        earlier = [Turned::new(own), earlier[0]];
        let packed = pack::<LEVEL>(number(selectors)) as u32;
        out[start + group * bits..][..4].copy_from_slice(&packed.to_le_bytes());
        let mask = not_zero(rest);
        masks[group * LANES..][..LANES].copy_from_slice(&mask.to_le_bytes());
        let to = rest_bytes[length..].first_chunk_mut().expect("a group");
        length += put_rest(rest, mask, to);
    }
    let at = put_masks(masks, count, out, start + groups * bits);
    out[at..at + length].copy_from_slice(&rest_bytes[..length]);
    at + length
}

/// The bytes of a group that `mask` names, together, and how many.
#[inline]
#[target_feature(enable = "neon")]
fn put_rest(rest: Four, mask: u64, to: &mut [u8; 64]) -> usize {
    let places = Places::of(mask);
    for (pair, rest) in [rest.0, rest.1, rest.2, rest.3].into_iter().enumerate() {
        for (first, lane) in [(0, 2 * pair), (8, 2 * pair + 1)] {
            let bytes = together(rest, first, (mask >> (8 * lane)) as u8);
            to[places.start(lane)..][..8].copy_from_slice(&bytes.to_le_bytes());
        }
    }
    places.end()
}

/// As [`decode::page`](crate::decode::page) reads coded words.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn take_coded<const LEVEL: u8>(
    count: usize,
    source: &mut Source<'_>,
    coded: &mut Words,
) -> Result<(), Error> {
    let bits = selector_bits(LEVEL);
    let groups = count.div_ceil(LANES);
    let selectors = source.take_open(groups * bits)?;
    let masks = take_masks(count, source)?;
    let mut bytes = Ahead::new(source.rest());
    let mut earlier = [zero_group(); 2];
    let masks = masks.as_chunks().0.iter();
    for (group, (words, mask)) in coded.as_chunks_mut().0[..groups]
        .iter_mut()
        .zip(masks)
        .enumerate()
    {
        let mask = u64::from_le_bytes(*mask);
        let places = Places::of(mask);
        let rest = take_rest(bytes.window(), mask, &places);
        bytes.at += places.end();
        let selectors = vcreate_u8(unpack::<LEVEL>(eight(selectors, group * bits)));
        let other = neighbours::<LEVEL>(selectors, earlier);
        let these = both(rest, other, |rest, other| veorq_u8(rest, other));
        earlier = [these, earlier[0]];
        store_group(words, these);
    }
    source.take(bytes.at)?;
    Ok(())
}

/// The bytes of a group put where its mask says.
#[inline]
#[target_feature(enable = "neon")]
fn take_rest(bytes: &[u8; 64], mask: u64, places: &Places) -> Four {
    let word = |lane: usize| {
        let bytes = *bytes[places.start(lane)..].first_chunk().expect("a word");
        let bytes = vcreate_u8(u64::from_le_bytes(bytes));
        apart(vcombine_u8(bytes, bytes), (mask >> (8 * lane)) as u8)
    };
    let pair = |lane| vcombine_u8(word(lane), word(lane + 1));
    uint8x16x4_t(pair(0), pair(2), pair(4), pair(6))
}

/// The places of a group's words among their bytes.
struct Places {
    /// A byte for each: where it ends.
    ends: u64,
}

impl Places {
    #[inline]
    #[target_feature(enable = "neon")]
    fn of(mask: u64) -> Places {
        let counts = number(vcnt_u8(vcreate_u8(mask)));
        Places {
            ends: counts.wrapping_mul(0x0101_0101_0101_0101),
        }
    }

    #[inline(always)]
    fn start(&self, lane: usize) -> usize {
        ((self.ends << 8) >> (8 * lane)) as usize & 0xff
    }

    #[inline(always)]
    fn end(&self) -> usize {
        (self.ends >> 56) as usize
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn zero_group() -> Four {
    let zero = vdupq_n_u8(0);
    uint8x16x4_t(zero, zero, zero, zero)
}

/// A group whose words can be turned by any number of lanes: that is to take registers in another order.
#[derive(Clone, Copy)]
struct Turned {
    by_none: Four,
    by_one: Four,
}

impl Turned {
    #[inline]
    #[target_feature(enable = "neon")]
    fn new(group: Four) -> Turned {
        let by_one = uint8x16x4_t(
            vextq_u8::<8>(group.3, group.0),
            vextq_u8::<8>(group.0, group.1),
            vextq_u8::<8>(group.1, group.2),
            vextq_u8::<8>(group.2, group.3),
        );
        let by_none = group;
        Turned { by_none, by_one }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn by<const LANES_TURNED: usize>(&self) -> Four {
        let Four {
            0: a,
            1: b,
            2: c,
            3: d,
        } = match LANES_TURNED % 2 {
            0 => self.by_none,
            _ => self.by_one,
        };
        match LANES_TURNED / 2 {
            0 => uint8x16x4_t(a, b, c, d),
            1 => uint8x16x4_t(d, a, b, c),
            2 => uint8x16x4_t(c, d, a, b),
            _ => uint8x16x4_t(b, c, d, a),
        }
    }
}

/// The selectors of a group after two others, the last first.
#[inline]
#[target_feature(enable = "neon")]
fn select<const LEVEL: u8>(own: Four, [last, before]: [Turned; 2]) -> uint8x8_t {
    let none = likeness(own, zero_group());
    let mut best = keys([none, likeness(own, last.by::<0>())], 0);
    macro_rules! candidates {
        ($group:expr, $($selector:literal: $one:literal $two:literal),*) => {$(
            let both = [likeness(own, $group.by::<$one>()), likeness(own, $group.by::<$two>())];
            best = vmaxq_u8(best, keys(both, $selector));
        )*};
    }
    candidates!(last, 2: 1 2, 4: 3 4, 6: 5 6);
    if LEVEL == DENSE {
        let both = [
            likeness(own, last.by::<7>()),
            likeness(own, before.by::<0>()),
        ];
        best = vmaxq_u8(best, keys(both, 8));
        candidates!(before, 10: 1 2, 12: 3 4, 14: 5 6);
    }
    let best = vmax_u8(vget_low_u8(best), vget_high_u8(best));
    vsub_u8(vdup_n_u8(15), vand_u8(best, vdup_n_u8(15)))
}

/// For each half of a group's words less than zero by as many bytes as it has in common with another's.
#[inline]
#[target_feature(enable = "neon")]
fn likeness(words: Four, others: Four) -> uint8x16_t {
    let same = both(words, others, |one, two| vceqq_u8(one, two));
    vpaddq_u8(vpaddq_u8(same.0, same.1), vpaddq_u8(same.2, same.3))
}

/// For each word, by `selector` and by the next: sixteen times the bytes that are alike, and more for a lower
/// selector.
#[inline]
#[target_feature(enable = "neon")]
fn keys([one, two]: [uint8x16_t; 2], selector: u8) -> uint8x16_t {
    let ranks = vcombine_u8(vdup_n_u8(15 - selector), vdup_n_u8(14 - selector));
    vmlsq_u8(ranks, vpaddq_u8(one, two), vdupq_n_u8(16))
}

/// The neighbours of a group after two others, the last first, by its selectors; zero for none.
#[inline]
#[target_feature(enable = "neon")]
fn neighbours<const LEVEL: u8>(selectors: uint8x8_t, [last, before]: [Four; 2]) -> Four {
    // The first byte of the word of each lane. Places beyond 64, or 128, name no byte, and zero comes of these.
    let lanes = vsub_u8(vcreate_u8(0x0807_0605_0403_0201), selectors);
    let first = vshl_n_u8::<3>(vand_u8(lanes, vdup_n_u8(7)));
    let first = vorr_u8(first, vceqz_u8(selectors));
    let is_before = vcgt_u8(selectors, vdup_n_u8(LANES as u8));
    let first = match LEVEL {
        DENSE => vorr_u8(first, vand_u8(is_before, vdup_n_u8(64))),
        _ => first,
    };
    let first = vcombine_u8(first, first);
    let numbers = vcreate_u8(0x0706_0504_0302_0100);
    let numbers = vcombine_u8(numbers, numbers);
    let pair = |lane: u8| {
        let lanes = vcombine_u8(vdup_n_u8(lane), vdup_n_u8(lane + 1));
        let places = vorrq_u8(vqtbl1q_u8(first, lanes), numbers);
        let words = vqtbl4q_u8(last, places);
        match LEVEL {
            DENSE => vqtbx4q_u8(words, before, vsubq_u8(places, vdupq_n_u8(64))),
            _ => words,
        }
    };
    uint8x16x4_t(pair(0), pair(2), pair(4), pair(6))
}

/// Eight selectors from a byte each to their bits, one after the other.
#[inline(always)]
fn pack<const LEVEL: u8>(selectors: u64) -> u64 {
    let [pairs, fours, eights] = masks::<LEVEL>();
    let gap = 8 - selector_bits(LEVEL);
    let selectors = (selectors | selectors >> gap) & pairs;
    let selectors = (selectors | selectors >> (2 * gap)) & fours;
    (selectors | selectors >> (4 * gap)) & eights
}

/// The other way round; what stands above them is ignored.
#[inline(always)]
fn unpack<const LEVEL: u8>(packed: u64) -> u64 {
    let [pairs, fours, eights] = masks::<LEVEL>();
    let gap = 8 - selector_bits(LEVEL);
    let packed = packed & eights;
    let packed = (packed | packed << (4 * gap)) & fours;
    let packed = (packed | packed << (2 * gap)) & pairs;
    (packed | packed << gap) & (0x0101_0101_0101_0101 * ((1 << selector_bits(LEVEL)) - 1))
}

/// The bits of pairs of selectors in each 16, of fours in each 32, of all eight.
#[inline(always)]
fn masks<const LEVEL: u8>() -> [u64; 3] {
    let bits = selector_bits(LEVEL);
    let low = |n: usize| (1u64 << n) - 1;
    [
        low(2 * bits) * 0x0001_0001_0001_0001,
        low(4 * bits) * 0x0000_0001_0000_0001,
        low(8 * bits),
    ]
}
