//! The things that a holder keeps for a server, in the order in which it first came.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde_json::Value;

use super::message::Message;

/// Things kept, at most: a device takes two, a socket one.
const KEPT_MAX: usize = 4096;
/// Longest key, in bytes.
const KEY_BYTES_MAX: usize = 256;

/// One thing: a note, and descriptors, each with what it is.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) key: String,
    pub(crate) note: Value,
    pub(crate) files: Vec<(String, OwnedFd)>,
}

/// The key of what a server itself has, and its control socket among the files.
pub(crate) const SERVER_KEY: &str = "server";
pub(crate) const CONTROL: &str = "control";
/// The key of what keeps a server's memory locked.
pub(crate) const MEMORY_KEY: &str = "memory";

impl Kept {
    /// The content of a [`Message::Keep`] that came with `files`, one for each of `kinds`.
    pub(super) fn received(
        key: String,
        note: Value,
        kinds: Vec<String>,
        files: Vec<OwnedFd>,
    ) -> Kept {
        let files = kinds.into_iter().zip(files).collect();
        Kept { key, note, files }
    }

    /// The same again, with other descriptors.
    ///
    /// # Errors
    /// The system's, if no more descriptors may be had.
    pub(crate) fn try_clone(&self) -> std::io::Result<Kept> {
        let copy = |(kind, file): &(String, OwnedFd)| Ok((kind.clone(), file.try_clone()?));
        Ok(Kept {
            key: self.key.clone(),
            note: self.note.clone(),
            files: self
                .files
                .iter()
                .map(copy)
                .collect::<std::io::Result<_>>()?,
        })
    }

    /// Takes the file of this kind out.
    pub(crate) fn take(&mut self, what: &str) -> Option<OwnedFd> {
        let at = self.files.iter().position(|(kind, _)| kind == what)?;
        Some(self.files.swap_remove(at).1)
    }

    /// The name behind `kind/` in its key.
    pub(crate) fn name_of(&self, kind: &str) -> Option<&str> {
        self.key.strip_prefix(kind)?.strip_prefix('/')
    }

    pub(super) fn message(&self) -> (Message, Vec<BorrowedFd<'_>>) {
        let message = Message::Keep {
            key: self.key.clone(),
            note: self.note.clone(),
            files: self.files.iter().map(|(what, _)| what.clone()).collect(),
        };
        (
            message,
            self.files.iter().map(|(_, file)| file.as_fd()).collect(),
        )
    }
}

/// All that a holder keeps.
#[derive(Debug, Default)]
pub(super) struct Table(Vec<Kept>);

impl Table {
    /// Keeps `kept` in place of what has its key.
    ///
    /// # Errors
    /// The reason, if the table is full or the key too long. Then what was kept stays.
    pub(super) fn keep(&mut self, kept: Kept) -> Result<(), String> {
        if kept.key.len() > KEY_BYTES_MAX {
            return Err(format!(
                "a key of {} bytes; at most {KEY_BYTES_MAX}",
                kept.key.len()
            ));
        }
        let at = self.0.iter().position(|known| known.key == kept.key);
        match at {
            Some(at) => self.0[at] = kept,
            None if self.0.len() >= KEPT_MAX => {
                return Err(format!("{}: {KEPT_MAX} things are kept already", kept.key));
            }
            None => self.0.push(kept),
        }
        Ok(())
    }

    pub(super) fn forget(&mut self, key: &str) {
        self.0.retain(|kept| kept.key != key);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Kept> {
        self.0.iter()
    }

    pub(super) fn find(&self, key: &str) -> Option<&Kept> {
        self.0.iter().find(|kept| kept.key == key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(key: &str, note: u64) -> Kept {
        Kept {
            key: key.into(),
            note: note.into(),
            files: Vec::new(),
        }
    }

    #[test]
    fn the_newest_of_a_key_is_kept_in_the_first_ones_place() {
        let mut table = Table::default();
        for (key, note) in [("device/a", 1), ("device/b", 2), ("device/a", 3)] {
            table.keep(kept(key, note)).unwrap();
        }
        let all: Vec<_> = table
            .iter()
            .map(|kept| (&*kept.key, kept.note.as_u64()))
            .collect();
        assert_eq!(all, [("device/a", Some(3)), ("device/b", Some(2))]);
        table.forget("device/a");
        table.forget("device/a");
        assert!(table.find("device/a").is_none() && table.find("device/b").is_some());
    }

    #[test]
    fn a_full_table_keeps_what_it_has() {
        let mut table = Table::default();
        for number in 0..KEPT_MAX {
            table.keep(kept(&format!("device/{number}"), 1)).unwrap();
        }
        table.keep(kept("one more", 1)).unwrap_err();
        table.keep(kept("device/7", 2)).unwrap();
        table
            .keep(kept(&"x".repeat(KEY_BYTES_MAX + 1), 1))
            .unwrap_err();
        assert_eq!(table.iter().count(), KEPT_MAX);
        assert_eq!(table.find("device/7").unwrap().note, 2);
    }
}
