//! The actions of real clients on a server, and the checks that follow.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::client;
use super::image::{self, Image};
use super::server::Server;
use crate::install::{self, Tool};
use crate::process::{self, Exit, Output};
use crate::workspace;

/// Time limit of one client.
pub(super) const CLIENT_LIMIT: Duration = Duration::from_secs(180);
const MIB: u64 = 1 << 20;

/// The state that the cases share.
pub struct Bench<'a> {
    pub binary: &'a Path,
    pub image: Option<&'a Image>,
    pub variant: Variant,
}

/// The codec, unit and pool of a server.
#[derive(Clone, Copy)]
pub struct Variant {
    pub algorithm: &'static str,
    pub unit_kib: usize,
}

/// One check with its own server. `Ok` holds a remark for the log.
pub struct Case {
    pub name: &'static str,
    pub tools: &'static [Tool],
    pub run: fn(&Bench<'_>) -> Result<String, String>,
}

pub const CASES: &[Case] = &[
    Case {
        name: "own client writes and reads",
        tools: &[],
        run: own_client,
    },
    Case {
        name: "nbdinfo describes the export",
        tools: &[install::NBDINFO],
        run: nbdinfo,
    },
    Case {
        name: "ext4 image in and out with nbdcopy",
        tools: &[
            install::MKFS,
            install::E2FSCK,
            install::NBDCOPY,
            install::CMP,
        ],
        run: image_with_nbdcopy,
    },
    Case {
        name: "ext4 image in and out with qemu-img",
        tools: &[
            install::MKFS,
            install::E2FSCK,
            install::QEMU_IMG,
            install::CMP,
        ],
        run: image_with_qemu_img,
    },
    Case {
        name: "qemu-io: unaligned, discard, zeroes",
        tools: &[install::QEMU_IO],
        run: qemu_io,
    },
    Case {
        name: "fio verifies 512 B to 1 MiB, 4 connections, depth 32",
        tools: &[install::FIO],
        run: fio,
    },
    Case {
        name: "fio verifies half-written pages in each other pool",
        tools: &[install::FIO],
        run: fio_on_pools,
    },
    Case {
        name: "mem-limit: no space, and nothing lost",
        tools: &[install::QEMU_IO, install::NBDCOPY],
        run: mem_limit,
    },
];

impl Bench<'_> {
    pub(super) fn serve(&self, size_mib: u64, more: &[&str]) -> Result<Server, String> {
        let size = format!("{size_mib}M");
        let unit = format!("{}K", self.variant.unit_kib);
        let common = [
            "--size",
            &size,
            "--unit",
            &unit,
            "--algorithm",
            self.variant.algorithm,
        ];
        let arguments: Vec<&str> = common.iter().chain(more).copied().collect();
        Server::start(self.binary, &arguments)
    }

    fn image(&self) -> Result<&Image, String> {
        self.image.ok_or_else(|| "there is no image".to_string())
    }
}

fn own_client(bench: &Bench<'_>) -> Result<String, String> {
    let server = bench.serve(16, &[])?;
    client::write_and_read(&server.socket(), 16 * MIB)?;
    server.stop()?;
    Ok(String::new())
}

fn nbdinfo(bench: &Bench<'_>) -> Result<String, String> {
    let server = bench.serve(16, &[])?;
    let mut command = client("nbdinfo");
    let finished = process::succeed(command.args(["--json", &server.uri()]), CLIENT_LIMIT)?;
    let description: serde_json::Value = serde_json::from_str(&finished.stdout)
        .map_err(|error| format!("nbdinfo's answer is not JSON: {error}"))?;
    let export = &description["exports"][0];
    if export["export-size"] != 16 * MIB {
        return Err(format!("the export's size is not 16 MiB: {description}"));
    }
    for ability in [
        "can_flush",
        "can_fua",
        "can_multi_conn",
        "can_trim",
        "can_zero",
    ] {
        if export[ability] != true {
            return Err(format!(
                "the export does not offer {ability}: {description}"
            ));
        }
    }
    if export["is_read_only"] != false {
        return Err(format!("the export is read-only: {description}"));
    }
    server.stop()?;
    Ok(String::new())
}

fn image_with_nbdcopy(bench: &Bench<'_>) -> Result<String, String> {
    let image = bench.image()?;
    let server = bench.serve(image.size_mib, &[])?;
    let back = image.dir.path().join("back");
    process::succeed(
        client("nbdcopy").arg(&image.path).arg(server.uri()),
        CLIENT_LIMIT,
    )?;
    let remark = ratio(&server)?;
    process::succeed(client("nbdcopy").arg(server.uri()).arg(&back), CLIENT_LIMIT)?;
    same_and_sound(image, &back)?;
    server.stop()?;
    Ok(remark)
}

fn image_with_qemu_img(bench: &Bench<'_>) -> Result<String, String> {
    let image = bench.image()?;
    let server = bench.serve(image.size_mib, &[])?;
    let back = image.dir.path().join("back");
    let raw = ["-f", "raw", "-O", "raw"];
    let mut copy_in = client("qemu-img");
    copy_in
        .args(["convert", "-n"])
        .args(raw)
        .arg(&image.path)
        .arg(server.uri());
    process::succeed(&mut copy_in, CLIENT_LIMIT)?;
    let remark = ratio(&server)?;
    let mut copy_out = client("qemu-img");
    copy_out
        .arg("convert")
        .args(raw)
        .arg(server.uri())
        .arg(&back);
    process::succeed(&mut copy_out, CLIENT_LIMIT)?;
    same_and_sound(image, &back)?;
    server.stop()?;
    Ok(remark)
}

/// The file that was read back equals the image byte by byte, and is a clean file system.
fn same_and_sound(image: &Image, back: &Path) -> Result<(), String> {
    process::succeed(client("cmp").arg(&image.path).arg(back), CLIENT_LIMIT)?;
    process::succeed(client("e2fsck").arg("-fn").arg(back), CLIENT_LIMIT)?;
    std::fs::remove_file(back).map_err(|error| format!("{}: {error}", back.display()))
}

/// The compression ratio that the server states; a real tree must compress.
fn ratio(server: &Server) -> Result<String, String> {
    let stat = server.stat()?;
    let stored = stat.figure("orig_data_size")?;
    let compressed = stat.figure("compr_data_size")?;
    if compressed == 0 || compressed >= stored {
        return Err(format!(
            "{stored} bytes of a real tree were stored as {compressed}"
        ));
    }
    let used = stat.figure("mem_used_total")?;
    let (stored_mib, used_mib) = (stored / MIB, used / MIB);
    Ok(format!(
        "{stored_mib} MiB in {used_mib} MiB, {:.2}:1",
        stored as f64 / used as f64
    ))
}

fn qemu_io(bench: &Bench<'_>) -> Result<String, String> {
    let server = bench.serve(16, &[])?;
    let script = [
        "write -P 0x5a 1000 3000",     // within the first page
        "write -P 0xa5 4000 200",      // across a page boundary
        "write -P 0x11 1m 1m",         // whole pages
        "write -P 0x22 1048577 70000", // odd start, many pages
        "write -z 1100000 5000",       // zeroes that end inside a page
        "write -z 1114112 65536",      // zeroes over one whole unit of any size
        "discard 1536k 128k",          // whole pages
        "discard 1900001 10",          // a part of a page: stays as it is
        "read -P 0 0 1000",
        "read -P 0x5a 1000 3000",
        "read -P 0xa5 4000 200",
        "read -P 0 4200 1000",
        "read -P 0x11 1048576 1",
        "read -P 0x22 1048577 51423",
        "read -P 0 1100000 5000",
        "read -P 0x22 1105000 9112",
        "read -P 0 1114112 65536",
        "read -P 0x11 1179648 1000",
        "read -P 0 1536k 128k",
        "read -P 0x11 1900000 12",
        "read -P 0x11 2097151 1",
        "read -P 0 2m 1m",
        "write -P 0x77 16777215 1", // the last byte
        "read -P 0x77 16777215 1",
        "flush",
    ];
    run_qemu_io(&server, &script)?;
    let past_the_end = qemu_io_command(&server, &["read 16777216 1"]);
    expect_failure(past_the_end, "")?;
    server.stop()?;
    Ok(String::new())
}

fn fio(bench: &Bench<'_>) -> Result<String, String> {
    let server = bench.serve(256, &[])?;
    // Random data takes the way of pages that do not compress, a pattern that of those that do.
    let mixed = ["--bssplit=512/20:4k/30:16k/20:64k/15:256k/10:1m/5"];
    let pattern = [
        "--bsrange=512-1m",
        "--verify_pattern=0xcafe1234",
        "--verify_interval=4096",
    ];
    for arguments in [&mixed[..], &pattern[..]] {
        fio_verify(&server, 64, arguments)?;
    }
    server.stop()?;
    Ok(String::new())
}

fn fio_on_pools(bench: &Bench<'_>) -> Result<String, String> {
    for pool in ["zsmalloc", "ztree", "z3fold", "zbud"] {
        let server = bench.serve(64, &["--pool", pool])?;
        // Half of the sectors are written, with random data: so pages compress to all sizes.
        let half = ["--bssplit=512/70:4k/20:64k/10", "--io_size=8m"];
        fio_verify(&server, 16, &half).map_err(|error| format!("{pool}: {error}"))?;
        server.stop()?;
    }
    Ok(String::new())
}

/// Four connections write at random, each to `size_mib` of its own, and read back what they wrote.
fn fio_verify(server: &Server, size_mib: u64, arguments: &[&str]) -> Result<(), String> {
    let mut fio = client("fio");
    fio.current_dir(server.dir.path());
    fio.args([
        "--name=e2e",
        "--ioengine=nbd",
        "--rw=randwrite",
        "--iodepth=32",
        "--numjobs=4",
        "--group_reporting",
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--verify_state_save=0",
    ]);
    fio.arg(format!("--size={size_mib}m"));
    fio.arg(format!("--offset_increment={size_mib}m"));
    fio.arg(format!("--uri={}", server.uri())).args(arguments);
    process::succeed(&mut fio, CLIENT_LIMIT)?;
    Ok(())
}

fn mem_limit(bench: &Bench<'_>) -> Result<String, String> {
    const LIMIT_MIB: u64 = 32;
    const KEPT_MIB: u64 = 8;
    let server = bench.serve(256, &["--mem-limit", &format!("{LIMIT_MIB}M")])?;
    let [random, kept, back] = ["random", "kept", "back"].map(|name| server.dir.path().join(name));
    image::write_random_file(&random, 64 * MIB)?;
    image::write_random_file(&kept, KEPT_MIB * MIB)?;
    let keep = format!("write -q -s {} 0 {KEPT_MIB}m", kept.display());
    run_qemu_io(&server, &[&keep])?;

    let fill = format!("write -q -s {} 64m 64m", random.display());
    expect_failure(
        qemu_io_command(&server, &[&fill]),
        "No space left on device",
    )?;
    let mut copy = client("nbdcopy");
    copy.args(["--destination-is-zero"])
        .arg(&random)
        .arg(server.uri());
    // Overwrites with other incompressible data fail as well, each page old or new as a whole.
    let refused = process::run(&mut copy, CLIENT_LIMIT, Output::Kept)?;
    if refused.exit == Exit::Code(0) || !refused.stderr.contains("No space left on device") {
        return Err(process::failure(&copy, &refused));
    }

    // Every page of the start now holds one of the two files' pages.
    run_qemu_io(
        &server,
        &["write -q -P 0 200m 4m", "write -q -P 0x77 204m 4m"],
    )?;
    run_qemu_io(&server, &["read -P 0 200m 4m", "read -P 0x77 204m 4m"])?;
    let mut copy_back = client("nbdcopy");
    process::succeed(copy_back.arg(server.uri()).arg(&back), CLIENT_LIMIT)?;
    old_or_new(bench.variant.unit_kib << 10, &back, &kept, &random)?;

    let stat = server.stat()?;
    let (used_max, failed) = (stat.figure("mem_used_max")?, stat.figure("failed_writes")?);
    if !(KEPT_MIB * MIB..=LIMIT_MIB * MIB).contains(&used_max) {
        return Err(format!(
            "mem_used_max is {used_max} bytes under a limit of {LIMIT_MIB} MiB"
        ));
    }
    if failed == 0 {
        return Err("writes failed for want of space, and failed_writes is 0".into());
    }
    // Room that is given back is room to write.
    run_qemu_io(&server, &["discard 64m 64m", &keep])?;
    server.stop()?;
    Ok(format!(
        "{failed} failed writes, at most {used_max} bytes used"
    ))
}

/// Each page of `back` equals that of `old` or of `new`, over the length of the shorter.
fn old_or_new(page_bytes: usize, back: &Path, old: &Path, new: &Path) -> Result<(), String> {
    let read =
        |path: &Path| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let (back, old, new) = (read(back)?, read(old)?, read(new)?);
    let pages = back
        .chunks(page_bytes)
        .zip(old.chunks(page_bytes))
        .zip(new.chunks(page_bytes));
    for (index, ((back, old), new)) in pages.enumerate() {
        if back != old && back != new {
            return Err(format!(
                "page {index} holds neither its old nor its new content"
            ));
        }
    }
    Ok(())
}

pub(super) fn run_qemu_io(server: &Server, script: &[&str]) -> Result<(), String> {
    let mut command = qemu_io_command(server, script);
    let finished = process::succeed(&mut command, CLIENT_LIMIT)?;
    // Some versions say so and end with status 0.
    if finished.stdout.contains("failed") || finished.stderr.contains("failed") {
        return Err(process::failure(&command, &finished));
    }
    Ok(())
}

pub(super) fn qemu_io_command(server: &Server, script: &[&str]) -> Command {
    let mut command = client("qemu-io");
    command.args(["-f", "raw"]);
    for line in script {
        command.args(["-c", line]);
    }
    command.arg(server.uri());
    command
}

/// Runs a command that must fail, and say `message`.
fn expect_failure(mut command: Command, message: &str) -> Result<(), String> {
    let finished = process::run(&mut command, CLIENT_LIMIT, Output::Kept)?;
    let said = finished.stdout.contains(message) || finished.stderr.contains(message);
    let failed = matches!(finished.exit, Exit::Code(1..)) && said;
    if failed {
        Ok(())
    } else {
        Err(process::failure(&command, &finished))
    }
}

pub(super) fn client(program: &str) -> Command {
    workspace::command(program)
}
