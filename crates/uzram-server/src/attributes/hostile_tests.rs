//! Values that mean nothing: each attribute refuses them with the kernel's errno, and nothing changes.

use std::fs::File;
use std::path::Path;

use rustix::io::Errno;
use uzram::ErrorKind;

use super::*;
use crate::device::DeviceConfig;
use crate::server::Server;
use crate::state::StateDir;

/// A value, and the errno before there is a size and after.
type Case<'a> = (&'a str, i32, i32);

const NOTHING: i32 = 0;
const EIO: i32 = 5;
const E2BIG: i32 = 7;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const ERANGE: i32 = 34;

/// Lets nobody name a file.
struct NoFiles;

impl Files for NoFiles {
    fn open(&self, path: &Path, _: bool) -> Result<File> {
        let text = format!("{path:?}: not to be named");
        Err(Error::new(ErrorKind::Io, text).with_errno(Errno::ACCESS))
    }
}

/// Runs `test` with a disk that has no size yet.
fn with_disk(test: impl FnOnce(&Device)) {
    let temp = tempfile::tempdir().unwrap();
    let state = StateDir::open(temp.path().join("uzram")).unwrap();
    let config = DeviceConfig {
        size_bytes: 4096,
        ..DeviceConfig::default()
    };
    let server = Server::start(&state, &[config]).unwrap();
    let device = &server.devices()[0];
    device.reset().unwrap();
    test(device);
}

/// The errno of a write, or 0; nothing changes with a refusal.
#[track_caller]
fn errno(device: &Device, name: &str, value: &str) -> i32 {
    let before = read_all(device);
    match write(device, name, value, &NoFiles) {
        Ok(()) => NOTHING,
        Err(error) => {
            assert_eq!(read_all(device), before, "{name} {value:?}");
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
            error.errno()
        }
    }
}

#[test]
fn every_attribute_refuses_what_the_kernel_refuses_as_the_kernel_does() {
    let long = "x".repeat(200);
    let table: &[(&str, &[Case<'_>])] = &[
        (
            "disksize",
            &[
                ("", EINVAL, EINVAL),
                ("0", EINVAL, EINVAL),
                ("x", EINVAL, EINVAL),
                ("-1", EINVAL, EINVAL),
                ("1E", ENOMEM, EBUSY),
                ("99999999999999999999", EINVAL, EINVAL),
            ],
        ),
        (
            "reset",
            &[
                ("", EINVAL, EINVAL),
                ("0", EINVAL, EINVAL),
                ("x", EINVAL, EINVAL),
                ("1 ", EINVAL, EINVAL),
                ("65536", ERANGE, ERANGE),
                ("-1", EINVAL, EINVAL),
            ],
        ),
        ("compact", &[("x", EINVAL, NOTHING)]),
        (
            "mem_limit",
            &[
                ("x", EINVAL, EINVAL),
                ("", EINVAL, EINVAL),
                ("0x10000", NOTHING, NOTHING),
                ("0xg", EINVAL, EINVAL),
            ],
        ),
        (
            "mem_used_max",
            &[
                ("1", EINVAL, EINVAL),
                ("", EINVAL, EINVAL),
                ("0", NOTHING, NOTHING),
            ],
        ),
        (
            "idle",
            &[
                ("all", EINVAL, NOTHING),
                ("ALL", EINVAL, EINVAL),
                ("1", EINVAL, EINVAL),
                ("18446744073709551616", EINVAL, EINVAL),
                ("", EINVAL, EINVAL),
            ],
        ),
        (
            "comp_algorithm",
            &[
                ("lz5", EINVAL, EINVAL),
                ("", EINVAL, EINVAL),
                ("lz4", NOTHING, EBUSY),
                (&long, E2BIG, E2BIG),
            ],
        ),
        (
            "algorithm_params",
            &[
                ("level", EINVAL, EINVAL),
                ("level=x", EINVAL, EINVAL),
                ("priority=4", EINVAL, EINVAL),
                ("algo=lz5", EINVAL, EINVAL),
                ("colour=1", EINVAL, EINVAL),
                ("algo=zstd", EINVAL, EBUSY),
                ("dict=/etc/hostname", EACCES, EBUSY),
                ("level=1", NOTHING, EBUSY),
            ],
        ),
        (
            "recomp_algorithm",
            &[
                ("", EINVAL, EINVAL),
                ("zstd", EINVAL, EINVAL),
                ("algo=lz5", EINVAL, EINVAL),
                ("algo=zstd priority=0", EINVAL, EINVAL),
                ("algo=zstd priority=4", EINVAL, EINVAL),
                ("priority=1", EINVAL, EINVAL),
                ("algo=zstd x=1", EINVAL, EINVAL),
                ("algo=zstd priority=3", NOTHING, EBUSY),
            ],
        ),
        (
            "recompress",
            &[
                ("type=x", EINVAL, EINVAL),
                ("priority=1", EINVAL, EINVAL),
                ("threshold=4096 priority=3", EINVAL, EINVAL),
                ("type=idle priority=3", EINVAL, NOTHING),
            ],
        ),
        (
            "backing_dev",
            &[("/dev/null", EACCES, EBUSY), ("", EACCES, EBUSY)],
        ),
        (
            "writeback",
            &[("type=idle", EINVAL, ENODEV), ("x", EINVAL, ENODEV)],
        ),
        (
            "writeback_limit",
            &[
                ("", EINVAL, EINVAL),
                ("x", EINVAL, EINVAL),
                ("-1", EINVAL, EINVAL),
                ("99999999999999999999", EINVAL, EINVAL),
                ("7", NOTHING, NOTHING),
            ],
        ),
        (
            "writeback_limit_enable",
            &[("y", EINVAL, EINVAL), ("1", NOTHING, NOTHING)],
        ),
        (
            "writeback_batch_size",
            &[
                ("0", EINVAL, EINVAL),
                ("x", EINVAL, EINVAL),
                ("4294967296", ERANGE, ERANGE),
                ("64", NOTHING, NOTHING),
            ],
        ),
        (
            "compressed_writeback",
            &[("2", EINVAL, EINVAL), ("1", NOTHING, EBUSY)],
        ),
    ];
    let kernels = files().filter(|attribute| attribute.mode & 0o222 != 0);
    for attribute in kernels {
        assert!(
            table.iter().any(|(name, _)| *name == attribute.name),
            "{}",
            attribute.name
        );
    }
    with_disk(|device| {
        for (name, values) in table {
            for (value, before, _) in *values {
                assert_eq!(
                    errno(device, name, value),
                    *before,
                    "{name} {value:?}, no size"
                );
            }
        }
        assert_eq!(errno(device, "disksize", "1M\n"), NOTHING);
        for (name, values) in table {
            for (value, _, after) in *values {
                assert_eq!(errno(device, name, value), *after, "{name} {value:?}, 1M");
            }
        }
    });
}

/// Writes of a fuzz test: 10^6 if the environment asks for them.
fn writes() -> u64 {
    let asked = std::env::var("UZRAM_TEST_ATTRIBUTE_WRITES").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(20_000)
}

#[test]
fn any_bytes_do_what_they_say_or_nothing() {
    const WORDS: [&str; 24] = [
        "type=",
        "idle",
        "huge",
        "page_index=",
        "page_indexes=",
        "-",
        "algo=",
        "lz4",
        "zstd",
        "priority=",
        "level=",
        "dict=",
        "threshold=",
        "max_pages=",
        "all",
        "0",
        "1",
        "3",
        "99999999999999999999",
        "K",
        " ",
        "\n",
        ",",
        "\u{0}",
    ];
    let known = [EIO, E2BIG, ENOMEM, EACCES, EBUSY, ENODEV, EINVAL, ERANGE];
    let writable: Vec<_> = files()
        .filter(|attribute| attribute.mode & 0o222 != 0)
        .collect();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    with_disk(|device| {
        for count in 0..writes() {
            let mut value = String::new();
            for _ in 0..random(6) {
                match random(4) {
                    0 => value.push(char::from_u32(random(0x2ff) as u32).unwrap_or('x')),
                    _ => value += WORDS[random(WORDS.len())],
                }
            }
            let name = writable[random(writable.len())].name;
            // All attributes are compared now and then, as that takes most of the time.
            let seen = || (device.setup(), device.size_bytes());
            let before = seen();
            let errno = match write(device, name, &value, &NoFiles) {
                _ if count % 50 == 0 => errno(device, name, &value),
                Ok(()) => NOTHING,
                Err(error) => {
                    assert!(seen() == before, "{count}: {name} {value:?}");
                    assert_eq!(error.to_string().lines().count(), 1, "{error}");
                    error.errno()
                }
            };
            assert!(
                errno == NOTHING || known.contains(&errno),
                "{count}: {name} {value:?}: {errno}"
            );
            if count % 64 == 0 {
                let size = device.live().map_or("1M", |_| "0");
                let _ = write(device, "disksize", size, &NoFiles);
            }
        }
    });
}
