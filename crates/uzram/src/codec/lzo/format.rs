//! Constants of the format LZO1X.

/// Ends a stream: a copy over a distance without other meaning.
pub(super) const END: [u8; 3] = [17, 0, 0];

/// The first byte of a stream that states its version.
pub(super) const VERSIONED: u8 = 17;

/// Nearest and farthest distances of the instructions, in bytes.
pub(super) const NEAR_MAX: usize = 2048;
pub(super) const MIDDLE_MAX: usize = 1 << 14;
pub(super) const FAR_MIN: usize = (1 << 14) + 1;

/// Runs of zeroes in one instruction, in bytes.
pub(super) const RUN_MIN: usize = 4;
pub(super) const RUN_MAX: usize = 2051;
