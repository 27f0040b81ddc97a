//! How a device was made, as a holder keeps it: the options that make it again, and what has no option.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uzram::ErrorKind;

use super::{Codec, DeviceConfig};
use crate::error::{Error, Result};
use crate::options;
use crate::survive::Kept;

/// A device, for the server that takes it over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Note {
    options: BTreeMap<String, String>,
    /// The codecs that pages can be packed by again: their names, if they are chosen, and parameters.
    secondaries: [(Option<String>, String); 3],
    pub(crate) is_read_only: bool,
    /// The addresses of the sockets that it is served at, if they are shared by name.
    pub(crate) places: Vec<String>,
}

impl Note {
    /// # Errors
    /// For a path that is no text.
    pub(crate) fn of(config: &DeviceConfig) -> Result<Note> {
        let codec = |codec: &Codec| (codec.algorithm.clone(), codec.parameters.to_string());
        Ok(Note {
            options: options::texts(config)?,
            secondaries: config.secondaries.each_ref().map(codec),
            is_read_only: false,
            places: Vec::new(),
        })
    }

    /// That of a device that was kept.
    ///
    /// # Errors
    /// For one that is malformed, as a holder may have passed on what a server made up.
    pub(crate) fn read(kept: &Kept) -> Result<Note> {
        serde_json::from_value(kept.note.clone()).map_err(|error| {
            let text = format!("{}: what was kept of it is malformed", kept.key);
            Error::new(ErrorKind::InvalidInput, text).with_source(error)
        })
    }

    /// The device that it is of.
    ///
    /// # Errors
    /// For an option that is unknown or malformed, as a holder may have passed on what a server made up.
    pub(crate) fn config(&self) -> Result<DeviceConfig> {
        let texts = self.options.iter();
        let mut config = options::described(texts.map(|(name, text)| (&**name, &**text)))?;
        for (codec, (algorithm, parameters)) in config.secondaries.iter_mut().zip(&self.secondaries)
        {
            codec.algorithm.clone_from(algorithm);
            codec.parameters = parameters.parse()?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::device_config;

    fn again(config: &DeviceConfig) -> DeviceConfig {
        let text = serde_json::to_string(&Note::of(config).unwrap()).unwrap();
        let note: Note = serde_json::from_str(&text).unwrap();
        note.config().unwrap()
    }

    #[test]
    fn a_device_is_told_whole() {
        for given in [
            vec![("size", "1M")],
            vec![
                ("size", "1000000"),
                ("name", "d"),
                ("algorithm", "zstd"),
                ("algorithm-params", "level=9"),
                ("pool", "zbud"),
                ("mem-limit", "300000"),
                ("unit", "16K"),
                ("checksum", "on"),
                ("ages", "on"),
                ("listen", "127.0.0.1:1"),
                ("tls-cert", "/c"),
                ("tls-key", "/k"),
                ("tls-client-ca", "/ca"),
                ("tls-required", "on"),
            ],
            vec![
                ("size", "1M"),
                ("socket", "/a b/c"),
                ("attach", "vhost-user"),
            ],
            vec![("size", "1M"), ("listen", "vsock:7"), ("insecure", "1")],
            vec![("size", "1M"), ("attach", "loop"), ("for-swap", "1")],
            vec![("device", "btt"), ("path", "/f")],
        ] {
            let config = device_config(given).unwrap();
            assert_eq!(again(&config), config);
        }
        // Without a size, as after a reset, with what was chosen since.
        let mut config = DeviceConfig::default();
        config.secondaries[1] = Codec {
            algorithm: Some("zstd".into()),
            parameters: "level=3".parse().unwrap(),
        };
        assert_eq!(again(&config), config);
    }

    #[test]
    fn what_a_hostile_server_made_up_is_refused() {
        let note = |options: &[(&str, &str)]| Note {
            options: options
                .iter()
                .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
                .collect(),
            ..Note::default()
        };
        for options in [[("sise", "1M")], [("size", "x")], [("name", "../a")]] {
            note(&options).config().unwrap_err();
        }
    }
}
