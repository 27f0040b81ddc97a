//! zram's files: `block/NAME/ATTRIBUTE`, `class/zram-control/hot_add` and `hot_remove`, as the kernel's
//! `/sys` has them, over the attribute table.
//!
//! The tree knows names, numbers of files, and errno. What a file says and does is the table's.

mod files;

use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use uzram::ErrorKind;
use uzram_frontends::fuse::{Files, Keeper, Node, ROOT, TREE_SOURCE as SOURCE, Text};

use crate::attachment::usage;
use crate::attributes::{self, Attribute, Group};
use crate::device::{Device, DeviceKind};
use crate::error::Error;
use crate::registry::Registry;

pub use files::AllowedFiles;

const BLOCK: u64 = 2;
const CLASS: u64 = 3;
const CONTROL: u64 = 4;
const HOT_ADD: u64 = 5;
const HOT_REMOVE: u64 = 6;
const DEBUG: u64 = 7;
const DEBUG_ZRAM: u64 = 8;

/// Makes room at `directory` for a tree, where a server that was killed left a dead one.
///
/// # Errors
/// [`ErrorKind::Busy`] where another server's is.
pub(crate) fn take_over(directory: &Path) -> Result<(), Error> {
    let mounts = usage::mounts().into_iter();
    let trees =
        mounts.filter(|mount| mount.directory == directory && mount.source == Path::new(SOURCE));
    for _tree in trees {
        if rustix::fs::statfs(directory).err() != Some(Errno::NOTCONN) {
            let text = format!(
                "--tree {}: another server's tree is there",
                directory.display()
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let taken = rustix::mount::unmount(directory, UnmountFlags::DETACH);
        // INVAL: its keeper was faster.
        taken
            .or_else(|error| match error {
                Errno::INVAL => Ok(()),
                other => Err(other),
            })
            .map_err(|error| {
                let text = format!("--tree {}: a dead tree is there", directory.display());
                Error::new(ErrorKind::Io, text).with_source(error)
            })?;
    }
    Ok(())
}

/// Bits of a number for a device's file; those above are the device's own number, and one.
const FILE_BITS: u32 = 16;
/// The one that makes a device's directory the one below `debug`.
const DEBUG_BIT: u64 = 1 << 15;

/// Directories and files that are always there: number, parent, name, permissions.
const FIXED: [(u64, u64, &str, Option<u16>); 7] = [
    (DEBUG, ROOT, "debug", None),
    (DEBUG_ZRAM, DEBUG, "zram", None),
    (BLOCK, ROOT, "block", None),
    (CLASS, ROOT, "class", None),
    (CONTROL, CLASS, "zram-control", None),
    (HOT_ADD, CONTROL, "hot_add", Some(0o400)),
    (HOT_REMOVE, CONTROL, "hot_remove", Some(0o200)),
];

/// The tree of a server.
pub(crate) struct Tree {
    registry: Arc<Registry>,
    files: AllowedFiles,
    /// Outside of the sandbox.
    keeper: Keeper,
}

impl Tree {
    /// The tree of all devices that compress. Values name files in the directories of `files` only. `keeper` removes
    /// what dead servers left, when it is asked to.
    pub(crate) fn new(registry: Arc<Registry>, files: AllowedFiles, keeper: Keeper) -> Tree {
        Tree {
            registry,
            files,
            keeper,
        }
    }

    fn device(&self, number: u64) -> Option<Arc<Device>> {
        let wanted = (number >> FILE_BITS).checked_sub(1)?;
        let devices = self.registry.devices();
        let found = devices.iter().find(|device| device.number() == wanted);
        found.filter(|device| is_shown(device)).cloned()
    }

    fn file(&self, number: u64) -> Option<(Arc<Device>, &'static Attribute)> {
        let device = self.device(number)?;
        let index = (number & ((1 << FILE_BITS) - 1)).checked_sub(1)?;
        let attribute = attributes::files().nth(usize::try_from(index).ok()?)?;
        Some((device, attribute))
    }

    /// The devices' directories in `block` or `debug/zram`.
    fn directories(&self, parent: u64) -> Vec<(String, Node)> {
        let debug = if parent == DEBUG_ZRAM { DEBUG_BIT } else { 0 };
        let devices = self.registry.devices();
        let shown = devices.iter().filter(|device| is_shown(device));
        let directory = |device: &Arc<Device>| {
            let number = number_of(device) | debug;
            (device.name().to_owned(), Node { number, mode: None })
        };
        shown.map(directory).collect()
    }

    fn hot_add(&self) -> Result<Text, i32> {
        let added = self.registry.hot_add().or_else(|error| {
            if error.kind() != ErrorKind::Busy {
                return Err(error);
            }
            // A sandbox lets nobody find out whether a socket is only left over.
            self.keeper.tidy();
            self.registry.hot_add()
        });
        let number = added.map_err(|error| refused("hot_add", &error))?;
        Ok(Text {
            bytes: format!("{number}\n").into_bytes(),
            next: None,
        })
    }

    fn write_value(&self, number: u64, value: &str) -> Result<(), i32> {
        if number == HOT_REMOVE {
            let removed = self.registry.hot_remove(value);
            return removed.map_err(|error| refused("hot_remove", &error));
        }
        let (device, attribute) = self.file(number).ok_or(errno(Errno::NODEV))?;
        let written = attributes::write(&device, attribute.name, value, &self.files);
        written.map_err(|error| refused(device.name(), &error))
    }
}

fn is_shown(device: &Device) -> bool {
    device.kind() == DeviceKind::Zram
}

fn number_of(device: &Device) -> u64 {
    (device.number() + 1) << FILE_BITS
}

fn is_directory(device: &Device, number: u64) -> bool {
    number & !DEBUG_BIT == number_of(device)
}

/// The files of a device's directory.
fn files_in(directory: u64) -> Vec<(String, Node)> {
    let is_debug = directory & DEBUG_BIT != 0;
    let numbered = attributes::files().zip((directory & !DEBUG_BIT) + 1..);
    let of_it = numbered.filter(|(attribute, _)| (attribute.group == Group::Debug) == is_debug);
    let node = |(attribute, number): (&'static Attribute, u64)| {
        let mode = Some(attribute.mode);
        (attribute.name.to_owned(), Node { number, mode })
    };
    of_it.map(node).collect()
}

/// The reason goes to the log: a file has only an errno to tell.
fn refused(what: &str, error: &Error) -> i32 {
    log::warn!("tree: {what}: {error}");
    error.errno()
}

fn errno(errno: Errno) -> i32 {
    errno.raw_os_error()
}

impl Files for Tree {
    fn node(&self, number: u64) -> Option<Node> {
        if number == ROOT {
            return Some(Node { number, mode: None });
        }
        if let Some((.., mode)) = FIXED.iter().find(|(fixed, ..)| *fixed == number) {
            return Some(Node {
                number,
                mode: *mode,
            });
        }
        let device = self.device(number)?;
        if is_directory(&device, number) {
            return Some(Node { number, mode: None });
        }
        let (_, attribute) = self.file(number)?;
        Some(Node {
            number,
            mode: Some(attribute.mode),
        })
    }

    fn look_up(&self, directory: u64, name: &str) -> Option<Node> {
        let entries = self.list(directory).into_iter();
        let mut found = entries.filter(|(entry, _)| entry == name);
        found.next().map(|(_, node)| node)
    }

    fn list(&self, directory: u64) -> Vec<(String, Node)> {
        if let BLOCK | DEBUG_ZRAM = directory {
            return self.directories(directory);
        }
        let device = self.device(directory);
        if device.is_some_and(|device| is_directory(&device, directory)) {
            return files_in(directory);
        }
        let inside = FIXED.iter().filter(|(_, parent, ..)| *parent == directory);
        inside
            .map(|(number, _, name, mode)| {
                let (number, mode) = (*number, *mode);
                ((*name).to_owned(), Node { number, mode })
            })
            .collect()
    }

    fn read(&self, file: u64, place: u64) -> Result<Text, i32> {
        if file == HOT_ADD {
            return self.hot_add();
        }
        let (device, attribute) = self.file(file).ok_or(errno(Errno::NODEV))?;
        let (text, next) = attributes::read(&device, attribute, place);
        Ok(Text {
            bytes: text.into_bytes(),
            next,
        })
    }

    fn write(&self, file: u64, value: &[u8]) -> Result<(), i32> {
        // As a text of the kernel's, it ends at the first byte of 0.
        let value = value.split(|byte| *byte == 0).next().unwrap_or_default();
        match std::str::from_utf8(value) {
            Ok(value) => self.write_value(file, value),
            Err(_) => Err(errno(Errno::INVAL)),
        }
    }

    fn reads_once(&self, file: u64) -> bool {
        file == HOT_ADD
    }
}
