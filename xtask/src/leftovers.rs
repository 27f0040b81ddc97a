//! Settings of the system that a killed run of the tests left changed.
//!
//! A test that hurries khugepaged holds a lock and keeps a record of the values before
//! (`crates/uzram/tests/it/khugepaged.rs`). A record without a holder of the lock is a dead run's.

use std::fs::{self, File};
use std::path::Path;

const ROOT: &str = "/sys/kernel/mm/transparent_hugepage";
const LOCK: &str = "khugepaged/scan_sleep_millisecs";
/// Only root writes there, as only root can change the settings.
const RECORD: &str = "/run/uzram-test-khugepaged";

/// Puts back what a dead run changed.
pub fn put_back() {
    if let Some(settings) = put_back_in(Path::new(ROOT), Path::new(RECORD)) {
        println!("a killed run had changed {ROOT}; put back: {settings}");
    }
}

/// The settings that were put back, if there were any.
fn put_back_in(root: &Path, record: &Path) -> Option<String> {
    let text = fs::read_to_string(record).ok()?;
    let lock = File::open(root.join(LOCK)).ok()?;
    // A run that is alive puts them back itself.
    lock.try_lock().ok()?;
    let settings: Vec<_> = text.lines().filter(is_setting).collect();
    for (name, value) in settings.iter().filter_map(|line| line.split_once(' ')) {
        if let Err(error) = fs::write(root.join(name), value) {
            println!("{}: {error}; it was {value}", root.join(name).display());
            return None;
        }
    }
    // Tests that began meanwhile wait for the lock, and find no record.
    let _ = fs::remove_file(record);
    Some(settings.join(", "))
}

/// Whether a line of the record names a setting below the root.
fn is_setting(line: &&str) -> bool {
    let name = line.split(' ').next().unwrap_or_default();
    !name.is_empty() && !name.starts_with('/') && !name.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_runs_settings_are_put_back_and_a_living_ones_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let (root, record) = (directory.path(), directory.path().join("record"));
        fs::create_dir(root.join("khugepaged")).unwrap();
        fs::write(root.join(LOCK), "10").unwrap();
        fs::write(root.join("enabled"), "always").unwrap();
        assert_eq!(put_back_in(root, &record), None, "no record");
        fs::write(&record, format!("{LOCK} 10000\nenabled madvise\n../x 1\n")).unwrap();
        let holder = File::open(root.join(LOCK)).unwrap();
        holder.lock().unwrap();
        assert_eq!(put_back_in(root, &record), None, "alive");
        assert!(record.exists());
        drop(holder);
        let settings = put_back_in(root, &record);
        assert_eq!(settings, Some(format!("{LOCK} 10000, enabled madvise")));
        let now = [LOCK, "enabled"].map(|name| fs::read_to_string(root.join(name)).unwrap());
        assert_eq!(now, ["10000", "madvise"]);
        assert!(!record.exists());
    }
}
