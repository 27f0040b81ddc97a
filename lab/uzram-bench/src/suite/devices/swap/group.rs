//! A memory cgroup for one program. Nothing that swaps runs outside of one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Where groups are, and the file of their limit: version 1, then version 2.
const VERSIONS: [(&str, &str); 2] = [
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ("/sys/fs/cgroup", "memory.max"),
];
/// How long the kernel may take to let go of a group's last process.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// A group; dropping it removes it.
#[derive(Debug)]
pub(super) struct Group(PathBuf);

impl Group {
    /// A group whose processes together have this much memory.
    ///
    /// # Errors
    /// Why this machine has none, in a line.
    pub(super) fn new(limit_bytes: u64) -> Result<Group> {
        let refused = |why: &str| {
            Error::Failed(format!(
                "needs a memory cgroup of its own (version 1 at {}, or 2 with `memory` in \
                 cgroup.subtree_control): {why}",
                VERSIONS[0].0
            ))
        };
        let mut last = refused("there is none");
        for (root, limit) in VERSIONS {
            match Group::below(Path::new(root), limit, limit_bytes) {
                Ok(group) => return Ok(group),
                Err(error) => last = refused(&error.to_string()),
            }
        }
        Err(last)
    }

    fn below(root: &Path, limit: &str, limit_bytes: u64) -> io::Result<Group> {
        let path = root.join(format!("uzram-bench-swap-{}", std::process::id()));
        fs::create_dir(&path)?;
        let group = Group(path);
        // Only the kernel makes the file: where it is not there, nothing would be limited.
        let file = fs::OpenOptions::new().write(true).open(group.0.join(limit));
        file.and_then(|mut file| {
            io::Write::write_all(&mut file, limit_bytes.to_string().as_bytes())
        })?;
        Ok(group)
    }

    /// The file that takes processes into it.
    pub(super) fn processes(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = Instant::now() + LEAVE_LIMIT;
        while let Err(error) = fs::remove_dir(&self.0) {
            if Instant::now() > deadline {
                let path = self.0.display();
                return eprintln!("uzram-bench: left behind: {path}: {error}");
            }
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_limit_is_no_group() {
        let root = tempfile::tempdir().unwrap();
        assert!(Group::below(root.path(), "memory.max", 1 << 20).is_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
