//! Every target gives back what was put into it, by each kind of call.

use std::sync::Arc;

use super::*;
use crate::job::guard::{self, System};
use crate::job::{Calls, fio, iozone};
use crate::stop::Stop;
use crate::suite::nbd::tests::{DEVICE_BYTES, serve_well};
use uzram_testkit::Rng;

fn job(calls: Calls, block_bytes: u64, size_bytes: u64) -> Job {
    let job = fio::parse(&format!(
        "rw=write bs={block_bytes} size={size_bytes} direct=0"
    ));
    Job {
        calls,
        ..job.unwrap()
    }
}

/// Blocks of `block_bytes` in some order, then back in another.
fn put_and_take(target: &dyn Target, calls: Calls, block_bytes: u64, size_bytes: u64) {
    let job = job(calls, block_bytes, size_bytes);
    let mut rng = Rng::new(block_bytes);
    let mut model = vec![0; size_bytes as usize];
    rng.fill(&mut model);
    let mut channel = target.open(&job).unwrap();
    let offsets: Vec<u64> = (0..size_bytes).step_by(block_bytes as usize).collect();
    for &offset in &offsets {
        let data = &model[offset as usize..][..block_bytes as usize];
        channel.write(offset, data).unwrap();
    }
    let mut buffer = vec![0; block_bytes as usize];
    for &offset in offsets.iter().rev().chain(&offsets) {
        channel.read(offset, &mut buffer).unwrap();
        let expected = &model[offset as usize..][..block_bytes as usize];
        assert_eq!(
            buffer,
            expected,
            "{} {calls:?} {block_bytes} {offset}",
            target.name()
        );
    }
    channel.finish().unwrap();
}

#[test]
fn the_engine_gives_back_what_was_written_and_counts_it() {
    let mut engine = Engine::new("uzram-lzo", "lzo", 1 << 20).unwrap();
    put_and_take(&engine, Calls::Positioned, 32 << 10, 1 << 20);
    assert!(engine.counts().unwrap().compressed_bytes.unwrap() > 0);
    engine.make_fresh().unwrap();
    assert_eq!(engine.counts().unwrap().compressed_bytes, Some(0));
}

#[test]
fn a_file_gives_back_what_was_written_by_every_kind_of_call() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let claim = guard::claim(&path, &[], &System::default()).unwrap();
    let mut file = File::claimed(Arc::new(claim), 256 << 10).unwrap();
    for calls in [Calls::Seek, Calls::Positioned, Calls::Buffered] {
        for block_bytes in [512, 1024, 4096, 8192] {
            put_and_take(&file, calls, block_bytes, 256 << 10);
        }
    }
    file.make_fresh().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 256 << 10);
    assert!(bytes.iter().all(|&byte| byte == 0));
}

/// The counters of a C library's stream: small writes gather, and one that was read ahead goes back.
#[test]
fn a_stream_gathers_small_requests() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let claim = guard::claim(&path, &[], &System::default()).unwrap();
    let file = File::claimed(Arc::new(claim), 16 << 10).unwrap();
    let job = job(Calls::Buffered, 512, 16 << 10);
    let mut stream = file.open(&job).unwrap();
    stream.write(0, &[1; 512]).unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[0], 0, "kept back");
    stream.finish().unwrap();
    assert_eq!(
        std::fs::read(&path).unwrap()[..513],
        [[1; 512].as_slice(), &[0]].concat()
    );
    let mut past = vec![0; 512];
    let error = stream.read(16 << 10, &mut past).unwrap_err().to_string();
    assert!(error.contains("fread at 16384"), "{error}");
}

#[test]
fn an_nbd_export_gives_back_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd");
    serve_well(&socket);
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let mut export = Export::at(&uri).unwrap().unwrap();
    let size_bytes = DEVICE_BYTES as u64;
    assert_eq!(export.size_bytes(), size_bytes);
    export.make_fresh().unwrap();
    put_and_take(&export, Calls::Positioned, 4096, size_bytes / 2);
    let large = job(Calls::Positioned, 2 << 20, 4 << 20);
    let error = export.open(&large).err().unwrap().to_string();
    assert!(error.contains("at most 1024K over NBD"), "{error}");
}

#[test]
fn addresses_are_uris() {
    assert!(Export::at("/dev/sdb").is_none());
    assert!(Export::at("http://x/").is_none());
    for wrong in ["nbd://host/x", "nbd+unix://x", "nbd+unix:///x"] {
        let text = Export::at(wrong).unwrap().err().unwrap().to_string();
        assert!(
            text.contains("only nbd+unix:///EXPORT?socket=PATH"),
            "{text}"
        );
    }
}

/// A worker reads back after a job the content that it wrote.
#[test]
fn a_target_that_loses_writes_is_found_out() {
    struct Forgetful(Engine);
    struct Loses<'a>(Box<dyn Channel + 'a>, u64);
    impl Target for Forgetful {
        fn name(&self) -> &str {
            "forgetful"
        }
        fn size_bytes(&self) -> u64 {
            self.0.size_bytes()
        }
        fn make_fresh(&mut self) -> Result<()> {
            self.0.make_fresh()
        }
        fn open(&self, job: &Job) -> Result<Box<dyn Channel + '_>> {
            Ok(Box::new(Loses(self.0.open(job)?, 0)))
        }
    }
    impl Channel for Loses<'_> {
        fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
            self.0.read(offset, buffer)
        }
        fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
            self.1 += 1;
            match self.1 == 3 {
                true => Ok(()),
                false => self.0.write(offset, data),
            }
        }
    }
    let pages = Arc::new(crate::job::buffers::Pages::random().unwrap());
    let jobs = iozone::parse("-t 2 -r 4K -s 64K -I -+Z -i 0", &pages).unwrap();
    let engine = Engine::new("engine", "lzo", 1 << 20).unwrap();
    let mut forgetful = Forgetful(engine);
    let stop = Stop::default();
    let error = crate::job::run(&jobs[0], &mut forgetful, &stop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "initial-write: wrong data at offset 8192"
    );
    let fine = crate::job::run(&jobs[0], &mut forgetful.0, &stop).unwrap();
    assert_eq!(fine.reads, 0);
}
