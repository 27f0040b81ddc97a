//! How a device was made, as a holder keeps it: the options that make it again, and what has no option.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uzram::ErrorKind;

use super::kept::BACKING;
use super::{BackingDevice, Codec, DeviceConfig, WritebackBounds};
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
    /// The path of the place to which pages can be written back, whose file is kept too.
    backing: Option<String>,
    compressed_writeback: bool,
    /// For a device without a size: a store has its own.
    writeback: WritebackBounds,
    pub(crate) is_read_only: bool,
    /// The addresses of the sockets that it is served at, if they are shared by name.
    pub(crate) places: Vec<String>,
}

impl Note {
    /// # Errors
    /// For a path that is no text.
    pub(crate) fn of(config: &DeviceConfig) -> Result<Note> {
        let codec = |codec: &Codec| (codec.algorithm.clone(), codec.parameters.to_string());
        let backing = config.backing.as_ref();
        let backing = backing.map(|backing| options::text_of(&backing.path));
        Ok(Note {
            options: options::texts(config)?,
            secondaries: config.secondaries.each_ref().map(codec),
            backing: backing.transpose()?,
            compressed_writeback: config.compressed_writeback,
            writeback: config.writeback,
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

    /// The device that it is of. Takes its file out of what was `kept` with the note.
    ///
    /// # Errors
    /// For an option that is unknown or malformed, as a holder may have passed on what a server made up, and for a file that
    /// was not kept.
    pub(crate) fn config(&self, kept: &mut Kept) -> Result<DeviceConfig> {
        let texts = self.options.iter();
        let mut config = options::described(texts.map(|(name, text)| (&**name, &**text)))?;
        for (codec, (algorithm, parameters)) in config.secondaries.iter_mut().zip(&self.secondaries)
        {
            codec.algorithm.clone_from(algorithm);
            codec.parameters = parameters.parse()?;
        }
        config.compressed_writeback = self.compressed_writeback;
        config.writeback = self.writeback;
        if let Some(path) = &self.backing {
            let not_kept = || Error::new(ErrorKind::Io, format!("{path}: the file was not kept"));
            config.backing = Some(BackingDevice {
                path: path.into(),
                file: Arc::new(kept.take(BACKING).ok_or_else(not_kept)?.into()),
            });
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::options::device_config;

    fn kept(files: Vec<(String, OwnedFd)>) -> Kept {
        Kept {
            key: "device/d".into(),
            note: serde_json::Value::Null,
            files,
        }
    }

    fn noted(config: &DeviceConfig) -> Note {
        let text = serde_json::to_string(&Note::of(config).unwrap()).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn again(config: &DeviceConfig) -> DeviceConfig {
        noted(config).config(&mut kept(Vec::new())).unwrap()
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
        config.compressed_writeback = true;
        config.writeback = WritebackBounds {
            limit_4k: 7,
            is_limited: true,
            batch_pages: 3,
        };
        assert_eq!(again(&config), config);
    }

    #[test]
    fn the_file_that_pages_go_to_is_the_one_that_was_kept() {
        let file = || std::fs::File::open("/dev/null").unwrap();
        let config = DeviceConfig {
            backing: Some(BackingDevice {
                path: "/a/b".into(),
                file: Arc::new(file()),
            }),
            ..DeviceConfig::default()
        };
        let mut left = kept(vec![(BACKING.into(), file().into())]);
        let found = noted(&config).config(&mut left).unwrap();
        assert_eq!(found.backing.unwrap().path, std::path::Path::new("/a/b"));
        let refused = noted(&config).config(&mut left).unwrap_err();
        assert!(refused.to_string().contains("/a/b: the file was not kept"));
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
            note(&options).config(&mut kept(Vec::new())).unwrap_err();
        }
    }
}
