//! zswap, the kernel's compressed cache in front of swap devices. With it, pages that are soon
//! wanted again never leave the kernel, and only the rest comes to our device.
//!
//! Its settings are the whole machine's. The old values are noted before they are changed, and set
//! again later.

use std::fmt;
use std::io;
use std::path::Path;

/// The directory of its settings.
pub(crate) const DIRECTORY: &str = "/sys/module/zswap/parameters";
/// The wanted settings, in the order in which they are set. A kernel lacks some of them: `zpool`
/// went with 6.18, `shrinker_enabled` came with 6.8.
const WANTED: [(&str, &str); 6] = [
    ("zpool", "zsmalloc"),
    ("compressor", "lz4"),
    ("max_pool_percent", "25"),
    ("accept_threshold_percent", "90"),
    ("shrinker_enabled", "Y"),
    (ENABLED, "Y"),
];
const ENABLED: &str = "enabled";

/// The settings that this kernel has, with their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zswap(Vec<(&'static str, String)>);

impl Zswap {
    /// The settings as they are; `None` for a kernel without zswap.
    #[must_use]
    pub fn read() -> Option<Zswap> {
        Zswap::read_from(Path::new(DIRECTORY))
    }

    /// The same from another directory.
    pub(crate) fn read_from(directory: &Path) -> Option<Zswap> {
        let value = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
        let found = WANTED.iter().filter_map(|(name, _)| {
            let value = value(name)?.trim().to_owned();
            Some((*name, value))
        });
        let zswap = Zswap(found.collect());
        zswap.value(ENABLED).is_some().then_some(zswap)
    }

    /// The settings as `text` has them.
    #[must_use]
    pub fn parse(text: &str) -> Option<Zswap> {
        let setting = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            let known = WANTED.iter().find(|(known, _)| *known == name)?;
            Some((known.0, value.to_owned()))
        };
        text.trim()
            .split(", ")
            .map(setting)
            .collect::<Option<_>>()
            .map(Zswap)
    }

    /// Whether pages go through it.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.value(ENABLED) == Some("Y")
    }

    /// Puts zswap in front of all swap. A setting that a kernel refuses, such as a codec that it
    /// lacks, stays.
    ///
    /// # Errors
    /// If the settings cannot be written, as in most containers; nothing has changed then.
    pub fn turn_on(&self) -> io::Result<()> {
        let mut done = Ok(());
        for (name, value) in WANTED {
            if self.value(name).is_some() {
                done = set(name, value);
            }
        }
        // Last was what matters.
        done.inspect_err(|_| drop(self.set()))
    }

    /// Sets all of them.
    ///
    /// # Errors
    /// As [`Zswap::turn_on`], with the first that is refused, after all were tried.
    pub fn set(&self) -> io::Result<()> {
        let mut done = Ok(());
        for (name, value) in &self.0 {
            done = done.and(set(name, value));
        }
        done
    }

    /// The value of a setting, if the kernel has it.
    pub(crate) fn value(&self, wanted: &str) -> Option<&str> {
        let found = self.0.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, value)| value.as_str())
    }
}

fn set(name: &str, value: &str) -> io::Result<()> {
    std::fs::write(Path::new(DIRECTORY).join(name), value)
}

impl fmt::Display for Zswap {
    /// `compressor lzo, enabled N`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = self.0.iter().map(|(name, value)| format!("{name} {value}"));
        f.write_str(&settings.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_are_written() {
        let zswap = Zswap(vec![("compressor", "lzo".into()), (ENABLED, "N".into())]);
        assert_eq!(zswap.to_string(), "compressor lzo, enabled N");
        assert_eq!(Zswap::parse(&format!("{zswap}\n")), Some(zswap.clone()));
        assert!(!zswap.is_on());
        for hostile in ["", "enabled", "../enabled Y", "enabled Y, x 1"] {
            assert_eq!(Zswap::parse(hostile), None, "{hostile:?}");
        }
    }
}
