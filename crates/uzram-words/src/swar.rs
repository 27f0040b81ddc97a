//! Bytes of a word that are not zero, pushed together and apart again, by halves and by table.

/// For each pattern of four bytes, which of them stay and which move, by one byte and by two.
struct Moves {
    stay_1: u32,
    move_1: u32,
    stay_2: u32,
    move_2: u32,
}

static MOVES: [Moves; 16] = moves();

const fn moves() -> [Moves; 16] {
    const NONE: Moves = Moves {
        stay_1: 0,
        move_1: 0,
        stay_2: 0,
        move_2: 0,
    };
    let mut all = [NONE; 16];
    let mut mask = 0;
    while mask < 16 {
        let (mut byte, mut gone) = (0, 0);
        while byte < 4 {
            if mask >> byte & 1 == 0 {
                gone += 1;
            } else {
                // By one byte first; where it lies then, it moves by two.
                let at = byte - (gone & 1);
                match gone & 1 {
                    0 => all[mask].stay_1 |= 0xff << (8 * byte),
                    _ => all[mask].move_1 |= 0xff << (8 * byte),
                }
                match gone & 2 {
                    0 => all[mask].stay_2 |= 0xff << (8 * at),
                    _ => all[mask].move_2 |= 0xff << (8 * at),
                }
            }
            byte += 1;
        }
        mask += 1;
    }
    all
}

/// A bit for each byte that is not zero.
#[inline(always)]
pub(crate) fn mask(word: u64) -> u8 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let high = (((word & LOW) + LOW) | word) & !LOW;
    ((high >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// How many bytes are not zero.
#[inline(always)]
pub(crate) fn count(word: u64) -> u32 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let high = (((word & LOW) + LOW) | word) & !LOW;
    ((high >> 7).wrapping_mul(0x0101_0101_0101_0101) >> 56) as u32
}

/// The bytes of `word` that `mask` names, together, and how many.
#[inline(always)]
pub(crate) fn pack(word: u64, mask: u8) -> (u64, usize) {
    let low = pack_half(word as u32, mask & 0xf);
    let high = pack_half((word >> 32) as u32, mask >> 4);
    let low_bytes = (mask & 0xf).count_ones();
    let packed = u64::from(low) | u64::from(high) << (8 * low_bytes);
    (packed, mask.count_ones() as usize)
}

fn pack_half(half: u32, mask: u8) -> u32 {
    let moves = &MOVES[usize::from(mask & 0xf)];
    let once = half & moves.stay_1 | (half & moves.move_1) >> 8;
    once & moves.stay_2 | (once & moves.move_2) >> 16
}

/// The low bytes of `packed` where `mask` says, zeroes elsewhere.
#[inline(always)]
pub(crate) fn unpack(packed: u64, mask: u8) -> u64 {
    let low_bytes = (mask & 0xf).count_ones();
    let low = unpack_half(packed as u32, mask & 0xf);
    let high = unpack_half((packed >> (8 * low_bytes)) as u32, mask >> 4);
    u64::from(low) | u64::from(high) << 32
}

fn unpack_half(packed: u32, mask: u8) -> u32 {
    let moves = &MOVES[usize::from(mask & 0xf)];
    let once = packed & moves.stay_2 | (packed << 16) & moves.move_2;
    once & moves.stay_1 | (once << 8) & moves.move_1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_together_and_come_apart() {
        for pattern in 0..=255u8 {
            let bytes: [u8; 8] = core::array::from_fn(|n| {
                if pattern >> n & 1 == 1 {
                    0xa1 + n as u8
                } else {
                    0
                }
            });
            let word = u64::from_le_bytes(bytes);
            assert_eq!(mask(word), pattern);
            let (packed, length) = pack(word, pattern);
            let mut together = [0; 8];
            let kept = bytes.iter().filter(|byte| **byte != 0);
            together
                .iter_mut()
                .zip(kept)
                .for_each(|(to, from)| *to = *from);
            assert_eq!(
                (packed.to_le_bytes(), length),
                (together, pattern.count_ones() as usize)
            );
            let followed = match length {
                8 => packed,
                _ => packed | !0 << (8 * length),
            };
            assert_eq!(unpack(followed, pattern), word, "{pattern:08b}");
        }
    }
}
