//! A compressed RAM disk inside a program: `cargo run -p uzram --example ramdisk`.
//!
//! It makes a store with a limit, reads and writes through it as a block device, prints its
//! statistics, reaches the limit, and gives the memory back.

use uzram::{Bio, BlockDevice, ErrorKind, PageIndex, Result, Store, Zram};

fn main() -> Result<()> {
    // 1 GiB as its users see it; at most 8 MiB of memory for what they store.
    let store = Store::builder()
        .size(1 << 30)
        .algorithm("lz4")
        .mem_limit(8 << 20)
        .build()?;
    let disk = Zram::new(store);

    // Any offset and length. Whole pages (4 KiB here) are fastest: no read comes before the write.
    let text = b"A page of text compresses well. ".repeat(4096);
    disk.submit(Bio::Write {
        offset: 1000,
        data: &text,
    })?;
    let mut back = vec![0; text.len()];
    disk.submit(Bio::Read {
        offset: 1000,
        buffer: &mut back,
    })?;
    assert_eq!(back, text);

    // The counters are those of zram's mm_stat and io_stat, in bytes and pages.
    let stats = disk.store().stats();
    println!(
        "{} KiB of text in {} KiB of memory",
        stats.orig_data_size_bytes >> 10,
        stats.mem_used_total_bytes >> 10
    );

    // Pages that do not compress are kept as they are, until the limit says no. What is stored
    // stays readable, and the error says which errno a disk would return.
    let written = fill_with_noise(disk.store())?;
    println!(
        "{written} pages of noise, then {} failed writes",
        disk.store().stats().failed_writes
    );
    disk.submit(Bio::Read {
        offset: 1000,
        buffer: &mut back,
    })?;
    assert_eq!(back, text);

    // A trim frees what was there; the memory goes back to the system, not just to the heap.
    disk.submit(Bio::Trim {
        offset: 0,
        length: disk.geometry().size_bytes,
    })?;
    println!(
        "{} bytes in use after the trim",
        disk.store().stats().mem_used_total_bytes
    );
    Ok(())
}

/// Writes pages from the second half on until the limit is reached. Returns how many fitted.
fn fill_with_noise(store: &Store) -> Result<u64> {
    let first = store.size_bytes() / 2 / store.unit().bytes() as u64;
    let mut state = 1u64;
    for written in 0.. {
        let page: Vec<u8> = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .take(store.unit().bytes())
        .collect();
        match store.write(PageIndex(first + written), &page) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                println!(
                    "page {}: {error} (errno {})",
                    first + written,
                    error.errno()
                );
                return Ok(written);
            }
            Err(error) => return Err(error),
        }
    }
    unreachable!("the limit is smaller than the store")
}
