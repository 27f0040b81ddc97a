//! A program under a budget, for tests: `budget run MIB -- PROGRAM …`, `budget serve`, and programs that check their memory.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]
#![allow(
    clippy::needless_range_loop,
    reason = "pages and their models have one number"
)]

mod pages;

use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::{Command, exit};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::sys::mman::MmapAdvise;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use uzram_run::Options;

use pages::{PAGE, Random, check, fill, map, page};

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<&str> = arguments.iter().filter_map(|word| word.to_str()).collect();
    match words.as_slice() {
        ["serve"] => uzram_run::serve().unwrap(),
        ["run", mib, "--", ..] => under_budget(mib.parse().unwrap(), &arguments[3..]),
        ["churn", mib, rounds, seed] => churn(
            mib.parse().unwrap(),
            rounds.parse().unwrap(),
            seed.parse().unwrap(),
        ),
        ["forks", mib, children] => forks(mib.parse().unwrap(), children.parse().unwrap()),
        ["threads", mib, rounds] => threads(mib.parse().unwrap(), rounds.parse().unwrap()),
        ["discards", mib, rounds] => discards(mib.parse().unwrap(), rounds.parse().unwrap()),
        ["becomes", mib] => becomes(mib.parse().unwrap()),
        ["holds", mib] => holds(mib.parse().unwrap()),
        ["fills", mib] => fills(mib.parse().unwrap()),
        ["noise", mib] => noise(mib.parse().unwrap()),
        _ => exit(2),
    }
    println!("right");
}

fn under_budget(mib: u64, program: &[OsString]) {
    let options = Options {
        memory_bytes: mib << 20,
        algorithm: "lz4".into(),
        spill: std::env::var_os("SPILL").map(Into::into),
        server: vec!["/proc/self/exe".into(), "serve".into()],
        program: program.to_vec(),
    };
    match uzram_run::start(&options) {
        Ok(run) => {
            let outcome = run.wait(|line| eprintln!("run: {line}"));
            if let Some(statistics) = outcome.statistics {
                eprintln!(
                    "left {} back {} peak {} store {}",
                    statistics.pages_out,
                    statistics.pages_back,
                    statistics.peak_bytes,
                    statistics.store_bytes_max
                );
            }
            exit(outcome.status.into());
        }
        Err((status, text)) => {
            eprintln!("run: {text}");
            exit(status.into());
        }
    }
}

fn advise(base: usize, at: usize, pages: usize, advice: MmapAdvise) {
    let start = std::ptr::NonNull::new((base + at * PAGE) as *mut _).unwrap();
    // SAFETY: discards pages of this program's mapping that its model says are discarded.
    unsafe { nix::sys::mman::madvise(start, pages * PAGE, advice) }.unwrap();
}

/// Random reads, writes, discards, mappings over it and moves, against a model.
fn churn(mib: usize, rounds: usize, seed: u64) {
    let pages = mib << 8;
    let mut random = Random(seed * 2 + 1);
    let mut base = map(None, pages);
    let mut model = vec![0_u64; pages];
    for version in 1..=rounds as u64 {
        let at = random.below(pages);
        let run = 1 + random.below(64).min(pages - at - 1);
        match random.below(100) {
            0..40 => {
                for place in at..at + run {
                    check(page(base, place), place, model[place]);
                }
            }
            40..85 => {
                for place in at..at + run {
                    fill(page(base, place), place, version);
                    model[place] = version;
                }
            }
            85..93 => {
                advise(base, at, run, MmapAdvise::MADV_DONTNEED);
                model[at..at + run].fill(0);
            }
            93..98 => {
                map(Some(base + at * PAGE), run);
                model[at..at + run].fill(0);
            }
            _ if version % 16 == 0 => base = moved(base, pages),
            _ => {}
        }
    }
    for place in 0..pages {
        check(page(base, place), place, model[place]);
    }
}

/// The mapping at another place. What was mapped over it makes several mappings of it, which move one by one.
fn moved(base: usize, pages: usize) -> usize {
    const TRIES_MAX: usize = 100;
    let to = map(None, pages);
    // What has just been mapped may become two mappings between the look and the move, while a part of it is registered.
    for _ in 0..TRIES_MAX {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut all_moved = true;
        for line in maps.lines() {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let address = |text| usize::from_str_radix(text, 16).unwrap();
            let start = address(start).max(base);
            let end = address(end).min(base + pages * PAGE);
            if start < end {
                all_moved &= move_one(start..end, to + start - base);
            }
        }
        if all_moved {
            return to;
        }
    }
    panic!("not moved in {TRIES_MAX} tries");
}

/// Moves one mapping; false if it is none.
fn move_one(from: Range<usize>, to: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let (at, to) = (from.start as *mut libc::c_void, to as *mut libc::c_void);
    // SAFETY: both ranges are this program's.
    let result = unsafe { libc::mremap(at, from.len(), from.len(), flags, to) };
    let error = std::io::Error::last_os_error();
    let is_moved = result != libc::MAP_FAILED;
    assert!(
        is_moved || error.raw_os_error() == Some(libc::EFAULT),
        "{error}"
    );
    is_moved
}

/// Children check all that they have from their parent, change some, and check it again; so does the parent meanwhile.
fn forks(mib: usize, children: usize) {
    let pages = mib << 8;
    let base = map(None, pages);
    (0..pages).for_each(|place| fill(page(base, place), place, 1));
    let mut versions = vec![1_u64; pages];
    for child in 0..children as u64 {
        // SAFETY: this program has one thread.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                for place in 0..pages {
                    check(page(base, place), place, versions[place]);
                    if place % 3 == child as usize % 3 {
                        fill(page(base, place), place, 1000 + child);
                        versions[place] = 1000 + child;
                    }
                }
                (0..pages).for_each(|place| check(page(base, place), place, versions[place]));
                exit(0);
            }
            ForkResult::Parent { child: pid } => {
                for place in (0..pages).filter(|place| place % 5 == child as usize % 5) {
                    check(page(base, place), place, versions[place]);
                    fill(page(base, place), place, 2 + child);
                    versions[place] = 2 + child;
                }
                if child % 2 == 1 {
                    (0..pages).for_each(|place| check(page(base, place), place, versions[place]));
                }
                if waitpid(pid, None) != Ok(WaitStatus::Exited(pid, 0)) {
                    println!("a child is wrong");
                    exit(9);
                }
            }
        }
    }
    (0..pages).for_each(|place| check(page(base, place), place, versions[place]));
}

/// Threads that come and go, each with pages of its own.
fn threads(mib: usize, rounds: usize) {
    const THREADS: usize = 8;
    let pages = mib << 8;
    let base = map(None, pages);
    let steps = AtomicU64::new(0);
    for round in 1..=rounds as u64 {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let steps = &steps;
                scope.spawn(move || {
                    for place in (thread..pages).step_by(THREADS) {
                        check(page(base, place), place, round - 1);
                        fill(page(base, place), place, round);
                        steps.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
    }
    assert_eq!(steps.into_inner(), (pages * rounds) as u64);
}

/// One thread discards what it has written, over and over, while another needs all memory.
fn discards(mib: usize, rounds: usize) {
    const PAGES: usize = 10_240;
    let pages = mib << 8;
    let (base, other) = (map(None, PAGES), map(None, pages));
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in 1.. {
                (0..pages).for_each(|place| fill(page(other, place), place, version));
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for round in 1..=rounds as u64 {
            (0..PAGES).for_each(|place| fill(page(base, place), place, round));
            // All at once takes the kernel long enough for pages at the end to be taken meanwhile.
            advise(base, 0, PAGES, MmapAdvise::MADV_DONTNEED);
            (0..PAGES).for_each(|place| check(page(base, place), place, 0));
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Becomes another program, with memory of its own, when much of its memory has left.
fn becomes(mib: usize) {
    let pages = mib << 8;
    let base = map(None, pages);
    (0..pages).for_each(|place| fill(page(base, place), place, 1));
    (0..pages).for_each(|place| check(page(base, place), place, 1));
    let me = std::env::current_exe().unwrap();
    panic!(
        "{}",
        Command::new(me)
            .args(["churn", &mib.to_string(), "2000", "5"])
            .exec()
    );
}

/// Checks its memory until it is killed, and says when it begins.
fn holds(mib: usize) {
    let pages = mib << 8;
    let base = map(None, pages);
    (0..pages).for_each(|place| fill(page(base, place), place, 1));
    println!("holds");
    loop {
        (0..pages).for_each(|place| check(page(base, place), place, 1));
    }
}

/// Fills memory as fast as it can, each time in a new mapping, until the input ends.
fn fills(mib: usize) {
    let pages = mib << 8;
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    println!("fills");
    std::thread::spawn(|| {
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
        IS_OVER.store(true, Ordering::Relaxed);
    });
    let goes_on = |_: &usize| !IS_OVER.load(Ordering::Relaxed);
    for round in (0..PAGE / 2).cycle().take_while(goes_on) {
        let base = map(None, pages);
        for place in 0..pages {
            page(base, place).fill(place as u8);
            page(base, place)[round..round + 8].copy_from_slice(&place.to_ne_bytes());
        }
        for place in 0..pages {
            let page = page(base, place);
            let is_right = page[round..round + 8] == place.to_ne_bytes();
            assert!(is_right && page[PAGE - 1] == place as u8, "{place}");
        }
        let start = std::ptr::NonNull::new(base as *mut _).unwrap();
        // SAFETY: nothing refers to the mapping any more.
        unsafe { nix::sys::mman::munmap(start, pages * PAGE) }.unwrap();
    }
}

/// Memory that does not compress.
fn noise(mib: usize) {
    let mut random = Random(77);
    let mut bytes = vec![0_u8; mib << 20];
    for word in bytes.chunks_exact_mut(8) {
        random.below(2);
        word.copy_from_slice(&random.0.to_ne_bytes());
    }
    let mut again = Random(77);
    for word in bytes.chunks_exact(8) {
        again.below(2);
        assert_eq!(word, again.0.to_ne_bytes());
    }
}
