//! Names that this process takes.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use uzram::ErrorKind;

use super::{Kind, NAMES_MAX, NUMBERED, Owner, StateDir, check_name, check_socket_path};
use crate::error::{Error, Result};

/// The names of programs under a budget that are given none: this and a number.
const NUMBERED_RUNS: &str = "run";

/// Tries for a name that is held: `list` holds a dead server's lock for an instant.
const CLAIM_TRIES: u32 = 20;
pub(super) const CLAIM_PAUSE: Duration = Duration::from_millis(5);
/// Tries to lock a file. Each lost one means that another process removed the file in between.
const UNLINK_RACES_MAX: u32 = 100;

impl StateDir {
    /// Takes `name` for a device of this process and removes the files of a dead server of that
    /// name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a bad name or a directory too deep for sockets,
    /// [`ErrorKind::Busy`] if the name is taken, [`ErrorKind::Io`] if the system refuses.
    pub fn claim(&self, name: &str) -> Result<Claim> {
        self.claim_as(Kind::Device, name, Kind::Run)
    }

    /// Takes `name`, or else the first free one of `run0`, `run1`, …, for a program under a budget.
    ///
    /// # Errors
    /// As [`StateDir::claim`].
    pub fn claim_run(&self, name: Option<&str>) -> Result<Claim> {
        match name {
            Some(name) => self.claim_as(Kind::Run, name, Kind::Device),
            None => self.claim_first(Kind::Run, NUMBERED_RUNS),
        }
    }

    /// Devices and runs have one name only once, as commands take both.
    fn claim_as(&self, kind: Kind, name: &str, other: Kind) -> Result<Claim> {
        check_name(name)?;
        check_socket_path(&self.file(name, kind.socket_suffixes()[0]))?;
        if let Some(entry) = self.living_entry(other, name) {
            return Err(taken(name, entry.owner.as_ref()));
        }
        for _ in 0..CLAIM_TRIES {
            if let Some(claim) = self.try_claim(kind, name)? {
                return Ok(claim);
            }
            std::thread::sleep(CLAIM_PAUSE);
        }
        Err(taken(name, self.owner(kind, name).as_ref()))
    }

    /// Takes the first free name of `uzram0`, `uzram1`, … for a device of this process.
    ///
    /// # Errors
    /// As [`StateDir::claim`]; [`ErrorKind::Busy`] if all [`NAMES_MAX`] are taken.
    pub fn claim_free(&self) -> Result<Claim> {
        self.claim_first(Kind::Device, NUMBERED)
    }

    /// Takes the first free number for this process as a server.
    ///
    /// # Errors
    /// As [`StateDir::claim_free`].
    pub fn claim_server(&self) -> Result<Claim> {
        self.claim_first(Kind::Server, "")
    }

    /// Takes the device `name` over from a dead process by the file that it had locked, of which another process kept a
    /// descriptor: so nobody took the name meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if somebody did, as where the file was removed.
    pub(crate) fn resume(&self, name: &str, lock: OwnedFd) -> Result<Claim> {
        self.resume_as(Kind::Device, name, lock)
    }

    /// The same of the server `number`.
    ///
    /// # Errors
    /// As [`StateDir::resume`].
    pub(crate) fn resume_server(&self, number: &str, lock: OwnedFd) -> Result<Claim> {
        self.resume_as(Kind::Server, number, lock)
    }

    fn resume_as(&self, kind: Kind, name: &str, lock: OwnedFd) -> Result<Claim> {
        check_name(name)?;
        let file = File::from(lock);
        if !self.names(kind, name, &file) || file.try_lock().is_err() {
            return Err(taken(name, self.owner(kind, name).as_ref()));
        }
        Ok(Claim {
            dir: self.clone(),
            kind,
            name: name.to_owned(),
            file,
        })
    }

    fn claim_first(&self, kind: Kind, stem: &str) -> Result<Claim> {
        for number in 0..NAMES_MAX {
            let name = format!("{stem}{number}");
            check_socket_path(&self.file(&name, kind.socket_suffixes()[0]))?;
            if let Some(claim) = self.try_claim(kind, &name)? {
                return Ok(claim);
            }
        }
        let (path, last) = (self.path.display(), NAMES_MAX - 1);
        let text = format!("{path}: {stem}0 to {stem}{last} are all taken");
        Err(Error::new(ErrorKind::Busy, text))
    }

    pub(super) fn try_claim(&self, kind: Kind, name: &str) -> Result<Option<Claim>> {
        let path = self.file(name, kind.lock_suffix());
        for _ in 0..UNLINK_RACES_MAX {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600);
            let file = options.open(&path).map_err(|e| self.io_error(&path, e))?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(e)) => return Err(self.io_error(&path, e)),
                Ok(()) if !self.names(kind, name, &file) => {}
                Ok(()) => {
                    file.set_len(0).map_err(|e| self.io_error(&path, e))?;
                    self.remove_sockets(kind, name);
                    return Ok(Some(Claim {
                        dir: self.clone(),
                        kind,
                        name: name.to_owned(),
                        file,
                    }));
                }
            }
        }
        Ok(None)
    }
}

/// A name that this process serves. Dropping it removes the name's files and frees it.
#[derive(Debug)]
pub struct Claim {
    dir: StateDir,
    kind: Kind,
    name: String,
    file: File,
}

impl Claim {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory of the claim.
    #[must_use]
    pub fn dir(&self) -> &StateDir {
        &self.dir
    }

    /// Another descriptor of its lock, to be kept for [`StateDir::resume`].
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if no more descriptors may be had.
    pub(crate) fn lock(&self) -> Result<OwnedFd> {
        let path = self.dir.file(&self.name, self.kind.lock_suffix());
        let lock = self.file.try_clone();
        lock.map(OwnedFd::from)
            .map_err(|error| self.dir.io_error(&path, error))
    }

    /// Leaves the name and its files as they are, for a process that ends and is followed by another one.
    pub(crate) fn leave(self) {
        // With a descriptor, which goes with the process.
        std::mem::forget(self);
    }

    /// Writes the owner for other programs.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub fn publish(&mut self, owner: &Owner) -> Result<()> {
        if self.kind == Kind::Device {
            // Of an earlier disk of this name.
            let _ = fs::remove_file(self.dir.use_note(&self.name));
        }
        self.publish_again(owner)
    }

    /// The same of a name that was taken over, whose disk is the one of before.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub(crate) fn publish_again(&mut self, owner: &Owner) -> Result<()> {
        let text = serde_json::to_string(owner)
            .map_err(|e| Error::new(ErrorKind::Io, "state file").with_source(e))?;
        let written = self
            .file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .and_then(|()| self.file.write_all(text.as_bytes()));
        let path = self.dir.file(&self.name, self.kind.lock_suffix());
        written.map_err(|e| self.dir.io_error(&path, e))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The lock goes with the file, after the files: nobody can hold the name in between.
        self.dir.remove_files(self.kind, &self.name);
    }
}

fn taken(name: &str, owner: Option<&Owner>) -> Error {
    let holder = owner.map_or(String::new(), |owner| format!(" by process {}", owner.pid));
    let text =
        format!("name {name}: already served{holder}; choose another --name or end that server");
    Error::new(ErrorKind::Busy, text)
}
