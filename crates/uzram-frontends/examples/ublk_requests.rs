//! Requests for a queue of the ublk frontend where the kernel has no driver: what they cost in this
//! process, counted or timed.
//!
//! ```sh
//! RUSTFLAGS="--cfg=rustix_use_libc" cargo build --release -p uzram-frontends --features ublk --example ublk_requests
//! for requests in 1000 11000; do
//!     valgrind --tool=callgrind target/release/examples/ublk_requests write zram $requests
//! done
//! ```
//!
//! (rustix's own way to its auxiliary vector stops valgrind.) The difference is 10,000 requests. Everything is what a real disk does but for the kernel's part of the
//! ring: the commands do nothing. `nothing` in place of `zram` is a device that does nothing either.
//! `callgrind_annotate` tells the codec's share apart (LZ4_*).

use uzram::{Bio, BlockDevice, Geometry, PageIndex, PageTransfer, Store, Zram};
use uzram_testkit::Rng;

/// Size of the disk in bytes: its pages are written once and then over and over.
const SIZE_BYTES: u64 = 4 << 20;
const DEPTH: u16 = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [operation, device, requests] = &arguments[..] else {
        return Err("read|write zram|nothing REQUESTS".into());
    };
    let requests: u64 = requests.parse()?;
    match device.as_str() {
        "nothing" => uzram_frontends::ublk::drive(&Nothing, operation == "write", requests, DEPTH)?,
        _ => {
            let disk = Zram::new(Store::builder().size(SIZE_BYTES).algorithm("lz4").build()?);
            for page in 0..SIZE_BYTES / 4096 {
                disk.submit(Bio::Write {
                    offset: page * 4096,
                    data: &text(page),
                })?;
            }
            uzram_frontends::ublk::drive(&disk, operation == "write", requests, DEPTH)?;
        }
    }
    Ok(())
}

/// A page of words, which compresses to about a half.
fn text(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let words: Vec<[u8; 8]> = (0..128)
        .map(|_| rng.next().to_ne_bytes().map(|byte| b'a' + byte % 16))
        .collect();
    (0..512).flat_map(|_| words[rng.below(128)]).collect()
}

/// Answers at once.
struct Nothing;

impl BlockDevice for Nothing {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: SIZE_BYTES,
            preferred_block_bytes: 4096,
        }
    }

    fn submit(&self, bio: Bio<'_>) -> uzram::Result<()> {
        std::hint::black_box(bio);
        Ok(())
    }

    #[inline(never)]
    fn rw_page(&self, page: PageIndex, transfer: PageTransfer<'_>) -> uzram::Result<()> {
        std::hint::black_box((page, transfer));
        Ok(())
    }
}
