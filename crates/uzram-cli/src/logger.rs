//! The log: one line per event on stderr, with the priority in front where stderr is the journal.
//!
//! No request logs, at any level: a server that holds the machine's swap must not wait for a
//! reader of its log. Its log may lie in memory of files that was swapped out to its own disk, so a thread of its own
//! writes there.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use log::{Level, LevelFilter, Log, Metadata, Record};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::one_line;

/// The process's log.
struct Logger {
    is_journal: bool,
    /// Nobody reads; lines are lost.
    is_stalled: AtomicBool,
    /// The way to the thread that writes, if there is one.
    aside: OnceLock<SyncSender<String>>,
    /// Lines that it has not written yet.
    waiting: AtomicUsize,
}

/// Longest wait for whoever reads the log.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
/// Lines that may wait for the thread that writes; others are lost.
const WAITING_MAX: usize = 256;
/// Longest wait for that thread when the process ends.
const LAST_LINES_TIMEOUT: Duration = Duration::from_millis(200);
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Longest line, in bytes: as much as a pipe with room takes at once.
const LINE_BYTES_MAX: usize = 4096;

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Starts logging at `level`, or at the default for stderr.
pub fn start(level: Option<LevelFilter>) {
    let is_journal = is_journal();
    let fitting = if is_journal {
        LevelFilter::Info
    } else {
        LevelFilter::Warn
    };
    log::set_max_level(level.unwrap_or(fitting));
    // It fails only where there is a log already.
    let _ = log::set_logger(LOGGER.get_or_init(|| Logger {
        is_journal,
        is_stalled: AtomicBool::new(false),
        aside: OnceLock::new(),
        waiting: AtomicUsize::new(0),
    }));
}

/// Has a thread write from now on, so that nobody else waits for it.
pub fn write_aside() {
    let Some(logger) = LOGGER.get() else {
        return;
    };
    let (lines, written) = sync_channel::<String>(WAITING_MAX);
    let write = move || {
        for line in written {
            logger.write(&line);
            logger.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    };
    // Without one all is as before.
    if thread::Builder::new()
        .name("uzram-log".into())
        .spawn(write)
        .is_ok()
    {
        let _ = logger.aside.set(lines);
    }
}

/// Whether stderr is the journal's stream. `JOURNAL_STREAM` has its device and inode.
pub fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let found = rustix::fs::fstat(std::io::stderr());
    found.is_ok_and(|found| named == format!("{}:{}", found.st_dev, found.st_ino))
}

impl Logger {
    /// Writes in one piece, so that lines of several threads do not mix; there is nobody to tell if it fails.
    fn write(&self, line: &str) {
        let mut stderr = std::io::stderr().lock();
        if self.is_read() {
            let length = line.len().min(LINE_BYTES_MAX);
            let _ = stderr.write_all(&line.as_bytes()[..length]);
        }
    }

    /// Whether a line can be written without a wait for whoever reads: one who has stopped, as a terminal may or a pipe, must
    /// not stop disks. It is waited for once.
    fn is_read(&self) -> bool {
        let patience = match self.is_stalled.load(Ordering::Relaxed) {
            true => Timespec::default(),
            false => PATIENCE,
        };
        let mut events = [PollFd::from_borrowed_fd(
            rustix::stdio::stderr(),
            PollFlags::OUT,
        )];
        let is_read = poll(&mut events, Some(&patience)).is_ok_and(|ready| ready > 0);
        self.is_stalled.store(!is_read, Ordering::Relaxed);
        is_read
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = one_line(&record.args().to_string());
        let line = match self.is_journal {
            true => format!("<{}>{text}\n", priority(record.level())),
            false => format!("uzram: {}{text}\n", word(record.level())),
        };
        match self.aside.get() {
            None => self.write(&line),
            Some(aside) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                if aside.try_send(line).is_err() {
                    self.waiting.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Waits a moment for lines that are being written, before the process ends.
    fn flush(&self) {
        let start = Instant::now();
        while self.waiting.load(Ordering::Relaxed) > 0 && start.elapsed() < LAST_LINES_TIMEOUT {
            thread::sleep(LOOK_AGAIN);
        }
    }
}

/// syslog's numbers, as sd-daemon(3) wants them in front of a line.
fn priority(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Error => "error: ",
        Level::Warn => "warning: ",
        Level::Info => "",
        Level::Debug | Level::Trace => "debug: ",
    }
}
