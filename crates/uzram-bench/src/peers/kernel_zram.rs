//! The kernel's zram, on a device that nobody uses.
//!
//! A device is taken in five steps, and left alone at the first that fails: its `initstate` is 0
//! and its `disksize` 0; our lock on its `initstate` attribute succeeds (other benchmarks take the
//! same lock); it accepts a `comp_algorithm` and a `disksize` (the kernel refuses the second
//! `disksize` of two that race); it opens exclusively. From then on the kernel itself refuses
//! swapon, mount and reset to everybody else. Dropping the device closes and resets it, after an
//! error and after Ctrl-C as well; only a SIGKILL leaves it set up.
//!
//! Memory the kernel keeps is not this process's, yet it is this machine's: the device is as large
//! as the working sets that it holds, and no larger.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::peers::Side;
use crate::sink::{SEQUENTIAL_BYTES, Sink};
use crate::workload::{Case, Generation, Workload};

/// Devices looked at.
const DEVICES_MAX: usize = 64;

/// Where the kernel shows its devices.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    sys_block: PathBuf,
    dev: PathBuf,
}

impl Default for Kernel {
    fn default() -> Kernel {
        Kernel {
            sys_block: "/sys/block".into(),
            dev: "/dev".into(),
        }
    }
}

/// A device that is ours until it is dropped.
#[derive(Debug)]
pub(crate) struct Device {
    /// `None` only while it is being dropped.
    node: Option<File>,
    attributes: PathBuf,
    /// Held for its lock.
    _lock: File,
}

impl Kernel {
    /// Takes a free device of `size_bytes` with `algorithm`.
    ///
    /// # Errors
    /// Why there is none, in words for the report of missing peers.
    pub(crate) fn acquire(&self, algorithm: &str, size_bytes: u64) -> Result<Device, String> {
        let devices = self.devices();
        if devices.is_empty() {
            return Err("no /dev/zram*; the kernel has no zram or its module is not loaded".into());
        }
        let mut reasons = Vec::new();
        for name in devices {
            match self.acquire_one(&name, algorithm, size_bytes) {
                Ok(device) => return Ok(device),
                Err(reason) => reasons.push(format!("{name}: {reason}")),
            }
        }
        Err(reasons.join("; "))
    }

    /// Names of the devices, in their order.
    fn devices(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.sys_block)
            .into_iter()
            .flatten()
            .flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| is_zram(name)).collect();
        names.sort();
        names.truncate(DEVICES_MAX);
        names
    }

    fn acquire_one(&self, name: &str, algorithm: &str, size_bytes: u64) -> Result<Device, String> {
        let attributes = self.sys_block.join(name);
        let lock = refuse_if_used(&attributes)?;
        let known = read_attribute(&attributes, "comp_algorithm")?;
        if !known
            .split_whitespace()
            .any(|word| word.trim_matches(['[', ']']) == algorithm)
        {
            let known = known.replace(['[', ']'], "");
            return Err(format!(
                "this kernel's zram has no {algorithm} (it has {known})"
            ));
        }
        write_attribute(&attributes, "comp_algorithm", algorithm)?;
        write_attribute(&attributes, "disksize", &size_bytes.to_string())?;
        // From here on the set-up is ours to undo, unless somebody else has claimed the device.
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags((OFlags::DIRECT | OFlags::EXCL).bits() as i32)
            .open(self.dev.join(name));
        match opened {
            Ok(node) => Ok(Device {
                node: Some(node),
                attributes,
                _lock: lock,
            }),
            Err(error) => {
                // The kernel refuses a reset while anybody has the device open.
                let _ = write_attribute(&attributes, "reset", "1");
                Err(format!("cannot be opened exclusively: {error}"))
            }
        }
    }
}

fn is_zram(name: &str) -> bool {
    name.strip_prefix("zram")
        .is_some_and(|number| number.parse::<u32>().is_ok())
}

/// The lock on a device that is not set up; why not, otherwise.
fn refuse_if_used(attributes: &Path) -> Result<File, String> {
    let path = attributes.join("initstate");
    let mut lock = File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| "in use by another benchmark".to_owned())?;
    // Read after the lock is held, through the locked file.
    let mut state = String::new();
    lock.rewind()
        .and_then(|()| lock.read_to_string(&mut state))
        .map_err(|e| e.to_string())?;
    let disksize = read_attribute(attributes, "disksize")?;
    if state.trim() != "0" || disksize != "0" {
        return Err(format!(
            "in use (initstate {}, disksize {disksize})",
            state.trim()
        ));
    }
    Ok(lock)
}

fn read_attribute(attributes: &Path, name: &str) -> Result<String, String> {
    let text = fs::read_to_string(attributes.join(name));
    text.map(|text| text.trim().to_owned())
        .map_err(|error| format!("{name}: {error}"))
}

fn write_attribute(attributes: &Path, name: &str, value: &str) -> Result<(), String> {
    let opened = OpenOptions::new().write(true).open(attributes.join(name));
    opened
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(|error| format!("{name}: {error}"))
}

impl Device {
    /// The block device.
    pub(crate) fn path(&self) -> PathBuf {
        let name = self.attributes.file_name().unwrap_or_default();
        Path::new("/dev").join(name)
    }

    /// Bytes of the compressed objects that it holds.
    pub(crate) fn compressed_bytes(&self) -> Result<u64> {
        self.mm_stat(COMPR_DATA_SIZE)
    }

    /// The exclusive handle.
    pub(crate) fn node(&self) -> &File {
        self.node.as_ref().expect("the node is open until the drop")
    }

    /// Empties it.
    pub(crate) fn discard_all(&self) -> Result<()> {
        let failed = |error: String| Error::io("kernel zram: discard", error);
        let disksize = read_attribute(&self.attributes, "disksize").map_err(failed)?;
        let bytes = disksize
            .parse::<u64>()
            .map_err(|error| failed(error.to_string()))?;
        self.discard(0, bytes)
    }

    fn discard(&self, start: u64, bytes: u64) -> Result<()> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(self.node(), punch, start, bytes)
            .map_err(|error| Error::io("kernel zram: discard", error))
    }

    /// The `column`th number of `mm_stat`.
    fn mm_stat(&self, column: usize) -> Result<u64> {
        let text = read_attribute(&self.attributes, "mm_stat").map_err(Error::Failed)?;
        let number = text
            .split_whitespace()
            .nth(column)
            .and_then(|word| word.parse().ok());
        number.ok_or_else(|| Error::Failed(format!("kernel zram: mm_stat reads {text:?}")))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A reset is refused while the device is open.
        self.node = None;
        if let Err(error) = write_attribute(&self.attributes, "reset", "1") {
            eprintln!(
                "uzram: {} was not reset: {error}",
                self.attributes.display()
            );
        }
    }
}

/// One way of using a device: requests of one size, to one part of it.
pub(crate) struct KernelZram {
    device: Rc<Device>,
    /// First byte of this side's part.
    base: u64,
    length_bytes: u64,
    request_bytes: usize,
    sink: Sink,
}

/// `mm_stat` column: bytes of the compressed objects.
const COMPR_DATA_SIZE: usize = 1;

impl KernelZram {
    /// A side that reads and writes page by page.
    pub(crate) fn by_page(device: Rc<Device>, workload: &Workload) -> Result<KernelZram> {
        KernelZram::new(device, workload, 0, PAGE_BYTES)
    }

    /// A side that reads and writes 1 MiB at once, in the part after the first side's.
    pub(crate) fn by_mebibyte(device: Rc<Device>, workload: &Workload) -> Result<KernelZram> {
        KernelZram::new(device, workload, workload.bytes() as u64, SEQUENTIAL_BYTES)
    }

    fn new(
        device: Rc<Device>,
        workload: &Workload,
        base: u64,
        request_bytes: usize,
    ) -> Result<KernelZram> {
        let length_bytes = workload.bytes() as u64;
        Ok(KernelZram {
            device,
            base,
            length_bytes,
            request_bytes,
            sink: Sink::new()?,
        })
    }

    fn offset(&self, place: usize) -> u64 {
        self.base + (place * PAGE_BYTES) as u64
    }
}

impl Side for KernelZram {
    fn name(&self) -> &str {
        if self.request_bytes == PAGE_BYTES {
            "kernel-zram-4k"
        } else {
            "kernel-zram-1m"
        }
    }

    fn takes(&self, case: Case) -> bool {
        self.request_bytes == PAGE_BYTES || case != Case::RandomRead
    }

    fn begin(&mut self, case: Case) -> Result<()> {
        if case == Case::FirstWrite {
            self.device.discard(self.base, self.length_bytes)?;
        }
        Ok(())
    }

    fn run(
        &mut self,
        workload: &Workload,
        case: Case,
        chunk: usize,
        generation: Generation,
    ) -> Result<()> {
        let start = self.offset(workload.first_place(chunk));
        let node = self.device.node();
        let result = match case {
            Case::FirstWrite | Case::Overwrite => {
                let requests = workload
                    .content(chunk, generation)
                    .chunks_exact(self.request_bytes);
                requests
                    .zip((start..).step_by(self.request_bytes))
                    .try_for_each(|(data, offset)| node.write_all_at(data, offset))
            }
            Case::SequentialRead => {
                let end = self.offset(workload.first_place(chunk + 1));
                let whole = self.request_bytes == SEQUENTIAL_BYTES;
                (start..end)
                    .step_by(self.request_bytes)
                    .try_for_each(|offset| {
                        let place = (offset / PAGE_BYTES as u64) as usize;
                        let buffer = if whole {
                            self.sink.whole()
                        } else {
                            self.sink.sequential(place)
                        };
                        node.read_exact_at(buffer, offset)
                    })
            }
            Case::RandomRead => workload.random_places(chunk).iter().try_for_each(|&place| {
                let offset = self.base + (place as usize * PAGE_BYTES) as u64;
                node.read_exact_at(self.sink.single(), offset)
            }),
        };
        result.map_err(|error| Error::io(format!("kernel zram: {}", case.name()), error))
    }

    fn read_back(&mut self, place: usize, page: &mut [u8]) -> Result<()> {
        let offset = self.offset(place);
        let read = self.device.node().read_exact_at(self.sink.single(), offset);
        read.map_err(|error: io::Error| Error::io("kernel zram: read", error))?;
        page.copy_from_slice(self.sink.single());
        Ok(())
    }

    /// Half of what the device holds: both sides have the same pages in it.
    fn compressed_bytes(&mut self) -> Result<Option<u64>> {
        Ok(Some(self.device.compressed_bytes()? / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree that looks like the kernel's; the "device" is a file.
    fn kernel(attributes: &[(&str, &str)]) -> (tempfile::TempDir, Kernel) {
        let folder = tempfile::tempdir().unwrap();
        let sys_block = folder.path().join("block");
        let dev = folder.path().join("dev");
        let zram = sys_block.join("zram3");
        fs::create_dir_all(&zram).unwrap();
        fs::create_dir_all(&dev).unwrap();
        fs::create_dir_all(sys_block.join("zramx")).unwrap();
        fs::write(dev.join("zram3"), "").unwrap();
        for (name, value) in attributes {
            fs::write(zram.join(name), value).unwrap();
        }
        (folder, Kernel { sys_block, dev })
    }

    fn free() -> Vec<(&'static str, &'static str)> {
        vec![
            ("initstate", "0\n"),
            ("disksize", "0\n"),
            ("comp_algorithm", "[lzo-rle] lzo lz4 \n"),
            ("reset", ""),
        ]
    }

    fn attribute(kernel: &Kernel, name: &str) -> String {
        fs::read_to_string(kernel.sys_block.join("zram3").join(name)).unwrap()
    }

    #[test]
    fn a_device_in_use_is_refused_and_not_touched() {
        for (name, value) in [("initstate", "1\n"), ("disksize", "4096\n")] {
            let mut attributes = free();
            for entry in attributes.iter_mut().filter(|entry| entry.0 == name) {
                entry.1 = value;
            }
            let (_folder, kernel) = kernel(&attributes);
            let reason = kernel.acquire("lz4", 1 << 20).unwrap_err();
            assert!(reason.starts_with("zram3: in use (initstate"), "{reason}");
            for (name, value) in attributes {
                assert_eq!(attribute(&kernel, name), value, "{name} was written");
            }
        }
    }

    #[test]
    fn a_device_that_another_benchmark_holds_is_refused() {
        let (_folder, kernel) = kernel(&free());
        let path = kernel.sys_block.join("zram3/initstate");
        let other = File::open(path).unwrap();
        flock(&other, FlockOperation::LockExclusive).unwrap();
        let reason = kernel.acquire("lz4", 1 << 20).unwrap_err();
        assert_eq!(reason, "zram3: in use by another benchmark");
        assert_eq!(attribute(&kernel, "disksize"), "0\n");
    }

    #[test]
    fn an_algorithm_that_the_kernel_lacks_is_named_with_those_it_has() {
        let (_folder, kernel) = kernel(&free());
        let reason = kernel.acquire("zstd", 1 << 20).unwrap_err();
        assert_eq!(
            reason,
            "zram3: this kernel's zram has no zstd (it has lzo-rle lzo lz4)"
        );
        assert_eq!(attribute(&kernel, "disksize"), "0\n");
        assert_eq!(attribute(&kernel, "reset"), "");
    }

    #[test]
    fn a_free_device_is_set_up_and_reset_when_dropped() {
        let (_folder, kernel) = kernel(&free());
        // Not every file system that holds temporary files opens them for O_DIRECT.
        let Ok(device) = kernel.acquire("lz4", 1 << 20) else {
            assert_eq!(attribute(&kernel, "reset"), "1");
            return;
        };
        assert!(attribute(&kernel, "comp_algorithm").starts_with("lz4"));
        assert!(attribute(&kernel, "disksize").starts_with("1048576"));
        assert_eq!(attribute(&kernel, "reset"), "");
        drop(device);
        assert_eq!(attribute(&kernel, "reset"), "1");
    }

    #[test]
    fn a_kernel_without_zram_is_said_to_have_none() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = Kernel {
            sys_block: folder.path().into(),
            dev: folder.path().into(),
        };
        assert!(
            kernel
                .acquire("lz4", 1)
                .unwrap_err()
                .starts_with("no /dev/zram*")
        );
    }
}
