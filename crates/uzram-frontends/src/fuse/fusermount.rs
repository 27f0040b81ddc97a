//! The setuid program `fusermount3`, which mounts and unmounts for users other than root.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use uzram::{Error, ErrorKind, Result};

const PROGRAM: &str = "fusermount3";
/// The environment variable with the socket through which the program hands over the descriptor.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts at `directory`, and returns the descriptor of `/dev/fuse` for the mount.
pub(super) fn mount(source: &str, directory: &Path) -> io::Result<OwnedFd> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Its own standard input is the one descriptor that a program inherits for sure.
    let child = Command::new(PROGRAM)
        .args(["-o", &options(source), "--"])
        .arg(directory)
        .env(SOCKET_VARIABLE, "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    // Ends without one when the program does.
    let device = receive_descriptor(&ours);
    let output = child.wait_with_output()?;
    match device? {
        Some(device) if output.status.success() => Ok(device),
        _ => Err(io::Error::other(last_words(&output.stderr))),
    }
}

/// Unmounts through fusermount3, for a user who may not do so directly. With `lazily` also while a
/// program uses the mount, which then ends with the last use.
///
/// # Errors
/// [`ErrorKind::Busy`] with the message of fusermount3.
pub fn unmount_as_user(directory: &Path, lazily: bool) -> Result<()> {
    let failed = |why: String| {
        let text = format!("{}: {PROGRAM} -u: {why}", directory.display());
        Error::new(ErrorKind::Busy, text)
    };
    let output = Command::new(PROGRAM)
        .args(match lazily {
            true => &["-u", "-z", "--"][..],
            false => &["-u", "--"],
        })
        .arg(directory)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(last_words(&output.stderr))),
    }
}

/// A comma ends an option unless a backslash is before it.
fn options(source: &str) -> String {
    let source = source.replace('\\', "\\\\").replace(',', "\\,");
    format!("fsname={source},subtype=uzram,default_permissions,nosuid,nodev,noexec")
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut data = [io::IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| rustix::net::recvmsg(socket, &mut data, &mut control, flags))?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.flatten().last())
}

fn last_words(stderr: &[u8]) -> String {
    let said = String::from_utf8_lossy(stderr);
    let last = said.lines().last().unwrap_or_default();
    let prefix = format!("{PROGRAM}: ");
    last.strip_prefix(&prefix).unwrap_or(last).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_adds_no_option() {
        let options = options(r"uzram:a,allow_other\");
        assert!(
            options.starts_with(r"fsname=uzram:a\,allow_other\\,subtype"),
            "{options}"
        );
    }
}
