//! One `uzram serve` on a Unix socket of its own, in a directory of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{self, Exit, Running};
use crate::workspace;

/// Time limit until a server's socket answers.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Pause between two tries to connect.
const ANSWER_PAUSE: Duration = Duration::from_millis(10);
/// Time limit for a server to drain and end.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// Time limit of a control command.
const CONTROL_LIMIT: Duration = Duration::from_secs(20);
/// The name of a server's disk.
pub const DEVICE_NAME: &str = "e2e";

/// A running server; killed when dropped.
pub struct Server {
    running: Running,
    binary: PathBuf,
    /// The directory of the socket, the control socket and the log. Clients may write here.
    pub dir: TempDir,
}

impl Server {
    /// Starts `binary` with `serve`, the given arguments and a socket, and waits until it answers.
    ///
    /// # Errors
    /// If the server ends, or does not answer within its limit; with its output.
    pub fn start(binary: &Path, arguments: &[&str]) -> Result<Server, String> {
        let dir = tempfile::tempdir().map_err(|error| format!("temporary directory: {error}"))?;
        Server::start_in(dir, binary, arguments)
    }

    /// As [`start`](Server::start), in a directory that an earlier server may have used.
    ///
    /// # Errors
    /// If the server ends, or does not answer within its limit; with its output.
    pub fn start_in(dir: TempDir, binary: &Path, arguments: &[&str]) -> Result<Server, String> {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700))
            .map_err(|error| format!("{}: {error}", dir.path().display()))?;
        let mut command = uzram(binary, dir.path());
        command
            .args(["serve", "--name", DEVICE_NAME])
            .args(arguments);
        command.arg("--socket").arg(dir.path().join("socket"));
        let log = fs::File::create(dir.path().join("log")).and_then(|log| {
            command.stderr(log.try_clone()?);
            Ok(log)
        });
        command.stdout(log.map_err(|error| format!("server's log: {error}"))?);
        let running = Running::start(&mut command)?;
        let mut server = Server {
            running,
            binary: binary.to_path_buf(),
            dir,
        };
        server.wait_until_it_answers()?;
        Ok(server)
    }

    fn wait_until_it_answers(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_LIMIT;
        while UnixStream::connect(self.socket()).is_err() {
            if let Some(status) = self.running.wait(ANSWER_PAUSE) {
                return Err(format!(
                    "the server {} at its start:\n{}",
                    Exit::from(status),
                    self.log()
                ));
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "the server's socket does not answer:\n{}",
                    self.log()
                ));
            }
        }
        Ok(())
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// The address that NBD clients take.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket().display())
    }

    /// The output of `uzram stat --json` about the device.
    ///
    /// # Errors
    /// If the command fails or prints anything but JSON.
    pub fn stat(&self) -> Result<Stat, String> {
        let mut command = uzram(&self.binary, self.dir.path());
        command.args(["stat", DEVICE_NAME, "--json"]);
        let finished = process::succeed(&mut command, CONTROL_LIMIT)?;
        let value = serde_json::from_str(&finished.stdout)
            .map_err(|error| format!("`uzram stat --json` is not JSON: {error}"))?;
        Ok(Stat(value))
    }

    /// Asks the server to leave; it must drain and end with status 0, without having panicked.
    ///
    /// # Errors
    /// If it does not; with its output.
    pub fn stop(mut self) -> Result<(), String> {
        self.running.terminate();
        let exit = self.running.wait(STOP_LIMIT).map(Exit::from);
        let log = self.log();
        match exit {
            Some(Exit::Code(0)) if !log.contains("panicked") => Ok(()),
            Some(exit) => Err(format!("the server {exit} when asked to leave:\n{log}")),
            None => Err(format!(
                "the server ignored SIGTERM for {STOP_LIMIT:?}:\n{log}"
            )),
        }
    }

    /// Kills it. Its directory is left as it is then.
    pub fn kill(mut self) -> TempDir {
        self.running.kill();
        self.dir
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

/// The output of `uzram stat --json`.
pub struct Stat(Value);

impl Stat {
    /// The figure of the given name, at any place in the document.
    ///
    /// # Errors
    /// If there is none.
    pub fn figure(&self, name: &str) -> Result<u64, String> {
        find(&self.0, name)
            .and_then(Value::as_u64)
            .ok_or_else(|| format!("`uzram stat --json` has no number `{name}`: {}", self.0))
    }
}

fn find<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) => fields
            .get(name)
            .or_else(|| fields.values().find_map(|field| find(field, name))),
        Value::Array(items) => items.iter().find_map(|item| find(item, name)),
        _ => None,
    }
}

/// The `uzram` command with its state in `dir`.
pub fn uzram(binary: &Path, dir: &Path) -> Command {
    let mut command = workspace::command(binary);
    command.env("XDG_RUNTIME_DIR", dir);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_at_any_depth_and_their_absence_is_an_error() {
        let stat = Stat(serde_json::json!({"devices": [{"name": "e2e", "mm": {"huge_pages": 3}}]}));
        assert_eq!(stat.figure("huge_pages"), Ok(3));
        assert!(stat.figure("name").is_err());
        assert!(stat.figure("same_pages").is_err());
    }
}
