//! The examples of zram-generator's manual page and of its own tests, in our words.

use super::*;

const GIB: u64 = 1 << 30;

fn no_program(_: &str) -> Result<String, String> {
    panic!("nothing is to be run");
}

fn parsed(text: &str, ram_mib: u64) -> GeneratorConfig {
    GeneratorConfig::parse(text, ram_mib << 20, no_program).unwrap_or_else(|w| panic!("{w:?}"))
}

/// The only disk, without a note.
fn disk(text: &str, ram_mib: u64) -> GeneratorDisk {
    let config = parsed(text, ram_mib);
    assert!(config.notes.is_empty(), "{:?}", config.notes);
    assert_eq!(config.disks.len(), 1, "{:?}", config.disks);
    config.disks[0].clone()
}

fn refused(text: &str) -> (usize, String) {
    let outcome = GeneratorConfig::parse(text, 4 * GIB, no_program);
    let wrong = outcome.expect_err(text);
    (wrong.line, wrong.why)
}

#[test]
fn a_section_alone_is_half_of_ram_and_at_most_four_gib_of_swap() {
    for (ram_mib, size_mib) in [(1024, 512), (4096, 2048), (8192, 4096), (65536, 4096)] {
        let found = disk("[zram0]\n", ram_mib);
        assert_eq!(found.size_bytes, size_mib << 20, "{ram_mib}");
        assert_eq!((found.name.as_str(), found.mem_limit_bytes), ("zram0", 0));
        assert_eq!(found.purpose, GeneratorUse::Swap { priority: 100 });
        assert_eq!(found.algorithm, None);
    }
}

#[test]
fn the_manual_pages_piecewise_size() {
    let text = "[zram0]\n\
                zram-size = min(min(ram, 4096) + max(ram - 4096, 0) / 2, 32 * 1024)\n";
    for (ram_gib, size_gib) in [(1, 1), (4, 4), (8, 6), (12, 8), (60, 32), (64, 32)] {
        assert_eq!(disk(text, ram_gib << 10).size_bytes, size_gib * GIB);
    }
}

#[test]
fn the_example_file_with_all_keys() {
    let text = "\
# a comment
set!maxhotplug = xenstore-read maxhotplug

[zram0]
host-memory-limit = 9048
zram-size = min(ram / 10, 2048)
zram-resident-limit = maxhotplug * 3/4
compression-algorithm = lzo-rle zstd(level=3) (type=idle)
options =
writeback-device = /dev/zvol/tarta-zoot/swap-writeback
#zram-fraction = 0.10

[zram1]
zram-size = ram / 10
fs-type = ext2
mount-point = /run/compressed-mount-point
";
    let run = |program: &str| {
        assert_eq!(program, "xenstore-read maxhotplug");
        Ok("1000\n".to_owned())
    };
    let config = GeneratorConfig::parse(text, 8 * GIB, run).unwrap();
    let [swap, mount] = &config.disks[..] else {
        panic!("{config:?}");
    };
    assert_eq!(swap.size_bytes, (819.2 * 1_048_576.0) as u64);
    assert_eq!(swap.mem_limit_bytes, 750 << 20);
    assert_eq!(swap.algorithm.as_deref(), Some("lzo-rle"));
    assert_eq!(
        mount.purpose,
        GeneratorUse::Mount {
            directory: "/run/compressed-mount-point".into(),
            fs: "ext2".into(),
            options: "discard".into(),
        }
    );
    let said = [
        ":8: [zram0] compression-algorithm: zstd(level=3) left out; pages are not recompressed",
        ":8: [zram0] compression-algorithm: (type=idle) left out",
        ":10: [zram0] writeback-device: left out; pages are not written back",
        ":9: [zram0] options: \"\" left out; swap here discards",
    ];
    assert_eq!(config.notes.len(), said.len(), "{:?}", config.notes);
    for (note, said) in config.notes.iter().zip(said) {
        assert!(note.starts_with(said), "{note}");
    }
    let larger = GeneratorConfig::parse(text, 16 * GIB, run).unwrap();
    assert_eq!(larger.disks.len(), 1);
    assert!(
        larger.notes[3].contains("[zram0]: left out; the machine has 16384 MiB"),
        "{:?}",
        larger.notes
    );
}

#[test]
fn programs_give_names_to_later_lines() {
    let text = "set!top = a\nset!bottom = b\nset!ratio = c\n\
                [zram0]\ncompression-algorithm = zstd\nzram-resident-limit = 9999\n\
                zram-size = ram * ratio\n";
    let run = |program: &str| {
        Ok(match program {
            "a" => "3\n",
            "b" => "4\n",
            _ => "top / bottom\n",
        }
        .to_owned())
    };
    let config = GeneratorConfig::parse(text, GIB, run).unwrap();
    assert_eq!(config.disks[0].size_bytes, 768 << 20);
    assert_eq!(config.disks[0].mem_limit_bytes, 9999 << 20);
    let fails = |_: &str| Err("no".to_owned());
    let wrong = GeneratorConfig::parse(text, GIB, fails).unwrap_err();
    assert_eq!((wrong.line, wrong.why.as_str()), (1, "set!top: no"));
}

#[test]
fn machines_with_more_memory_than_the_limit_get_none() {
    let text = "[zram0]\nhost-memory-limit=7824\n";
    assert_eq!(parsed(text, 7824).disks.len(), 1);
    assert_eq!(parsed(text, 7825).disks.len(), 0);
    let none = "[zram0]\nhost-memory-limit=1\nhost-memory-limit = none\n";
    assert_eq!(disk(none, 7825).name, "zram0");
}

#[test]
fn keys_of_one_section_add_up_and_the_last_counts() {
    let text = "[zram0]\nhost-memory-limit=1\n[zram2]\nzram-size=ram*0.8\nswap-priority=200\n\
                [zram0]\nhost-memory-limit=1236\nzram-size = 100\n";
    let config = parsed(text, 1000);
    let names: Vec<_> = config.disks.iter().map(|disk| disk.name.as_str()).collect();
    assert_eq!(names, ["zram0", "zram2"]);
    assert_eq!(config.disks[0].size_bytes, 100 << 20);
    assert_eq!(config.disks[1].size_bytes, 800 << 20);
    assert_eq!(
        config.disks[1].purpose,
        GeneratorUse::Swap { priority: 200 }
    );
}

#[test]
fn mount_points_are_normal_paths() {
    for (written, directory) in [
        ("/var/compressed", "/var/compressed"),
        ("/foo//bar/./baz/", "/foo/bar/baz"),
        ("///", "/"),
        ("/.żupan-ci3pły", "/.żupan-ci3pły"),
    ] {
        let text = format!(
            "[zram11]\nmount-point = {written}\nfs-type = ext4\noptions = discard,casefold\n"
        );
        let expected = GeneratorUse::Mount {
            directory: directory.into(),
            fs: "ext4".into(),
            options: "discard,casefold".into(),
        };
        assert_eq!(disk(&text, 1024).purpose, expected);
    }
}

#[test]
fn a_file_system_without_a_place_is_no_disk() {
    let config = parsed("[zram11]\nfs-type = ext2\n", 1024);
    assert!(config.disks.is_empty());
    assert_eq!(
        config.notes,
        [":1: [zram11]: left out; without mount-point nothing would use it"]
    );
    let swap = disk("[zram11]\nfs-type = swap\n", 1024);
    assert_eq!(swap.purpose, GeneratorUse::Swap { priority: 100 });
}

#[test]
fn deprecated_keys_win_over_the_size() {
    let text = "[zram0]\nzram-size = 1\nzram-fraction = 0.10\nmax-zram-size = 2048\n\
                memory-limit = 100000\n[zram1]\nzram-fraction = 0.10\nmax-zram-size = none\n\
                [zram2]\nmax-zram-size = 100\nmemory-limit = none\n\
                [zram3]\nzram-fraction = 0.1\nmemory-limit = 1\n";
    let sizes: Vec<u64> = parsed(text, 40000)
        .disks
        .iter()
        .map(|disk| disk.size_bytes >> 20)
        .collect();
    assert_eq!(sizes, [2048, 4000, 100]);
}

#[test]
fn codecs_and_parameters_that_are_not_here_are_said() {
    let config = parsed(
        "[zram0]\ncompression-algorithm = zstd(dictionary=/etc/gaming,level=9) (recompargs)\n",
        2048,
    );
    assert_eq!(config.disks[0].algorithm.as_deref(), Some("zstd"));
    assert_eq!(config.disks[0].parameters, "");
    assert!(
        config.notes[0].contains("parameters left out; "),
        "{config:?}"
    );
    assert!(config.notes[1].contains("(recompargs) left out"));
    let unknown = parsed("[zram0]\ncompression-algorithm = zstandard lz4\n", 2048);
    assert_eq!(unknown.disks[0].algorithm, None);
    assert!(
        unknown.notes[0].contains("\"zstandard\" left out, so it is auto"),
        "{unknown:?}"
    );
    let level = disk("[zram0]\ncompression-algorithm = zstd(level=3)\n", 2048);
    assert_eq!(level.parameters, "level=3");
    let beyond = parsed("[zram0]\ncompression-algorithm = zstd(level=99)\n", 2048);
    assert_eq!(beyond.disks[0].parameters, "");
    assert_eq!(beyond.notes.len(), 1, "{beyond:?}");
}

#[test]
fn what_is_passed_over_is_said_with_its_line() {
    let config = parsed(
        "key = 1\n[zram0]\nzram-sise = 1\n\n[global]\nzram-size = x\n[zramx]\n[zram1]\nzram-size = 0\n",
        2048,
    );
    let said = [
        ":1: key: outside of a section only set!NAME = PROGRAM counts",
        ":3: [zram0] zram-sise: unknown, so left out; did you mean zram-size?",
        ":5: [global]: no [zramN], so it is left out",
        ":7: [zramx]: no [zramN]",
        ":8: [zram1]: left out; its size is 0",
    ];
    assert_eq!(config.notes.len(), said.len(), "{:?}", config.notes);
    for (note, said) in config.notes.iter().zip(said) {
        assert!(note.starts_with(said), "{note}");
    }
    let negative = parsed("[zram0]\nswap-priority = -1\n", 2048);
    assert!(negative.notes[0].starts_with(":2: [zram0] swap-priority: -1 lets"));
    assert_eq!(
        negative.disks[0].purpose,
        GeneratorUse::Swap { priority: 0 }
    );
}

#[test]
fn what_is_wrong_is_refused_with_its_line() {
    for (text, line, said) in [
        (
            "[zram0]\nzram-size = ram /\n",
            2,
            "[zram0] zram-size: expression",
        ),
        ("[zram0]\nzram-size = 0 - 1\n", 2, "gives -1 MiB"),
        (
            "[zram0]\nzram-resident-limit = rum\n",
            2,
            "did you mean ram?",
        ),
        (
            "[zram0]\nhost-memory-limit = 1G\n",
            2,
            "a number of MiB, or none",
        ),
        (
            "[zram0]\nmax-zram-size = -1\n",
            2,
            "a number of MiB, or none",
        ),
        (
            "[zram0]\nzram-fraction = -1\n",
            2,
            "must be a number from 0 on",
        ),
        (
            "[zram0]\nzram-fraction = inf\n",
            2,
            "must be a number from 0 on",
        ),
        (
            "[zram0]\nswap-priority = 32768\n",
            2,
            "must be from -1 to 32767",
        ),
        ("[zram0]\nmount-point = mnt\n", 2, "must be absolute"),
        ("[zram0]\nmount-point = /a/../b\n", 2, "without .."),
        ("[zram0]\nwriteback-device = sda1\n", 2, "must be absolute"),
        ("[zram0]\nzram-size\n", 2, "KEY = VALUE"),
        ("[scratch]\n", 0, "uzram serve --config reads such a file"),
        (
            "[server]\nlog-level = \"info\"\n[scratch]\nsize = \"4G\"\n",
            4,
            "[scratch] size: a key of a server's file",
        ),
        ("[zram0]\n\nsize = 1G\n", 3, "uzram serve --config reads"),
    ] {
        let (at, why) = refused(text);
        assert_eq!(at, line, "{text}: {why}");
        assert!(why.contains(said), "{text}: {why}");
    }
    let many: String = (0..=DISKS_MAX).map(|n| format!("[zram{n}]\n")).collect();
    assert!(refused(&many).1.contains("1025 disks"));
}

#[test]
fn programs_of_a_file_that_others_write_are_not_run() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (path, ran) = (dir.path().join("conf"), dir.path().join("ran"));
    let text = format!(
        "set!x = echo 8; touch {}\n[zram0]\nzram-size = x\n",
        ran.display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let refused = GeneratorConfig::read(&path, GIB).unwrap_err().to_string();
    assert!(
        refused.contains("conf:1: set!x: others can write"),
        "{refused}"
    );
    assert!(!ran.exists());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let config = GeneratorConfig::read(&path, GIB).unwrap();
    assert_eq!(config.disks[0].size_bytes, 8 << 20);
    assert!(ran.exists());
}
