//! nbdkit's memory plugin: a RAM disk over NBD, plain or with the zstd allocator.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::peers::Peer;

/// Why nbdkit cannot be used here, if it cannot.
pub(crate) fn missing() -> Option<String> {
    let ran = Command::new("nbdkit")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    match ran {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("nbdkit --version: {status}")),
        Err(_) => Some("nbdkit is not installed".to_owned()),
    }
}

/// The command that serves `size_bytes` of memory at `socket`.
pub(crate) fn command(peer: Peer, size_bytes: u64, socket: &Path) -> Command {
    let mut command = Command::new("nbdkit");
    command
        .args(["--foreground", "--exit-with-parent", "--unix"])
        .arg(socket);
    command.arg("memory").arg(format!("size={size_bytes}"));
    if peer == Peer::NbdkitZstd {
        command.arg("allocator=zstd");
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_peers_differ_in_the_allocator_alone() {
        let line = |peer| format!("{:?}", command(peer, 1 << 20, Path::new("/tmp/s")));
        let plain = line(Peer::NbdkitMemory);
        assert!(plain.ends_with("\"memory\" \"size=1048576\""), "{plain}");
        assert_eq!(
            line(Peer::NbdkitZstd),
            format!("{plain} \"allocator=zstd\"")
        );
    }
}
