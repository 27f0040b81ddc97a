//! A server that is being started.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::process::Running;

const START_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// Waits until a server listens. Its socket is there a moment before.
pub fn wait_for(socket: &Path, server: &mut Running, log: &Path) -> Result<(), String> {
    let deadline = Instant::now() + START_LIMIT;
    while UnixStream::connect(socket).is_err() {
        if server.wait(POLL).is_some() || Instant::now() > deadline {
            let said = fs::read_to_string(log).unwrap_or_default();
            return Err(format!("{}: no server:\n{said}", socket.display()));
        }
    }
    Ok(())
}
