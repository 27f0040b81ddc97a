//! The log: one line an event on stderr, with the priority in front where that is the journal.
//!
//! Nothing on the way of a request logs, at any level: a server that holds the machine's swap must not
//! wait for whoever reads its log.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::failure::one_line;

/// The process's log.
struct Logger {
    is_journal: bool,
}

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Starts logging at `level`, or at what suits stderr.
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

/// Whether stderr is the journal's stream, whose device and inode it says in `JOURNAL_STREAM`.
pub fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let Ok(found) = std::fs::metadata("/proc/self/fd/2") else {
        return false;
    };
    named == format!("{}:{}", found.dev(), found.ino())
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
