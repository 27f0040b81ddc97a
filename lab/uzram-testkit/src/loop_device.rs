//! Loop devices, which stand for all block devices.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

/// A loop device with sectors of 4 KiB over an empty file in memory, if there can be one; detached when dropped.
#[derive(Debug)]
pub struct Loop {
    /// The device.
    pub path: PathBuf,
    /// A folder that goes with it, with the file in it.
    pub folder: tempfile::TempDir,
}

impl Loop {
    /// One of `size_bytes`. `None` where there can be none; then it says why.
    ///
    /// # Panics
    /// If no file can be made.
    #[must_use]
    pub fn new(size_bytes: u64) -> Option<Loop> {
        let left_out = |why: &str| eprintln!("left out: loop devices: {why}");
        if !rustix::process::geteuid().is_root() {
            left_out("need root");
            return None;
        }
        let folder = ["/dev/shm", "/tmp"]
            .iter()
            .find_map(|at| tempfile::tempdir_in(at).ok());
        let folder = folder.expect("a folder in memory or in /tmp");
        let file = folder.path().join("backing");
        let made = File::create(&file).and_then(|file| file.set_len(size_bytes));
        made.expect("a file of this size");
        let made = Command::new("losetup")
            .args(["--sector-size=4096", "--show", "--find"])
            .arg(&file)
            .output();
        match made {
            Ok(output) if output.status.success() => {
                let path = String::from_utf8_lossy(&output.stdout);
                Some(Loop {
                    path: path.trim().into(),
                    folder,
                })
            }
            Ok(output) => {
                left_out(String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                left_out(&error.to_string());
                None
            }
        }
    }

    /// Runs a program on the device.
    ///
    /// # Panics
    /// If it fails.
    pub fn run(&self, program: &str, arguments: &[&str]) {
        let status = Command::new(program)
            .args(arguments)
            .arg(&self.path)
            .output();
        let is_done = status.is_ok_and(|output| output.status.success());
        assert!(is_done, "{program}");
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg(self.folder.path().join("mnt"))
            .output();
        let _ = Command::new("losetup").arg("-d").arg(&self.path).status();
    }
}
