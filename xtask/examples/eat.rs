//! `eat BYTES`: uses more memory than there is, and checks that all of it kept its content.
//!
//! Pages are filled in order and checked in another order, all of them, some in a row, because the
//! kernel reads a few at once. No two are alike, each compresses to about a fifth, and filling
//! them takes less time than moving them. The file stands alone, so that `rustc` makes a program
//! of it that a guest runs without libraries.
//!
//! A fifth, because swap takes half of RAM at most: nearly all of a program that uses twice the
//! RAM may be swapped out, and a quarter would not fit.

use std::process::ExitCode;

/// Words of a page of 4 KiB.
const WORDS: usize = 512;
/// Pieces of a page. Each is some noise, and then one word again and again.
const PIECES: usize = 8;
const PIECE_WORDS: usize = WORDS / PIECES;
const NOISE_WORDS: usize = PIECE_WORDS * 3 / 16;
/// Pages that are checked in a row: 1 MiB, several reads of the kernel.
const ROW: usize = 256;
/// Rows between a checked one and the next: a prime, so that none is left out.
const STRIDE: usize = 797;

fn main() -> ExitCode {
    let argument = std::env::args().nth(1).unwrap_or_default();
    let Ok(bytes) = argument.parse::<usize>() else {
        eprintln!("eat `{argument}`: not a number of bytes");
        return ExitCode::from(2);
    };
    let mut rows = bytes.div_ceil(WORDS * 8 * ROW);
    if rows.is_multiple_of(STRIDE) {
        rows += 1;
    }
    let pages = rows * ROW;
    let mut memory = vec![0; pages * WORDS];
    for (number, page) in memory.chunks_exact_mut(WORDS).enumerate() {
        fill(number, page);
    }
    let mut expected = [0; WORDS];
    for step in 0..pages {
        let number = step / ROW * STRIDE % rows * ROW + step % ROW;
        fill(number, &mut expected);
        if memory[number * WORDS..][..WORDS] != expected {
            eprintln!("page {number} of {pages} is wrong");
            return ExitCode::FAILURE;
        }
    }
    println!("all {pages} pages are right");
    ExitCode::SUCCESS
}

fn fill(number: usize, page: &mut [u64]) {
    let mut noise = number as u64;
    for piece in page.chunks_exact_mut(PIECE_WORDS) {
        let (start, rest) = piece.split_at_mut(NOISE_WORDS);
        for word in start {
            noise = next(noise);
            *word = noise;
        }
        rest.fill(noise);
    }
}

/// A bijection, so that pages that start with different words stay different.
fn next(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
