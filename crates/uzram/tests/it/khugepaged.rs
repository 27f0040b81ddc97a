//! The kernel's thread that joins small pages to huge ones, made to look often while a test waits for it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ROOT: &str = "/sys/kernel/mm/transparent_hugepage";

/// The settings before, for as long as they are changed: what a killed run left is put back by the next one, and by
/// `cargo xtask test`. Only root writes there, as only root can change the settings.
const RECORD: &str = "/run/uzram-test-khugepaged";

/// How long to wait for the thread, which works at what speed it likes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Rounds until it has seen, twice, all that was there when the wait began.
const ROUNDS: u64 = 3;

const HURRIED: [(&str, &str); 3] = [
    ("khugepaged/pages_to_scan", "1000000"),
    ("khugepaged/alloc_sleep_millisecs", "10"),
    ("khugepaged/scan_sleep_millisecs", "10"),
];

/// The memory whose pages the thread joins.
#[derive(Clone, Copy)]
pub enum Joined {
    Advised,
    All,
}

/// The thread in a hurry, for as long as this value lives; one test at a time has it.
pub struct Hurry {
    before: Vec<(PathBuf, String)>,
    _lock: File,
}

impl Hurry {
    /// Joins pages of memory that is advised so, or of all memory that is not advised against it. `None`
    /// where this user may not, or the system has no such thread.
    pub fn make(memory: Joined) -> Option<Hurry> {
        let mode = std::fs::read_to_string(Path::new(ROOT).join("enabled")).ok()?;
        if mode.contains("[never]") {
            return None;
        }
        let enabled = match memory {
            Joined::Advised => "madvise",
            Joined::All => "always",
        };
        let lock = File::open(Path::new(ROOT).join("khugepaged/scan_sleep_millisecs")).ok()?;
        lock.lock().ok()?;
        put_back_a_dead_runs();
        let wanted = || HURRIED.into_iter().chain([("enabled", enabled)]);
        let mut record = String::new();
        let mut before = Vec::new();
        for (name, _) in wanted() {
            let path = Path::new(ROOT).join(name);
            let value = chosen(&std::fs::read_to_string(&path).ok()?);
            record.push_str(&format!("{name} {value}\n"));
            before.push((path, value));
        }
        std::fs::write(RECORD, record).ok()?;
        let hurry = Hurry {
            before,
            _lock: lock,
        };
        for (name, value) in wanted() {
            std::fs::write(Path::new(ROOT).join(name), value).ok()?;
        }
        Some(hurry)
    }
}

/// The value of a setting. Of several choices the brackets mark it.
fn chosen(text: &str) -> String {
    let marked = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    let value = marked.map_or(text, |(choice, _)| choice);
    value.trim_end().to_string()
}

/// Under the lock, so that whoever wrote the record is dead.
fn put_back_a_dead_runs() {
    let record = std::fs::read_to_string(RECORD).unwrap_or_default();
    let known = |name: &str| name == "enabled" || HURRIED.iter().any(|(own, _)| *own == name);
    for (name, value) in record.lines().filter_map(|line| line.split_once(' ')) {
        if known(name) {
            let restored = std::fs::write(Path::new(ROOT).join(name), value);
            assert!(restored.is_ok(), "{name} stays changed; it was {value}");
        }
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        for (path, before) in &self.before {
            let restored = std::fs::write(path, before);
            assert!(restored.is_ok(), "{path:?} stays changed");
        }
        let _ = std::fs::remove_file(RECORD);
    }
}

/// Waits until the thread has been through all memory; false if it takes too long.
pub fn wait_for_rounds() -> bool {
    let rounds = || {
        let text = std::fs::read_to_string(Path::new(ROOT).join("khugepaged/full_scans")).unwrap();
        text.trim().parse::<u64>().unwrap()
    };
    let (start, before) = (Instant::now(), rounds());
    while rounds() < before + ROUNDS {
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}
