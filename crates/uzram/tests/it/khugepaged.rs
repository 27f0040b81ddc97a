//! The kernel's thread that joins small pages to huge ones, made to look often while a test waits for it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ROOT: &str = "/sys/kernel/mm/transparent_hugepage";

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
        let mut hurry = Hurry {
            before: Vec::new(),
            _lock: lock,
        };
        for (name, value) in HURRIED.into_iter().chain([("enabled", enabled)]) {
            let path = Path::new(ROOT).join(name);
            let before = chosen(&std::fs::read_to_string(&path).ok()?);
            std::fs::write(&path, value).ok()?;
            hurry.before.push((path, before));
        }
        Some(hurry)
    }
}

/// The value of a setting. Of several choices the brackets mark it.
fn chosen(text: &str) -> String {
    let marked = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    marked.map_or(text, |(choice, _)| choice).to_string()
}

impl Drop for Hurry {
    fn drop(&mut self) {
        for (path, before) in &self.before {
            let restored = std::fs::write(path, before);
            assert!(restored.is_ok(), "{path:?} stays changed");
        }
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
