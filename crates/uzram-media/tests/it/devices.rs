//! All block devices against an array of bytes, and what persistent memory in a file must survive.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use uzram::{Bio, BlockDevice, ErrorKind, PageIndex, PageTransfer, Store, Unit, Zeroing, Zram};
use uzram_media::{Brd, Btt, BttVersion, Persistence, Pmem, PmemFile};

use crate::pages::Rng;

/// Smallest file for a table, in bytes.
const BTT_FILE_BYTES: u64 = (16 << 20) + 4096;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn pmem(&self, size_bytes: u64) -> Pmem {
        Pmem::new(PmemFile::create(&self.path("pmem"), size_bytes).unwrap()).unwrap()
    }

    fn btt(&self, sector_bytes: u32, version: BttVersion) -> Btt {
        let name = format!("btt-{sector_bytes}-{version:?}");
        let file = PmemFile::create(&self.path(&name), BTT_FILE_BYTES).unwrap();
        // Else each write waits for the disk three times.
        let file = file.with_persistence(Persistence::Never);
        Btt::format(file, sector_bytes, version).unwrap()
    }
}

/// Every device, with a name and whether trims of whole pages leave zeroes at once.
fn devices(folder: &Folder) -> Vec<(&'static str, Box<dyn BlockDevice>)> {
    let store = |unit| {
        let unit = Unit::new(unit).unwrap();
        let store = Store::builder().size(1 << 20).unit(unit).build().unwrap();
        Box::new(Zram::new(store))
    };
    vec![
        ("zram of 4 KiB", store(4096)),
        ("zram of 16 KiB", store(16384)),
        ("brd", Box::new(Brd::new(1 << 20).unwrap())),
        ("pmem", Box::new(folder.pmem(1 << 20))),
        ("btt of 512", Box::new(folder.btt(512, BttVersion::V1_1))),
        ("btt of 4096", Box::new(folder.btt(4096, BttVersion::V2_0))),
    ]
}

fn read(device: &dyn BlockDevice, offset: u64, length: usize) -> uzram::Result<Vec<u8>> {
    let mut buffer = vec![0xee; length];
    device.submit(Bio::Read {
        offset,
        buffer: &mut buffer,
    })?;
    Ok(buffer)
}

fn write(device: &dyn BlockDevice, offset: u64, data: &[u8]) -> uzram::Result<()> {
    device.submit(Bio::Write { offset, data })
}

/// Bytes of the device that the model covers.
const MODEL_BYTES: u64 = 160 << 10;

#[test]
fn every_device_is_an_array_of_bytes() {
    let folder = Folder::new();
    for (name, device) in devices(&folder) {
        let mut model = vec![0u8; MODEL_BYTES as usize];
        let block = u64::from(device.geometry().preferred_block_bytes);
        let mut rng = Rng::new(7);
        for step in 0..1500u64 {
            let offset = rng.below_u64(MODEL_BYTES);
            let length = 1 + rng.below_u64((MODEL_BYTES - offset).min(20_000));
            let range = offset as usize..(offset + length) as usize;
            match rng.below_u64(10) {
                0..4 => {
                    let data: Vec<u8> = (0..length).map(|at| (at * 7 + step) as u8 | 1).collect();
                    write(&*device, offset, &data).unwrap();
                    model[range].copy_from_slice(&data);
                }
                4 => {
                    device.submit(Bio::Trim { offset, length }).unwrap();
                    let first = offset.div_ceil(block) * block;
                    let end = (offset + length) / block * block;
                    if first < end {
                        model[first as usize..end as usize].fill(0);
                    }
                }
                5 => {
                    let zeroing = [Zeroing::MayPunch, Zeroing::NoHole][step as usize % 2];
                    device
                        .submit(Bio::Zero {
                            offset,
                            length,
                            zeroing,
                        })
                        .unwrap();
                    model[range].fill(0);
                }
                6 => {
                    let page = rng.below_u64(MODEL_BYTES / 4096);
                    let data = [step as u8; 4096];
                    let transfer = PageTransfer::Write(&data);
                    device.rw_page(PageIndex(page), transfer).unwrap();
                    model[page as usize * 4096..][..4096].copy_from_slice(&data);
                }
                7 => {
                    let page = rng.below_u64(MODEL_BYTES / 4096);
                    let mut data = [0xee; 4096];
                    let transfer = PageTransfer::Read(&mut data);
                    device.rw_page(PageIndex(page), transfer).unwrap();
                    assert!(
                        data == model[page as usize * 4096..][..4096],
                        "{name}, step {step}"
                    );
                }
                8 => device.submit(Bio::Flush).unwrap(),
                _ => {
                    let held = read(&*device, offset, length as usize).unwrap();
                    assert!(held == model[range], "{name}, step {step}");
                }
            }
        }
        let held = read(&*device, 0, MODEL_BYTES as usize).unwrap();
        assert!(held == model, "{name}");
    }
}

#[test]
fn every_device_refuses_what_lies_outside() {
    let folder = Folder::new();
    for (name, device) in devices(&folder) {
        let size = device.geometry().size_bytes;
        let refused = |done: uzram::Result<()>| {
            assert_eq!(done.unwrap_err().kind(), ErrorKind::OutOfRange, "{name}");
        };
        let mut byte = [0];
        for offset in [size, u64::MAX, u64::MAX - 1] {
            refused(read(&*device, offset, 1).map(drop));
            refused(write(&*device, offset, &byte));
            let length = 1;
            refused(device.submit(Bio::Trim { offset, length }));
        }
        refused(device.submit(Bio::Trim {
            offset: 1,
            length: u64::MAX,
        }));
        let mut page = [0; 4096];
        for index in [size.div_ceil(4096), u64::MAX >> 12, u64::MAX] {
            refused(device.rw_page(PageIndex(index), PageTransfer::Read(&mut page)));
            refused(device.rw_page(PageIndex(index), PageTransfer::Write(&page.clone())));
        }
        write(&*device, size - 1, &[9]).unwrap();
        let buffer = &mut byte;
        device
            .submit(Bio::Read {
                offset: size - 1,
                buffer,
            })
            .unwrap();
        assert_eq!(byte, [9]);
        write(&*device, size, &[]).unwrap();
    }
}

#[test]
fn a_ram_disk_has_memory_for_what_is_written_only() {
    let disk = Brd::new(1 << 40).unwrap();
    assert_eq!(read(&disk, 1 << 39, 9000).unwrap(), vec![0; 9000]);
    assert_eq!(disk.used_bytes(), 0);
    for page in 0..1000u64 {
        write(&disk, (1 << 39) + page * 4096 + 5, &[1; 10]).unwrap();
    }
    assert_eq!(disk.used_bytes(), 1000 * 4096);
    let trim = |offset, length| disk.submit(Bio::Trim { offset, length }).unwrap();
    trim((1 << 39) + 4096 * 3, 4096 * 500);
    assert_eq!(disk.used_bytes(), 500 * 4096);
    assert_eq!(
        read(&disk, (1 << 39) + 3 * 4096, 4096).unwrap(),
        vec![0; 4096]
    );
    trim(0, 1 << 40);
    assert_eq!(disk.used_bytes(), 0);
}

#[test]
fn what_a_trim_takes_goes_back_to_the_system() {
    let resident = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:"));
        let text = line.unwrap().split_whitespace().nth(1).unwrap();
        text.parse::<u64>().unwrap() << 10
    };
    let disk = Brd::new(64 << 20).unwrap();
    let before = resident();
    write(&disk, 0, &vec![1; 64 << 20]).unwrap();
    let full = resident();
    assert!(full > before + (48 << 20), "{before} {full}");
    disk.submit(Bio::Trim {
        offset: 0,
        length: 64 << 20,
    })
    .unwrap();
    assert!(
        resident() < full - (48 << 20),
        "{before} {full} {}",
        resident()
    );
}

#[test]
fn persistent_memory_keeps_its_content() {
    let folder = Folder::new();
    let disk = folder.pmem(1 << 20);
    write(&disk, 12345, b"kept").unwrap();
    disk.submit(Bio::Flush).unwrap();
    drop(disk);
    let file = PmemFile::open(&folder.path("pmem")).unwrap();
    let disk = Pmem::new(file).unwrap();
    assert_eq!(read(&disk, 12345, 4).unwrap(), b"kept");
    let mut raw = [0; 4];
    let file = File::open(folder.path("pmem")).unwrap();
    file.read_exact_at(&mut raw, 12345).unwrap();
    assert_eq!(&raw, b"kept");
}

#[test]
fn the_blocks_of_a_file_are_allocated_up_front() {
    use std::os::unix::fs::MetadataExt;
    let folder = Folder::new();
    let path = folder.path("sparse");
    File::create(&path).unwrap().set_len(8 << 20).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 0);
    let file = PmemFile::open(&path).unwrap();
    assert!(fs::metadata(&path).unwrap().blocks() * 512 >= 8 << 20);
    drop(file);
    // Far more than any disk here has: refused before anything is taken.
    let error = PmemFile::create(&folder.path("huge"), 8 << 40).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(!folder.path("huge").exists());
}

/// The file is cut off, and grown again, while threads use all of it: errors and no dead process.
#[test]
fn a_file_that_is_cut_off_under_load_is_an_error() {
    const SIZE: u64 = 4 << 20;
    let folder = Folder::new();
    let disks: [Box<dyn BlockDevice>; 2] = [
        Box::new(folder.pmem(SIZE)),
        Box::new(folder.btt(512, BttVersion::V1_1)),
    ];
    let paths = [folder.path("pmem"), folder.path("btt-512-V1_1")];
    for (disk, path) in disks.iter().zip(paths) {
        let (errors, done) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (disk, errors, done) = (&**disk, &errors, &done);
                scope.spawn(move || {
                    let mut rng = Rng::new(thread + 1);
                    while !done.load(Ordering::Relaxed) {
                        let offset = rng.below_u64(SIZE - 8192);
                        let done = match rng.below_u64(3) {
                            0 => write(disk, offset, &[thread as u8; 5000]),
                            1 => disk.submit(Bio::Zero {
                                offset,
                                length: 8000,
                                zeroing: Zeroing::MayPunch,
                            }),
                            _ => read(disk, offset, 8192).map(drop),
                        };
                        if let Err(error) = done {
                            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                            errors.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            let full = file.metadata().unwrap().len();
            for _ in 0..20 {
                file.set_len(64 << 10).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(3));
                file.set_len(full).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            file.set_len(0).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
            done.store(true, Ordering::Relaxed);
        });
        assert!(errors.into_inner() > 0);
        let error = read(&**disk, SIZE - 8192, 4096).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        let error = disk.submit(Bio::Flush).unwrap_err();
        assert!(error.to_string().contains("cut off"), "{error}");
    }
}

/// The last page of a cut file reads as zeroes, and all that was cut off does once the file has grown
/// again: a flush must say so.
#[test]
fn no_flush_succeeds_after_a_cut() {
    let folder = Folder::new();
    let disk = folder.pmem(1 << 20);
    write(&disk, 0, &[7; 65536]).unwrap();
    disk.submit(Bio::Flush).unwrap();
    let file = OpenOptions::new().write(true).open(folder.path("pmem"));
    let file = file.unwrap();
    file.set_len((1 << 20) - 100).unwrap();
    assert_eq!(disk.submit(Bio::Flush).unwrap_err().kind(), ErrorKind::Io);
    file.set_len(1 << 20).unwrap();
    file.set_len(8192).unwrap();
    file.set_len(1 << 20).unwrap();
    // Where st_blocks does not tell (a file system that compresses), nothing does.
    if let Err(error) = disk.submit(Bio::Flush) {
        assert!(error.to_string().contains("cut off"), "{error}");
    }
}

#[test]
fn a_file_is_used_by_one() {
    let folder = Folder::new();
    let disk = folder.pmem(1 << 20);
    let error = PmemFile::open(&folder.path("pmem")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let error = PmemFile::open_read_only(&folder.path("pmem")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    drop(disk);
    let first = PmemFile::open_read_only(&folder.path("pmem")).unwrap();
    let second = PmemFile::open_read_only(&folder.path("pmem")).unwrap();
    drop((first, second));
}

#[test]
fn what_is_read_only_refuses_writes() {
    let folder = Folder::new();
    drop(folder.pmem(1 << 20));
    let btt = folder.btt(512, BttVersion::V1_1);
    write(&btt, 100, b"kept").unwrap();
    drop(btt);
    let file = PmemFile::open_read_only(&folder.path("pmem")).unwrap();
    let pmem: Box<dyn BlockDevice> = Box::new(Pmem::new(file).unwrap());
    let file = PmemFile::open_read_only(&folder.path("btt-512-V1_1")).unwrap();
    let btt: Box<dyn BlockDevice> = Box::new(Btt::open(file).unwrap());
    for disk in [&pmem, &btt] {
        let error = write(&**disk, 100, b"x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
        let error = disk.submit(Bio::Trim {
            offset: 0,
            length: 8192,
        });
        assert_eq!(error.unwrap_err().kind(), ErrorKind::ReadOnly);
        disk.submit(Bio::Flush).unwrap();
    }
    assert_eq!(read(&*btt, 100, 4).unwrap(), b"kept");
}

fn refused(path: &Path, kind: ErrorKind, words: &str) {
    let error = PmemFile::open(path).map(drop).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    assert!(text.contains(words), "{text}");
    assert!(text.starts_with(&path.display().to_string()), "{text}");
}

#[test]
fn what_is_no_file_of_pages_is_refused() {
    let folder = Folder::new();
    refused(&folder.path("missing"), ErrorKind::Io, "No such file");
    refused(folder.0.path(), ErrorKind::Io, "directory");
    refused(
        Path::new("/dev/zero"),
        ErrorKind::InvalidInput,
        "not a DAX device",
    );
    for (length, words) in [(0, "size 0"), (5000, "truncate -s 8192")] {
        let path = folder.path("odd");
        File::create(&path).unwrap().set_len(length).unwrap();
        refused(&path, ErrorKind::InvalidInput, words);
    }
    let error = PmemFile::create(&folder.path("odd"), 1 << 20).unwrap_err();
    assert!(error.to_string().contains("File exists"), "{error}");
    assert_eq!(fs::metadata(folder.path("odd")).unwrap().len(), 5000);
    for size in [0, 4095, u64::MAX] {
        let error = PmemFile::create(&folder.path("new"), size).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{size}");
        assert!(!folder.path("new").exists());
    }
}

#[test]
fn a_table_survives_its_process_and_its_first_info_block() {
    let folder = Folder::new();
    for (sector, version) in [(512, BttVersion::V1_1), (4096, BttVersion::V2_0)] {
        let btt = folder.btt(sector, version);
        write(&btt, 10_000, b"kept").unwrap();
        let path = folder.path(&format!("btt-{sector}-{version:?}"));
        drop(btt);
        let start = if version == BttVersion::V1_1 { 4096 } else { 0 };
        let raw = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let mut signature = [0; 14];
        raw.read_exact_at(&mut signature, start).unwrap();
        assert_eq!(&signature, b"BTT_ARENA_INFO");
        raw.write_all_at(&[0xff; 4096], start).unwrap();
        let report = Btt::check(&PmemFile::open_read_only(&path).unwrap()).unwrap();
        assert_eq!((report.damaged_copies, report.problem_count), (1, 0));
        assert_eq!((report.sector_bytes, report.version), (sector, version));
        let btt = Btt::open(PmemFile::open(&path).unwrap()).unwrap();
        assert_eq!(btt.recovered().len(), 1);
        assert_eq!(read(&btt, 10_000, 4).unwrap(), b"kept");
        raw.read_exact_at(&mut signature, start).unwrap();
        assert_eq!(&signature, b"BTT_ARENA_INFO");
    }
}
