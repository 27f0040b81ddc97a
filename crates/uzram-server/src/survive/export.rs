//! A device that nobody serves, as a store, by what its holder keeps of it.

use std::path::Path;

use uzram::{ErrorKind, Recovery, Store};

use super::commands::kept_of;
use crate::compressions::Compressions;
use crate::device::{self, Note};
use crate::error::{Error, Result};

/// Takes from the holder at `socket` the store of the device `name`, which nobody serves. The holder goes on keeping it.
///
/// # Errors
/// [`ErrorKind::Unsupported`] with the holder's reason, as while somebody serves it; [`ErrorKind::Io`]; and those of
/// [`StoreBuilder::recover`](uzram::StoreBuilder::recover).
pub fn left_store(socket: &Path, name: &str) -> Result<(Store, Recovery)> {
    let mut kept = kept_of(socket, name)?;
    let note = Note::read(&kept)?;
    let remains = device::remains(&mut kept).ok_or_else(|| {
        let text = format!("{name}: it has no pages: its data is in a file, or it had no size");
        Error::new(ErrorKind::Unsupported, text)
    })?;
    note.config(&mut kept)?
        .recover(&Compressions::default(), remains)
}
