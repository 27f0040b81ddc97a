//! Servers under load, each in a process of its own with a private folder.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Error, Result};
use crate::folder::{Folder, end_child};

/// How long a server may take until it listens.
const START_LIMIT: Duration = Duration::from_secs(10);
const POLL_AFTER: Duration = Duration::from_millis(10);
/// Most of a dead server's last words that are shown, in characters.
const LAST_WORDS_MAX: usize = 300;

/// A running server; dropping it ends it and removes its folder.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) variant: String,
    pub(crate) export: String,
    child: Child,
    folder: Folder,
}

impl Server {
    /// Starts what `command` makes of the folder and the socket's path, and waits until it listens.
    pub(crate) fn start(
        variant: &str,
        export: &str,
        command: impl FnOnce(&Path, &Path) -> Command,
    ) -> Result<Server> {
        let folder = Folder::new()?;
        let socket = folder.path().join("nbd");
        let errors = folder.path().join("stderr");
        let failed = |error| Error::io(variant, error);
        let stderr = File::create(&errors).map_err(failed)?;
        let mut command = command(folder.path(), &socket);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        let child = command.spawn().map_err(failed)?;
        let (variant, export) = (variant.to_owned(), export.to_owned());
        let mut server = Server {
            variant,
            export,
            child,
            folder,
        };
        server.wait_until_it_listens(&errors)?;
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("nbd")
    }

    fn wait_until_it_listens(&mut self, errors: &Path) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while UnixStream::connect(self.socket()).is_err() {
            let exited = self.child.try_wait().ok().flatten();
            if exited.is_some() || Instant::now() > deadline {
                let words = fs::read_to_string(errors).unwrap_or_default();
                let words: Vec<&str> = words.split_whitespace().collect();
                let words: String = words.join(" ").chars().take(LAST_WORDS_MAX).collect();
                let what = exited.map_or("does not listen".to_owned(), |status| status.to_string());
                return Err(Error::Failed(format!("{}: {what}: {words}", self.variant)));
            }
            thread::sleep(POLL_AFTER);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        end_child(&mut self.child);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_dies_at_once_is_reported_with_its_last_words() {
        let error = Server::start("some-server", "", |_, _| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo 'no\nsuch thing' >&2; exit 3"]);
            command
        });
        let text = error.unwrap_err().to_string();
        assert_eq!(text, "some-server: exit status: 3: no such thing");
    }
}
