//! Pages swapped to every device by every path, and to a device that completes requests later.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use uzram::{
    AllocatedBio, Bio, BlockDevice, Error, ErrorKind, Geometry, PageBuffer, Result, Store, Zram,
};
use uzram_media::{Brd, Btt, BttVersion, Persistence, Pmem, PmemFile};

use super::{IoPath, SwapArea, SwapSlot};

const PAGES: u64 = 600;

fn devices(folder: &std::path::Path) -> Vec<(&'static str, Arc<dyn BlockDevice>)> {
    let store = Store::builder().size(PAGES << 12).build().unwrap();
    let pmem = PmemFile::create(&folder.join("pmem"), PAGES << 12).unwrap();
    let table = PmemFile::create(&folder.join("table"), (16 << 20) + 4096).unwrap();
    let table = table.with_persistence(Persistence::Never);
    vec![
        ("zram", Arc::new(Zram::new(store))),
        ("brd", Arc::new(Brd::new(PAGES << 12).unwrap())),
        ("pmem", Arc::new(Pmem::new(pmem).unwrap())),
        (
            "btt",
            Arc::new(Btt::format(table, 4096, BttVersion::V1_1).unwrap()),
        ),
    ]
}

fn page(value: u64) -> PageBuffer {
    let mut page = Box::new([0; 4096]);
    for (at, word) in page.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(value * 512 + at as u64).to_le_bytes());
    }
    page
}

/// Swaps pages out and in again, by several threads.
fn swap(area: &SwapArea) {
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            scope.spawn(move || {
                let mut slots: Vec<(SwapSlot, u64)> = Vec::new();
                let mut buffer = page(0);
                for turn in 0..600u64 {
                    if turn % 5 < 3 {
                        let slot = area.allocate().unwrap();
                        let value = thread << 32 | turn;
                        let done = area.swap_writepage(&slot, page(value));
                        done.result.unwrap();
                        assert!(done.buffer == page(value), "a write changes nothing");
                        slots.push((slot, value));
                    } else {
                        let (slot, value) = slots.swap_remove(turn as usize % slots.len());
                        let done = area.swap_readpage(&slot, buffer);
                        done.result.unwrap();
                        buffer = done.buffer;
                        assert!(buffer == page(value));
                        area.free(slot).unwrap();
                    }
                }
                for (slot, value) in slots {
                    let done = area.swap_readpage(&slot, buffer);
                    buffer = done.buffer;
                    assert!(buffer == page(value));
                    area.free(slot).unwrap();
                }
            });
        }
    });
    assert_eq!(area.used_slots(), 0);
    let (written, read) = (
        area.write_latency().summary(),
        area.read_latency().summary(),
    );
    assert_eq!((written.calls, read.calls), (1080, 1080));
    assert!(
        written.min_ns > 0 && written.p50_ns <= written.p99_ns && written.p99_ns <= written.max_ns
    );
}

#[test]
fn every_device_takes_pages_by_every_path() {
    let folder = tempfile::tempdir().unwrap();
    for (name, device) in devices(folder.path()) {
        for path in IoPath::ALL {
            let area = SwapArea::new(Arc::clone(&device), path).unwrap();
            swap(&area);
        }
        // The slots' pages were trimmed.
        let mut buffer = [1; 4096];
        device
            .submit(Bio::Read {
                offset: 4096,
                buffer: &mut buffer,
            })
            .unwrap();
        assert_eq!(buffer, [0; 4096], "{name}");
    }
}

#[test]
fn a_slot_that_comes_back_frees_memory() {
    let disk = Arc::new(Brd::new(PAGES << 12).unwrap());
    let area = SwapArea::new(Arc::clone(&disk) as _, IoPath::RwPage).unwrap();
    let slots: Vec<_> = (0..100).map(|_| area.allocate().unwrap()).collect();
    for slot in &slots {
        area.swap_writepage(slot, page(1)).result.unwrap();
    }
    assert_eq!(disk.used_bytes(), 100 << 12);
    slots.into_iter().for_each(|slot| area.free(slot).unwrap());
    assert_eq!(disk.used_bytes(), 0);
}

/// Completes requests on a thread of its own, the last one first now and then.
struct Later {
    disk: Arc<Brd>,
    requests: Option<Sender<AllocatedBio>>,
    thread: Option<JoinHandle<()>>,
}

impl Later {
    fn new() -> Later {
        let disk = Arc::new(Brd::new(PAGES << 12).unwrap());
        let (requests, taken) = channel::<AllocatedBio>();
        let behind = Arc::clone(&disk);
        let carry_out = move || {
            while let Ok(first) = taken.recv() {
                let mut batch = vec![first];
                batch.extend(taken.try_iter());
                for mut bio in batch.into_iter().rev() {
                    let result = behind.rw_page(bio.page(), bio.transfer());
                    bio.complete(result);
                }
            }
        };
        Later {
            disk,
            requests: Some(requests),
            thread: Some(std::thread::spawn(carry_out)),
        }
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        self.requests = None;
        self.thread.take().unwrap().join().unwrap();
    }
}

impl BlockDevice for Later {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn submit(&self, bio: Bio<'_>) -> Result<()> {
        self.disk.submit(bio)
    }

    fn queue(&self, bio: AllocatedBio) {
        self.requests.as_ref().unwrap().send(bio).unwrap();
    }

    fn is_synchronous(&self) -> bool {
        false
    }
}

#[test]
fn a_device_that_completes_later_takes_pages_by_allocated_bio_only() {
    let later: Arc<dyn BlockDevice> = Arc::new(Later::new());
    for path in [IoPath::RwPage, IoPath::OnStackBio] {
        let refused = SwapArea::new(Arc::clone(&later), path).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
    swap(&SwapArea::new(later, IoPath::AllocatedBio).unwrap());
}

/// Fails every write, and forgets every queued one.
struct Broken;

impl BlockDevice for Broken {
    fn geometry(&self) -> Geometry {
        Brd::new(1 << 20).unwrap().geometry()
    }

    fn submit(&self, _: Bio<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::Io, "broken"))
    }

    fn queue(&self, bio: AllocatedBio) {
        drop(bio);
    }
}

#[test]
fn a_failed_write_gives_the_page_back_and_the_slot_stays_free_to_give() {
    for path in IoPath::ALL {
        let area = SwapArea::new(Arc::new(Broken), path).unwrap();
        for _ in 0..200 {
            let slot = area.allocate().unwrap();
            let done = area.swap_writepage(&slot, page(5));
            assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Io);
            assert!(done.buffer == page(5));
            assert!(area.free(slot).is_err(), "the trim fails, too");
        }
        assert_eq!(area.used_slots(), 0);
    }
}
