//! Streams under every schedule: exclusive, handed on, and apart from the readers' contexts.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use super::*;
use crate::sync::{AtomicU64, Ordering};

/// Runs of each kind of schedule.
const SCHEDULES: usize = if cfg!(debug_assertions) { 3000 } else { 30000 };

fn check(model: impl Fn() + Send + Sync + Copy + 'static) {
    shuttle::check_random(model, SCHEDULES);
    shuttle::check_pct(model, SCHEDULES, 3);
}

/// More threads than contexts: a thread that finds all held sleeps, and gets one all the same.
#[test]
fn shuttle_contexts_are_exclusive_and_sleepers_get_one() {
    check(|| {
        let streams: PerCpuStreams<AtomicU64> = PerCpuStreams::new().unwrap();
        let (streams, made) = (Arc::new(streams), Arc::new(AtomicU64::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (streams, made) = (streams.clone(), made.clone());
                shuttle::thread::spawn(move || {
                    for _ in 0..2 {
                        let context = streams
                            .lease(|| {
                                made.fetch_add(1, Ordering::SeqCst);
                                Ok(AtomicU64::new(0))
                            })
                            .unwrap();
                        assert_eq!(context.fetch_add(1, Ordering::SeqCst), 0, "shared");
                        shuttle::thread::yield_now();
                        context.fetch_sub(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert!(
            (1..=2).contains(&made.load(Ordering::SeqCst)),
            "one for each CPU at most"
        );
    });
}

/// A codec with state on both sides that is preempted in the middle of its work.
struct Slow;

impl Codec for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn compressor(&self, _unit: Unit) -> Result<Box<dyn Compressor>> {
        Ok(Box::new(Slow))
    }

    fn decompressor(&self, _unit: Unit) -> Result<Decompressor> {
        Ok(Decompressor::Stateful(Box::new(Slow)))
    }
}

impl Compressor for Slow {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        shuttle::thread::yield_now();
        destination[0] = source[0];
        Some(1)
    }
}

impl Decompress for Slow {
    fn decompress(&mut self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        shuttle::thread::yield_now();
        destination.fill(source[0]);
        Ok(())
    }
}

/// All compressors are held for as long as the readers run. A reader that waited for one would
/// never end, and shuttle reports that as a deadlock.
#[test]
fn shuttle_a_reader_with_state_never_waits_for_a_compressor() {
    check(|| {
        let compression = Compression::with_codec(Box::new(Slow), Unit::DEFAULT).unwrap();
        let mut leases = [compression.lease().unwrap(), compression.lease().unwrap()];
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let compression = compression.clone();
                shuttle::thread::spawn(move || {
                    let mut page = vec![0; 4096];
                    compression.decompress(&[7], &mut page).unwrap().unwrap();
                    assert!(page.iter().all(|byte| *byte == 7));
                })
            })
            .collect();
        readers
            .into_iter()
            .for_each(|reader| reader.join().unwrap());
        assert_eq!(leases[0].packer.compress(&[9; 4096]), Some(&[9][..]));
    });
}
