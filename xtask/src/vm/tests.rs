//! The tests that run in a guest. Each is a script and its needs; each gets a guest of its own.
//!
//! A script's status is the test's. Files that it writes to /out come back; the first line of
//! /out/remark stands beside the result. Modules may be followed by parameters. Plants fail on
//! purpose: such a test passes if its guest's failure is the planted one. So every run of all
//! tests shows that each of these failures is noticed.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::kernel::Series;
use super::programs::Source;
use super::qemu::{Device, image_name, stat_name};
use super::watch::Failure;
use crate::install::{self, Tool};

/// One test.
#[derive(Debug)]
pub struct GuestTest {
    pub name: &'static str,
    pub script: &'static str,
    /// The script of a second boot, with the same devices and the first one as the root. The first
    /// script has put it there from /test/second.
    pub second: Option<&'static str>,
    /// The series of its kernel.
    pub kernel: Series,
    /// Modules to load before the script, with their dependencies.
    pub modules: &'static [&'static str],
    /// Programs to copy from this machine.
    pub programs: &'static [Tool],
    /// Whether its system is Debian with systemd and the package, on the first device.
    pub debian: bool,
    /// Whether it wants `uzram`, the static binary, in /bin.
    pub uzram: bool,
    /// Whether it wants `uzram-bench`, static too.
    pub laboratory: bool,
    /// Whether it wants the engine's and the devices' tests in /bin, as `uzram-unit` and `uzram-it`.
    pub tests: bool,
    /// Whether it wants a certificate of `localhost`, /test/certificate.pem, and its key, /test/key.pem.
    pub certificate: bool,
    /// Whether it wants `eat`, which uses more memory than there is, in /bin.
    pub eat: bool,
    /// Whether its clock counts instructions; it has the engine's example `instructions` in /bin then.
    pub counts: bool,
    pub memory_mib: u32,
    pub devices: &'static [Device],
    /// Time limit of the script alone. It is far above the usual time, because the machine may be
    /// busy.
    pub limit: Duration,
    /// A check of the guest's folder after the script has succeeded.
    pub check: fn(&Path, &Source) -> Result<(), String>,
    /// Whether the suite leaves it out: it measures, and takes minutes.
    pub measures: bool,
    /// Whether it runs unnamed on another architecture.
    pub elsewhere: bool,
    /// For plants: whether a failure is the planted one.
    pub planted: Option<fn(&Failure) -> bool>,
}

/// The defaults of a test.
const PLAIN: GuestTest = GuestTest {
    name: "",
    script: "",
    second: None,
    kernel: Series::Backports,
    modules: &[],
    programs: &[],
    debian: false,
    uzram: false,
    laboratory: false,
    tests: false,
    certificate: false,
    eat: false,
    counts: false,
    memory_mib: 256,
    devices: &[],
    limit: Duration::from_secs(60),
    check: |_, _| Ok(()),
    measures: false,
    elsewhere: false,
    planted: None,
};

/// A script of kills behind its settings and the parts that such scripts share.
macro_rules! of_kills {
    ($settings:literal, $script:literal) => {
        concat!(
            $settings,
            include_str!("../../guest/survive-parts.sh"),
            include_str!(concat!("../../guest/", $script))
        )
    };
}

/// Servers that are killed under block devices.
const SURVIVE: GuestTest = GuestTest {
    name: "survive",
    script: of_kills!("", "survive.sh"),
    modules: &["ublk_drv", "fuse", "loop", "ext4"],
    programs: &[install::FIO, install::MKFS, install::E2FSCK],
    uzram: true,
    memory_mib: 768,
    limit: Duration::from_secs(400),
    ..PLAIN
};

/// The same on the release's own kernel, which Debian builds without ublk.
const SURVIVE_RELEASE: GuestTest = GuestTest {
    name: "survive-6.1",
    script: of_kills!("ATTACH=loop\n", "survive.sh"),
    kernel: Series::Release,
    modules: &["fuse", "loop", "ext4"],
    ..SURVIVE
};

/// Servers that are killed under swap.
const SURVIVE_SWAP: GuestTest = GuestTest {
    name: "survive-swap",
    script: concat!("DISK=loop\n", include_str!("../../guest/survive-swap.sh")),
    modules: &["fuse", "loop max_loop=2"],
    uzram: true,
    eat: true,
    memory_mib: 512,
    limit: Duration::from_secs(600),
    ..PLAIN
};

/// All of them, in the order in which they run.
pub const TESTS: &[GuestTest] = &[
    GuestTest {
        name: "boot",
        script: include_str!("../../guest/boot.sh"),
        check: busybox_came_back,
        elsewhere: true,
        ..PLAIN
    },
    GuestTest {
        name: "devices",
        script: include_str!("../../guest/devices.sh"),
        modules: &["virtio_blk", "nfit", "nd_pmem", "nd_btt", "ublk_drv"],
        devices: &[
            Device::Disk { size_mib: 16 },
            Device::Nvdimm { size_mib: 64 },
            Device::VhostUserBlk { size_mib: 32 },
        ],
        check: images_were_written,
        elsewhere: true,
        ..PLAIN
    },
    GuestTest {
        name: "alone",
        script: include_str!("../../guest/alone.sh"),
        modules: &["nbd max_part=0 nbds_max=1"],
        programs: &[install::NBD_CLIENT],
        uzram: true,
        elsewhere: true,
        ..PLAIN
    },
    GuestTest {
        name: "nbd-ext4",
        script: include_str!("../../guest/nbd-ext4.sh"),
        modules: &["nbd max_part=0 nbds_max=2", "ext4"],
        programs: &[install::NBD_CLIENT, install::MKFS, install::E2FSCK],
        uzram: true,
        memory_mib: 512,
        limit: Duration::from_secs(120),
        elsewhere: true,
        ..PLAIN
    },
    GuestTest {
        name: "nbd-tls",
        script: include_str!("../../guest/nbd-tls.sh"),
        modules: &["nbd max_part=0 nbds_max=1"],
        programs: &[install::NBD_CLIENT],
        uzram: true,
        certificate: true,
        memory_mib: 384,
        limit: Duration::from_secs(120),
        ..PLAIN
    },
    GuestTest {
        name: "vsock",
        script: include_str!("../../guest/vsock.sh"),
        modules: &["vsock_loopback"],
        programs: &[install::NBDCOPY, install::NBDINFO, install::SOCAT],
        uzram: true,
        certificate: true,
        memory_mib: 512,
        limit: Duration::from_secs(120),
        ..PLAIN
    },
    GuestTest {
        name: "ublk",
        script: include_str!("../../guest/ublk.sh"),
        modules: &["ublk_drv", "ext4"],
        programs: &[install::MKFS, install::E2FSCK],
        uzram: true,
        memory_mib: 512,
        limit: Duration::from_secs(180),
        elsewhere: true,
        ..PLAIN
    },
    SURVIVE,
    SURVIVE_SWAP,
    SURVIVE_RELEASE,
    GuestTest {
        name: "survive-nbd",
        script: of_kills!("", "survive-nbd.sh"),
        modules: &["nbd max_part=0 nbds_max=1", "ext4"],
        programs: &[
            install::FIO,
            install::MKFS,
            install::E2FSCK,
            install::NBD_CLIENT,
            install::NBDCOPY,
            install::QEMU_NBD,
        ],
        uzram: true,
        memory_mib: 768,
        limit: Duration::from_secs(400),
        ..PLAIN
    },
    GuestTest {
        name: "vhost-root",
        script: include_str!("../../guest/vhost-root-fill.sh"),
        second: Some(include_str!("../../guest/vhost-root-boot.sh")),
        modules: &["virtio_blk", "ext4"],
        programs: &[install::FIO, install::MKFS, install::E2FSCK],
        uzram: true,
        memory_mib: 768,
        devices: &[
            Device::Uzram { size_mib: 256 },
            Device::Uzram { size_mib: 64 },
        ],
        limit: Duration::from_secs(240),
        check: what_was_trimmed_is_gone,
        elsewhere: true,
        ..PLAIN
    },
    GuestTest {
        name: "survive-vhost",
        script: include_str!("../../guest/survive-vhost.sh"),
        modules: &["virtio_blk", "ext4"],
        programs: &[install::FIO, install::MKFS, install::E2FSCK],
        uzram: true,
        memory_mib: 512,
        devices: &[Device::UzramKilled { size_mib: 64 }],
        limit: Duration::from_secs(240),
        check: servers_were_killed_and_nothing_lost,
        ..PLAIN
    },
    GuestTest {
        name: "btt",
        script: include_str!("../../guest/btt.sh"),
        modules: &[
            "nbd max_part=0 nbds_max=2",
            "nfit",
            "nd_pmem",
            "nd_btt",
            "ext4",
        ],
        programs: &[install::NBD_CLIENT, install::NDCTL, install::MKFS],
        uzram: true,
        memory_mib: 512,
        devices: &[
            Device::Nvdimm { size_mib: 32 },
            Device::Nvdimm { size_mib: 32 },
            Device::Nvdimm { size_mib: 32 },
        ],
        limit: Duration::from_secs(300),
        elsewhere: true,
        ..PLAIN
    },
    GuestTest {
        name: "pages",
        script: include_str!("../../guest/pages.sh"),
        tests: true,
        memory_mib: 1024,
        limit: Duration::from_secs(900),
        // This machine's tests run on its own kernel.
        measures: true,
        elsewhere: true,
        ..PLAIN
    },
    GuestTest {
        name: "systemd",
        script: include_str!("../../guest/systemd.sh"),
        modules: &["virtio_blk", "ext4", "fuse", "loop max_loop=4"],
        debian: true,
        memory_mib: 768,
        devices: &[Device::Debian { size_mib: 512 }],
        limit: Duration::from_secs(900),
        measures: true,
        ..PLAIN
    },
    GuestTest {
        name: "kernel-zram-brd",
        script: include_str!("../../guest/kernel-zram-brd.sh"),
        modules: &["zram num_devices=1", "brd rd_nr=1 rd_size=32768", "ext4"],
        programs: &[install::MKFS, install::E2FSCK],
        ..PLAIN
    },
    GuestTest {
        name: "kernel-zram-cold",
        script: include_str!("../../guest/kernel-zram-cold.sh"),
        modules: &[
            "zram num_devices=1",
            "brd rd_nr=2 rd_size=8192",
            "fuse",
            "loop max_loop=8",
        ],
        programs: &[install::BLKDISCARD],
        uzram: true,
        memory_mib: 512,
        limit: Duration::from_secs(300),
        ..PLAIN
    },
    GuestTest {
        name: "swap",
        script: include_str!("../../guest/swap.sh"),
        modules: &["fuse", "loop max_loop=2"],
        uzram: true,
        eat: true,
        memory_mib: 384,
        limit: Duration::from_secs(900),
        measures: true,
        ..PLAIN
    },
    GuestTest {
        name: "swap-unit",
        script: include_str!("../../guest/swap-unit.sh"),
        modules: &["fuse", "loop max_loop=2"],
        uzram: true,
        eat: true,
        memory_mib: 384,
        limit: Duration::from_secs(600),
        measures: true,
        elsewhere: true,
        ..PLAIN
    },
    GuestTest {
        name: "run",
        script: include_str!("../../guest/run.sh"),
        uzram: true,
        eat: true,
        memory_mib: 512,
        limit: Duration::from_secs(300),
        elsewhere: true,
        ..PLAIN
    },
    GuestTest {
        name: "swap-ten-runs",
        script: concat!("RUNS=10\n", include_str!("../../guest/swap.sh")),
        modules: &["fuse", "loop max_loop=2"],
        uzram: true,
        eat: true,
        memory_mib: 384,
        limit: Duration::from_secs(7200),
        measures: true,
        ..PLAIN
    },
    GuestTest {
        name: "ublk-long",
        script: concat!("ROUNDS=200\n", include_str!("../../guest/ublk.sh")),
        modules: &["ublk_drv", "ext4"],
        programs: &[install::MKFS, install::E2FSCK, install::FIO],
        uzram: true,
        memory_mib: 1024,
        limit: Duration::from_secs(900),
        measures: true,
        ..PLAIN
    },
    GuestTest {
        name: "survive-long",
        script: of_kills!("KILLS=1000\n", "survive.sh"),
        limit: Duration::from_secs(3600),
        measures: true,
        ..SURVIVE
    },
    GuestTest {
        name: "survive-swap-long",
        script: concat!(
            "DISK=loop KILLS=1000\n",
            include_str!("../../guest/survive-swap.sh")
        ),
        limit: Duration::from_secs(7200),
        measures: true,
        ..SURVIVE_SWAP
    },
    GuestTest {
        name: "survive-swap-ublk",
        script: concat!("DISK=ublk\n", include_str!("../../guest/survive-swap.sh")),
        modules: &["ublk_drv"],
        measures: true,
        ..SURVIVE_SWAP
    },
    GuestTest {
        name: "survive-6.1-long",
        script: of_kills!("ATTACH=loop KILLS=1000\n", "survive.sh"),
        limit: Duration::from_secs(3600),
        measures: true,
        ..SURVIVE_RELEASE
    },
    GuestTest {
        name: "survive-vhost-long",
        script: concat!(
            "SECONDS_OF_LOAD=2000\n",
            include_str!("../../guest/survive-vhost.sh")
        ),
        modules: &["virtio_blk", "ext4"],
        programs: &[install::FIO, install::MKFS, install::E2FSCK],
        uzram: true,
        memory_mib: 512,
        devices: &[Device::UzramKilled { size_mib: 64 }],
        limit: Duration::from_secs(3000),
        check: servers_were_killed_a_thousand_times,
        measures: true,
        ..PLAIN
    },
    GuestTest {
        name: "swap-ublk",
        script: concat!(
            "WATERMARKS='10 15000'\n",
            include_str!("../../guest/swap.sh")
        ),
        modules: &["ublk_drv"],
        uzram: true,
        eat: true,
        memory_mib: 384,
        limit: Duration::from_secs(900),
        measures: true,
        ..PLAIN
    },
    GuestTest {
        name: "bench-ublk",
        script: include_str!("../../guest/bench-ublk.sh"),
        modules: &[
            "fuse",
            "loop max_loop=8",
            "ublk_drv",
            "zram num_devices=1",
            "brd rd_nr=1 rd_size=131072",
        ],
        programs: &[install::FIO, install::LOSETUP, install::BLKDISCARD],
        uzram: true,
        laboratory: true,
        memory_mib: 1536,
        limit: Duration::from_secs(3600),
        measures: true,
        ..PLAIN
    },
    GuestTest {
        name: "bench-kernel-zram",
        script: include_str!("../../guest/bench-kernel-zram.sh"),
        modules: &["zram num_devices=1"],
        uzram: true,
        laboratory: true,
        memory_mib: 1024,
        limit: Duration::from_secs(600),
        measures: true,
        ..PLAIN
    },
    GuestTest {
        name: "instructions",
        script: include_str!("../../guest/instructions.sh"),
        counts: true,
        memory_mib: 512,
        limit: Duration::from_secs(600),
        measures: true,
        ..PLAIN
    },
    GuestTest {
        name: "planted-panic",
        script: "echo c > /proc/sysrq-trigger",
        planted: Some(|failure| matches!(failure, Failure::Panic(_))),
        ..PLAIN
    },
    GuestTest {
        name: "planted-hang",
        script: "sleep 3600",
        limit: Duration::from_secs(3),
        planted: Some(|failure| matches!(failure, Failure::Hang("the test", _))),
        ..PLAIN
    },
    GuestTest {
        name: "planted-oom",
        script: "tail /dev/zero",
        planted: Some(|failure| matches!(failure, Failure::OutOfMemory(_))),
        ..PLAIN
    },
    GuestTest {
        name: "planted-power-off",
        script: "poweroff -f",
        planted: Some(|failure| *failure == Failure::GoneEarly("the test")),
        ..PLAIN
    },
    GuestTest {
        name: "planted-failure",
        script: "exit 3",
        planted: Some(|failure| *failure == Failure::Status(3)),
        ..PLAIN
    },
    GuestTest {
        name: "planted-missing-module",
        modules: &["no_such_module"],
        planted: Some(|failure| is_module(failure, "no_such_module")),
        ..PLAIN
    },
    GuestTest {
        name: "planted-refused-module",
        modules: &["brd rd_nr=many"],
        planted: Some(|failure| is_module(failure, "brd.ko")),
        ..PLAIN
    },
];

/// The guest's second disk was discarded, and then got an empty file system.
fn what_was_trimmed_is_gone(folder: &Path, _: &Source) -> Result<(), String> {
    let stat = |index| -> Result<u64, String> {
        let name = stat_name(index);
        let text = fs::read_to_string(folder.join(&name)).map_err(|error| error.to_string())?;
        let values: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let data = values["orig_data_size"].as_u64();
        data.ok_or_else(|| format!("{name}: no orig_data_size"))
    };
    let (root, other) = (stat(0)?, stat(1)?);
    match root > 20 << 20 && other < 8 << 20 {
        true => Ok(()),
        false => Err(format!("the disks hold {root} and {other} bytes")),
    }
}

fn servers_were_killed_and_nothing_lost(folder: &Path, _: &Source) -> Result<(), String> {
    killed(folder, 5)
}

fn servers_were_killed_a_thousand_times(folder: &Path, _: &Source) -> Result<(), String> {
    killed(folder, 1000)
}

/// Servers were killed at least so often, and nothing is lost, as the last one says.
fn killed(folder: &Path, kills_min: u64) -> Result<(), String> {
    let text = fs::read_to_string(folder.join(stat_name(0))).map_err(|error| error.to_string())?;
    let values: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| error.to_string())?;
    match (values["take_overs"].as_u64(), values["lost_pages"].as_u64()) {
        (Some(kills), Some(0)) if kills >= kills_min => {
            println!("{kills} kills; {}", values["last_end"]);
            Ok(())
        }
        other => Err(format!("kills and lost pages: {other:?}")),
    }
}

fn is_module(failure: &Failure, name: &str) -> bool {
    matches!(failure, Failure::Module(text) if text.contains(name))
}

/// The guest's busybox came back byte for byte.
fn busybox_came_back(folder: &Path, programs: &Source) -> Result<(), String> {
    let ours = programs.find(install::BUSYBOX)?;
    let ours = fs::read(ours).map_err(|error| error.to_string())?;
    let theirs = fs::read(folder.join("files/busybox")).map_err(|error| error.to_string())?;
    if ours == theirs {
        Ok(())
    } else {
        Err("busybox came back from the guest with other bytes".into())
    }
}

/// The data that the guest wrote to its disks lies in their images.
fn images_were_written(folder: &Path, _: &Source) -> Result<(), String> {
    for (index, marker) in ["virtio", "pmem", "vhost-user"].into_iter().enumerate() {
        let name = image_name(index);
        let image = fs::read(folder.join(&name)).map_err(|error| format!("{name}: {error}"))?;
        let expected = format!("uzram {marker}\n");
        if !image.starts_with(expected.as_bytes()) {
            return Err(format!(
                "{name} does not start with `{}`",
                expected.trim_end()
            ));
        }
    }
    Ok(())
}
