//! The FUSE frontend under a kernel that says anything: each reply is one for the message that it answers.
//!
//! The first byte of a message says how it is made: as it is, or with a header whose length and
//! operation fit, so that the fields behind it are reached.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use uzram::{Store, Zram};
use uzram_frontends::fuse::bare::Bare;

uzram_fuzz::sanitizer_options!();

const SIZE_BYTES: u64 = 64 << 10;
const MESSAGES_MAX: usize = 16;
const LENGTH_BYTES: usize = 4;
const OPCODE_AT: usize = 4;
/// The last operation that the kernel has.
const OPCODES: u8 = 53;

fuzz_target!(|messages: Vec<(u8, Vec<u8>)>| {
    let store = Store::builder().size(SIZE_BYTES).algorithm("lz4");
    let mut disk = Bare::new(Arc::new(Zram::new(store.build().unwrap())));
    for (how, mut message) in messages.into_iter().take(MESSAGES_MAX) {
        if how < OPCODES && message.len() > OPCODE_AT + 4 {
            let length = (message.len() as u32).to_ne_bytes();
            message[..LENGTH_BYTES].copy_from_slice(&length);
            message[OPCODE_AT..][..4].copy_from_slice(&u32::from(how).to_ne_bytes());
        }
        disk.answer(&message);
    }
});
