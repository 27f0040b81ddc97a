//! Dictionaries: bytes that compressor and decompressor share beforehand.
//!
//! A dictionary is read once, then shared by every context that uses it. Pages written with a
//! dictionary can only be read with the same one.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::file::{open_regular, size_bytes};
use crate::memory;
use crate::sync::Arc;

/// Largest dictionary, in bytes. It is far larger than useful: pages of 4 KiB gain little beyond
/// 64 KiB.
const SIZE_MAX_BYTES: u64 = 16 << 20;

/// A dictionary by its file's name or by its content.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Dictionary {
    /// Not read yet.
    File(PathBuf),
    /// Its content, and the file that it came from.
    Loaded(Arc<[u8]>, Option<PathBuf>),
}

impl Dictionary {
    /// Its content, read from its file if that has not happened.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if there is no such file, or if it is empty, too large or not a
    /// regular file; [`ErrorKind::NoMemory`].
    pub(super) fn load(self) -> Result<Dictionary> {
        match self {
            Dictionary::File(path) => Ok(Dictionary::Loaded(read(&path)?, Some(path))),
            Dictionary::Loaded(bytes, _) if bytes.is_empty() => {
                Err(invalid("an empty dictionary: leave it out"))
            }
            loaded @ Dictionary::Loaded(..) => Ok(loaded),
        }
    }
}

impl fmt::Display for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dictionary::File(path) | Dictionary::Loaded(_, Some(path)) => path.display().fmt(f),
            Dictionary::Loaded(bytes, None) => write!(f, "({} bytes)", bytes.len()),
        }
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn read(path: &Path) -> Result<Arc<[u8]>> {
    let shown = path.display();
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::InvalidInput, format!("dict {shown}")).with_source(error)
    };
    let file = open_regular(path).map_err(failed)?;
    match size_bytes(&file).map_err(failed)? {
        0 => return Err(invalid(format!("dict {shown}: empty; leave it out"))),
        1..=SIZE_MAX_BYTES => {}
        over => {
            return Err(invalid(format!(
                "dict {shown}: {over} bytes; at most {SIZE_MAX_BYTES}"
            )));
        }
    }
    memory::gate()?;
    let mut bytes = Vec::new();
    // The file may grow meanwhile.
    file.take(SIZE_MAX_BYTES)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    Ok(bytes.into())
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_dictionary_are_refused_by_name() {
        let folder = std::env::temp_dir().join(format!("uzram-dict-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let refused = |path: PathBuf| {
            let error = Dictionary::File(path).load().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            error.to_string()
        };
        let file = folder.join("d");
        assert!(refused(file.clone()).contains("/d: No such file"));
        std::fs::write(&file, b"").unwrap();
        assert!(refused(file.clone()).contains("/d: empty"));
        std::fs::File::create(&file)
            .unwrap()
            .set_len(SIZE_MAX_BYTES + 1)
            .unwrap();
        assert!(refused(file.clone()).contains("/d: 16777217 bytes; at most 16777216"));
        assert!(refused(folder.clone()).contains("not a regular file"));
        std::fs::write(&file, b"content").unwrap();
        let loaded = Dictionary::File(file.clone()).load().unwrap();
        assert_eq!(
            loaded,
            Dictionary::Loaded(b"content"[..].into(), Some(file))
        );
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(Dictionary::Loaded(b""[..].into(), None).load().is_err());
    }
}
