//! The file: its attributes, and the operations that it accepts and refuses.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use uzram::{Store, Zeroing, Zram};

use crate::device::{Bytes, Seen};
use crate::{Mounted, read};

const SIZE: u64 = 1 << 20;

/// The number of the error that the system gave.
#[track_caller]
fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Errno {
    Errno::from_io_error(&result.unwrap_err()).unwrap()
}

#[test]
fn it_is_alone_private_and_as_large_as_the_device() {
    // Not a multiple of a page, which a store would round up.
    let Some(mounted) = Mounted::new(Bytes::new(SIZE as usize + 100)) else {
        return;
    };
    let found = fs::metadata(mounted.mount.path()).unwrap();
    assert_eq!(found.len(), SIZE + 100);
    assert_eq!(found.permissions().mode() & 0o7777, 0o600);
    assert_eq!(found.uid(), rustix::process::geteuid().as_raw());
    assert!(found.is_file());
    let names: Vec<_> = fs::read_dir(mounted.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["disk"]);
    assert_eq!(mounted.mount.path(), mounted.path());
    let other = mounted.directory.path().join("other");
    assert_eq!(errno(fs::metadata(&other)), Errno::NOENT);
}

/// Programs show the error as it is: "Function not implemented" says nothing of the file.
#[test]
fn no_file_comes_goes_or_gets_another_name() {
    let Some(mounted) = Mounted::new(Bytes::new(SIZE as usize)) else {
        return;
    };
    let (disk, other) = (mounted.path(), mounted.directory.path().join("other"));
    let refused = [
        ("make", fs::write(&other, "x")),
        ("remove", fs::remove_file(&disk)),
        ("rename", fs::rename(&disk, &other)),
        ("link", fs::hard_link(&disk, &other)),
        ("symlink", std::os::unix::fs::symlink("x", &other)),
        ("mkdir", fs::create_dir(&other)),
    ];
    for (what, result) in refused {
        assert_eq!(errno(result), Errno::PERM, "{what}");
    }
    let exchange = rustix::fs::RenameFlags::NOREPLACE;
    let renamed =
        rustix::fs::renameat_with(rustix::fs::CWD, &disk, rustix::fs::CWD, &other, exchange);
    assert_eq!(renamed, Err(Errno::PERM));
    // Of a file that is there, `touch` changes times only, which are not kept.
    let file = mounted.open();
    file.set_modified(std::time::SystemTime::now()).unwrap();
    assert_eq!(
        errno(rustix::fs::ioctl_getflags(&file).map_err(Into::into)),
        Errno::NOTTY
    );
}

#[test]
fn its_end_is_the_end() {
    let Some(mounted) = Mounted::new(Bytes::new(SIZE as usize)) else {
        return;
    };
    let file = mounted.open();
    assert_eq!(file.write_at(&[1; 100], SIZE - 10).unwrap(), 10);
    assert_eq!(errno(file.write_at(&[1; 100], SIZE)), Errno::NOSPC);
    assert_eq!(errno(file.write_at(&[1; 100], u64::MAX >> 2)), Errno::NOSPC);
    let mut buffer = [0; 100];
    assert_eq!(file.read_at(&mut buffer, SIZE - 10).unwrap(), 10);
    assert_eq!(buffer[..10], [1; 10]);
    assert_eq!(file.read_at(&mut buffer, SIZE).unwrap(), 0);
    assert_eq!(file.read_at(&mut buffer, SIZE << 20).unwrap(), 0);
    assert_eq!(fs::metadata(mounted.path()).unwrap().len(), SIZE);
}

#[test]
fn truncating_leaves_it_as_on_a_block_device() {
    let Some(mounted) = Mounted::new(Bytes::new(SIZE as usize)) else {
        return;
    };
    mounted.open().write_all_at(b"kept", 0).unwrap();
    let mut truncating = OpenOptions::new();
    truncating.write(true).truncate(true);
    truncating.open(mounted.path()).unwrap();
    assert_eq!(read(&mounted.open(), 0, 4).unwrap(), b"kept");
    let file = mounted.open();
    file.set_len(SIZE).unwrap();
    for size in [1, SIZE - 1, SIZE + 1] {
        assert_eq!(errno(file.set_len(size)), Errno::INVAL, "{size}");
    }
    assert_eq!(file.metadata().unwrap().len(), SIZE);
    let to_others = fs::Permissions::from_mode(0o644);
    assert_eq!(
        errno(fs::set_permissions(mounted.path(), to_others)),
        Errno::PERM
    );
}

#[test]
fn what_fallocate_asks_for_reaches_the_device() {
    let device = Bytes::new(SIZE as usize);
    let Some(mounted) = Mounted::new(device.clone()) else {
        return;
    };
    let file = mounted.open();
    let allocate = |flags, offset, length| rustix::fs::fallocate(&file, flags, offset, length);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let zero = FallocateFlags::ZERO_RANGE;
    device.take_seen();
    allocate(punch, 4096, 8192).unwrap();
    allocate(zero, 100, 8192).unwrap();
    allocate(zero | FallocateFlags::KEEP_SIZE, SIZE - 10, 4096).unwrap();
    allocate(punch, SIZE - 10, 4096).unwrap();
    allocate(punch, SIZE, 4096).unwrap();
    allocate(FallocateFlags::empty(), 0, SIZE).unwrap();
    file.sync_data().unwrap();
    assert_eq!(
        device.take_seen(),
        [
            Seen::Zero(4096, 8192, Zeroing::MayPunch),
            Seen::Zero(100, 8192, Zeroing::NoHole),
            Seen::Zero(SIZE - 10, 10, Zeroing::NoHole),
            Seen::Zero(SIZE - 10, 10, Zeroing::MayPunch),
            Seen::Flush,
        ]
    );
    assert_eq!(allocate(zero, SIZE - 10, 4096), Err(Errno::NOSPC));
    assert_eq!(
        allocate(FallocateFlags::empty(), 0, SIZE + 1),
        Err(Errno::NOSPC)
    );
    let collapse = FallocateFlags::COLLAPSE_RANGE;
    assert_eq!(allocate(collapse, 0, 4096), Err(Errno::OPNOTSUPP));
}

#[test]
fn a_hole_gives_its_memory_back() {
    let store = Store::builder().size(64 << 20).build().unwrap();
    let disk = Arc::new(Zram::new(store));
    let Some(mounted) = Mounted::new(disk.clone()) else {
        return;
    };
    let file = mounted.open();
    let noise: Vec<u8> = (0..1 << 20)
        .map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for megabyte in 0..32 {
        file.write_all_at(&noise, megabyte << 20).unwrap();
    }
    let before = disk.store().stats();
    assert_eq!(before.orig_data_size_bytes, 32 << 20);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 0, 32 << 20).unwrap();
    let after = disk.store().stats();
    assert_eq!(after.orig_data_size_bytes, 0);
    assert!(
        after.mem_used_total_bytes < before.mem_used_total_bytes / 4,
        "{} of {} bytes are still used",
        after.mem_used_total_bytes,
        before.mem_used_total_bytes
    );
}
