//! Faults that are answered in the thread that touches: what that needs, and what it must not break.

use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use uzram::{BlockDevice, PageIndex, PageTransfer};
use uzram_media::{Persistence, Pmem, PmemFile};
use uzram_pager::{CompressedMemory, FaultHandler};

use super::{
    PAGE, apart, apart_with, killed_with, lost_with, mark, marked, memory, present, with_store,
};

const HERE: [FaultHandler; 1] = [FaultHandler::FaultingThread];
const PAGES: usize = 600;

fn filled() -> Option<CompressedMemory> {
    let mut memory = memory(PAGES, 64)?;
    fill(&mut memory);
    Some(memory)
}

fn fill(memory: &mut CompressedMemory) {
    for (seed, page) in memory.chunks_exact_mut(PAGE).enumerate() {
        mark(page, seed as u64);
    }
}

fn check(memory: &CompressedMemory) {
    for (seed, page) in memory.chunks_exact(PAGE).enumerate() {
        assert!(page == marked(seed as u64), "page {seed}");
    }
}

#[test]
fn a_descriptor_that_the_program_closed_ends_it() {
    lost_with(
        &HERE,
        "handler::a_descriptor_that_the_program_closed_ends_it",
        || {
            let Some(memory) = filled() else {
                return;
            };
            // SAFETY: nothing of this process uses those descriptors afterwards but what must notice it.
            assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
            println!("it reads as {}", memory[7 * PAGE]);
        },
    );
}

#[test]
fn the_descriptor_of_another_memory_does_not_serve_pages_in_its_place() {
    lost_with(
        &HERE,
        "handler::the_descriptor_of_another_memory_does_not_serve_pages_in_its_place",
        || {
            let Some(memory) = filled() else {
                return;
            };
            let number = descriptor();
            // SAFETY: as above.
            assert_eq!(unsafe { libc::close(number) }, 0);
            let Some(other) = filled() else {
                return;
            };
            check(&other);
            // SAFETY: nobody else has that number.
            assert_eq!(unsafe { libc::dup2(descriptor(), number) }, number);
            println!("it reads as {}", memory[7 * PAGE]);
        },
    );
}

/// The number of a descriptor of userfaultfd of this process.
fn descriptor() -> libc::c_int {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut paths = all.map(|entry| entry.unwrap().path());
    let path = paths.find(|path| {
        let target = std::fs::read_link(path).unwrap_or_default();
        target.to_string_lossy().contains("userfaultfd")
    });
    let name = path.unwrap().file_name().unwrap().to_owned();
    name.to_str().unwrap().parse().unwrap()
}

#[test]
fn a_thread_that_blocks_the_signal_is_killed() {
    killed_with(
        &HERE,
        libc::SIGBUS,
        "handler::a_thread_that_blocks_the_signal_is_killed",
        || {
            let Some(memory) = filled() else {
                return;
            };
            // SAFETY: all zeroes are a valid set, which the next call fills.
            let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: writes the set.
            unsafe { libc::sigfillset(&raw mut all) };
            // SAFETY: changes this thread's mask.
            unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut())
            };
            println!("it reads as {}", memory[7 * PAGE]);
        },
    );
}

#[test]
fn a_system_call_that_touches_an_absent_page_fails() {
    apart_with(
        &HERE,
        "handler::a_system_call_that_touches_an_absent_page_fails",
        || {
            let Some(memory) = filled() else {
                return;
            };
            let file = tempfile::tempfile().unwrap();
            assert!(!present(&memory)[7]);
            let error = file.write_at(&memory[7 * PAGE..8 * PAGE], 0).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
            check(&memory);
        },
    );
}

/// Two owners of a handler of SIGBUS, in either order.
#[test]
fn memory_and_truncated_files_live_in_one_process() {
    apart(
        "handler::memory_and_truncated_files_live_in_one_process",
        || {
            // A process installs each handler once, so each order has a process.
            for is_file_first in [true, false] {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("pmem");
                let body = || {
                    let device = is_file_first.then(|| device(&path));
                    let Some(memory) = filled() else {
                        return;
                    };
                    let device = device.unwrap_or_else(|| self::device(&path));
                    check(&memory);
                    std::fs::File::options()
                        .write(true)
                        .open(&path)
                        .unwrap()
                        .set_len(0)
                        .unwrap();
                    let mut page = Box::new([0; PAGE]);
                    let read = device.rw_page(PageIndex(3), PageTransfer::Read(&mut page));
                    assert!(read.is_err(), "the file is empty");
                    check(&memory);
                };
                in_child(body);
            }
        },
    );
}

fn device(path: &std::path::Path) -> Pmem {
    let medium = PmemFile::create(path, 1 << 20).unwrap();
    let device = Pmem::new(medium.with_persistence(Persistence::Never)).unwrap();
    // The handler is there from the first access on.
    let mut page = Box::new([0; PAGE]);
    device
        .rw_page(PageIndex(3), PageTransfer::Read(&mut page))
        .unwrap();
    device
}

/// Runs `body` in a child, which has no handlers of its parent's memory yet.
fn in_child(body: impl FnOnce()) {
    // SAFETY: this process has one other thread, which waits for this one's end.
    match unsafe { libc::fork() } {
        0 => {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(result.is_err())) }
        }
        child => {
            let mut status = -1;
            // SAFETY: waits for the child made above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0);
        }
    }
}

/// Its copy of the descriptor must not keep the range registered: unmapping that would wait for an answer for ever.
#[test]
fn a_child_that_lives_on_does_not_hold_up_the_end_of_the_memory() {
    apart(
        "handler::a_child_that_lives_on_does_not_hold_up_the_end_of_the_memory",
        || {
            let Some(memory) = filled() else {
                return;
            };
            let (ours, theirs) = UnixStream::pair().unwrap();
            // SAFETY: the child waits for a system call, and ends.
            match unsafe { libc::fork() } {
                0 => {
                    drop(ours);
                    let _ = std::io::Read::read(&mut &theirs, &mut [0]);
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(0) }
                }
                child => {
                    drop(theirs);
                    drop(memory);
                    // Another memory is served by the same number.
                    let other = filled().unwrap();
                    check(&other);
                    drop(ours);
                    let mut status = -1;
                    // SAFETY: waits for the child made above.
                    unsafe { libc::waitpid(child, &raw mut status, 0) };
                    assert_eq!(status, 0);
                }
            }
        },
    );
}

#[test]
fn it_needs_no_right_to_serve_the_system() {
    apart_with(
        &HERE,
        "handler::it_needs_no_right_to_serve_the_system",
        || {
            // The system call itself may be refused to everybody.
            if filled().is_none() {
                return;
            }
            // SAFETY: asks for a number.
            if unsafe { libc::geteuid() } == 0 {
                // SAFETY: this process gives up its rights for good.
                assert_eq!(unsafe { libc::setuid(65_534) }, 0);
            }
            check(&filled().unwrap());
        },
    );
}

/// A codec needs more than such a stack has, and more than the alternate one of the thread's signals.
#[test]
fn a_thread_with_a_small_stack_may_touch() {
    apart("handler::a_thread_with_a_small_stack_may_touch", || {
        let Some(mut memory) = with_store(PAGES, 64, uzram::Store::builder().algorithm("zstd"))
        else {
            return;
        };
        fill(&mut memory);
        let body = || {
            let pages = memory.chunks_exact(PAGE);
            pages.map(|page| usize::from(page[9])).sum::<usize>()
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(16 << 10);
            let sum = thread.spawn_scoped(scope, body).unwrap().join().unwrap();
            assert_eq!(sum, body());
        });
    });
}

/// The memory of the test below, and how often its handler ran.
static BYTES: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static RUNS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn touch(_: libc::c_int) {
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let page = run * 7 % PAGES;
    let at = BYTES.load(Ordering::Relaxed).wrapping_add(page * PAGE + 8);
    // SAFETY: the memory lives while the timer runs, and nobody writes to it.
    let seed = unsafe { at.cast::<u64>().read_volatile() };
    if seed != page as u64 {
        std::process::abort();
    }
}

#[test]
fn handlers_of_other_signals_may_touch_at_any_moment() {
    apart(
        "handler::handlers_of_other_signals_may_touch_at_any_moment",
        || {
            let Some(memory) = filled() else {
                return;
            };
            BYTES.store(memory.as_ptr().cast_mut(), Ordering::Relaxed);
            // SAFETY: the handler reads memory that lives longer than the timer.
            unsafe { libc::signal(libc::SIGALRM, touch as *const () as libc::sighandler_t) };
            let timer = |us| {
                let each = libc::timeval {
                    tv_sec: 0,
                    tv_usec: us,
                };
                let value = libc::itimerval {
                    it_interval: each,
                    it_value: each,
                };
                // SAFETY: reads the value.
                unsafe {
                    libc::setitimer(libc::ITIMER_REAL, &raw const value, std::ptr::null_mut())
                };
            };
            timer(100);
            let mut rounds = 0;
            while RUNS.load(Ordering::Relaxed) < 300 || rounds < 5 {
                check(&memory);
                rounds += 1;
            }
            timer(0);
            // Another thread may be in the handler still.
            std::mem::forget(memory);
        },
    );
}

#[test]
fn memory_ends_while_its_thread_is_awake() {
    apart("handler::memory_ends_while_its_thread_is_awake", || {
        for _ in 0..200 {
            // A discard of the whole range has just woken the thread, which may see the end before the end's own message.
            match memory(300, 64) {
                Some(memory) => drop(uzram_pager::CompressedHeap::new(memory).unwrap()),
                None => return,
            }
        }
    });
}
