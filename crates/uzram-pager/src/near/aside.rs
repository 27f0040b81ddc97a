//! A server that lets the thread which waits for it run on at once, on the CPU that both have.
//!
//! A thread that is woken goes to an idle CPU if there is one, although its own would be free within a microsecond. In a
//! virtual machine that costs several times what its page costs: the host has to wake that CPU, for each fault twice. A CPU
//! whose only running thread has the policy SCHED_IDLE counts as idle itself, and such a thread gives way at once. So the server
//! has that policy for as long as it wakes somebody. It gets the CPU back when nobody else wants it: as a rule when the thread waits
//! for its next page. The program's own threads are left as they are.
//!
//! If the CPU stays busy the server would starve. A second thread, the guard, gives it its own policy back after some milliseconds.

#![allow(unsafe_code)]

use std::io::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use libc::{SCHED_IDLE, SCHED_OTHER, c_int, c_long, rusage, sched_param};
use rustix::process::Pid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};

/// Time after which a server must not have to wait for idle CPUs any more.
const WAY_TIME_MAX: Duration = Duration::from_millis(4);
/// Looks of the guard without any turn, until it sleeps.
const QUIET_MAX: u32 = 100;
/// Time without turns after one that took too long: somebody else needs the CPU.
const PAUSE_MS: u64 = 100;
const GUARD_STACK_BYTES: usize = 64 << 10;

/// The calling thread's means to step aside.
#[derive(Debug)]
pub(super) struct Aside {
    shared: Arc<Shared>,
    guard: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: i32,
    /// Turns begun and ended: odd within one.
    turns: AtomicU64,
    guard_sleeps: AtomicBool,
    is_over: AtomicBool,
    /// Whether another thread ran within the last turn.
    gave_way: AtomicBool,
    began: Instant,
    /// No turn before so many milliseconds after the beginning: the guard had to end one.
    pause_until_ms: AtomicU64,
}

/// The server gives way for as long as this lives.
#[derive(Debug)]
pub struct Way {
    shared: Arc<Shared>,
    switches_before: c_long,
}

impl Aside {
    /// For the calling thread. None where it would be of no use, on one CPU, and where it is not allowed: that takes
    /// CAP_SYS_NICE or a limit of that kind, and a thread of the usual policy.
    pub fn new() -> Option<Aside> {
        let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get());
        if cpus == 1 || policy().ok()? != SCHED_OTHER {
            return None;
        }
        let shared = Arc::new(Shared {
            server: rustix::thread::gettid().as_raw_nonzero().get(),
            turns: AtomicU64::new(0),
            guard_sleeps: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            gave_way: AtomicBool::new(false),
            began: Instant::now(),
            pause_until_ms: AtomicU64::new(0),
        });
        let (sender, receiver) = sync_channel(1);
        let its = Arc::clone(&shared);
        let guard = thread::Builder::new()
            .name("uzram-guard".into())
            .stack_size(GUARD_STACK_BYTES)
            .spawn(move || {
                // Tried by the guard, for who is not allowed to come back stays so.
                let is_allowed =
                    set_policy(0, SCHED_IDLE).is_ok() && set_policy(0, SCHED_OTHER).is_ok();
                let heard = sender.send(is_allowed);
                if is_allowed && heard.is_ok() {
                    its.guard();
                }
            })
            .ok()?;
        receiver.recv().ok()?.then_some(Aside {
            shared,
            guard: Some(guard),
        })
    }

    /// From now on to the end of the turn the calling thread gives way to every other. None: its CPU is busy, and it would
    /// have to wait for it.
    pub fn give_way(&self) -> Option<Way> {
        let shared = &self.shared;
        shared.gave_way.store(false, Ordering::Relaxed);
        if shared.now_ms() < shared.pause_until_ms.load(Ordering::Relaxed) {
            return None;
        }
        // Both are in one order with what the guard does before it sleeps: it sees the turn, or is seen.
        shared.turns.fetch_add(1, Ordering::SeqCst);
        if shared.guard_sleeps.load(Ordering::SeqCst)
            && let Some(guard) = &self.guard
        {
            guard.thread().unpark();
        }
        let switches_before = switches();
        // Without it the woken thread is only slower.
        let _ = set_policy(0, SCHED_IDLE);
        Some(Way {
            shared: Arc::clone(shared),
            switches_before,
        })
    }

    /// Whether another thread ran within the last turn: as a rule the one that was woken.
    pub fn gave_way(&self) -> bool {
        self.shared.gave_way.load(Ordering::Relaxed)
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        // It was allowed when it was tried.
        let _ = set_policy(0, SCHED_OTHER);
        self.shared.turns.fetch_add(1, Ordering::SeqCst);
        let gave_way = switches() != self.switches_before;
        self.shared.gave_way.store(gave_way, Ordering::Relaxed);
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        if let Some(guard) = self.guard.take() {
            guard.thread().unpark();
            // Its only end is its return.
            let _ = guard.join();
        }
    }
}

impl Shared {
    fn guard(&self) {
        let mut quiet = 0;
        while !self.is_over.load(Ordering::SeqCst) {
            let turns = self.turns.load(Ordering::SeqCst);
            if quiet > QUIET_MAX {
                self.sleep(turns);
                quiet = 0;
                continue;
            }
            self.stay_near();
            thread::sleep(WAY_TIME_MAX);
            let is_same = self.turns.load(Ordering::SeqCst) == turns;
            quiet = if is_same { quiet + 1 } else { 0 };
            if is_same && !turns.is_multiple_of(2) {
                // If it has ended its turn this very moment, that is its policy already.
                let _ = set_policy(self.server, SCHED_OTHER);
                self.pause_until_ms
                    .store(self.now_ms() + PAUSE_MS, Ordering::Relaxed);
                quiet = 0;
            }
        }
    }

    /// On the server's CPU: another one that wakes up only to look would take its threads from it when it is idle again.
    fn stay_near(&self) {
        if let Ok(set) = sched_getaffinity(Pid::from_raw(self.server)) {
            // Elsewhere it guards as well.
            let _ = sched_setaffinity(None, &set);
        }
    }

    fn sleep(&self, turns: u64) {
        self.guard_sleeps.store(true, Ordering::SeqCst);
        if self.turns.load(Ordering::SeqCst) == turns && !self.is_over.load(Ordering::SeqCst) {
            thread::park();
        }
        self.guard_sleeps.store(false, Ordering::SeqCst);
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

/// Times that the calling thread had to give its CPU away.
fn switches() -> c_long {
    // SAFETY: all of it are numbers, for which 0 is a value.
    let mut usage: rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills one rusage.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw
}

/// The calling thread's policy.
fn policy() -> Result<c_int> {
    // SAFETY: it has no pointers.
    let answer = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    checked(answer).map(|policy| policy as c_int)
}

/// Gives `thread`, the calling one if 0, a policy. By number, for a C library may refuse to.
fn set_policy(thread: i32, policy: c_int) -> Result<()> {
    // SAFETY: all of it are numbers, for which 0 is a value.
    let priority: sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads one sched_param.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            thread,
            policy,
            &raw const priority,
        )
    };
    checked(answer).map(drop)
}

fn checked(answer: c_long) -> Result<c_long> {
    match answer {
        -1 => Err(Error::last_os_error()),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::CpuSet;

    use super::*;

    /// The calling thread runs on one CPU only, the first that it may.
    fn stay() {
        let all = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
        let mut only = CpuSet::new();
        only.set(first);
        sched_setaffinity(None, &only).unwrap();
    }

    #[track_caller]
    fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < until, "never: {what}");
            thread::sleep(WAY_TIME_MAX);
        }
    }

    #[test]
    fn a_policy_is_changed_for_a_turn_only() {
        let Some(aside) = Aside::new() else { return };
        // On a busy machine the guard may come first.
        eventually("it is of that policy", || {
            let way = aside.give_way();
            let within = policy().unwrap();
            drop(way);
            assert_eq!(policy().unwrap(), SCHED_OTHER);
            within == SCHED_IDLE
        });
    }

    #[test]
    fn a_server_whose_cpu_is_busy_makes_pauses() {
        let Some(aside) = Aside::new() else { return };
        stay();
        let is_over = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&is_over);
        let busy = thread::spawn(move || {
            stay();
            while !its.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let begin = Instant::now();
        let mut turns = 0;
        while begin.elapsed() < Duration::from_secs(2) {
            if let Some(way) = aside.give_way() {
                // Gives the CPU away.
                thread::yield_now();
                drop(way);
                turns += 1;
            }
            thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
        busy.join().unwrap();
        assert!((1..100).contains(&turns), "{turns} turns in 2 s");
    }

    #[test]
    fn a_guard_that_sleeps_is_woken_and_one_without_a_server_ends() {
        let Some(aside) = Aside::new() else { return };
        let shared = Arc::clone(&aside.shared);
        eventually("it sleeps", || shared.guard_sleeps.load(Ordering::SeqCst));
        let way = aside.give_way().unwrap();
        // By nobody but the guard.
        eventually("it is woken", || policy().unwrap() == SCHED_OTHER);
        drop(way);
        eventually("there is a pause", || {
            shared.pause_until_ms.load(Ordering::Relaxed) > 0
        });
        drop(aside);
        assert_eq!(Arc::strong_count(&shared), 1);
    }

    #[test]
    fn a_thread_that_is_woken_near_by_is_noticed() {
        let Some(aside) = Aside::new() else { return };
        stay();
        let (sender, receiver) = sync_channel(0);
        let other = thread::spawn(move || {
            stay();
            while receiver.recv().is_ok() {}
        });
        eventually("it is noticed", || {
            let way = aside.give_way();
            sender.send(()).unwrap();
            drop(way);
            aside.gave_way()
        });
        drop(sender);
        other.join().unwrap();
    }
}
