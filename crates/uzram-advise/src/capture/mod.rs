//! Real pages of a process or a file into a corpus.
//!
//! A corpus is a plain concatenation of 4 KiB pages. The process is not stopped, so a page that it
//! writes meanwhile may be half old and half new; as data to compress that does not matter.

mod maps;
mod plan;
mod source;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::{Error, Result};

pub use plan::{PAGE_BYTES, RUN_PAGES, Segment};
pub use source::{Counts, Doubts, SCAN_BYTES_MAX, Source};

/// Most pages that one corpus takes: 64 GiB.
pub const PAGES_MAX: u64 = 1 << 24;

/// The file being written; removed again unless it is kept.
pub struct NewCorpus<'a> {
    path: &'a Path,
    file: File,
    is_kept: bool,
}

impl<'a> NewCorpus<'a> {
    /// Makes the file, readable by its owner alone.
    ///
    /// # Errors
    /// [`Error::Failed`] if it exists or cannot be made.
    pub fn create(path: &'a Path) -> Result<NewCorpus<'a>> {
        // create_new: never through a link that somebody laid, never into a file of other modes.
        let created = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        let file = created.map_err(|e| {
            let remedy = match e.kind() {
                io::ErrorKind::AlreadyExists => "; remove it or choose another --out",
                io::ErrorKind::NotFound => "; create its directory",
                _ => "",
            };
            Error::Failed(format!("{}: {e}{remedy}", path.display()))
        })?;
        Ok(NewCorpus {
            path,
            file,
            is_kept: false,
        })
    }

    /// Appends whole pages.
    ///
    /// # Errors
    /// [`Error::Failed`] if the system refuses.
    pub fn write(&mut self, pages: &[u8]) -> Result<()> {
        self.file
            .write_all(pages)
            .map_err(|e| Error::Failed(format!("{}: {e}; nothing was kept", self.path.display())))
    }

    /// The file stays.
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for NewCorpus<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_that_ends_meanwhile_is_an_error_and_leaves_nothing() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let runs = loop {
            // Until the child has become sleep and has a heap.
            let source = Source::of_process(child.id()).unwrap();
            match source.plan(1000) {
                Ok(runs) if runs.len() > 1 => break (source, runs),
                _ => {}
            }
        };
        let (source, runs) = runs;
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("out");
        let mut corpus = NewCorpus::create(&path).unwrap();
        source
            .copy(&runs[..1], |pages| corpus.write(pages))
            .unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let error = source.copy(&runs, |pages| corpus.write(pages));
        let error = error.err().unwrap().to_string();
        assert!(
            error.contains("ended after 0 pages; nothing was kept"),
            "{error}"
        );
        assert!(path.exists());
        drop(corpus);
        assert!(!path.exists());
    }
}
