//! A section `[zramN]`: its keys, and the disk that they make on one machine.

use std::path::{Component, Path, PathBuf};

use uzram::{Compression, Parameters, Unit};

use super::ini::{Entry, Wrong};
use crate::expression::Names;
use crate::nearest::{remedy, shown};

/// Size of a disk without one.
const SIZE_DEFAULT: &str = "min(ram / 2, 4096)";
/// Share of RAM for a disk with `max-zram-size` alone.
const FRACTION_DEFAULT: f64 = 0.5;
/// Priority of swap without one.
const PRIORITY_DEFAULT: u16 = 100;
const PRIORITY_MAX: i32 = 32767;
/// Options of a mount or of swap without any.
const OPTIONS_DEFAULT: &str = "discard";
const FS_DEFAULT: &str = "ext2";

const KEYS: [&str; 12] = [
    "host-memory-limit",
    "zram-size",
    "zram-resident-limit",
    "compression-algorithm",
    "writeback-device",
    "swap-priority",
    "mount-point",
    "fs-type",
    "options",
    "memory-limit",
    "zram-fraction",
    "max-zram-size",
];

/// A disk that the file asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratorDisk {
    /// Its section's title.
    pub name: String,
    /// The line of its section, from 1.
    pub line: usize,
    /// Its size in bytes, above 0.
    pub size_bytes: u64,
    /// Most memory of its pages, in bytes; 0 for no limit.
    pub mem_limit_bytes: u64,
    /// Its codec, if this program has it.
    pub algorithm: Option<String>,
    /// Parameters of the codec that it takes.
    pub parameters: String,
    /// Its purpose.
    pub purpose: GeneratorUse,
}

/// The purpose of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GeneratorUse {
    /// Swap.
    Swap {
        /// Its priority, higher first.
        priority: u16,
    },
    /// A file system that is mounted.
    Mount {
        /// The directory, absolute.
        directory: PathBuf,
        /// The file system's name.
        fs: String,
        /// Options as in fstab(5), separated by commas; may be empty.
        options: String,
    },
}

/// The keys of a section, of the same name in all places where it stands.
#[derive(Debug, Default)]
pub(super) struct Section {
    pub(super) name: String,
    line: usize,
    host_memory_limit_mib: Option<u64>,
    size: Option<(usize, String)>,
    resident_limit: Option<(usize, String)>,
    algorithm: Option<String>,
    parameters: String,
    fraction: Option<f64>,
    /// Given, and perhaps as `none`.
    size_max_mib: Option<Option<u64>>,
    priority: Option<u16>,
    mount_point: Option<PathBuf>,
    fs: Option<String>,
    options: Option<(usize, String)>,
}

impl Section {
    pub(super) fn new(name: String, line: usize) -> Section {
        Section {
            name,
            line,
            ..Section::default()
        }
    }

    /// Takes a key. The last one of a name counts.
    pub(super) fn set(&mut self, entry: &Entry, notes: &mut Vec<String>) -> Result<(), Wrong> {
        let wrong = |why: String| Wrong::in_key(entry, why);
        let value = entry.value.as_str();
        let here = || (entry.line, value.to_owned());
        let mut note = |why: &str| notes.push(format!(":{}: {}: {why}", entry.line, entry.place()));
        match entry.key.as_str() {
            "host-memory-limit" | "memory-limit" => {
                self.host_memory_limit_mib = mib_or_none(value).map_err(wrong)?;
            }
            "zram-size" => self.size = Some(here()),
            "zram-resident-limit" => self.resident_limit = Some(here()),
            "compression-algorithm" => {
                let algorithms = Algorithms::of(value);
                for why in &algorithms.notes {
                    note(why);
                }
                (self.algorithm, self.parameters) = (algorithms.first, algorithms.parameters);
            }
            "writeback-device" => {
                absolute(value).map_err(wrong)?;
                note("left out; pages are not written back, and all stay in memory");
            }
            "swap-priority" => self.priority = Some(priority(value, &mut note).map_err(wrong)?),
            "mount-point" => self.mount_point = Some(absolute(value).map_err(wrong)?),
            "fs-type" => self.fs = Some(value.to_owned()),
            "options" => self.options = Some(here()),
            "zram-fraction" => {
                let fraction = value.parse().ok();
                let fraction = fraction.filter(|f: &f64| *f >= 0.0 && f.is_finite());
                self.fraction = Some(fraction.ok_or_else(|| {
                    wrong(format!("{:?}: must be a number from 0 on", shown(value)))
                })?);
            }
            "max-zram-size" => self.size_max_mib = Some(mib_or_none(value).map_err(wrong)?),
            unknown => note(&format!("unknown, so left out{}", remedy(unknown, &KEYS))),
        }
        Ok(())
    }

    /// The disk on a machine with `ram_bytes`; none if the file has none for such a machine.
    pub(super) fn disk(
        self,
        names: &Names,
        ram_bytes: u64,
        notes: &mut Vec<String>,
    ) -> Result<Option<GeneratorDisk>, Wrong> {
        let mut left_out = |line: usize, why: &str| {
            notes.push(format!(":{line}: [{}]: left out; {why}", self.name));
            Ok(None)
        };
        let ram_mib = ram_bytes >> 20;
        if let Some(limit) = self.host_memory_limit_mib.filter(|limit| *limit < ram_mib) {
            let why = format!("the machine has {ram_mib} MiB, and host-memory-limit is {limit}");
            return left_out(self.line, &why);
        }
        let size_bytes = self.size_bytes(names, ram_mib)?;
        let mem_limit_bytes = match &self.resident_limit {
            Some((line, text)) => self.bytes(*line, "zram-resident-limit", text, names)?,
            None => 0,
        };
        if size_bytes == 0 {
            return left_out(self.line, "its size is 0");
        }
        let fs = self.fs.as_deref();
        let purpose = match self.mount_point {
            None if fs.is_none_or(|fs| fs == "swap") => {
                if let Some((line, options)) = self.options.filter(|o| o.1 != OPTIONS_DEFAULT) {
                    notes.push(format!(
                        ":{line}: [{}] options: {:?} left out; swap here discards what it no longer \
                         needs, which frees memory",
                        self.name,
                        shown(&options)
                    ));
                }
                let priority = self.priority.unwrap_or(PRIORITY_DEFAULT);
                GeneratorUse::Swap { priority }
            }
            None => return left_out(self.line, "without mount-point nothing would use it"),
            Some(directory) => GeneratorUse::Mount {
                directory,
                fs: fs.unwrap_or(FS_DEFAULT).to_owned(),
                options: self.options.map_or(OPTIONS_DEFAULT.into(), |o| o.1),
            },
        };
        Ok(Some(GeneratorDisk {
            name: self.name,
            line: self.line,
            size_bytes,
            mem_limit_bytes,
            algorithm: self.algorithm,
            parameters: self.parameters,
            purpose,
        }))
    }

    /// The deprecated keys win, as there.
    fn size_bytes(&self, names: &Names, ram_mib: u64) -> Result<u64, Wrong> {
        if self.fraction.is_some() || self.size_max_mib.is_some() {
            let share = (self.fraction.unwrap_or(FRACTION_DEFAULT) * ram_mib as f64) as u64;
            let most = self.size_max_mib.flatten().unwrap_or(u64::MAX);
            return Ok(share.min(most).saturating_mul(1 << 20));
        }
        match &self.size {
            Some((line, text)) => self.bytes(*line, "zram-size", text, names),
            None => self.bytes(self.line, "zram-size", SIZE_DEFAULT, names),
        }
    }

    fn bytes(&self, line: usize, key: &str, text: &str, names: &Names) -> Result<u64, Wrong> {
        names.bytes(text).map_err(|error| Wrong {
            line,
            why: format!("[{}] {key}: {error}", self.name),
        })
    }
}

/// A list as `lz4 zstd(level=3) (type=idle)`.
#[derive(Default)]
struct Algorithms {
    first: Option<String>,
    parameters: String,
    /// The parts that are left out.
    notes: Vec<String>,
}

impl Algorithms {
    fn of(text: &str) -> Algorithms {
        let mut found = Algorithms::default();
        let mut is_first = true;
        for word in text.split_whitespace() {
            let (name, parameters) = word.split_once('(').unwrap_or((word, ""));
            let parameters = parameters.strip_suffix(')').unwrap_or(parameters);
            if name.is_empty() || !is_first {
                let word = shown(word);
                found.notes.push(format!(
                    "{word} left out; pages are not recompressed by a disk"
                ));
                continue;
            }
            is_first = false;
            found.take(name, parameters);
        }
        found
    }

    fn take(&mut self, name: &str, parameters: &str) {
        let known = &uzram::algorithms()[..];
        if !known.contains(&name) {
            self.notes.push(format!(
                "{:?} left out, so it is {}{}",
                shown(name),
                known[0],
                remedy(name, known)
            ));
            return;
        }
        self.first = Some(name.to_owned());
        let parsed = parameters.parse::<Parameters>();
        let made = parsed.and_then(|p| Compression::with_parameters(name, &p, Unit::DEFAULT));
        match made {
            Ok(_) => self.parameters = parameters.to_owned(),
            Err(error) => self.notes.push(format!("parameters left out; {error}")),
        }
    }
}

/// Whole MiB, or none.
fn mib_or_none(text: &str) -> Result<Option<u64>, String> {
    match text {
        "none" => Ok(None),
        _ => text
            .parse()
            .map(Some)
            .map_err(|_| format!("{:?}: must be a number of MiB, or none", shown(text))),
    }
}

fn priority(text: &str, note: &mut impl FnMut(&str)) -> Result<u16, String> {
    let number: Option<i32> = text.parse().ok();
    match number.filter(|number| (-1..=PRIORITY_MAX).contains(number)) {
        Some(-1) => {
            note("-1 lets the kernel choose; here it is 0, the lowest that can be asked for");
            Ok(0)
        }
        Some(number) => Ok(number as u16),
        None => Err(format!(
            "{:?}: must be from -1 to {PRIORITY_MAX}",
            shown(text)
        )),
    }
}

/// A path without `..`, and without what else names the same place.
fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    if !path.is_absolute() || path.components().any(|c| c == Component::ParentDir) {
        return Err(format!("{:?}: must be absolute, without ..", shown(text)));
    }
    Ok(path.components().collect())
}
