//! `uzram view`: runs a program that sees disks as the kernel's zram, in a mount namespace of its own.
//!
//! Names are zramN there: `/dev/zramN`, `/sys/block/zramN`, `/sys/class/zram-control`, and a `modprobe` that
//! makes disks. Nothing of it is seen outside, and it ends with the program. There are two views because one
//! cannot be both: `zramctl` finds a disk by its node's number, so its files lie over the directory of that
//! device; what looks devices up in `/sys/dev/block` by itself, as systemd does, refuses such a directory.
//!
//! ```text
//! scratch    the namespace's own directory, and what is under /dev and /sys elsewhere
//! devices    a /dev of its own
//! names      disks that come and go
//! control    zram-control, by which they do
//! ```

mod control;
mod devices;
mod names;
mod scratch;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use uzram_frontends::fuse::TreeMount;

use super::{StateAt, absolute};
use crate::args::show::{ViewArgs, ViewKind};
use crate::failure::{Failure, Result};
use control::Control;
use names::Names;
use scratch::Scratch;

/// Runs the command. Its exit status becomes this program's.
pub fn run(at: StateAt<'_>, args: &ViewArgs) -> Result {
    let tree = absolute("--tree", &args.tree)?;
    let hot_add = tree.join("class/zram-control/hot_add");
    if !hot_add.exists() {
        let text = format!(
            "--tree {}: no tree is mounted there; uzram serve --attach loop --tree DIR mounts one",
            tree.display()
        );
        return Err(Failure::Failed(text));
    }
    let state = at.open_to_ask()?;
    let scratch = Scratch::new(&state)?;
    let status = in_view(&scratch, state, &tree, args)?;
    drop(scratch);
    std::process::exit(status)
}

fn in_view(
    scratch: &Scratch,
    state: uzram_server::state::StateDir,
    tree: &Path,
    args: &ViewArgs,
) -> Result<i32> {
    devices::put(scratch)?;
    let names = Names::new(scratch, state, tree, args.kind == ViewKind::Zramctl)?;
    let control = Control::new(tree, names);
    let directory = scratch.directory("control")?;
    let mount = TreeMount::new(Arc::new(control), &directory)?;
    scratch.put_over_class("zram-control", &directory)?;
    let path = scratch.programs()?;
    let (program, rest) = args.command.split_first().expect("clap wants one");
    let outcome = Command::new(program).args(rest).env("PATH", path).status();
    drop(mount);
    let status = outcome
        .map_err(|error| Failure::Failed(format!("{}: {error}", program.to_string_lossy())))?;
    // As a shell has it.
    Ok(status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}
