//! `uzram survive export`.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use uzram::{PageIndex, PageState, Store};
use uzram_server::size::human;
use uzram_server::survive::left_store;

use super::{StateAt, find};
use crate::args::survive::ExportArgs;
use crate::failure::{Failure, Result};
use crate::output::{print, warn};

/// Pages between two looks at the clock.
const PAGES_A_LOOK: u64 = 4096;
/// Work that is shown takes longer, and is shown as often.
const SHOWN_EVERY: Duration = Duration::from_secs(1);

/// Runs the command: a disk whose servers failed becomes a file.
pub fn export(state: StateAt<'_>, args: &ExportArgs) -> Result {
    let (name, path) = (&args.name, &args.file);
    let failed = |text: String| Failure::Failed(format!("survive export {name}: {text}"));
    let state = state.open_to_ask()?;
    let entry = find(&state, name)?;
    let socket = entry.owner.as_ref().and_then(|owner| owner.holder_socket());
    let socket =
        socket.ok_or_else(|| failed("its server was not started with --survive".into()))?;
    let (store, found) = left_store(&socket, name).map_err(|error| failed(error.to_string()))?;
    let file = create(path, args.force);
    let file = file.map_err(|error| failed(format!("{}: {error}", path.display())))?;
    write(&store, &file).map_err(|error| failed(format!("{}: {error}", path.display())))?;
    if found.lost_pages > 0 {
        warn(&format!(
            "{name}: {} pages are lost and zeroes in the file",
            found.lost_pages
        ));
    }
    print(&format!(
        "{name}: {} in {}; uzram down {name} drops what is still kept\n",
        human(store.size_bytes()),
        path.display()
    ))
}

/// For this user alone, as the disk was.
fn create(path: &Path, force: bool) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    match force {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    options.open(path)
}

/// Writes all pages that have content; the rest stays a hole.
fn write(store: &Store, file: &File) -> std::io::Result<()> {
    file.set_len(store.size_bytes())?;
    let unit_bytes = store.unit().bytes();
    let pages = store.size_bytes() / unit_bytes as u64;
    let mut page = vec![0; unit_bytes];
    let mut shown = Instant::now();
    let mut was_shown = false;
    for index in 0..pages {
        let state = store
            .state(PageIndex(index))
            .map_err(std::io::Error::other)?;
        if !matches!(state, PageState::Hole | PageState::Lost) {
            store
                .read(PageIndex(index), &mut page)
                .map_err(std::io::Error::other)?;
            file.write_all_at(&page, index * unit_bytes as u64)?;
        }
        if index % PAGES_A_LOOK == 0
            && shown.elapsed() > SHOWN_EVERY
            && std::io::stderr().is_terminal()
        {
            let _ = write!(std::io::stderr(), "\r{} %\x1b[K", index * 100 / pages);
            (shown, was_shown) = (Instant::now(), true);
        }
    }
    if was_shown {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    file.sync_all()
}
