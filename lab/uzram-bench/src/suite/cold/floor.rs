//! The least that a pass over cold pages costs: both codecs on the same pages, and direct writes to the same file.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use uzram::{Compression, Decompressor, Unit};

use crate::corpus::PAGE_BYTES;
use crate::cpu_time::CpuTime;
use crate::error::{Error, Result};
use crate::workload::{Generation, Workload};

/// The CPU time per page of unpacking by `algorithm` and packing by `secondary`, over the wanted pages. One that the first
/// does not make smaller is only packed, as the store keeps it raw.
pub(super) fn both_codecs(
    workload: &Workload,
    algorithm: &str,
    secondary: &Compression,
    wanted: impl Fn(usize) -> bool,
) -> Result<f64> {
    let first = Compression::new(algorithm, Unit::DEFAULT)?;
    let mut packer = first.codec().compressor(Unit::DEFAULT)?;
    let mut unpacker = first.codec().decompressor(Unit::DEFAULT)?;
    let mut denser = secondary.codec().compressor(Unit::DEFAULT)?;
    let mut packed = [0; 2 * PAGE_BYTES];
    let mut page = [0; PAGE_BYTES];
    let places = (0..workload.pages()).filter(|place| wanted(*place));
    let contents = places.map(|place| workload.page(place, Generation::First));
    let objects = contents.map(|content| match packer.compress(content, &mut packed) {
        Some(length) if length < PAGE_BYTES => packed[..length].to_vec(),
        _ => content.to_vec(),
    });
    let objects: Vec<Vec<u8>> = objects.collect();
    let start = CpuTime::now()?;
    for object in &objects {
        match object.len() {
            PAGE_BYTES => page.copy_from_slice(object),
            _ => unpack(&mut unpacker, object, &mut page)?,
        }
        let _ = denser.compress(&page, &mut packed);
    }
    Ok(per_page(spent_since(start)?, objects.len() as u64))
}

fn unpack(unpacker: &mut Decompressor, object: &[u8], page: &mut [u8]) -> Result<()> {
    let done = match unpacker {
        Decompressor::Shared(shared) => shared.decompress(object, page),
        Decompressor::Stateful(context) => context.decompress(object, page),
    };
    done.map_err(|_malformed| Error::Failed("a codec does not read what it wrote".to_owned()))
}

/// The time per page of direct writes of `pages` to the file at `path`, `batch` pages at once, by `threads` that take
/// turns. The file may be there, with as many pages or none.
pub(super) fn direct_writes(
    path: &Path,
    workload: &Workload,
    pages: usize,
    batch: usize,
    threads: usize,
) -> Result<f64> {
    let failed = |error| Error::io("direct writes beside the backing file", error);
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(false);
    let file = options.custom_flags(libc::O_DIRECT).open(path);
    let file = file.map_err(failed)?;
    let write = |first: usize| {
        let count = batch.min(pages - first);
        let source = first % (workload.pages() - batch) * PAGE_BYTES;
        let bytes = &workload.input()[source..][..count * PAGE_BYTES];
        file.write_all_at(bytes, (first * PAGE_BYTES) as u64)
    };
    let share = |thread: usize| -> std::io::Result<()> {
        let mut own = (thread * batch..pages).step_by(batch * threads);
        own.try_for_each(write)
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|thread| {
                let share = &share;
                scope.spawn(move || share(thread))
            })
            .collect();
        let own = share(0);
        let joined = others
            .into_iter()
            .map(|other| other.join().expect("it does not panic"));
        own.and(joined.collect::<std::io::Result<()>>())
    })
    .map_err(failed)?;
    Ok(per_page(start.elapsed(), pages as u64))
}

/// CPU time, which other programs' work does not add to.
pub(super) fn spent_since(start: CpuTime) -> Result<Duration> {
    let spent = CpuTime::now()?.since(start);
    Ok(spent.user + spent.system)
}

/// Nanoseconds per page.
pub(super) fn per_page(time: Duration, pages: u64) -> f64 {
    time.as_nanos() as f64 / pages.max(1) as f64
}
