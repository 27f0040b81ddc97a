//! uzram.
fn main() {}
