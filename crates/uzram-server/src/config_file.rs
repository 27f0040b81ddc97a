//! The text of a configuration file, of either kind.

use std::path::Path;

use uzram::ErrorKind;
use uzram::file::read_regular;

use crate::error::{Error, Result};

/// Longest configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads the file at `path`.
///
/// # Errors
/// [`ErrorKind::Io`] with the file's name.
pub(crate) fn read(path: &Path) -> Result<String> {
    let shown = path.display();
    let failed = |e| Error::new(ErrorKind::Io, shown.to_string()).with_source(e);
    let text = read_regular(path, FILE_BYTES_MAX).map_err(failed)?;
    String::from_utf8(text).map_err(|_| {
        let text = format!("{shown}: not a configuration, which is valid UTF-8");
        Error::new(ErrorKind::Io, text)
    })
}
