//! `uzram metrics`.

use uzram_server::metrics::text;

use super::{StateAt, disk, disks};
use crate::args::MetricsArgs;
use crate::failure::Result;
use crate::output::print;

/// Runs the command.
pub fn run(state: StateAt<'_>, args: &MetricsArgs) -> Result {
    let state = state.open_to_ask()?;
    let devices: Vec<_> = match args.names.as_slice() {
        [] => disks(&state)?
            .into_iter()
            .map(|disk| disk.attributes)
            .collect::<Result<_>>()?,
        names => names
            .iter()
            .map(|name| disk(&state, name))
            .collect::<Result<_>>()?,
    };
    print(&text(devices))
}
