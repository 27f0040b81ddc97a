//! `zram-control` of a view: the tree's, and the names follow before who reads or writes goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use uzram_frontends::fuse::{Files, Node, ROOT, Text};

use super::names::Names;
use crate::output::warn;

const HOT_ADD: u64 = 2;
const HOT_REMOVE: u64 = 3;
const FILES: [(&str, u64, u16); 2] = [
    ("hot_add", HOT_ADD, 0o400),
    ("hot_remove", HOT_REMOVE, 0o200),
];

/// The two files.
pub(super) struct Control {
    /// The tree's directory of them.
    directory: PathBuf,
    names: Mutex<Names>,
}

impl Control {
    pub(super) fn new(tree: &Path, names: Names) -> Control {
        Control {
            directory: tree.join("class/zram-control"),
            names: Mutex::new(names),
        }
    }

    /// Does `work` to the tree, and has the names follow.
    fn changing<T>(&self, work: impl FnOnce() -> std::io::Result<T>) -> Result<T, i32> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let done =
            work().map_err(|error| error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))?;
        names.update().map_err(|failure| {
            warn(&failure.to_string());
            Errno::IO.raw_os_error()
        })?;
        Ok(done)
    }
}

impl Files for Control {
    fn node(&self, number: u64) -> Option<Node> {
        if number == ROOT {
            return Some(Node { number, mode: None });
        }
        let found = FILES.iter().find(|(_, file, _)| *file == number)?;
        Some(Node {
            number,
            mode: Some(found.2),
        })
    }

    fn look_up(&self, _: u64, name: &str) -> Option<Node> {
        let found = FILES.iter().find(|(file, ..)| *file == name)?;
        self.node(found.1)
    }

    fn list(&self, _: u64) -> Vec<(String, Node)> {
        let node = |(name, number, mode): &(&str, u64, u16)| {
            let mode = Some(*mode);
            (
                (*name).to_owned(),
                Node {
                    number: *number,
                    mode,
                },
            )
        };
        FILES.iter().map(node).collect()
    }

    fn read(&self, _: u64, _: u64) -> Result<Text, i32> {
        let bytes = self.changing(|| fs::read(self.directory.join("hot_add")))?;
        Ok(Text { bytes, next: None })
    }

    fn write(&self, _: u64, value: &[u8]) -> Result<(), i32> {
        self.changing(|| fs::write(self.directory.join("hot_remove"), value))
    }

    fn reads_once(&self, _: u64) -> bool {
        true
    }
}
