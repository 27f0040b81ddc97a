//! A line of the attribute table.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use uzram::Stats;

use crate::device::{Device, DeviceConfig, Live};
use crate::error::Result;
use crate::latencies::Latencies;
use crate::requests::Requests;

/// Permissions of a file that can be read, written, or both.
pub(super) const READ: u16 = 0o444;
pub(super) const WRITE: u16 = 0o200;
pub(super) const READ_WRITE: u16 = 0o644;

/// The place where zram shows the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// A property of the device.
    Device,
    /// Nowhere: it is the server's, and the same for all its devices.
    Server,
    /// A column of `mm_stat`; the table has them in its order.
    MmStat,
    /// A column of `io_stat`; the table has them in its order.
    IoStat,
    /// A column of `bd_stat`; the table has them in its order.
    BdStat,
    /// Only here.
    Uzram,
    /// A file of several values, which are other attributes.
    File,
    /// The same in zram's directory of `debugfs`.
    Debug,
}

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// A text.
    Text,
    /// A number of bytes.
    Bytes,
    /// A number of the things in the name.
    Count,
    /// A quotient, or null while its divisor is 0.
    Ratio,
    /// Times of requests, as [`Latencies::from_json`] takes them.
    Times,
}

/// The access, as a file's mode would say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Can only be read.
    Read,
    /// Can only be written.
    Write,
    /// Both.
    ReadWrite,
}

/// A device and its counters, all of one moment.
pub(super) struct Snapshot<'a> {
    pub device: &'a Device,
    pub live: Option<Arc<Live>>,
    pub setup: DeviceConfig,
    pub stats: Stats,
    pub requests: Requests,
    pub latencies: [Latencies; 2],
}

impl<'a> Snapshot<'a> {
    pub(super) fn of(device: &'a Device) -> Snapshot<'a> {
        let live = device.live();
        let asked = live.as_deref();
        Snapshot {
            device,
            setup: device.setup(),
            stats: asked.map_or_else(|| nothing(device), Live::stats),
            requests: asked.map_or_else(Requests::default, Live::requests),
            latencies: asked.map_or_else(Default::default, Live::latencies),
            live,
        }
    }
}

/// The counters of a device without pages.
fn nothing(device: &Device) -> Stats {
    let mut stats = Stats::default();
    stats.mem_limit_bytes = device.mem_limit();
    stats
}

/// A value that is written, and the way to files that it names.
pub struct Written<'a> {
    /// The text, without the end of its line.
    pub value: &'a str,
    /// Opens files for it.
    pub files: &'a dyn Files,
}

/// The way to files that a value names.
pub trait Files {
    /// Opens the file at `path`, an absolute one.
    ///
    /// # Errors
    /// With the path, and the errno that the writer of the attribute gets.
    fn open(&self, path: &Path, is_written: bool) -> Result<File>;
}

pub(super) type Get = fn(&Snapshot<'_>) -> Value;

/// Makes the text of a file.
#[derive(Clone, Copy)]
pub(super) enum Show {
    /// All of it.
    Whole(fn(&Snapshot<'_>) -> String),
    /// A piece from some place on, and the place of the next one.
    Pieces(fn(&Snapshot<'_>, u64) -> (String, Option<u64>)),
}
pub(super) type SetDevice = fn(&Device, &Written<'_>) -> Result<()>;

/// The target of a written value.
pub(super) enum Set {
    Device(SetDevice),
    /// The process, whichever device it is asked by, or none. Returns the new value.
    Server(fn(&str) -> Result<String>),
}

/// One line of the table.
pub struct Attribute {
    /// The name.
    pub name: &'static str,
    /// The file in which zram shows it.
    pub group: Group,
    /// Its unit.
    pub measure: Measure,
    /// One line for people.
    pub about: &'static str,
    /// Whether it only grows, until a reset.
    pub(crate) is_counter: bool,
    /// The permissions of its own file in the tree; 0 without one.
    pub mode: u16,
    pub(super) get: Option<Get>,
    /// The text of its file, where that is not the value.
    pub(super) show: Option<Show>,
    pub(super) set: Option<Set>,
}

impl Attribute {
    /// Its access.
    #[must_use]
    pub fn access(&self) -> Access {
        match (self.is_readable() || self.show.is_some(), &self.set) {
            (true, Some(_)) => Access::ReadWrite,
            (false, _) => Access::Write,
            (_, None) => Access::Read,
        }
    }

    /// Whether it is a value among those of a device.
    pub(crate) fn is_readable(&self) -> bool {
        self.get.is_some()
    }

    /// Whether it is set for a whole server, and needs no device's name.
    #[must_use]
    pub fn is_set_for_server(&self) -> bool {
        matches!(self.set, Some(Set::Server(_)))
    }

    pub(super) const fn writable(mut self, set: SetDevice) -> Attribute {
        self.set = Some(Set::Device(set));
        self
    }

    pub(super) const fn grows(mut self) -> Attribute {
        self.is_counter = true;
        self
    }

    pub(super) const fn file(mut self, mode: u16) -> Attribute {
        self.mode = mode;
        self
    }

    pub(super) const fn in_words(mut self, show: fn(&Snapshot<'_>) -> String) -> Attribute {
        self.show = Some(Show::Whole(show));
        self
    }
}

/// A line of a value.
pub(super) const fn shown(
    (group, measure): (Group, Measure),
    name: &'static str,
    about: &'static str,
    get: Get,
) -> Attribute {
    Attribute {
        name,
        group,
        measure,
        about,
        is_counter: false,
        mode: 0,
        get: Some(get),
        show: None,
        set: None,
    }
}

/// A line of a file that shows several values.
pub(super) const fn file_of(
    name: &'static str,
    about: &'static str,
    show: fn(&Snapshot<'_>) -> String,
) -> Attribute {
    pieces_of((Group::File, READ), name, about, Show::Whole(show))
}

/// The same of one with other permissions, made in pieces, or in another directory.
pub(super) const fn pieces_of(
    (group, mode): (Group, u16),
    name: &'static str,
    about: &'static str,
    show: Show,
) -> Attribute {
    Attribute {
        name,
        group,
        measure: Measure::Text,
        about,
        is_counter: false,
        mode,
        get: None,
        show: Some(show),
        set: None,
    }
}

/// A line of something that happens when it is written.
pub(super) const fn verb(
    name: &'static str,
    about: &'static str,
    mode: u16,
    set: SetDevice,
) -> Attribute {
    Attribute {
        name,
        group: Group::Device,
        measure: Measure::Count,
        about,
        is_counter: false,
        mode,
        get: None,
        show: None,
        set: Some(Set::Device(set)),
    }
}
