//! The table of a device's options. The command line's flags, the configuration file's keys, what `add`
//! sends and the table in the documentation are made of it; nothing else lists options.
//!
//! A new option is a line here and a field of [`DeviceConfig`].

use uzram::{ErrorKind, Unit};
use uzram_frontends::nbd::Endpoint;

use super::value::{absolute_path, boolean, listen_address};
use crate::attachment::Attach;
use crate::device::{DeviceConfig, DeviceKind};
use crate::error::{Error, Result};
use crate::nearest::shown;
use crate::size::{parse, parse_limit, ram_bytes};
use crate::state::check_name;

/// The notation of a value on a command line. A file and the control socket take each as a text, a
/// number or a truth value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueForm {
    /// No value: the flag alone means yes.
    Flag,
    /// A text; the name stands for it in help texts.
    Text(&'static str),
    /// A path. The table takes absolute ones, because a relative one depends on the directory of
    /// the program that asks.
    Path(&'static str),
    /// Parameters of a codec. One of them may be a path (`dict=FILE`).
    Parameters(&'static str),
    /// One of these words, each with its meaning.
    Word(&'static str, &'static [(&'static str, &'static str)]),
}

impl ValueForm {
    /// The name that stands for the value in help texts; empty for a flag.
    #[must_use]
    pub const fn placeholder(self) -> &'static str {
        match self {
            ValueForm::Flag => "",
            ValueForm::Text(name)
            | ValueForm::Path(name)
            | ValueForm::Parameters(name)
            | ValueForm::Word(name, _) => name,
        }
    }
}

/// One line of the table.
#[derive(Debug)]
pub struct OptionSpec {
    /// The name: of the flag behind `--`, of the key, and of the option that `add` sends.
    pub name: &'static str,
    /// The notation of its value.
    pub value: ValueForm,
    /// One line for people, without the default.
    pub help: &'static str,
    /// The value without the option; empty if there is none or the text says it.
    pub default: &'static str,
    /// An option that cannot be given with this one.
    pub excludes: Option<&'static str>,
    /// The attribute that shows its value in a device that is served.
    pub attribute: Option<&'static str>,
    /// Whether writing to that attribute, or reading the configuration again, changes it there.
    pub may_change: bool,
    set: fn(&mut DeviceConfig, &str) -> Result<()>,
}

impl OptionSpec {
    /// Puts the value `text` into `config`.
    ///
    /// # Errors
    /// The fault of the value, without the option's name.
    pub(super) fn set(&self, config: &mut DeviceConfig, text: &str) -> Result<()> {
        (self.set)(config, text)
    }

    const fn excludes(mut self, other: &'static str) -> OptionSpec {
        self.excludes = Some(other);
        self
    }

    const fn shown_as(mut self, attribute: &'static str) -> OptionSpec {
        self.attribute = Some(attribute);
        self
    }

    const fn changed_by(mut self, attribute: &'static str) -> OptionSpec {
        self.may_change = true;
        self.shown_as(attribute)
    }
}

const fn option(
    name: &'static str,
    value: ValueForm,
    help: &'static str,
    default: &'static str,
    set: fn(&mut DeviceConfig, &str) -> Result<()>,
) -> OptionSpec {
    OptionSpec {
        name,
        value,
        help,
        default,
        excludes: None,
        attribute: None,
        may_change: false,
        set,
    }
}

/// Ways to a device.
const ATTACH: ValueForm = ValueForm::Word(
    "ATTACH",
    &[
        (
            "nbd",
            "A network block device server: any client, here or elsewhere",
        ),
        (
            "fuse",
            "A file, through FUSE: for programs that take an image (root, or fusermount3)",
        ),
        (
            "loop",
            "A block device, /dev/loopN: for mkfs, mount and swapon (root)",
        ),
        (
            "ublk",
            "A block device, /dev/ublkbN, through the kernel's driver ublk_drv: as loop, and faster",
        ),
        (
            "vhost-user",
            "A disk of virtual machines, over vhost-user: QEMU, cloud-hypervisor, crosvm",
        ),
        (
            "auto",
            "The best that this machine offers: ublk, else loop, else fuse, else nbd",
        ),
    ],
);

/// The table, in the order of help texts.
#[rustfmt::skip]
pub static TABLE: &[OptionSpec] = {
    use ValueForm::{Flag, Parameters, Path, Text};
    &[
        option("size", Text("SIZE"),
            "Size of the disk; memory is taken only for what is written (64M, 1.5G, 50%)", "",
            |config, text| put(&mut config.size_bytes, parse(text, ram_bytes())))
            .shown_as("disksize"),
        option("device", Text("KIND"),
            "Kind of device: zram (compressed memory), brd (memory as it is), pmem (a file) or btt \
             (a file with atomic sectors)", "zram",
            |config, text| put(&mut config.kind, DeviceKind::parse(text)))
            .shown_as("device"),
        option("path", Path("FILE"),
            "The file of a pmem or btt; a missing pmem is made with --size", "",
            |config, text| put(&mut config.path, absolute_path(text).map(Some)))
            .shown_as("path"),
        option("name", Text("NAME"),
            "Name of the disk and of its NBD export", "the first free uzram0, uzram1, …",
            |config, text| put(&mut config.name, check_name(text).map(|()| Some(text.to_owned()))))
            .shown_as("name"),
        option("algorithm", Text("ALGORITHM"),
            "Codec; a wrong name shows the list", "auto",
            |config, text| put(&mut config.algorithm, Ok(Some(text.to_owned()))))
            .shown_as("comp_algorithm"),
        option("algorithm-params", Parameters("NAME=VALUE,…"),
            "Parameters of the codec, as zram's algorithm_params: level=9", "",
            |config, text| put(&mut config.parameters, Ok(text.parse()?)))
            .shown_as("algorithm_params"),
        option("pool", Text("POOL"),
            "Allocator of compressed pages; a wrong name shows the list", "bestfit",
            |config, text| put(&mut config.pool, Ok(Some(text.to_owned()))))
            .shown_as("pool"),
        option("checksum", Flag,
            "Check every page that is read back against a CRC-32", "",
            |config, text| put(&mut config.checksum, boolean(text)))
            .shown_as("checksum"),
        option("ages", Flag,
            "Keep the second of each page's last access, for idle with an age: 4 bytes per page", "",
            |config, text| put(&mut config.ages, boolean(text)))
            .shown_as("ages"),
        option("mem-limit", Text("SIZE"),
            "Most memory that compressed pages may take; writes past it fail with ENOSPC", "none",
            |config, text| put(&mut config.mem_limit_bytes, parse_limit(text, ram_bytes())))
            .changed_by("mem_limit"),
        option("unit", Text("SIZE"),
            "Bytes that are compressed together: 4K, 8K, 16K, 32K or 64K; for swap, the system's page unless told", "4K",
            |config, text| put(&mut config.unit, Ok(Some(Unit::new(parse(text, ram_bytes())?)?))))
            .shown_as("unit"),
        option("socket", Path("PATH"),
            "Listen on a Unix socket here, mode 0600", "NAME.nbd in the state directory",
            |config, text| set_endpoint(config, Endpoint::Unix(absolute_path(text)?)))
            .excludes("listen").shown_as("endpoint"),
        option("listen", Text("ADDR"),
            "Listen on TCP: IP:PORT, port 0 for a free one, where every local user can connect; or for virtual \
             machines, vsock:PORT", "",
            |config, text| set_endpoint(config, listen_address(text)?))
            .excludes("socket").shown_as("endpoint"),
        option("insecure", Flag,
            "Let --listen, or a socket handed over, be one that other machines reach, unencrypted and \
             unauthenticated", "",
            |config, text| put(&mut config.insecure, boolean(text))),
        option("tls-cert", Path("FILE"),
            "Speak TLS: the server's certificate and those that vouch for it, in PEM", "",
            |config, text| put(&mut config.tls.certificate, absolute_path(text).map(Some))),
        option("tls-key", Path("FILE"),
            "The certificate's private key, in PEM", "",
            |config, text| put(&mut config.tls.key, absolute_path(text).map(Some))),
        option("tls-client-ca", Path("FILE"),
            "Let in only clients with a certificate that one of these vouches for, in PEM: all must \
             start TLS", "",
            |config, text| put(&mut config.tls.client_ca, absolute_path(text).map(Some))),
        option("tls-required", Flag,
            "Refuse clients that do not start TLS; always so with --tls-client-ca and where other \
             machines can connect", "",
            |config, text| put(&mut config.tls.required, boolean(text))),
        option("attach", ATTACH,
            "How programs reach the disk", "nbd",
            |config, text| put(&mut config.attach, attach(text)))
            .shown_as("endpoint"),
        option("for-swap", Flag,
            "Serve swap without a deadlock: memory locked and in reserve, see uzram up --help (root)", "",
            |config, text| put(&mut config.for_swap, boolean(text))),
    ]
};

fn put<T>(field: &mut T, value: Result<T>) -> Result<()> {
    *field = value?;
    Ok(())
}

fn set_endpoint(config: &mut DeviceConfig, endpoint: Endpoint) -> Result<()> {
    if config.endpoint.is_some() {
        let text = "socket and listen exclude each other; give one of them";
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    config.endpoint = Some(endpoint);
    Ok(())
}

fn attach(text: &str) -> Result<Attach> {
    if text == "auto" {
        return Ok(Attach::auto().0);
    }
    Attach::named(text).ok_or_else(|| {
        let text = format!(
            "{:?}: must be nbd, fuse, loop, ublk, vhost-user or auto",
            shown(text)
        );
        Error::new(ErrorKind::InvalidInput, text)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::attributes::{self, Access};

    #[test]
    fn every_line_is_whole() {
        let names: BTreeSet<&str> = TABLE.iter().map(|spec| spec.name).collect();
        assert_eq!(names.len(), TABLE.len(), "a name is there twice");
        for spec in TABLE {
            let name = spec.name;
            assert!(!spec.help.is_empty() && !spec.help.ends_with('.'), "{name}");
            let is_flag = spec.value == ValueForm::Flag;
            assert_eq!(spec.value.placeholder().is_empty(), is_flag, "{name}");
            let other = |other| TABLE.iter().find(|spec| spec.name == other);
            let excluded = spec.excludes.map(|name| other(name).unwrap());
            assert!(excluded.is_none_or(|other| other.excludes == Some(name)));
        }
    }

    #[test]
    fn attributes_show_options_and_change_those_that_may() {
        for spec in TABLE {
            let Some(attribute) = spec.attribute else {
                assert!(!spec.may_change, "{}", spec.name);
                continue;
            };
            let found = attributes::find(attribute).unwrap();
            // Some can be written before there is a size.
            let is_writable = found.access() == Access::ReadWrite;
            assert!(is_writable || !spec.may_change, "{}", spec.name);
        }
    }

    #[test]
    fn what_help_texts_call_the_default_is_it() {
        for spec in TABLE {
            let ValueForm::Word(_, words) = spec.value else {
                continue;
            };
            assert!(words.iter().any(|(word, _)| *word == spec.default));
        }
        for (name, default) in [
            ("algorithm", uzram::algorithms()[0]),
            ("pool", uzram::pools()[0]),
            ("device", DeviceKind::default().name()),
            ("attach", DeviceConfig::default().attach.name()),
        ] {
            let spec = TABLE.iter().find(|spec| spec.name == name).unwrap();
            assert_eq!(spec.default, default, "{name}");
        }
        // Given as a value, a default changes nothing.
        for name in ["device", "mem-limit", "attach"] {
            let spec = TABLE.iter().find(|spec| spec.name == name).unwrap();
            let mut config = DeviceConfig::default();
            spec.set(&mut config, spec.default).unwrap();
            assert_eq!(config, DeviceConfig::default(), "{name}");
        }
        let spec = TABLE.iter().find(|spec| spec.name == "unit").unwrap();
        let mut config = DeviceConfig::default();
        spec.set(&mut config, spec.default).unwrap();
        assert_eq!(config.unit(), DeviceConfig::default().unit());
    }

    #[test]
    fn words_are_taken_and_others_are_not() {
        for spec in TABLE {
            let mut config = DeviceConfig::default();
            if let ValueForm::Word(_, words) = spec.value {
                for (word, _) in words {
                    spec.set(&mut config, word).unwrap();
                }
                let refused = spec.set(&mut config, "no such word").unwrap_err();
                for (word, _) in words {
                    assert!(refused.to_string().contains(word), "{refused}");
                }
            }
        }
    }
}
