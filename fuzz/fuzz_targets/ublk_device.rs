//! The life of a ublk device under a driver that answers anything: features, what it makes of a wish, errors
//! of commands, nodes and queues. Nothing is served that was not wished for, and nothing is left.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use uzram::BlockDevice;
use uzram_frontends::ublk::hostile::start;

uzram_fuzz::sanitizer_options!();

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (queues, depth, answers) = input;
    let device: Arc<dyn BlockDevice> = Arc::new(uzram_fuzz::Bytes::new());
    // Mostly what can be had; and none, and more than that.
    let queues = match queues {
        0..0xf0 => u16::from(queues % 4),
        _ => u16::from(queues) << 8,
    };
    let depth = match depth {
        0..0xf0 => u16::from(depth % 16),
        _ => u16::from(depth) << 8,
    };
    start(&device, queues, depth, answers);
});
