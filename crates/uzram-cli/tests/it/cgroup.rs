//! A memory cgroup that goes with the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where memory cgroups (version 1) are.
const CGROUPS: &str = "/sys/fs/cgroup/memory";

pub struct Cgroup(PathBuf);

impl Cgroup {
    /// `None`, with a line that says so, where there are none.
    pub fn new(name: &str, limit_bytes: Option<usize>) -> Option<Cgroup> {
        let name = format!("uzram-test-{name}-{}", std::process::id());
        let path = Path::new(CGROUPS).join(name);
        if fs::create_dir(&path).is_err() {
            eprintln!("left out: it needs memory cgroups of version 1 at {CGROUPS}");
            return None;
        }
        let cgroup = Cgroup(path);
        if let Some(bytes) = limit_bytes {
            fs::write(cgroup.file("memory.limit_in_bytes"), bytes.to_string()).unwrap();
        }
        Some(cgroup)
    }

    /// `command`, in the cgroup from its first instruction on.
    pub fn within(&self, command: &Command) -> Command {
        let mut inner = Command::new("sh");
        inner.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        inner.arg(self.file("cgroup.procs"));
        inner.arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            inner.env(key, value.unwrap_or_default());
        }
        inner
    }

    /// Memory of its processes, by the system's count.
    pub fn usage_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.file("memory.usage_in_bytes")).unwrap();
        text.trim().parse().unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
