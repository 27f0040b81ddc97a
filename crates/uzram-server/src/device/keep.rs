//! A device has itself kept by a process that outlives this one.

use uzram::ErrorKind;

use super::kept::{BACKING, GUESTS, key, mount_named, named};
use super::{Device, Note};
use crate::error::{Error, Result};
use crate::survive::Keeper;

impl Device {
    /// The way to the process that keeps it, if one does.
    #[must_use]
    pub fn keeper(&self) -> Option<&Keeper> {
        self.keeper.as_deref()
    }

    /// Has what it has now kept, if anybody keeps it.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] without descriptors, [`ErrorKind::InvalidInput`] for a path that is no text.
    pub(super) fn keep(&self) -> Result<()> {
        let Some(keeper) = &self.keeper else {
            return Ok(());
        };
        let setup = self.setup();
        let mut note = Note::of(&setup)?;
        note.is_read_only = self.is_read_only();
        let places = self.places.iter().map(|place| place.endpoint().to_string());
        note.places = places.collect();
        let live = self.live();
        let remains = live.as_ref().map_or(Ok(None), |live| live.remains())?;
        let mut files = remains.map(named).unwrap_or_default();
        if let Some(backing) = &setup.backing {
            let copy = backing.file.try_clone().map_err(|error| {
                let text = format!("{}: cannot be kept", backing.path.display());
                Error::new(ErrorKind::Io, text).with_source(error)
            })?;
            files.push((BACKING, copy.into()));
        }
        if let Some(guests) = &self.guests {
            files.push((GUESTS, guests.socket()?));
        }
        if let Some(attachment) = self.attachment() {
            files.extend(attachment.remains()?.into_iter().flat_map(mount_named));
        }
        let note = serde_json::to_value(note).map_err(|error| {
            let text = format!("{}: cannot be kept", self.name());
            Error::new(ErrorKind::Io, text).with_source(error)
        })?;
        keeper.keep(key(self.name()), note, &files);
        Ok(())
    }
}
