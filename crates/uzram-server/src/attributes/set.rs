//! Effects of written values, with the kernel's errno where there is none.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use uzram::{ErrorKind, Parameters, Store};

use super::attribute::Written;
use super::number::{bytes, invalid, priority_in, whole};
use crate::device::{Device, DeviceConfig, DeviceKind, Live};
use crate::error::{Error, Result};
use crate::nearest::{remedy, shown};
use crate::options::boolean;

/// Names of codecs from this length on are too long for zram.
const ALGORITHM_BYTES: usize = 128;
/// The largest dictionary, in bytes.
const DICTIONARY_BYTES_MAX: u64 = 16 << 20;
/// A memory limit is a multiple of this, as zram's, in bytes.
const PAGE_BYTES: u64 = 4096;

/// Each write compacts for this long and until some pages are free, or for the longest time that a
/// client waits, so that the server can end in between.
const COMPACT_MIN: Duration = Duration::from_secs(1);
const COMPACT_MAX: Duration = Duration::from_secs(20);

pub(super) fn disksize(device: &Device, written: &Written<'_>) -> Result<()> {
    match bytes("disksize", written.value)? {
        0 => Err(invalid("disksize", written.value, "write a size, as 1G")),
        size_bytes => device.set_size(size_bytes),
    }
}

pub(super) fn reset(device: &Device, written: &Written<'_>) -> Result<()> {
    match whole("reset", written.value, u16::MAX.into())? {
        0 => Err(invalid("reset", written.value, "write 1")),
        _ => device.reset(),
    }
}

pub(super) fn empty(device: &Device, written: &Written<'_>) -> Result<()> {
    match written.value {
        "1" => device.empty(),
        other => Err(invalid("empty", other, "write 1")),
    }
}

pub(super) fn compact(device: &Device, _: &Written<'_>) -> Result<()> {
    with_store(device, |store| {
        let (start, before) = (Instant::now(), store.stats().pages_compacted);
        while store.compact(COMPACT_MIN / 10)? {
            let is_free = store.stats().pages_compacted > before;
            let enough = if is_free { COMPACT_MIN } else { COMPACT_MAX };
            if start.elapsed() >= enough {
                break;
            }
        }
        Ok(())
    })
}

pub(super) fn read_only(device: &Device, written: &Written<'_>) -> Result<()> {
    device.set_read_only(boolean(written.value)?)
}

pub(super) fn mem_limit(device: &Device, written: &Written<'_>) -> Result<()> {
    check_compresses(device)?;
    let limit_bytes = bytes("mem_limit", written.value)?;
    let whole_pages = limit_bytes.checked_next_multiple_of(PAGE_BYTES);
    // One that no memory reaches is none, as in the kernel.
    device.set_mem_limit(whole_pages.unwrap_or(0));
    Ok(())
}

pub(super) fn mem_used_max(device: &Device, written: &Written<'_>) -> Result<()> {
    check_compresses(device)?;
    // The kernel has no other error here, not even for a number that is too large.
    if whole("mem_used_max", written.value, 0).is_err() {
        let remedy = "only 0 can be written; it starts the maximum afresh";
        return Err(invalid("mem_used_max", written.value, remedy));
    }
    match device.live() {
        Some(_) => with_store(device, |store| {
            store.reset_mem_used_max();
            Ok(())
        }),
        // There is none yet.
        None => Ok(()),
    }
}

pub(super) fn comp_algorithm(device: &Device, written: &Written<'_>) -> Result<()> {
    check_compresses(device)?;
    let name = known_algorithm("comp_algorithm", written.value)?;
    device.prepare(|setup| {
        setup.algorithm = Some(name.to_owned());
        Ok(())
    })
}

/// A codec's name, of those that there are.
pub(super) fn known_algorithm(attribute: &str, name: &str) -> Result<&'static str> {
    if name.len() >= ALGORITHM_BYTES {
        return Err(invalid(attribute, name, "too long").with_errno(Errno::TOOBIG));
    }
    let names = uzram::algorithms();
    let found = names.iter().find(|known| **known == name);
    found.copied().ok_or_else(|| {
        let text = format!("{attribute} {:?}{}", shown(name), remedy(name, &names));
        Error::new(ErrorKind::UnknownName, text)
    })
}

pub(super) fn algorithm_params(device: &Device, written: &Written<'_>) -> Result<()> {
    check_compresses(device)?;
    let (mut algorithm, mut priority, mut dictionary) = (None, None, None);
    let mut rest = Vec::new();
    let words = written.value.split([' ', ',', '\t', '\n']);
    for word in words.filter(|word| !word.is_empty()) {
        if word.chars().any(char::is_control) {
            return Err(invalid("algorithm_params", word, "write NAME=VALUE"));
        }
        match word.split_once('=') {
            Some(("algo", name)) => algorithm = Some(known_algorithm("algorithm_params", name)?),
            Some(("priority", text)) => {
                priority = Some(priority_in("algorithm_params", text, 0..=3)?);
            }
            Some(("dict", path)) => dictionary = Some(path),
            _ => rest.push(word),
        }
    }
    let mut parameters: Parameters = rest.join(" ").parse()?;
    device.prepare(|setup| {
        let priority = priority_of(setup, algorithm, priority)?;
        if let Some(path) = dictionary {
            parameters = parameters.dictionary(read_dictionary(path, written)?);
        }
        match priority.checked_sub(1) {
            None => setup.parameters = parameters,
            Some(secondary) => setup.secondaries[secondary].parameters = parameters,
        }
        Ok(())
    })
}

/// The codec that is meant, by its priority: 0 is the one that pages are written by. Name and priority must
/// agree, where both are given.
fn priority_of(
    setup: &DeviceConfig,
    algorithm: Option<&str>,
    priority: Option<usize>,
) -> Result<usize> {
    let named = |priority: usize| match priority {
        0 => Some(setup.algorithm()),
        secondary => setup.secondaries[secondary - 1].algorithm.as_deref(),
    };
    let Some(name) = algorithm else {
        return Ok(priority.unwrap_or(0));
    };
    let mut wanted = (0..=3).filter(|known| priority.is_none_or(|priority| priority == *known));
    wanted.find(|known| named(*known) == Some(name)).ok_or_else(|| {
        let text = format!(
            "algorithm_params algo={name}: the codec of priority {} is {}; write comp_algorithm or \
             recomp_algorithm first",
            priority.unwrap_or(0),
            named(priority.unwrap_or(0)).unwrap_or("none")
        );
        Error::new(ErrorKind::InvalidInput, text)
    })
}

fn read_dictionary(path: &str, written: &Written<'_>) -> Result<Vec<u8>> {
    let file = written.files.open(Path::new(path), false)?;
    let mut bytes = Vec::new();
    let read = file.take(DICTIONARY_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::new(ErrorKind::Io, format!("dict {path}")).with_source(error))?;
    if bytes.is_empty() || bytes.len() as u64 > DICTIONARY_BYTES_MAX {
        return Err(invalid("dict", path, "a dictionary has 1 byte to 16 MiB"));
    }
    Ok(bytes)
}

/// Asks the pages of a device that has some.
pub(super) fn with_store(device: &Device, ask: impl FnOnce(&Store) -> Result<()>) -> Result<()> {
    check_compresses(device)?;
    let live = device.live();
    match live.as_deref().and_then(Live::store) {
        Some(store) => ask(store),
        None => {
            let name = device.name();
            let text =
                format!("{name}: has no size; give it one first: uzram set {name} disksize 1G");
            Err(Error::new(ErrorKind::InvalidInput, text))
        }
    }
}

pub(super) fn check_compresses(device: &Device) -> Result<()> {
    match device.kind() {
        DeviceKind::Zram => Ok(()),
        kind => {
            let text = format!("{} does not compress, so this means nothing", kind.name());
            Err(Error::new(ErrorKind::Unsupported, text))
        }
    }
}
