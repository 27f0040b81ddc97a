//! `uzram zramctl`, and this program called as `zramctl`: the options that util-linux's has, on disks of
//! uzram.
//!
//! A device of the kernel exists before it has a size. A disk here is made with one, and ended by a
//! reset.

use std::ffi::OsString;

use uzram_server::attachment::Attach;
use uzram_server::state::check_name;

use super::background::Background;
use super::columns::{ZRAMCTL, table};
use super::{StateAt, disks, down, plain};
use crate::args::show::ZramctlArgs;
use crate::failure::{Failure, Result};
use crate::output::{print, warn};

/// Runs the command.
pub fn run(at: StateAt<'_>, args: &ZramctlArgs) -> Result {
    if args.reset {
        return reset(at, args);
    }
    let settings = [&args.algorithm, &args.algorithm_params, &args.streams];
    match (&args.size, args.find) {
        (Some(size), _) => make(at, args, size),
        (None, true) => Err(Failure::Usage(
            "zramctl --find: a disk here has a size from the start; add --size 1G".into(),
        )),
        (None, false) if settings.iter().any(|setting| setting.is_some()) => Err(Failure::Usage(
            "zramctl: what a disk is made with needs --size, which makes one".into(),
        )),
        (None, false) => show(at, args),
    }
}

/// Makes a disk in the background, and prints its device where none was named.
fn make(at: StateAt<'_>, args: &ZramctlArgs, size: &str) -> Result {
    let name = match (args.devices.as_slice(), args.find) {
        ([], true) => None,
        ([device], false) => Some(device),
        _ => {
            let text = "zramctl --size: name one device, or have --find choose one";
            return Err(Failure::Usage(text.into()));
        }
    };
    if args.streams.is_some() {
        warn("--streams: left out; there is a stream for each CPU, as in kernels since 4.7");
    }
    let mut arguments: Vec<OsString> = Vec::new();
    if let Some(directory) = at.0 {
        arguments.extend(["--control-dir".into(), directory.into()]);
    }
    arguments.extend(["serve", "--attach", Attach::block_device().name()].map(OsString::from));
    let options = [
        ("size", Some(size)),
        ("name", name.map(|name| name_of(name))),
        ("algorithm", args.algorithm.as_deref()),
        ("algorithm-params", args.algorithm_params.as_deref()),
    ];
    for (option, value) in options {
        arguments.extend(value.map(|value| OsString::from(format!("--{option}={value}"))));
    }
    let background = Background::start(arguments)?;
    match name {
        Some(_) => Ok(()),
        None => print(&format!("{}\n", background.first_disk(at)?.1)),
    }
}

fn reset(at: StateAt<'_>, args: &ZramctlArgs) -> Result {
    if args.devices.is_empty() {
        return Err(Failure::Usage("zramctl --reset: name a device".into()));
    }
    for device in &args.devices {
        let name = find(at, device)?;
        let state = at.open()?;
        let _turn = state.turn()?;
        down::take_down(&state, &name)?;
    }
    Ok(())
}

fn show(at: StateAt<'_>, args: &ZramctlArgs) -> Result {
    let all = disks(&at.open_to_ask()?)?;
    let mut shown = Vec::new();
    for disk in all {
        match disk.attributes {
            Ok(attributes) => shown.push(attributes),
            Err(failure) => warn(&failure.to_string()),
        }
    }
    if !args.devices.is_empty() {
        let names = args.devices.iter().map(|device| find(at, device));
        let names = names.collect::<Result<Vec<_>>>()?;
        shown.retain(|disk| names.contains(&disk.get("name").map(plain).unwrap_or_default()));
    }
    match shown.is_empty() {
        // As zramctl: nothing, not even headings.
        true => Ok(()),
        false => print(&table(&shown, &args.columns, ZRAMCTL)?),
    }
}

/// The disk that a name or the path of its block device means.
fn find(at: StateAt<'_>, device: &str) -> Result<String> {
    let state = at.open_to_ask()?;
    let has_path = |disk: &super::Disk| {
        let attributes = disk.attributes.as_ref().ok();
        let endpoint = attributes.and_then(|attributes| attributes.get("endpoint"));
        endpoint.is_some_and(|endpoint| plain(endpoint) == device)
    };
    let name = name_of(device);
    let found = disks(&state)?.into_iter().find(has_path);
    match found {
        Some(disk) => Ok(disk.name),
        None if check_name(name).is_ok() && down::is_known(&state, name) => Ok(name.to_owned()),
        None => Err(Failure::Failed(format!(
            "zramctl: no disk {device:?}; uzram list shows those that there are"
        ))),
    }
}

/// The name of a disk that is named as a device: `/dev/zram0` and `zram0` are `zram0`.
fn name_of(device: &str) -> &str {
    device.rsplit('/').next().unwrap_or(device)
}
