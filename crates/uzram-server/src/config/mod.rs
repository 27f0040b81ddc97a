//! The configuration file of a server: TOML, one section per device, `[server]` for the server
//! itself.
//!
//! Keys are the options of a device (as the command line's flags) and those of
//! zram-generator.conf(5) that apply here. Keys that this server cannot honour are refused with
//! the remedy and never ignored, because somebody relies on them.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use uzram::ErrorKind;

use crate::config_file;
use crate::device::DeviceConfig;
use crate::error::{Error, Result};
use crate::expression::Names;
use crate::nearest::{remedy, shown};
use crate::options::{self, Draft};
use crate::server_config::ServerConfig;
use crate::state::check_name;
use crate::zram_generator;

/// The section that is no device.
const SERVER_SECTION: &str = "server";
/// zram-generator's size for a section without one.
const ZRAM_SIZE_DEFAULT: &str = "min(ram / 2, 4096)";

/// zram-generator's keys that apply here.
const GENERATOR_KEYS: [&str; 4] = [
    "zram-size",
    "zram-resident-limit",
    "compression-algorithm",
    "host-memory-limit",
];

/// Keys of zram-generator that this server refuses, with the reasons.
const REFUSED_KEYS: [(&str, &str); 9] = [
    (
        "writeback-device",
        "pages are not written back to a disk here; remove the line",
    ),
    ("swap-priority", NO_SWAP),
    ("mount-point", NO_MOUNT),
    ("fs-type", NO_MOUNT),
    (
        "options",
        "nothing is mounted or swapped on here, so there are no options to it; remove the line",
    ),
    (
        "zram-fraction",
        "deprecated by zram-generator too; write zram-size = \"ram * FRACTION\"",
    ),
    (
        "max-zram-size",
        "deprecated by zram-generator too; write zram-size = \"min(ram / 2, MAX)\"",
    ),
    (
        "memory-limit",
        "deprecated by zram-generator too; write host-memory-limit",
    ),
    (
        "name",
        "the section's title is the name; rename the section",
    ),
];

const NO_SWAP: &str = "a server makes no swap area; remove the line, and use uzram up --swap \
                       --priority N, or uzram up --config with zram-generator's own file";
const NO_MOUNT: &str = "a server mounts nothing; remove the line, and use uzram up --mount DIR --fs \
                        ext4, or uzram up --config with zram-generator's own file";

/// A configuration, checked.
#[derive(Debug, Default)]
pub struct Config {
    /// The section `[server]`.
    pub server: ServerConfig,
    /// The devices in the file's order, each with a name.
    pub devices: Vec<DeviceConfig>,
    /// Devices left out because the machine has more memory than their `host-memory-limit`.
    pub left_out: Vec<String>,
}

impl Config {
    /// Reads the file at `path` for a machine with `ram_bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be read; [`ErrorKind::InvalidInput`] with file, line, section
    /// and key.
    pub fn read(path: &Path, ram_bytes: u64) -> Result<Config> {
        let shown = path.display();
        let text = config_file::read(path)?;
        Config::parse(&text, ram_bytes).map_err(|wrong| {
            let line = text
                .get(..wrong.offset)
                .unwrap_or(&text)
                .matches('\n')
                .count()
                + 1;
            let text = format!("{shown}:{line}: {}", wrong.why);
            Error::new(ErrorKind::InvalidInput, text)
        })
    }

    fn parse(text: &str, ram_bytes: u64) -> Result<Config, Wrong> {
        let document = DeTable::parse(text).map_err(|error| Wrong {
            offset: error.span().map_or(0, |span| span.start),
            why: format!("{}{}", error.message(), generator_remedy(text)),
        })?;
        let mut sections: Vec<_> = document.get_ref().iter().collect();
        sections.sort_by_key(|(title, _)| title.span().start);
        let mut config = Config::default();
        for (title, section) in sections {
            let name = title.get_ref().as_ref();
            let wrong = |why: String| Wrong::at(title.span().start, name, why);
            let Some(keys) = section.get_ref().as_table() else {
                let text = "a key outside of a section; put it below [NAME] of a disk".into();
                return Err(wrong(text));
            };
            if name == SERVER_SECTION {
                config.read_server(keys)?;
                continue;
            }
            check_name(name).map_err(|error| wrong(error.to_string()))?;
            let section = Section { name, keys };
            match section.device(ram_bytes, title.span().start)? {
                Some(device) => config.devices.push(device),
                None => config.left_out.push(name.to_owned()),
            }
        }
        Ok(config)
    }

    fn read_server(&mut self, keys: &DeTable<'_>) -> Result<(), Wrong> {
        for (key, value) in keys {
            let name = key.get_ref().as_ref();
            let wrong = |why: String| Wrong::in_key(key, SERVER_SECTION, why);
            let value = text_of(value).map_err(wrong)?;
            let outcome = self.server.set(name, &value);
            outcome.map_err(|e| wrong(e.to_string()))?;
        }
        Ok(())
    }
}

/// The remedy where the file is zram-generator's, whose values have no quotes.
fn generator_remedy(text: &str) -> &'static str {
    match zram_generator::is_meant(text) {
        true => "; this file is TOML, and zram-generator's is read by uzram up --config",
        false => "",
    }
}

/// A fault, and its byte in the file.
#[derive(Debug)]
struct Wrong {
    offset: usize,
    why: String,
}

impl Wrong {
    fn at(offset: usize, section: &str, why: String) -> Wrong {
        let why = format!("[{}]: {why}", shown(section));
        Wrong { offset, why }
    }

    fn in_key(key: &Spanned<impl AsRef<str>>, section: &str, why: String) -> Wrong {
        let (section, name) = (shown(section), shown(key.get_ref().as_ref()));
        Wrong {
            offset: key.span().start,
            why: format!("[{section}] {name}: {why}"),
        }
    }
}

/// The section of a device.
struct Section<'a> {
    name: &'a str,
    keys: &'a DeTable<'a>,
}

impl Section<'_> {
    /// The device, or `None` if this machine has too much memory for it.
    fn device(&self, ram_bytes: u64, offset: usize) -> Result<Option<DeviceConfig>, Wrong> {
        let at_title = |why: String| Wrong::at(offset, self.name, why);
        let mut draft = Draft::default();
        let named = draft.set("name", self.name);
        named.map_err(|e| at_title(e.to_string()))?;
        let mut is_wanted = true;
        let mut keys: Vec<_> = self.keys.iter().collect();
        keys.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in keys {
            let wrong = |why: String| Wrong::in_key(key, self.name, why);
            let name = key.get_ref().as_ref();
            let value = text_of(value).map_err(wrong)?;
            if name == "host-memory-limit" {
                is_wanted = is_below(&value, ram_bytes).map_err(wrong)?;
                continue;
            }
            for (option, value) in translate(name, value, ram_bytes).map_err(wrong)? {
                if draft.has(option) {
                    return Err(wrong(format!("{option} is given twice, under two names")));
                }
                // The line and the key say which option it is.
                let outcome = draft.set(option, &value);
                outcome.map_err(|refused| wrong(refused.reason().to_string()))?;
            }
        }
        if !draft.has("size") {
            let bytes = Names::new(ram_bytes).bytes(ZRAM_SIZE_DEFAULT);
            let bytes = bytes.map_err(|e| at_title(e.to_string()))?;
            let outcome = draft.set("size", &bytes.to_string());
            outcome.map_err(|e| at_title(e.to_string()))?;
        }
        let config = draft.finish().map_err(|e| at_title(e.to_string()))?;
        Ok(is_wanted.then_some(config))
    }
}

/// The options of ours that a key stands for.
fn translate(
    key: &str,
    value: String,
    ram_bytes: u64,
) -> Result<Vec<(&'static str, String)>, String> {
    if let Some((_, why)) = REFUSED_KEYS.iter().find(|(refused, _)| *refused == key) {
        return Err((*why).to_owned());
    }
    if let Some(option) = options::find(key) {
        return Ok(vec![(option.name, value)]);
    }
    let bytes = |value: &str| {
        Names::new(ram_bytes)
            .bytes(value)
            .map(|bytes| bytes.to_string())
            .map_err(|e| e.to_string())
    };
    match key {
        "zram-size" => Ok(vec![("size", bytes(&value)?)]),
        "zram-resident-limit" => Ok(vec![("mem-limit", bytes(&value)?)]),
        "compression-algorithm" => algorithm(&value),
        _ if key.starts_with("set!") => Err(
            "a server runs no programs to find values; write the value, or use uzram up \
                 --config with zram-generator's own file"
                .into(),
        ),
        _ => {
            let known: Vec<&str> = options::names().chain(GENERATOR_KEYS).collect();
            Err(format!("unknown key{}", remedy(key, &known)))
        }
    }
}

/// `zstd` or `zstd(level=3)`. zram-generator takes a list, whose rest is for recompression.
fn algorithm(text: &str) -> Result<Vec<(&'static str, String)>, String> {
    let text = text.trim();
    if text.contains(char::is_whitespace) {
        return Err(format!(
            "{:?}: pages are not recompressed with further algorithms here; name one",
            shown(text)
        ));
    }
    let Some((name, parameters)) = text.split_once('(') else {
        return Ok(vec![("algorithm", text.to_owned())]);
    };
    let Some(parameters) = parameters.strip_suffix(')') else {
        return Err(format!("{:?}: write NAME or NAME(level=N)", shown(text)));
    };
    let parameters = ("algorithm-params", parameters.to_owned());
    Ok(vec![("algorithm", name.to_owned()), parameters])
}

/// Whether a machine with `ram_bytes` is within zram-generator's `host-memory-limit`, in MiB.
fn is_below(value: &str, ram_bytes: u64) -> Result<bool, String> {
    if value == "none" {
        return Ok(true);
    }
    let limit_bytes = Names::new(ram_bytes).bytes(value);
    let limit_bytes = limit_bytes.map_err(|e| e.to_string())?;
    Ok(ram_bytes >> 20 <= limit_bytes >> 20)
}

/// A value in the command line's notation.
fn text_of(value: &Spanned<DeValue<'_>>) -> Result<String, String> {
    match value.get_ref() {
        DeValue::String(text) => Ok(text.clone().into_owned()),
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Float(number) => Ok(number.to_string()),
        DeValue::Boolean(truth) => Ok(truth.to_string()),
        other => Err(format!(
            "is {}; must be a string, a number, true or false",
            other.type_str()
        )),
    }
}
