//! Puts decoded words in their places. It looks only at those that are there, and the rest is cleared at once.

use super::coded::Words;
use super::lists::{Deltas, List};
use crate::decode::Head;
use crate::error::Error;
use crate::format::{BLOCKS, DENSE, PAGE_BYTES};
use crate::shared::Ones;

/// As [`decode::page`](crate::decode::page) puts the words in their places: of each block first those that are coded,
/// then references in their order.
#[inline(always)]
pub(super) fn place<const LEVEL: u8>(
    head: &Head,
    copies: &List,
    nears: &List,
    deltas: &Deltas,
    coded: &Words,
    page: &mut [u8; PAGE_BYTES],
) -> Result<(), Error> {
    page.fill(0);
    let words = page.as_chunks_mut::<8>().0;
    let (mut code, mut copy, mut near) = (0, 0, 0);
    for block in 0..BLOCKS {
        let [in_full, copied, nearby] = head.block(block);
        for lane in Ones(in_full) {
            words[block * 64 + lane] = coded[code].to_le_bytes();
            code += 1;
        }
        for lane in Ones(copied | nearby) {
            let index = block * 64 + lane;
            let is_near = LEVEL == DENSE && nearby >> lane & 1 == 1;
            let (distance, delta) = if is_near {
                let delta = u16::from_le_bytes([deltas[0][near], deltas[1][near]]);
                near += 1;
                (nears[near - 1], u64::from(delta))
            } else {
                copy += 1;
                (copies[copy - 1], 0)
            };
            let distance = usize::from(distance);
            // To before the page, or to nothing.
            if distance.wrapping_sub(1) >= index {
                return Err(Error::Malformed);
            }
            let word = u64::from_le_bytes(words[index - distance]) ^ delta;
            words[index] = word.to_le_bytes();
        }
    }
    Ok(())
}
