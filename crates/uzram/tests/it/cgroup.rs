//! A memory cgroup for a process that a test starts, gone with the test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the group that the other process enters.
const CGROUP: &str = "UZRAM_TEST_CGROUP";

/// Per version: the directory of groups, and the names of a group's files.
const VERSIONS: [(&str, &str, &str); 2] = [
    (
        "/sys/fs/cgroup/memory",
        "memory.usage_in_bytes",
        "memory.limit_in_bytes",
    ),
    ("/sys/fs/cgroup", "memory.current", "memory.max"),
];

/// A group of version 1 or 2, removed when dropped.
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// `None` where this user may not make one.
    pub fn make(name: &str) -> Option<Cgroup> {
        let name = format!("uzram-test-{}-{name}", std::process::id());
        let place = |(root, usage, _): &(&str, &str, &str)| {
            Cgroup::at(Path::new(root).join(&name))
                .filter(|cgroup| cgroup.path.join(usage).exists())
        };
        VERSIONS.iter().find_map(place)
    }

    /// A group within this one, to be dropped first.
    pub fn within(&self, name: &str) -> Option<Cgroup> {
        // Version 2 wants to be told that groups below are to count memory; version 1 has no such file.
        let _ = std::fs::write(self.path.join("cgroup.subtree_control"), "+memory");
        Cgroup::at(self.path.join(name))
    }

    /// Sets the group's limit; false where that cannot be.
    pub fn limit(&self, bytes: u64) -> bool {
        let files = VERSIONS.map(|(_, _, limit)| self.path.join(limit));
        let file = files.iter().find(|file| file.exists());
        file.is_some_and(|file| std::fs::write(file, bytes.to_string()).is_ok())
    }

    /// Lets `command`'s process know its group, which it is to [`enter`].
    pub fn hold(&self, command: &mut Command) {
        command.env(CGROUP, &self.path);
    }

    fn at(path: PathBuf) -> Option<Cgroup> {
        std::fs::create_dir(&path).ok()?;
        Some(Cgroup { path })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Moves this process to the group that it was started for, if there is one.
pub fn enter() {
    if let Ok(cgroup) = std::env::var(CGROUP) {
        move_to(Path::new(&cgroup));
    }
}

/// Moves this process to the group above that one.
pub fn leave() {
    let cgroup = std::env::var(CGROUP).unwrap();
    move_to(Path::new(&cgroup).parent().unwrap());
}

fn move_to(cgroup: &Path) {
    let pid = std::process::id().to_string();
    std::fs::write(cgroup.join("cgroup.procs"), pid).unwrap();
}

/// Bytes that the system counts for the group that this process was started for.
pub fn usage_bytes() -> Option<u64> {
    let cgroup = std::env::var(CGROUP).ok()?;
    let read = |usage: &str| std::fs::read_to_string(Path::new(&cgroup).join(usage)).ok();
    let text = VERSIONS.iter().find_map(|(_, usage, _)| read(usage));
    Some(text.unwrap().trim().parse().unwrap())
}
