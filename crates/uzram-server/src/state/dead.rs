//! Devices whose servers were killed. Their lock files name the server, and no process holds them.
//! They stay until the name is taken or cleaned up. The files that a device leaves.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{Entry, Kind, StateDir, check_name};

impl StateDir {
    /// The devices whose servers were killed, sorted by name.
    #[must_use]
    pub fn dead(&self) -> Vec<Entry> {
        let mut names = self.names_with(&[".lock"]);
        names.sort_by_key(|name| super::natural_key(name));
        let names = names.into_iter();
        names.filter_map(|name| self.dead_entry(&name)).collect()
    }

    /// The device `name`, if its server was killed.
    #[must_use]
    pub fn dead_entry(&self, name: &str) -> Option<Entry> {
        let file = self.open_lock(Kind::Device, name).ok()?;
        // Held for as long as this function: whoever takes the name tries again.
        file.try_lock_shared().ok()?;
        if !self.names(Kind::Device, name, &file) {
            return None;
        }
        Some(Entry {
            name: name.to_owned(),
            owner: Some(self.owner(Kind::Device, name)?),
            kind: Kind::Device,
        })
    }

    /// Removes the files of the device `name`, if its server was killed.
    pub fn sweep(&self, name: &str) {
        let Ok(file) = self.open_lock(Kind::Device, name) else {
            return;
        };
        if self.is_own && file.try_lock().is_ok() && self.names(Kind::Device, name, &file) {
            self.remove_files(Kind::Device, name);
        }
    }

    /// Removes the files of the server `number`, if it has ended.
    pub(crate) fn sweep_server(&self, number: &str) {
        if self.is_own && check_name(number).is_ok() {
            drop(self.try_claim(Kind::Server, number));
        }
    }

    /// Removes sockets of names that have no lock: one that a server in a sandbox could not take, as the socket of an
    /// earlier one was in its way, leaves such a socket.
    pub(super) fn remove_lone_sockets(&self) {
        if !self.is_own {
            return;
        }
        for name in self.names_with(&[".nbd", ".vhost"]) {
            let has_no_lock = self.open_lock(Kind::Device, &name).is_err();
            let mut sockets = Kind::Device.socket_suffixes().iter();
            // Nobody else takes the name meanwhile; giving it back removes what is left over.
            if has_no_lock && sockets.any(|suffix| is_leftover(&self.file(&name, suffix))) {
                drop(self.try_claim(Kind::Device, &name));
            }
        }
    }

    /// Only who holds the lock alone may call this.
    pub(super) fn remove_files(&self, kind: Kind, name: &str) {
        self.remove_sockets(kind, name);
        let _ = fs::remove_file(self.file(name, kind.lock_suffix()));
    }

    /// The same for its sockets. A shared lock is enough: nobody takes the name meanwhile.
    pub(super) fn remove_sockets(&self, kind: Kind, name: &str) {
        for suffix in kind.socket_suffixes() {
            let path = self.file(name, suffix);
            if is_leftover(&path) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

/// Whether `path` is a socket without a listener. There may be one, because `--socket` takes any
/// path. A sandbox does not let a server find out: then it is kept.
fn is_leftover(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    is_socket
        && UnixStream::connect(path)
            .is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
}
