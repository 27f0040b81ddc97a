//! The kernel's zram, on a device that nobody uses.
//!
//! Where all devices are in use, or there is none although the kernel has zram, one is made through
//! `/sys/class/zram-control` and removed afterwards.
//!
//! A device is taken in five steps, and left alone at the first that fails: its `initstate` is 0
//! and its `disksize` 0; our lock on its `initstate` attribute succeeds (other benchmarks take the
//! same lock); it accepts a `comp_algorithm` and a `disksize` (the kernel refuses the second
//! `disksize` of two that race); it opens exclusively. From then on the kernel itself refuses
//! swapon, mount and reset to everybody else. Dropping the device closes and resets it, after an
//! error and after Ctrl-C as well; only a SIGKILL leaves it set up. One that was swapped to has a label, by which
//! the next run finds and resets it; others stay. One that a killed run made is removed by the next run, once it is empty.
//!
//! Memory the kernel keeps is not this process's, yet it is this machine's: the device is as large
//! as the working sets that it holds, and no larger.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};

use crate::corpus::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::side::{PageSide, Pages, Side};
use crate::sink::SEQUENTIAL_BYTES;
use crate::workload::{Case, Workload};

/// Devices looked at.
const DEVICES_MAX: usize = 64;

/// The label of swap areas that a run makes, and where the header of an area has it.
pub(crate) const SWAP_LABEL: &str = "uzram-bench";
const SWAP_LABEL_OFFSET: u64 = 1024 + 3 * 4 + 16;
const SWAP_LABEL_BYTES: usize = 16;

/// The codec of the kernel's zram beside our `algorithm`: the same, or lz4 for those that no kernel has.
pub(crate) fn algorithm_beside(algorithm: &str) -> &str {
    match algorithm {
        "words" | "auto" => "lz4",
        same => same,
    }
}

/// Where the kernel shows its devices.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    sys_block: PathBuf,
    /// Holds `hot_add` and `hot_remove`.
    control: PathBuf,
    dev: PathBuf,
    /// Where runs say which devices they made. As the devices, it is empty after a start of the system.
    run: PathBuf,
}

impl Default for Kernel {
    fn default() -> Kernel {
        Kernel {
            sys_block: "/sys/block".into(),
            control: "/sys/class/zram-control".into(),
            dev: "/dev".into(),
            run: "/run".into(),
        }
    }
}

/// A device that is ours until it is dropped.
#[derive(Debug)]
pub(crate) struct Device {
    /// `None` once it is given up.
    node: Option<File>,
    attributes: PathBuf,
    /// Held for its lock.
    _lock: File,
    /// Dropped after the reset.
    made: Option<Made>,
}

/// A device that was made for us, to be removed when this is dropped.
#[derive(Debug)]
struct Made {
    control: PathBuf,
    number: u32,
    /// Its name says which device, and its lock that the maker lives. Without it a SIGKILL leaves the device for good.
    record: Option<(PathBuf, File)>,
}

/// The beginning of the names of such records. The device's number follows.
const RECORD: &str = "uzram-bench.zram";

impl Kernel {
    /// Takes a free device of `size_bytes` with `algorithm`.
    ///
    /// # Errors
    /// Why there is none, in words for the report of missing peers.
    pub(crate) fn acquire(&self, algorithm: &str, size_bytes: u64) -> Result<Device, String> {
        let mut reasons = Vec::new();
        for name in self.devices() {
            match self.acquire_one(&name, algorithm, size_bytes) {
                Ok(device) => return Ok(device),
                Err(reason) => reasons.push(format!("{name}: {reason}")),
            }
        }
        if let Some(made) = self.make()? {
            let name = format!("zram{}", made.number);
            match self.acquire_one(&name, algorithm, size_bytes) {
                Ok(mut device) => {
                    device.made = Some(made);
                    return Ok(device);
                }
                Err(reason) => reasons.push(format!("{name}, made for this: {reason}")),
            }
        }
        match reasons.is_empty() {
            true => Err("no /dev/zram*; the kernel has no zram or its module is not loaded".into()),
            false => Err(reasons.join("; ")),
        }
    }

    /// The devices with swap areas of dead runs, whose locks are ours now. Dropping them resets them, once nobody swaps
    /// to them.
    pub(crate) fn dead_swaps(&self) -> Vec<Device> {
        let names = self.devices();
        let dead = names.iter().filter_map(|name| self.dead_swap(name));
        dead.collect()
    }

    fn dead_swap(&self, name: &str) -> Option<Device> {
        let attributes = self.sys_block.join(name);
        let lock = File::open(attributes.join("initstate")).ok()?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
        let mut label = [0; SWAP_LABEL_BYTES];
        let area = File::open(self.dev.join(name)).ok()?;
        area.read_exact_at(&mut label, SWAP_LABEL_OFFSET).ok()?;
        if label.strip_prefix(SWAP_LABEL.as_bytes())?[0] != 0 {
            return None;
        }
        // From here on its end resets it.
        Some(Device {
            node: None,
            attributes,
            _lock: lock,
            made: None,
        })
    }

    /// A further device; `None` where the kernel makes none, or not for this user.
    ///
    /// # Errors
    /// The kernel's answer where it is not a number.
    fn make(&self) -> Result<Option<Made>, String> {
        let path = self.control.join("hot_add");
        let Ok(text) = fs::read_to_string(&path) else {
            return Ok(None);
        };
        let number = text.trim().parse();
        let number = number.map_err(|_| format!("{}: reads {text:?}", path.display()))?;
        Ok(Some(Made {
            control: self.control.clone(),
            number,
            record: self.record(number),
        }))
    }

    /// Says that this run has made a device, where it may.
    fn record(&self, number: u32) -> Option<(PathBuf, File)> {
        let path = self.run.join(format!("{RECORD}{number}"));
        let file = File::create(&path).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some((path, file))
    }

    /// Removes the devices that dead runs made, and returns what is to be told of each. One that is set up stays: after
    /// such a run somebody else may have begun to use it.
    pub(crate) fn remove_dead(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.run).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let numbers: Vec<u32> = names
            .filter_map(|name| name.strip_prefix(RECORD)?.parse().ok())
            .collect();
        let dead = numbers.iter().filter_map(|number| self.remove_one(*number));
        dead.collect()
    }

    fn remove_one(&self, number: u32) -> Option<String> {
        let path = self.run.join(format!("{RECORD}{number}"));
        let file = File::open(&path).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let attributes = self.sys_block.join(format!("zram{number}"));
        if !attributes.exists() {
            let _ = fs::remove_file(path);
            return None;
        }
        match refuse_if_used(&attributes) {
            Ok(_lock) => {
                let control = self.control.clone();
                let record = Some((path, file));
                drop(Made {
                    control,
                    number,
                    record,
                });
                Some(format!(
                    "removed /dev/zram{number}, which a run that was killed had made"
                ))
            }
            Err(reason) => Some(format!(
                "/dev/zram{number}, made by a run that was killed, stays: {reason}; if nobody needs it, write 1 to \
                     its reset and {number} to {}",
                self.control.join("hot_remove").display()
            )),
        }
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
                made: None,
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

    /// Gives the exclusive handle up, so that it can be swapped to. Only its lock keeps other
    /// benchmarks away then.
    pub(crate) fn let_others_open(mut self) -> Device {
        self.node = None;
        self
    }

    /// The exclusive handle.
    pub(crate) fn node(&self) -> &File {
        self.node
            .as_ref()
            .expect("the node is open until it is given up")
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
            let device = self.attributes.display();
            eprintln!("uzram-bench: {device} was not reset: {error}");
        }
        self.made = None;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let number = self.number;
        if let Err(error) = write_attribute(&self.control, "hot_remove", &number.to_string()) {
            eprintln!("uzram-bench: /dev/zram{number} was not removed: {error}");
            return;
        }
        if let Some((path, _locked)) = &self.record {
            let _ = fs::remove_file(path);
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
}

/// `mm_stat` column: bytes of the compressed objects.
const COMPR_DATA_SIZE: usize = 1;

impl KernelZram {
    /// The sides that read and write page by page, and 1 MiB at once in the part after the first side's.
    pub(crate) fn sides(device: Device, workload: &Workload) -> [PageSide; 2] {
        let device = Rc::new(device);
        let length_bytes = workload.bytes() as u64;
        let side = |base, request_bytes| KernelZram {
            device: Rc::clone(&device),
            base,
            length_bytes,
            request_bytes,
        };
        [
            Side::of("kernel-zram-4k", side(0, PAGE_BYTES)),
            Side::of("kernel-zram-1m", side(length_bytes, SEQUENTIAL_BYTES)),
        ]
    }

    fn offset(&self, place: usize) -> u64 {
        self.base + (place * PAGE_BYTES) as u64
    }
}

impl Pages for KernelZram {
    fn takes(&self, case: Case) -> bool {
        self.request_bytes == PAGE_BYTES || case != Case::RandomRead
    }

    fn begin(&mut self, case: Case) -> Result<()> {
        if case == Case::FirstWrite {
            self.device.discard(self.base, self.length_bytes)?;
        }
        Ok(())
    }

    fn request_pages(&self) -> usize {
        self.request_bytes / PAGE_BYTES
    }

    #[inline]
    fn write(&mut self, place: usize, pages: &[u8]) -> Result<()> {
        let written = self.device.node().write_all_at(pages, self.offset(place));
        written.map_err(|error| Error::io("kernel zram: write", error))
    }

    #[inline]
    fn read(&mut self, place: usize, pages: &mut [u8]) -> Result<()> {
        let read = self.device.node().read_exact_at(pages, self.offset(place));
        read.map_err(|error| Error::io("kernel zram: read", error))
    }

    /// Half of what the device holds: both sides have the same pages in it.
    fn compressed_bytes(&self) -> Result<Option<u64>> {
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
        let control = folder.path().join("control");
        let kernel = Kernel {
            sys_block,
            control,
            dev,
            run: folder.path().to_owned(),
        };
        (folder, kernel)
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
    fn beside_our_own_codecs_the_kernel_compresses_with_lz4_and_else_with_the_same() {
        // What Linux 6.18 may have been built with.
        let known = ["lzo", "lzo-rle", "lz4", "lz4hc", "zstd", "deflate", "842"];
        for algorithm in uzram::algorithms() {
            let theirs = algorithm_beside(algorithm);
            assert!(known.contains(&theirs), "{algorithm}: {theirs}");
            assert!(
                theirs == algorithm || theirs == "lz4",
                "{algorithm}: {theirs}"
            );
        }
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
    fn a_swap_area_is_a_dead_run_s_by_its_label_and_once_nobody_holds_it() {
        let (_folder, kernel) =
            kernel(&[("initstate", "1\n"), ("disksize", "8192\n"), ("reset", "")]);
        let header = |label: &str| {
            let mut bytes = vec![0; 4096];
            bytes[1052..][..label.len()].copy_from_slice(label.as_bytes());
            fs::write(kernel.dev.join("zram3"), bytes).unwrap();
        };
        for other in ["", "uzram", "uzram-bench-of-me"] {
            header(&other[..other.len().min(SWAP_LABEL_BYTES)]);
            assert!(kernel.dead_swaps().is_empty(), "{other}");
        }
        header(SWAP_LABEL);
        let held = File::open(kernel.sys_block.join("zram3/initstate")).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        assert!(kernel.dead_swaps().is_empty());
        assert_eq!(attribute(&kernel, "reset"), "");
        drop(held);
        let dead = kernel.dead_swaps();
        assert_eq!(dead.len(), 1);
        drop(dead);
        assert_eq!(attribute(&kernel, "reset"), "1");
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
            control: folder.path().join("none"),
            dev: folder.path().into(),
            run: folder.path().into(),
        };
        assert!(
            kernel
                .acquire("lz4", 1)
                .unwrap_err()
                .starts_with("no /dev/zram*")
        );
    }

    /// A device that cannot be used does not stay.
    #[test]
    fn a_device_that_was_made_in_vain_is_removed() {
        let (_folder, kernel) = kernel(&[]);
        fs::create_dir(&kernel.control).unwrap();
        fs::write(kernel.control.join("hot_add"), "7\n").unwrap();
        fs::write(kernel.control.join("hot_remove"), "").unwrap();
        let reason = kernel.acquire("lz4", 1 << 20).unwrap_err();
        assert!(reason.contains("; zram7, made for this: "), "{reason}");
        let removed = fs::read_to_string(kernel.control.join("hot_remove"));
        assert_eq!(removed.unwrap(), "7");
    }

    #[test]
    fn a_device_that_a_killed_run_made_is_removed_once_it_is_empty() {
        let (folder, kernel) = kernel(&free());
        fs::create_dir(&kernel.control).unwrap();
        fs::write(kernel.control.join("hot_add"), "3\n").unwrap();
        let removed = kernel.control.join("hot_remove");
        let is_removed = || fs::read_to_string(&removed).unwrap() == "3";
        fs::write(&removed, "").unwrap();
        let mut made = kernel.make().unwrap().unwrap();
        let record = folder.path().join("uzram-bench.zram3");
        assert!(
            kernel.remove_dead().is_empty() && !is_removed(),
            "its maker lives"
        );
        // As after a SIGKILL: the lock goes, all else stays.
        drop(made.record.take());
        std::mem::forget(made);
        let state = kernel.sys_block.join("zram3/initstate");
        fs::write(&state, "1\n").unwrap();
        let told = kernel.remove_dead();
        assert!(
            told[0].contains("zram3") && told[0].contains("stays: in use"),
            "{told:?}"
        );
        assert!(!is_removed() && record.exists());
        fs::write(&state, "0\n").unwrap();
        let told = kernel.remove_dead();
        assert!(told[0].starts_with("removed /dev/zram3"), "{told:?}");
        assert!(is_removed() && !record.exists());
        assert!(kernel.remove_dead().is_empty());
    }

    /// The kernel's own devices, as root where it has any: one more than there are is made and removed.
    #[test]
    fn where_all_devices_are_in_use_another_one_is_made_and_removed() {
        let kernel = Kernel::default();
        if File::open(kernel.control.join("hot_add")).is_err() {
            return eprintln!("left out: no zram-control here, or not root");
        }
        let algorithm = "lzo-rle";
        let held = |device: &Device| device.attributes.clone();
        let mut devices = Vec::new();
        let made = loop {
            match kernel.acquire(algorithm, 1 << 20) {
                Ok(device) if device.made.is_some() => break device,
                Ok(device) => devices.push(device),
                Err(reason) => return eprintln!("left out: {reason}"),
            }
            assert!(devices.len() < DEVICES_MAX, "none was made");
        };
        let attributes = held(&made);
        assert!(attributes.exists() && made.path().exists());
        assert!(devices.iter().all(|device| held(device) != attributes));
        drop(made);
        assert!(!attributes.exists(), "{}", attributes.display());
        assert!(devices.iter().all(|device| held(device).exists()));
    }
}
