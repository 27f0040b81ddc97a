//! Faults around a mount: devices that fail, programs that hold it, mounts that go away.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use uzram::{ErrorKind, Zram};
use uzram_frontends::fuse::{Mount, Options, THREADS_MAX};

use crate::device::{Action, Bytes, Seen};
use crate::{Mounted, can_mount, mounts_at, read};

const SIZE: usize = 1 << 20;

#[test]
fn what_the_device_refuses_reaches_the_program() {
    let device = Bytes::new(SIZE);
    let Some(mounted) = Mounted::new(device.clone()) else {
        return;
    };
    let file = mounted.open();
    for (kind, errno) in [
        (ErrorKind::NoSpace, Errno::NOSPC),
        (ErrorKind::NoMemory, Errno::NOMEM),
        (ErrorKind::Corrupt, Errno::IO),
        (ErrorKind::ReadOnly, Errno::PERM),
    ] {
        device.set_rule(move |_| Action::Fail(kind));
        let failed = |result: std::io::Result<()>| {
            assert_eq!(
                result.unwrap_err().raw_os_error(),
                Some(errno.raw_os_error()),
                "{kind:?}"
            );
        };
        failed(file.write_all_at(&[1; 4096], 0));
        failed(read(&file, 0, 4096).map(drop));
        failed(file.sync_all());
        let zero = rustix::fs::FallocateFlags::ZERO_RANGE;
        assert_eq!(rustix::fs::fallocate(&file, zero, 0, 4096), Err(errno));
    }
    device.set_rule(|_| Action::Pass);
    assert_eq!(read(&file, 0, 1).unwrap(), [0]);
}

#[test]
fn a_device_that_panics_takes_no_worker_with_it() {
    let device = Bytes::new(SIZE);
    let Some(mounted) = Mounted::new(device.clone()) else {
        return;
    };
    let file = mounted.open();
    // The lock that the device holds while a rule runs is not poisoned: it lets go first.
    device.set_rule(|seen| match seen {
        Seen::Write(..) => Action::Panic,
        _ => Action::Pass,
    });
    for _ in 0..2 * Options::default().threads {
        let error = file.write_all_at(&[1; 4096], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
    }
    assert_eq!(read(&file, 0, 1).unwrap(), [0]);
}

#[test]
fn requests_overtake_one_that_is_stuck() {
    let device = Bytes::new(SIZE);
    let Some(mounted) = Mounted::new(device.clone()) else {
        return;
    };
    device.set_rule(|seen| match seen {
        Seen::Write(0, _) => Action::Block,
        _ => Action::Pass,
    });
    let (stuck, other) = (mounted.open(), mounted.open());
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || stuck.write_all_at(&[7; 4096], 0));
        let deadline = Instant::now() + Duration::from_secs(10);
        while device.entered() == 0 {
            assert!(Instant::now() < deadline, "the write never came");
            std::thread::yield_now();
        }
        other.write_all_at(&[8; 4096], 8192).unwrap();
        assert_eq!(read(&other, 8192, 1).unwrap(), [8]);
        assert!(!writer.is_finished());
        device.set_rule(|_| Action::Pass);
        writer.join().unwrap().unwrap();
    });
    assert_eq!(read(&mounted.open(), 0, 1).unwrap(), [7]);
}

#[test]
fn it_is_not_unmounted_under_a_program() {
    let Some(mut mounted) = Mounted::new(Bytes::new(SIZE)) else {
        return;
    };
    let file = mounted.open();
    assert_eq!(mounted.mount.opens(), 1);
    let error = mounted.mount.unmount().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(
        error.to_string().contains("open in 1 place; close it"),
        "{error}"
    );
    file.write_all_at(b"still", 0).unwrap();
    let error = mounted.mount.exclusively(|| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    drop(file);
    // The kernel tells of a close when it finds the time.
    let deadline = Instant::now() + Duration::from_secs(10);
    while mounted.mount.opens() > 0 {
        assert!(Instant::now() < deadline, "the close never came");
        std::thread::yield_now();
    }
    let path = mounted.path();
    let opened = mounted
        .mount
        .exclusively(|| Ok(fs::File::open(&path).map(drop)));
    let error = opened.unwrap().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::BUSY.raw_os_error()));
    mounted.open();
    mounted.mount.unmount().unwrap();
    mounted.mount.unmount().unwrap();
    assert!(!mounted.mount.is_mounted());
    assert_eq!(mounts_at(mounted.directory.path()), 0);
    assert_eq!(fs::read_dir(mounted.directory.path()).unwrap().count(), 0);
}

#[test]
fn dropped_under_a_program_it_goes_with_the_last_close() {
    let device = Bytes::new(SIZE);
    let Some(mounted) = Mounted::new(device.clone()) else {
        return;
    };
    let file = mounted.open();
    let Mounted { mount, directory } = mounted;
    drop(mount);
    assert_eq!(mounts_at(directory.path()), 0);
    file.write_all_at(b"late", 0).unwrap();
    assert_eq!(read(&file, 0, 4).unwrap(), b"late");
    drop(file);
    // Workers gone: nobody but this test has the device.
    let deadline = Instant::now() + Duration::from_secs(10);
    while Arc::strong_count(&device) > 1 {
        assert!(Instant::now() < deadline, "its workers never ended");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn unmounted_by_somebody_else_it_notices() {
    let Some(mut mounted) = Mounted::new(Bytes::new(SIZE)) else {
        return;
    };
    assert!(mounted.mount.is_mounted());
    rustix::mount::unmount(mounted.directory.path(), UnmountFlags::empty()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while mounted.mount.is_mounted() {
        assert!(Instant::now() < deadline, "never noticed");
        std::thread::sleep(Duration::from_millis(2));
    }
    mounted.mount.unmount().unwrap();
}

#[test]
fn somebody_elses_mount_in_its_place_stays() {
    let Some(mut mounted) = Mounted::new(Bytes::new(SIZE)) else {
        return;
    };
    let directory = mounted.directory.path().to_owned();
    rustix::mount::unmount(&directory, UnmountFlags::empty()).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("theirs", &directory, "tmpfs", flags, None).unwrap();
    mounted.mount.unmount().unwrap();
    assert_eq!(mounts_at(&directory), 1);
    rustix::mount::unmount(&directory, UnmountFlags::empty()).unwrap();
}

#[test]
fn what_cannot_be_mounted_is_refused_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mount = |name: &str, place: &Path, threads| {
        let store = uzram::Store::builder().size(4096).build().unwrap();
        let error = Mount::new(Arc::new(Zram::new(store)), name, place, Options { threads });
        error.map(drop).unwrap_err()
    };
    let long = "x".repeat(256);
    for name in ["", ".", "..", "a/b", "a\0b", &long] {
        assert_eq!(
            mount(name, directory.path(), 2).kind(),
            ErrorKind::InvalidInput,
            "{name:?}"
        );
    }
    for threads in [0, THREADS_MAX + 1] {
        assert_eq!(
            mount("disk", directory.path(), threads).kind(),
            ErrorKind::InvalidInput
        );
    }
    if !can_mount() {
        return eprintln!("left out: mounts need root and /dev/fuse");
    }
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    for place in [&directory.path().join("missing"), &file] {
        let error = mount("disk", place, 2);
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(
            error.to_string().contains("not a directory; create it"),
            "{error}"
        );
    }
    assert_eq!(mounts_at(directory.path()), 0);
    assert_eq!(mounts_at(&file), 0);
}
