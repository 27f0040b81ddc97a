//! Files that users name, opened so that they cannot block the program: a FIFO waits for a writer
//! before it can be opened, a terminal or a socket waits for bytes, and a device may have no end.
//!
//! It stands here because every program around the engine reads such files: dictionaries, keys,
//! configurations, samples of pages.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FileType, OFlags};

/// Opens the regular file at `path` for reading.
///
/// # Errors
/// The system's error, and [`io::ErrorKind::InvalidInput`] for anything but a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // A regular file knows no waiting, so the flag changes nothing for those that are let through.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file),
        _ => Err(invalid("not a regular file".to_owned())),
    }
}

/// The size of an open file, in bytes. Unlike [`File::metadata`] it needs no system call that could
/// also look at a path, which a sandbox refuses.
///
/// # Errors
/// The system's error.
pub fn size_bytes(file: &File) -> io::Result<u64> {
    let size = rustix::fs::fstat(file)?.st_size;
    u64::try_from(size).map_err(|_| invalid("a size below zero".to_owned()))
}

/// The content of the regular file at `path`, of at most `bytes_max`.
///
/// # Errors
/// As [`open_regular`], and [`io::ErrorKind::InvalidInput`] for a larger one.
pub fn read_regular(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    open_regular(path)?
        .take(bytes_max + 1)
        .read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(invalid(format!("over {bytes_max} bytes, the limit"))),
        false => Ok(bytes),
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_regular_files_within_the_limit_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(read_regular(&path, 5).unwrap(), b"12345");
        let said = |path: &Path| read_regular(path, 4).unwrap_err().to_string();
        assert_eq!(said(&path), "over 4 bytes, the limit");
        for other in [folder.path(), Path::new("/dev/zero")] {
            assert_eq!(said(other), "not a regular file", "{other:?}");
        }
        assert!(said(&folder.path().join("none")).contains("No such file"));
    }

    #[test]
    fn a_fifo_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(read_regular(&path, 10)));
        let read = told.recv_timeout(Duration::from_secs(60));
        let error = read.expect("it waits for a writer").unwrap_err();
        assert_eq!(error.to_string(), "not a regular file");
    }
}
