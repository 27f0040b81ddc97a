//! Headers and list entries of virtio-blk: what is accepted lies on the disk, whatever its size.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uzram_frontends::vhost_user::bare::parse;

uzram_fuzz::sanitizer_options!();

fuzz_target!(|input: ([u8; 16], u64, u64, u64, bool)| {
    let (bytes, given_bytes, taken_bytes, size_bytes, is_read_only) = input;
    parse(&bytes, given_bytes, taken_bytes, (size_bytes, is_read_only));
});
