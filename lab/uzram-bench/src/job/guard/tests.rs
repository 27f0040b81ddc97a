//! Devices that must not be touched are refused. The kernel's tables are imitated; for root a real loop device
//! stands for all devices.

use std::process::Command;

use uzram_testkit::Loop;

use super::*;

/// A tree like the kernel's: a disk 8:0 with a partition 8:1.
fn kernel() -> (tempfile::TempDir, System) {
    let folder = tempfile::tempdir().unwrap();
    let system = System {
        sys: folder.path().join("sys"),
        proc: folder.path().join("proc"),
    };
    let disk = system.sys.join("block/sdx");
    let part = disk.join("sdx1");
    fs::create_dir_all(part.join("holders")).unwrap();
    fs::create_dir_all(disk.join("holders")).unwrap();
    fs::write(part.join("partition"), "1\n").unwrap();
    fs::write(part.join("dev"), "8:1\n").unwrap();
    fs::create_dir_all(system.sys.join("dev/block")).unwrap();
    for (link, target) in [("8:0", "../../block/sdx"), ("8:1", "../../block/sdx/sdx1")] {
        std::os::unix::fs::symlink(target, system.sys.join("dev/block").join(link)).unwrap();
    }
    fs::create_dir_all(system.proc.join("self")).unwrap();
    fs::write(
        system.proc.join("self/mountinfo"),
        "21 1 259:0 / / rw - ext4 /dev/root rw\n",
    )
    .unwrap();
    let swaps = "Filename\tType\tSize\tUsed\tPriority\n";
    fs::write(system.proc.join("swaps"), swaps).unwrap();
    (folder, system)
}

#[test]
fn a_device_that_nobody_uses_has_no_user() {
    let (_folder, system) = kernel();
    assert_eq!(system.user_of((8, 0)), None);
    assert_eq!(system.user_of((8, 1)), None);
    assert_eq!(
        system.user_of((77, 7)),
        None,
        "the kernel knows no such one"
    );
}

#[test]
fn a_device_is_in_use_if_it_or_its_partition_is_mounted() {
    let (_folder, system) = kernel();
    let line = "30 21 8:1 / /srv/data rw,relatime shared:1 - ext4 /dev/sdx1 rw\n";
    fs::write(system.proc.join("self/mountinfo"), line).unwrap();
    let user = system.user_of((8, 0)).unwrap();
    assert_eq!(user, "sdx1 is mounted at /srv/data");
    assert_eq!(system.user_of((8, 1)).unwrap(), user);
    assert_eq!(system.user_of((8, 11)), None, "8:1 is no beginning of 8:11");
}

#[test]
fn a_device_is_in_use_if_it_or_its_partition_is_swap() {
    let (_folder, system) = kernel();
    let table = "Filename Type Size Used Priority\n/dev/sdx1 partition 1024 0 -2\n";
    fs::write(system.proc.join("swaps"), table).unwrap();
    assert_eq!(system.user_of((8, 0)).unwrap(), "sdx1 is swap");
}

#[test]
fn a_device_is_in_use_if_something_stands_on_it_or_its_partition() {
    for place in ["sdx", "sdx/sdx1"] {
        let (_folder, system) = kernel();
        let holder = system.sys.join("block").join(place).join("holders/dm-0");
        fs::write(holder, "").unwrap();
        let user = system.user_of((8, 0)).unwrap();
        assert!(user.starts_with("dm-0 stands on sdx"), "{user}");
    }
}

fn data(content: &[u8]) -> Option<String> {
    let read = |offset: u64, buffer: &mut [u8]| {
        buffer.copy_from_slice(&content[offset as usize..][..buffer.len()]);
        Ok(())
    };
    first_data(content.len() as u64, read).unwrap()
}

#[test]
fn what_lies_on_a_device_is_found_and_named() {
    for length in [0, 100, 4096, 5 << 20, (9 << 20) + 512] {
        assert_eq!(data(&vec![0; length]), None);
    }
    let with = |length: usize, at: usize, bytes: &[u8]| {
        let mut content = vec![0; length];
        content[at..at + bytes.len()].copy_from_slice(bytes);
        data(&content)
    };
    let small = 1 << 20;
    let found = with(small, 0x438, b"\x53\xef").unwrap();
    assert_eq!(found, "an ext2, ext3 or ext4 file system");
    assert_eq!(with(small, 4086, b"SWAPSPACE2").unwrap(), "swap space");
    assert_eq!(
        with(small, 510, b"\x55\xaa").unwrap(),
        "a partition table or boot sector"
    );
    assert_eq!(with(small, 0, b"LUKS\xba\xbe").unwrap(), "a LUKS volume");
    assert_eq!(with(small, 70_000, b"x").unwrap(), "not zero at byte 70000");
    let large = 32 << 20;
    assert!(with(large, large - 1, b"x").is_some(), "labels at the end");
    assert!(with(large, (4 << 20) - 1, b"x").is_some());
    // Data between the ends is found where it is longer than a gap.
    assert!(with(large, 9 << 20, &[1; 1 << 20]).is_some());
}

#[test]
fn all_of_a_device_is_covered_in_pieces_that_do_not_overlap() {
    for size in [0, 1, 4096, 4097, 8 << 20, (8 << 20) + 1, 1 << 30, 1 << 44] {
        let pieces: Vec<u64> = looked_at(size).collect();
        assert!(
            pieces.len() <= 2 * (4 << 20) / 4096 + 2 * 4096 + 2,
            "{size}"
        );
        assert!(
            pieces.windows(2).all(|pair| pair[0] + 4096 <= pair[1]),
            "{size}"
        );
        assert!(pieces.iter().all(|&offset| offset < size), "{size}");
        if size > 0 {
            assert_eq!(pieces[0], 0);
            assert!(pieces[pieces.len() - 1] + 4096 >= size, "{size}");
        }
    }
}

fn refusal(path: &Path, destroy: &[PathBuf]) -> String {
    let error = claim(path, destroy, &System::default()).unwrap_err();
    assert_eq!(error.exit_status(), 2);
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

#[test]
fn a_file_with_content_is_kept_unless_its_name_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    fs::write(&path, "data").unwrap();
    let text = refusal(&path, &[]);
    assert!(text.contains("holds data (a file of 4 bytes)"), "{text}");
    assert!(
        text.ends_with(&format!("add --destroy {}", path.display())),
        "{text}"
    );
    let other = folder.path().join("other");
    refusal(&path, &[other]);
    assert_eq!(fs::read(&path).unwrap(), b"data");
    drop(claim(&path, std::slice::from_ref(&path), &System::default()).unwrap());
    assert!(path.exists(), "it was there before");
}

#[test]
fn a_new_file_goes_with_its_claim_and_an_empty_one_is_left_empty() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new");
    let claimed = claim(&new, &[], &System::default()).unwrap();
    fs::write(&new, "of the benchmark").unwrap();
    drop(claimed);
    assert!(!new.exists());
    let empty = folder.path().join("empty");
    fs::write(&empty, "").unwrap();
    let claimed = claim(&empty, &[], &System::default()).unwrap();
    fs::write(&empty, "of the benchmark").unwrap();
    drop(claimed);
    assert_eq!(fs::metadata(&empty).unwrap().len(), 0);
}

#[test]
fn what_is_neither_a_device_nor_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(refusal(folder.path(), &[]).contains("neither a block device nor a file"));
    assert!(refusal(Path::new("/dev/null"), &[]).contains("neither a block device nor a file"));
    assert!(refusal(Path::new("/none/at/all"), &[]).contains("No such file"));
}

#[test]
fn a_device_with_a_file_system_is_refused_and_a_mounted_one_even_if_it_may_be_destroyed() {
    let Some(device) = Loop::new(16 << 20) else {
        return;
    };
    let path = device.path.clone();
    drop(claim(&path, &[], &System::default()).unwrap());
    device.run("mkfs.ext4", &["-q", "-F"]);
    let text = refusal(&path, &[]);
    assert!(text.contains("holds data (an ext2, ext3 or ext4"), "{text}");
    let destroy = [path.clone()];
    drop(claim(&path, &destroy, &System::default()).unwrap());
    assert!(
        refusal(&path, &[]).contains("holds data"),
        "a claim alone changes nothing"
    );

    let at = device.folder.path().join("mnt");
    fs::create_dir(&at).unwrap();
    let mounted = Command::new("mount").arg(&path).arg(&at).status();
    assert!(mounted.unwrap().success());
    let text = refusal(&path, &destroy);
    assert!(
        text.contains("in use: ") && text.contains("is mounted at"),
        "{text}"
    );
    assert!(Command::new("umount").arg(&at).status().unwrap().success());
    device.run("wipefs", &["-a", "-q"]);
    assert!(
        refusal(&path, &[]).contains("not zero at byte"),
        "without a signature"
    );
}

#[test]
fn a_claimed_device_is_nobody_elses_and_is_empty_again_afterwards() {
    let Some(device) = Loop::new(16 << 20) else {
        return;
    };
    let claimed = claim(&device.path, &[], &System::default()).unwrap();
    assert_eq!(claimed.size_bytes(), 16 << 20);
    let text = refusal(&device.path, &[]);
    assert!(
        text.contains("in use: another program has it open"),
        "{text}"
    );
    let node = OpenOptions::new().write(true).open(&device.path).unwrap();
    node.write_all_at(&[7; 8192], 5 << 20).unwrap();
    node.sync_all().unwrap();
    drop((node, claimed));
    drop(claim(&device.path, &[], &System::default()).unwrap());
}
