//! The options of a device under one set of names. The way of an option is flag, key or `add`, then
//! [`TABLE`], then [`DeviceConfig`], which makes the store.

mod check;
mod table;
mod texts;
mod value;

use uzram::ErrorKind;

use crate::device::DeviceConfig;
use crate::error::{Error, Result};
use crate::nearest::remedy;

pub(crate) use check::INSECURE_NEEDS;
pub use table::{OptionSpec, TABLE, ValueForm};
pub(crate) use texts::{described, text_of, texts};
pub(crate) use value::{absolute_path, address, boolean};

/// The names of all options.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|spec| spec.name)
}

/// The option of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static OptionSpec> {
    TABLE.iter().find(|spec| spec.name == name)
}

/// The device that `options`, pairs of a name and a value, describe.
///
/// # Errors
/// The option that is unknown, malformed, out of range or missing, and the reason.
///
/// ```
/// use uzram_server::options::device_config;
/// let config = device_config([("size", "1G"), ("algorithm", "lz4"), ("checksum", "yes")])?;
/// assert_eq!((config.size_bytes, config.checksum), (1 << 30, true));
/// let refused = device_config([("sise", "1G")]).unwrap_err();
/// assert_eq!(refused.to_string(), "sise: unknown option; did you mean size?");
/// # Ok::<(), uzram_server::Error>(())
/// ```
pub fn device_config<'a>(
    options: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<DeviceConfig> {
    let mut draft = Draft::default();
    for (name, value) in options {
        draft.set(name, value)?;
    }
    draft.finish()
}

/// A device that is being described, option by option.
#[derive(Default)]
pub(crate) struct Draft {
    config: DeviceConfig,
    given: Vec<&'static str>,
}

impl Draft {
    /// Takes the value of an option.
    ///
    /// # Errors
    /// For an unknown option, and for a value that is wrong by itself.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let Some(spec) = find(name) else {
            let known: Vec<&str> = names().collect();
            let text = format!("unknown option{}", remedy(name, &known));
            return Err(Error::new(ErrorKind::UnknownName, text).in_option(name));
        };
        let outcome = spec.set(&mut self.config, value);
        outcome.map_err(|error| error.in_option(name))?;
        self.given.push(spec.name);
        Ok(())
    }

    /// Whether an option has been given.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.given.contains(&name)
    }

    /// The device.
    ///
    /// # Errors
    /// For options that are missing or do not go together.
    pub(crate) fn finish(self) -> Result<DeviceConfig> {
        check::together(&self.config)?;
        Ok(self.config)
    }
}

#[cfg(test)]
mod tests {
    use super::value::{address, listen_address};
    use super::*;
    use uzram_frontends::nbd::Endpoint;

    fn refused(options: &[(&str, &str)]) -> String {
        let options = options.iter().copied();
        device_config(options).unwrap_err().to_string()
    }

    #[test]
    fn every_option_is_taken() {
        let config = device_config([
            ("size", "1M"),
            ("name", "d"),
            ("algorithm", "lz4"),
            ("algorithm-params", "level=2"),
            ("pool", "zbud"),
            ("mem-limit", "none"),
            ("unit", "16K"),
            ("checksum", "on"),
            ("listen", "0.0.0.0:1"),
            ("insecure", "1"),
        ])
        .unwrap();
        assert_eq!(config.name.as_deref(), Some("d"));
        assert_eq!(config.unit().bytes(), 16384);
        assert!(config.checksum && config.insecure);
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(refused(&[]).starts_with("size: missing"));
        assert!(refused(&[("sze", "1M")]).contains("did you mean size?"));
        assert!(refused(&[("size", "1M"), ("checksum", "maybe")]).contains("yes or no"));
        assert!(refused(&[("size", "1M"), ("socket", "x")]).contains("absolute"));
        let socket = [("size", "1M"), ("insecure", "1"), ("socket", "/x")];
        assert!(refused(&socket).contains("only means"));
        let attached = [("size", "1M"), ("insecure", "1"), ("attach", "fuse")];
        assert!(refused(&attached).contains("only means"));
        assert!(refused(&[("size", "1M"), ("listen", "0.0.0.0:1")]).contains("other machines"));
        let guests = |option, value| {
            let options = [("size", "1M"), ("attach", "vhost-user"), (option, value)];
            device_config(options).map_err(|refused| refused.to_string())
        };
        assert!(guests("socket", "/x").is_ok());
        assert!(
            guests("listen", "127.0.0.1:1")
                .unwrap_err()
                .contains("Unix socket")
        );
        assert!(
            guests("for-swap", "1")
                .unwrap_err()
                .contains("in the guest")
        );
        let both = [("size", "1M"), ("socket", "/x"), ("listen", "[::1]:1")];
        assert!(refused(&both).contains("exclude each other"));
        let hostile = "x\u{1b}".repeat(5000);
        assert!(refused(&[(&hostile, "1M")]).len() < 600);
    }

    #[test]
    fn addresses_are_numbers() {
        for (text, shown) in [
            ("127.0.0.1:10809", "127.0.0.1:10809"),
            ("[::1]:0", "[::1]:0"),
            ("localhost:7", "127.0.0.1:7"),
        ] {
            assert_eq!(address(text).unwrap().to_string(), shown);
        }
        for text in [
            "",
            "10809",
            ":10809",
            "example.org:1",
            "127.0.0.1",
            "127.0.0.1:65536",
            "localhost:x",
        ] {
            let refused = listen_address(text).unwrap_err().to_string();
            assert!(refused.contains("write IP:PORT"), "{refused}");
        }
    }

    #[test]
    fn vsock_is_a_port_and_no_number_of_a_machine() {
        for (text, port) in [("vsock:10809", 10809), ("vsock:4294967294", u32::MAX - 1)] {
            assert_eq!(listen_address(text).unwrap(), Endpoint::Vsock(port));
        }
        for (text, why) in [
            ("vsock:", "with 1 to 4294967294"),
            ("vsock:0", "with 1 to 4294967294"),
            ("vsock:4294967295", "with 1 to 4294967294"),
            ("vsock:99999999999", "with 1 to 4294967294"),
            ("vsock:-1", "with 1 to 4294967294"),
            ("vsock:port", "with 1 to 4294967294"),
            ("vsock: 1", "with 1 to 4294967294"),
            ("vsock:2:10809", "every number (CID)"),
            ("vsock::10809", "every number (CID)"),
            ("vsock://2:10809", "every number (CID)"),
            ("vsock", "or vsock:PORT"),
            ("VSOCK:1", "or vsock:PORT"),
        ] {
            let refused = listen_address(text).unwrap_err().to_string();
            assert!(refused.contains(why) && refused.contains(text), "{refused}");
        }
        let open = refused(&[("size", "1M"), ("listen", "vsock:1")]);
        assert!(
            open.starts_with("listen: vsock:1: other machines"),
            "{open}"
        );
        assert!(open.contains("every guest"), "{open}");
        let trusted = [("size", "1M"), ("listen", "vsock:1"), ("insecure", "1")];
        assert!(device_config(trusted).is_ok());
        let guests = [&trusted[..], &[("attach", "vhost-user")]].concat();
        assert!(refused(&guests).contains("Unix socket"));
    }
}
