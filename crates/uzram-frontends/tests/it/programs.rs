//! The clients that people use, where they are installed.

use std::fs;
use std::process::Command;

use uzram::{Store, Zram};
use uzram_frontends::nbd::Limits;

use crate::Served;
use crate::device::Bytes;

/// A program to test with; says so on standard error if it is not installed.
fn program(name: &str) -> Option<Command> {
    let found = Command::new(name).arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: {name} is not installed");
    }
    found.then(|| Command::new(name))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

fn compressed(size_bytes: u64) -> Served {
    let store = Store::builder()
        .size(size_bytes)
        .algorithm("lz4")
        .build()
        .unwrap();
    Served::new(std::sync::Arc::new(Zram::new(store)))
}

#[test]
fn nbdinfo_shows_the_export() {
    let Some(mut nbdinfo) = program("nbdinfo") else {
        return;
    };
    let served = Served::new(Bytes::new(1 << 20));
    let text = run(nbdinfo.arg(served.uri()));
    for line in [
        "export=\"disk\"",
        "description: about disk",
        "export-size: 1048576",
        "can_fast_zero: true",
        "can_multi_conn: true",
        "can_cache: true",
        "can_trim: true",
        "block_size_minimum: 1",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(text.contains(line), "'{line}' in:\n{text}");
    }
    let text = run(Command::new("nbdinfo").arg("--list").arg(served.uri()));
    assert!(text.contains("export=\"disk\""), "{text}");
}

#[test]
fn a_refused_client_prints_the_reason() {
    let Some(mut qemu_io) = program("qemu-io") else {
        return;
    };
    let limits = Limits {
        connections_max: 1,
        ..Limits::default()
    };
    let served = Served::with(Bytes::new(1 << 20), limits);
    let _client = served.connect();
    let output = qemu_io
        .args(["-f", "raw", "-c", "read 0 1"])
        .arg(served.uri())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(
        text.contains("server is full: 1 connections, its limit"),
        "{text}"
    );
}

#[test]
fn qemu_io_reads_and_writes_what_it_wrote() {
    let Some(mut qemu_io) = program("qemu-io") else {
        return;
    };
    let served = compressed(8 << 20);
    let text = run(qemu_io
        .args(["-f", "raw"])
        .args([
            "-c",
            "write -P 7 100 5000",
            "-c",
            "read -P 7 100 5000",
            "-c",
            "read -P 0 0 100",
            "-c",
            "write -z 1000 4096",
            "-c",
            "read -P 0 1000 4096",
            "-c",
            "read -P 7 100 900",
            "-c",
            "discard 64k 64k",
            "-c",
            "write -f -P 9 1m 2m",
            "-c",
            "aio_write -P 3 4m 1m",
            "-c",
            "aio_read 1m 2m",
            "-c",
            "aio_flush",
            "-c",
            "read -P 3 4m 1m",
            "-c",
            "read -P 9 1m 2m",
            "-c",
            "flush",
        ])
        .arg(served.uri()));
    assert!(
        !text.contains("failed") && !text.contains("error"),
        "{text}"
    );
}

#[test]
fn nbdcopy_brings_back_what_it_took() {
    let Some(mut nbdcopy) = program("nbdcopy") else {
        return;
    };
    let served = compressed(24 << 20);
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (
        directory.path().join("source"),
        directory.path().join("copy"),
    );
    // Text, zeroes and noise in turns: small, absent and large objects.
    let mut image = uzram_testkit::noise(1, 24 << 20);
    for (at, byte) in image.iter_mut().enumerate() {
        match at >> 18 & 3 {
            0 => *byte = b"compressible text "[at % 18],
            1 | 2 => *byte = 0,
            _ => {}
        }
    }
    fs::write(&source, &image).unwrap();
    fs::write(&copy, "").unwrap();
    run(nbdcopy.arg(&source).arg(served.uri()));
    run(Command::new("nbdcopy").arg(served.uri()).arg(&copy));
    assert!(fs::read(&copy).unwrap() == image);
}

#[test]
fn fio_verifies_over_several_connections() {
    let Some(mut fio) = program("fio") else {
        return;
    };
    let engines = run(Command::new("fio").arg("--enghelp"));
    if !engines.contains("nbd") {
        eprintln!("skipped: this fio has no nbd engine");
        return;
    }
    let served = compressed(64 << 20);
    let directory = tempfile::tempdir().unwrap();
    let text = run(fio.current_dir(directory.path()).args([
        "--name=verify",
        "--ioengine=nbd",
        &format!("--uri={}", served.uri()),
        "--rw=randwrite",
        "--bsrange=512-1m",
        "--bs_unaligned",
        "--iodepth=32",
        "--numjobs=3",
        "--size=16m",
        "--offset_increment=16m",
        "--verify=crc32c",
        "--do_verify=1",
    ]));
    assert!(text.contains("err= 0"), "{text}");
}
