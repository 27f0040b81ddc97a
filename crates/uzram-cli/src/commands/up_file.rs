//! `uzram up --config`: the disks of zram-generator's file, each by `up` as if it had been typed.

use std::fs;
use std::path::Path;

use clap::ValueEnum;
use uzram_server::size::ram_bytes;
use uzram_server::zram_generator::{GeneratorConfig, GeneratorDisk, GeneratorUse};

use super::{StateAt, up};
use crate::args::device::{Given, UpDeviceArgs};
use crate::args::{FileSystem, UpArgs};
use crate::failure::{Failure, Result};
use crate::output::{print, warn};

/// Runs the command. A disk that fails keeps no other from coming up.
pub fn run(state: StateAt<'_>, path: &Path, args: &UpArgs) -> Result {
    if let Some((option, _)) = args.device.0.iter().next() {
        let option = option.name;
        let text = format!("--{option}: a disk's options come from --config; add it there");
        return Err(Failure::Usage(text));
    }
    let config = GeneratorConfig::read(path, ram_bytes())?;
    let wanted: Vec<UpArgs> = config
        .disks
        .iter()
        .map(|disk| args_of(disk, path))
        .collect::<Result<_>>()?;
    for note in &config.notes {
        warn(note);
    }
    up::check_rights()?;
    if wanted.is_empty() {
        let path = path.display();
        return print(&format!(
            "{path}: no disk for this machine; nothing to do.\n"
        ));
    }
    let outcomes = config.disks.iter().zip(&wanted).map(|(disk, args)| {
        let outcome = make_parent(args).and_then(|()| up::run(state, args));
        outcome.map_err(|failure| failure.about(&disk.name))
    });
    let mut failures: Vec<Failure> = outcomes.filter_map(Result::err).collect();
    let last = failures.pop();
    for failure in failures {
        warn(&failure.to_string());
    }
    last.map_or(Ok(()), Err)
}

/// The disk as options of `up`.
fn args_of(disk: &GeneratorDisk, path: &Path) -> Result<UpArgs> {
    let mut options = vec![
        ("name", disk.name.clone()),
        ("size", disk.size_bytes.to_string()),
    ];
    if disk.mem_limit_bytes > 0 {
        options.push(("mem-limit", disk.mem_limit_bytes.to_string()));
    }
    if let Some(algorithm) = &disk.algorithm {
        options.push(("algorithm", algorithm.clone()));
    }
    if !disk.parameters.is_empty() {
        options.push(("algorithm-params", disk.parameters.clone()));
    }
    let mut args = UpArgs {
        swap: false,
        zswap: false,
        mount: None,
        config: None,
        device: UpDeviceArgs(Given::of_values(options)),
        priority: None,
        fs: None,
        mount_options: None,
        tree: None,
        survive: false,
    };
    match &disk.purpose {
        GeneratorUse::Swap { priority } => (args.swap, args.priority) = (true, Some(*priority)),
        GeneratorUse::Mount {
            directory,
            fs,
            options,
        } => {
            let known = FileSystem::from_str(fs, false).map_err(|_| {
                let (path, line, name) = (path.display(), disk.line, &disk.name);
                let known = FileSystem::value_variants().iter().map(|fs| fs.name());
                let known: Vec<_> = known.collect();
                Failure::Usage(format!(
                    "{path}:{line}: [{name}] fs-type: {fs:?}: uzram up makes none; known are: {}",
                    known.join(", ")
                ))
            })?;
            args.mount = Some(directory.clone());
            args.fs = Some(known);
            args.mount_options = Some(options.clone());
        }
    }
    Ok(args)
}

/// A mount unit makes what is missing of the path to its directory, so here too.
fn make_parent(args: &UpArgs) -> Result {
    let Some(parent) = args.mount.as_deref().and_then(Path::parent) else {
        return Ok(());
    };
    let failed = |error| Failure::Failed(format!("{}: {error}", parent.display()));
    fs::create_dir_all(parent).map_err(failed)
}
