//! The log: one line per event on stderr, with the priority in front where stderr is the journal.
//!
//! No request logs, at any level: a server that holds the machine's swap must not wait for a
//! reader of its log.

use std::io::Write;
use std::sync::OnceLock;

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::failure::one_line;

/// The process's log.
struct Logger {
    is_journal: bool,
}

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
    let _ = log::set_logger(LOGGER.get_or_init(|| Logger { is_journal }));
}

/// Whether stderr is the journal's stream. `JOURNAL_STREAM` has its device and inode.
pub fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let found = rustix::fs::fstat(std::io::stderr());
    found.is_ok_and(|found| named == format!("{}:{}", found.st_dev, found.st_ino))
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
        // In one piece, so that lines of several threads do not mix; there is nobody to tell if it
        // fails.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    fn flush(&self) {}
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
