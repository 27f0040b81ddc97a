//! The kernel's settings that `up --swap` changes. They are the whole machine's: the old values
//! are noted beside the disk, and set again when the last disk that needed the change goes.

use std::fs;
use std::io;
use std::path::Path;

use uzram_server::size::ram_bytes;
use uzram_server::state::StateDir;
use uzram_server::swap::Watermarks;
use uzram_server::zswap::Zswap;

use super::record::read_note;
use crate::failure::{Failure, Result};
use crate::output::warn;

const WATERMARKS: &str =
    "vm.watermark_scale_factor, vm.watermark_boost_factor and vm.min_free_kbytes";

/// Makes the kernel start to swap `in_time`, and, if the disk `outlives` its server, keep memory for the next one. Returns the
/// change, or the reason why there is none and its consequence, as in a container.
pub fn raise_watermarks(
    state: &StateDir,
    name: &str,
    in_time: bool,
    outlives: bool,
) -> Option<String> {
    let not_set = |error: io::Error| {
        Some(format!(
            "{WATERMARKS}: not set ({error}): if the whole machine runs short of memory it may stall; \
             limit the programs that swap with a memory cgroup"
        ))
    };
    let found = match Watermarks::read() {
        Ok(found) => found,
        Err(error) => return not_set(error),
    };
    let wanted = found.raised(ram_bytes(), in_time, outlives);
    // What others have noted is older: after they have raised it, it is no longer what it was.
    let mut others = state.watermark_names().into_iter();
    let noted = others.find_map(|other| Watermarks::parse(&read(&state.watermark(&other))?));
    let before = noted.or(wanted.map(|_| found))?;
    // First: whoever is killed in between has changed nothing that nobody knows of.
    if let Err(error) = fs::write(state.watermark(name), before.to_string()) {
        return not_set(error);
    }
    if let Some(Err(error)) = wanted.map(Watermarks::set) {
        if noted.is_none() && found.set().is_ok() {
            let _ = fs::remove_file(state.watermark(name));
        }
        return not_set(error);
    }
    let now = Watermarks::read().ok()?;
    Some(format!(
        "{WATERMARKS}: {now}, so that the kernel swaps in time; uzram down {name} sets {before} again"
    ))
}

/// The settings of zswap, if it is wanted.
///
/// # Errors
/// A kernel without zswap.
pub fn zswap_if(is_wanted: bool) -> Result<Option<Zswap>> {
    match Zswap::read() {
        None if is_wanted => Err(Failure::Failed(
            "--zswap: this kernel has no zswap (/sys/module/zswap); leave it out".into(),
        )),
        found => Ok(found),
    }
}

/// Puts zswap in front, if it is wanted, and returns a line about it.
///
/// # Errors
/// Settings that may not be written.
pub fn put_zswap_in_front(
    state: &StateDir,
    name: &str,
    zswap: &Zswap,
    is_wanted: bool,
) -> Result<String> {
    if !is_wanted {
        return Ok(match zswap.is_on() {
            true => "zswap is on: pages go through the kernel's cache before they come here".into(),
            false => {
                "this kernel has zswap: up --swap --zswap puts it in front, so that pages which \
                      are soon wanted again stay at the kernel's speed"
                    .into()
            }
        });
    }
    let mut others = state.zswap_names().into_iter();
    let noted = others.find_map(|other| Zswap::parse(&read(&state.zswap(&other))?));
    let before = noted.unwrap_or_else(|| zswap.clone());
    let failed =
        |error: io::Error| Failure::Failed(format!("--zswap: its settings cannot be set: {error}"));
    fs::write(state.zswap(name), before.to_string()).map_err(failed)?;
    zswap.turn_on().map_err(failed)?;
    let now = Zswap::read().map_or_else(String::new, |now| now.to_string());
    Ok(format!(
        "zswap: {now}; uzram down {name} sets {before} again"
    ))
}

/// Sets the old values noted for the disk `name`, if no other disk needs the change.
pub fn restore(state: &StateDir, name: &str) {
    let path = state.watermark(name);
    let before = read(&path).and_then(|text| Watermarks::parse(&text));
    let is_last = |names: Vec<String>| names.iter().all(|other| other == name);
    if let Some(before) = before.filter(|_| is_last(state.watermark_names())) {
        said(WATERMARKS, &before, before.set());
    }
    // Last: whoever is killed in between does it again.
    let _ = fs::remove_file(path);
    let path = state.zswap(name);
    let before = read(&path).and_then(|text| Zswap::parse(&text));
    if let Some(before) = before.filter(|_| is_last(state.zswap_names())) {
        said("zswap", &before, before.set());
    }
    let _ = fs::remove_file(path);
}

fn said(what: &str, before: &impl std::fmt::Display, done: io::Result<()>) {
    if let Err(error) = done {
        warn(&format!("{what}: not set back to {before}: {error}"));
    }
}

fn read(path: &Path) -> Option<String> {
    String::from_utf8(read_note(path)?).ok()
}
