//! One CPU for everybody, and CPUs that change under load. (Ids above the count are pretended inside
//! the crate, in `store::fault_tests`.)

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
use uzram::Store;

use crate::pages::Rng;
use crate::race::THREADS;
use crate::races::race_on_store;

const TURNS: u64 = if cfg!(debug_assertions) {
    1_000
} else {
    10_000
};

/// With the codec that keeps most state: zstd, where C codecs are built in.
fn store() -> Store {
    let algorithm = uzram::algorithms().into_iter().find(|name| *name == "zstd");
    Store::builder()
        .size(64 << 12)
        .algorithm(algorithm.unwrap_or("lz4"))
        .build()
        .unwrap()
}

fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect()
}

fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

#[test]
fn eight_threads_on_one_cpu_get_done() {
    let store = store();
    let cpu = *allowed().last().unwrap();
    let pin = || sched_setaffinity(None, &only(cpu)).unwrap();
    race_on_store(&store, TURNS, &pin);
}

#[test]
fn cpusets_that_change_under_load_lose_nothing() {
    let store = store();
    let cpus = allowed();
    let threads = Mutex::new(Vec::<Pid>::new());
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (stop, threads, cpus) = (done.clone(), &threads, &cpus);
        let _stopper = Stopper(done);
        scope.spawn(move || {
            let mut rng = Rng::new(7);
            while !stop.load(Ordering::Relaxed) {
                for thread in threads.lock().unwrap().iter() {
                    let cpu = cpus[rng.below(cpus.len())];
                    // The thread may have ended.
                    let _ = sched_setaffinity(Some(*thread), &only(cpu));
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let register = || threads.lock().unwrap().push(gettid());
        race_on_store(&store, TURNS, &register);
        assert_eq!(threads.lock().unwrap().len() as u64, THREADS);
    });
}

/// Ends the disturbance, also when the test fails.
struct Stopper(Arc<AtomicBool>);

impl Drop for Stopper {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
