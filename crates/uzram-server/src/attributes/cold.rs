//! Written values about pages that nobody uses: marking them, packing them again, writing them back.

use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use uzram::{ColdPages, Recompression, Store};

use super::attribute::Written;
use super::number::{invalid, pairs, priority_in, whole};
use super::set::{check_compresses, known_algorithm, with_store};
use crate::device::{BackingDevice, Device};
use crate::error::{Error, Result};

/// Ranges that one write to `writeback` names, at most.
const RANGES_MAX: usize = 1024;
/// Pages of a batch, at most; the kernel takes more, and so does this without effect.
const BATCH_PAGES_MAX: u64 = 1024;

pub(super) fn idle(device: &Device, written: &Written<'_>) -> Result<()> {
    with_store(device, |store| match written.value {
        "all" => {
            store.mark_idle();
            Ok(())
        }
        age => {
            let seconds = any_whole("idle", age)?;
            Ok(store.mark_idle_older_than(Duration::from_secs(seconds))?)
        }
    })
}

pub(super) fn recomp_algorithm(device: &Device, written: &Written<'_>) -> Result<()> {
    check_compresses(device)?;
    let (mut algorithm, mut priority) = (None, 1);
    for (name, value) in pairs("recomp_algorithm", written.value)? {
        match name {
            "algo" => algorithm = Some(known_algorithm("recomp_algorithm", value)?),
            "priority" => priority = priority_in("recomp_algorithm", value, 1..=3)?,
            _ => return Err(unknown("recomp_algorithm", name, "algo=NAME priority=1")),
        }
    }
    let Some(algorithm) = algorithm else {
        return Err(invalid(
            "recomp_algorithm",
            written.value,
            "write algo=NAME priority=1",
        ));
    };
    device.prepare(|setup| {
        setup.secondaries[priority - 1].algorithm = Some(algorithm.to_owned());
        Ok(())
    })
}

pub(super) fn recompress(device: &Device, written: &Written<'_>) -> Result<()> {
    with_store(device, |store| {
        let what = recompression(store, written.value)?;
        store.recompress(&what, &mut || !device.is_ending())?;
        Ok(())
    })
}

fn recompression(store: &Store, value: &str) -> Result<Recompression> {
    let mut what = Recompression::new(1);
    let (mut algorithm, mut priority) = (None, None);
    for (name, word) in pairs("recompress", value)? {
        match name {
            "type" => {
                what.pages = match word {
                    "idle" => ColdPages::Idle,
                    "huge" => ColdPages::Huge,
                    "huge_idle" => ColdPages::HugeIdle,
                    _ => return Err(invalid("type", word, "write idle, huge or huge_idle")),
                }
            }
            "threshold" => {
                let threshold = whole("threshold", word, u32::MAX.into())?;
                what.threshold_bytes = usize::try_from(threshold).unwrap_or(usize::MAX);
            }
            "max_pages" => what.pages_max = Some(whole("max_pages", word, u64::MAX)?),
            "algo" => algorithm = Some(known_algorithm("recompress", word)?),
            "priority" => priority = Some(priority_in("recompress", word, 1..=3)? as u8),
            _ => {
                let known = "type=, threshold=, max_pages=, algo= and priority=";
                return Err(unknown("recompress", name, known));
            }
        }
    }
    let named = match algorithm {
        Some(name) => store.secondary_priority(name),
        None => Some(priority.unwrap_or(1)),
    };
    let has_both = priority.is_none_or(|priority| named == Some(priority));
    match named.filter(|named| has_both && store.secondary(*named).is_some()) {
        Some(priority) => {
            what.priority = priority;
            Ok(what)
        }
        None => {
            let remedy = "no such codec; name it in recomp_algorithm before disksize is set";
            Err(invalid("recompress", value, remedy))
        }
    }
}

pub(super) fn backing_dev(device: &Device, written: &Written<'_>) -> Result<()> {
    check_compresses(device)?;
    device.prepare(|setup| {
        let path = Path::new(written.value);
        let file = written.files.open(path, true)?;
        check_backs(path, &file)?;
        setup.backing = Some(BackingDevice {
            path: path.to_owned(),
            file: Arc::new(file),
        });
        Ok(())
    })
}

/// A number of any size. One beyond is EINVAL here, as in the kernel.
fn any_whole(name: &str, text: &str) -> Result<u64> {
    whole(name, text, u64::MAX).map_err(|error| error.with_errno(Errno::INVAL))
}

/// A block device with a size, or a file. A disk that has none yet, as the one that asks, is no backing device, so
/// no disk is ever its own, nor lies on one that lies on it.
fn check_backs(path: &Path, file: &std::fs::File) -> Result<()> {
    let shown = path.display().to_string();
    let failed = |_| invalid("backing_dev", &shown, "cannot be looked at");
    // Not File::metadata, which a sandbox refuses.
    let found = rustix::fs::fstat(file.as_fd()).map_err(failed)?;
    match rustix::fs::FileType::from_raw_mode(found.st_mode) {
        rustix::fs::FileType::RegularFile => Ok(()),
        rustix::fs::FileType::BlockDevice => {
            match rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).map_err(failed)? {
                0 => Err(invalid(
                    "backing_dev",
                    &shown,
                    "has no size, as a disk that is made",
                )),
                _ => Ok(()),
            }
        }
        _ => {
            let error = invalid("backing_dev", &shown, "neither a block device nor a file");
            Err(error.with_errno(Errno::NOTBLK))
        }
    }
}

pub(super) fn compressed_writeback(device: &Device, written: &Written<'_>) -> Result<()> {
    check_compresses(device)?;
    let is_compressed = flag("compressed_writeback", written.value)?;
    device.prepare(|setup| {
        setup.compressed_writeback = is_compressed;
        Ok(())
    })
}

pub(super) fn writeback_limit(device: &Device, written: &Written<'_>) -> Result<()> {
    check_compresses(device)?;
    let pages = any_whole("writeback_limit", written.value)?;
    device.tune(
        |setup| setup.writeback.limit_4k = pages,
        |store| {
            store.set_writeback_limit(pages);
            Ok(())
        },
    )
}

pub(super) fn writeback_limit_enable(device: &Device, written: &Written<'_>) -> Result<()> {
    check_compresses(device)?;
    // The kernel takes any number here.
    let is_enabled = any_whole("writeback_limit_enable", written.value)? != 0;
    device.tune(
        |setup| setup.writeback.is_limited = is_enabled,
        |store| {
            store.set_writeback_limit_enabled(is_enabled);
            Ok(())
        },
    )
}

pub(super) fn writeback_batch_size(device: &Device, written: &Written<'_>) -> Result<()> {
    check_compresses(device)?;
    let name = "writeback_batch_size";
    let pages = match whole(name, written.value, u32::MAX.into())? {
        0 => return Err(invalid(name, written.value, "write 1 or more")),
        pages => pages.min(BATCH_PAGES_MAX) as usize,
    };
    device.tune(
        |setup| setup.writeback.batch_pages = pages,
        |store| Ok(store.set_writeback_batch_pages(pages)?),
    )
}

/// Pages that one write asks to be written back.
enum Selection {
    Pages(ColdPages),
    Range(RangeInclusive<u64>),
}

pub(super) fn writeback(device: &Device, written: &Written<'_>) -> Result<()> {
    with_store(device, |store| {
        if !store.has_backing_file() {
            let remedy = "no backing_dev; name one before disksize is set";
            return Err(invalid("writeback", written.value, remedy).with_errno(Errno::NODEV));
        }
        let pages = store.size_bytes() >> store.unit().shift();
        let selections = selections(written.value, pages)?;
        let mut goes_on = || !device.is_ending();
        for selection in selections {
            match selection {
                Selection::Pages(pages) => store.write_back_cold(pages, &mut goes_on)?,
                Selection::Range(range) => {
                    store.write_back_range(*range.start()..range.end() + 1, &mut goes_on)?
                }
            };
        }
        // Blocks that were given back since take room on the disk.
        while goes_on() && store.discard_backing() {}
        Ok(())
    })
}

/// All that `value` names, or the reason why one of it is not there.
fn selections(value: &str, pages: u64) -> Result<Vec<Selection>> {
    let words = value.split_ascii_whitespace();
    let selections = words.map(|word| selection(word, pages));
    let selections: Vec<Selection> = selections.collect::<Result<_>>()?;
    match selections.len() {
        1..=RANGES_MAX => Ok(selections),
        _ => Err(invalid(
            "writeback",
            value,
            "write type=idle, type=huge or page_index=N",
        )),
    }
}

fn selection(word: &str, pages: u64) -> Result<Selection> {
    let (name, value) = match word.split_once('=') {
        Some(pair) => pair,
        // As it was written before there were names.
        None => ("type", word),
    };
    let index = |text: &str| {
        let index = whole(name, text, u64::MAX)?;
        match index < pages {
            true => Ok(index),
            false => {
                let remedy = format!("the disk has {pages} pages");
                Err(invalid(name, text, &remedy).with_errno(Errno::RANGE))
            }
        }
    };
    Ok(match (name, value) {
        ("type", "idle") => Selection::Pages(ColdPages::Idle),
        ("type", "huge") => Selection::Pages(ColdPages::Huge),
        ("type", "huge_idle") => Selection::Pages(ColdPages::HugeIdle),
        ("type", "incompressible") => Selection::Pages(ColdPages::Incompressible),
        ("page_index", value) => {
            let index = index(value)?;
            Selection::Range(index..=index)
        }
        ("page_indexes", value) => {
            let (low, high) = value
                .split_once('-')
                .ok_or_else(|| invalid(name, value, "write LO-HI"))?;
            let (low, high) = (index(low)?, index(high)?);
            if low > high {
                return Err(invalid(name, value, "write LO-HI").with_errno(Errno::RANGE));
            }
            Selection::Range(low..=high)
        }
        _ => {
            let remedy = "write type=idle, huge, huge_idle or incompressible, page_index=N or page_indexes=LO-HI";
            return Err(invalid("writeback", word, remedy));
        }
    })
}

fn unknown(attribute: &str, name: &str, known: &str) -> Error {
    invalid(attribute, name, &format!("unknown; write {known}"))
}

fn flag(name: &str, text: &str) -> Result<bool> {
    match text {
        "1" | "y" | "Y" | "on" => Ok(true),
        "0" | "n" | "N" | "off" => Ok(false),
        _ => Err(invalid(name, text, "write 1 or 0")),
    }
}
