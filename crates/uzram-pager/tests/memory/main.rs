//! Compressed memory as a program sees it. Each test runs in a process of its own with a time limit, so that a touch that
//! is never answered fails a test and does not block it.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod auto;
mod budget;
mod failure;
mod global;
mod handler;
mod heap;
mod model;
mod soak;
mod spill;
mod system;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use uzram::{ErrorKind, StoreBuilder};
use uzram_pager::{CompressedGlobal, CompressedMemory, CompressedMemoryBuilder, FaultHandler};

/// It serves as the system's does until a test starts it.
#[global_allocator]
static GLOBAL: CompressedGlobal = CompressedGlobal::new(64 << 10);

const PAGE: usize = 4096;
/// Handlers of faults: each test runs once with each.
const HANDLERS: [FaultHandler; 2] = [FaultHandler::OwnThread, FaultHandler::FaultingThread];
/// The longest that a test's process may take, many times what it takes.
const LIMIT: Duration = Duration::from_secs(120);
/// Tells a process which test's body it is to run.
const BODY: &str = "UZRAM_PAGER_TEST";
/// Tells it who answers faults there.
const HANDLER: &str = "UZRAM_PAGER_HANDLER";

/// Runs `body` in a process of its own for each handler of faults. It must succeed.
fn apart(name: &str, body: fn()) {
    apart_with(&HANDLERS, name, body);
}

/// The same for some handlers.
fn apart_with(handlers: &[FaultHandler], name: &str, body: fn()) {
    run(handlers, name, body, |status, output| {
        assert!(status.success(), "{name}: {status}\n{output}");
        // What was left out shows in this process's output.
        output
            .lines()
            .filter(|line| line.contains("skipped"))
            .for_each(|line| println!("{line}"));
    });
}

/// Runs `body` in a process of its own for each handler of faults. `signal` must end it, unless the system has no
/// userfaultfd.
fn killed_by(signal: i32, name: &str, body: fn()) {
    killed_with(&HANDLERS, signal, name, body);
}

/// The same for some handlers.
fn killed_with(handlers: &[FaultHandler], signal: i32, name: &str, body: fn()) {
    run(handlers, name, body, |status, output| {
        let is_skipped = status.success() && output.contains("skipped");
        assert!(
            is_skipped || status.signal() == Some(signal),
            "{name}: {status}\n{output}"
        );
    });
}

/// The same for SIGBUS of a page that is lost. A thread that answers its own faults says so.
fn lost(name: &str, body: fn()) {
    lost_with(&HANDLERS, name, body);
}

/// The same for some handlers.
fn lost_with(handlers: &[FaultHandler], name: &str, body: fn()) {
    run(handlers, name, body, |status, output| {
        let is_skipped = status.success() && output.contains("skipped");
        let is_said = output.contains("uzram: SIGBUS: compressed memory at 0x");
        let says = output.starts_with("FaultingThread");
        assert!(
            is_skipped || status.signal() == Some(libc::SIGBUS) && is_said == says,
            "{name}: {status}\n{output}"
        );
    });
}

/// Whether this process is there to run a test's body.
fn is_body() -> bool {
    std::env::var_os(BODY).is_some()
}

/// The handler of faults in this process.
fn handler() -> FaultHandler {
    let name = std::env::var(HANDLER).unwrap_or_default();
    let named = HANDLERS
        .into_iter()
        .find(|handler| format!("{handler:?}") == name);
    named.unwrap_or_default()
}

/// Whether system calls may touch absent pages.
fn serves_the_system() -> bool {
    handler() == FaultHandler::OwnThread
}

/// Runs this very test again as processes and lets `check` see each one's end, or runs `body` if this is such a process.
fn run(handlers: &[FaultHandler], name: &str, body: fn(), check: impl Fn(ExitStatus, &str)) {
    if std::env::var(BODY).as_deref() == Ok(name) {
        return body();
    }
    for handler in handlers {
        let (status, output) = process(*handler, name);
        check(status, &format!("{handler:?}: {output}"));
    }
}

fn process(handler: FaultHandler, name: &str) -> (ExitStatus, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("output");
    let output = std::fs::File::create(&path).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(BODY, name)
        .env(HANDLER, format!("{handler:?}"))
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap();
    let end = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > end {
            child.kill().unwrap();
            break child.wait().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    (
        status,
        String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned(),
    )
}

/// Memory of `pages` pages, unless the system has no userfaultfd that moves pages: then says so.
fn memory(pages: usize, budget_pages: usize) -> Option<CompressedMemory> {
    with_store(pages, budget_pages, uzram::Store::builder())
}

fn with_store(pages: usize, budget_pages: usize, store: StoreBuilder) -> Option<CompressedMemory> {
    let builder = CompressedMemory::builder(pages * PAGE, budget_pages * PAGE);
    made(builder.store(store))
}

/// The same with a file for pages, and the file.
fn with_spill(
    pages: usize,
    budget_pages: usize,
    store: StoreBuilder,
) -> Option<(CompressedMemory, File)> {
    let file = tempfile::tempfile().unwrap();
    let builder = CompressedMemory::builder(pages * PAGE, budget_pages * PAGE).store(store);
    // The store's own is read and written directly, and as the store wants it.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let ours = File::options().read(true).write(true).open(path).unwrap();
    Some((made(builder.spill(file))?, ours))
}

fn made(builder: CompressedMemoryBuilder) -> Option<CompressedMemory> {
    match builder.fault_handler(handler()).build() {
        Ok(memory) => Some(memory),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Waits until `holds` of `memory`.
fn until(memory: &CompressedMemory, what: &str, holds: impl Fn(&CompressedMemory) -> bool) {
    until_true(&memory, what, || holds(memory));
}

/// Waits until `holds`. Shows `seen` if it never does.
fn until_true(seen: &impl std::fmt::Debug, what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT / 2;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}: {seen:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether each page of `bytes`, which start at a page, is in memory by the system's account.
fn present(bytes: &[u8]) -> Vec<bool> {
    let mut flags = vec![0u8; bytes.len().div_ceil(PAGE)];
    let at = bytes.as_ptr().cast_mut().cast();
    // SAFETY: one byte per page of a range that is mapped.
    let result = unsafe { libc::mincore(at, bytes.len(), flags.as_mut_ptr()) };
    assert_eq!(result, 0);
    flags.iter().map(|flag| flag & 1 == 1).collect()
}

/// Discards whole pages, as an allocator does.
fn discard(bytes: &mut [u8], advice: i32) {
    assert!(bytes.as_ptr().addr().is_multiple_of(PAGE) && bytes.len().is_multiple_of(PAGE));
    // SAFETY: the range is borrowed for writing, and any content of it is valid.
    let result = unsafe { libc::madvise(bytes.as_mut_ptr().cast(), bytes.len(), advice) };
    assert_eq!(result, 0);
}

/// Lets a child after a fork die of its touch at once. The standard library's handler of the signal takes a lock that another
/// thread may have held at the fork, and aborts then.
fn die_of_segv() {
    // SAFETY: the default action runs no code, and a child after a fork may set it.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
}

/// Fills a page with words that tell the page from others, and shrink to about half.
fn mark(page: &mut [u8], seed: u64) {
    let mut rng = uzram_testkit::Rng::new(seed);
    for words in page.chunks_exact_mut(16) {
        let word = rng.next().to_le_bytes();
        words[..8].copy_from_slice(&word);
        words[8..].copy_from_slice(&seed.to_le_bytes());
    }
}

fn marked(seed: u64) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    mark(&mut page, seed);
    page
}
