//! Block devices while they are not in use: not mounted, not swapped to, and not about to be.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use uzram::ErrorKind;

use super::usage;
use crate::error::{Error, Result};
use crate::system;

/// Runs `work` while the device at `path` is neither mounted nor swapped to nor can be, and makes
/// the kernel forget its cached content.
///
/// # Errors
/// [`ErrorKind::Busy`] with the user, [`ErrorKind::Io`], and the errors of `work`.
pub(super) fn exclusively<T>(path: &Path, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let device = open_exclusively(path)?;
    let flush = || {
        system::flush_buffers(&device).map_err(|error| {
            let text = format!("{}: cannot be flushed", path.display());
            Error::new(ErrorKind::Io, text).with_source(error)
        })
    };
    // Before, so that nothing old is written afterwards; and after, so that nothing old is read.
    flush()?;
    let done = work()?;
    flush()?;
    Ok(done)
}

/// Opens the device at `path` so that it can be neither mounted nor swapped to.
///
/// # Errors
/// [`ErrorKind::Busy`] with the user, [`ErrorKind::Io`].
pub(super) fn open_exclusively(path: &Path) -> Result<File> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::EXCL.bits().cast_signed())
        .open(path);
    opened.map_err(
        |error| match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::BUSY) => {
                let users = usage::of_device(path);
                let users = match users.is_empty() {
                    true => "in use".to_owned(),
                    false => users.join(", "),
                };
                let text = format!("{}: {users}; end that first", path.display());
                Error::new(ErrorKind::Busy, text)
            }
            _ => {
                let text = format!("{}: cannot be opened", path.display());
                Error::new(ErrorKind::Io, text).with_source(error)
            }
        },
    )
}
