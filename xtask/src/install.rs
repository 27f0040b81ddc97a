//! The programs that the suite drives but does not build, their Debian packages, and their
//! installation.

use std::path::Path;
use std::time::Duration;

use crate::process::{self, Output};
use crate::{debian, workspace};

const UPDATE_LIMIT: Duration = Duration::from_secs(300);
const POLICY_LIMIT: Duration = Duration::from_secs(20);
const INSTALL_LIMIT: Duration = Duration::from_secs(900);

/// A program and the Debian package that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    pub program: &'static str,
    pub package: &'static str,
}

const fn tool(program: &'static str, package: &'static str) -> Tool {
    Tool { program, package }
}

pub const AARCH64_GCC: Tool = tool("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu");
/// No program, but a file of the package: a compiler alone links nothing.
pub const AARCH64_LIBC: Tool = tool(
    "/usr/aarch64-linux-gnu/include/stdio.h",
    "libc6-dev-arm64-cross",
);
/// No program either: what a machine runs before its kernel.
pub const AARCH64_FIRMWARE: Tool = tool(
    "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd",
    "qemu-efi-aarch64",
);
pub const BUILDAH: Tool = tool("buildah", "buildah");
pub const BUSYBOX: Tool = tool("busybox", "busybox-static");
pub const CHROMIUM: Tool = tool("chromium", "chromium");
pub const CMP: Tool = tool("cmp", "diffutils");
pub const CPP: Tool = tool("g++", "g++");
pub const DPKG_DEB: Tool = tool("dpkg-deb", "dpkg");
pub const E2FSCK: Tool = tool("e2fsck", "e2fsprogs");
pub const FIO: Tool = tool("fio", "fio");
pub const GDB: Tool = tool("gdb", "gdb");
pub const GZIP: Tool = tool("gzip", "gzip");
pub const LINTIAN: Tool = tool("lintian", "lintian");
pub const LOSETUP: Tool = tool("losetup", "mount");
pub const BLKDISCARD: Tool = tool("blkdiscard", "util-linux");
pub const FUSERMOUNT: Tool = tool("fusermount3", "fuse3");
pub const MKFS_BTRFS: Tool = tool("mkfs.btrfs", "btrfs-progs");
pub const MKFS_XFS: Tool = tool("mkfs.xfs", "xfsprogs");
pub const MKFS: Tool = tool("mkfs.ext4", "e2fsprogs");
pub const MKE2FS: Tool = tool("mke2fs", "e2fsprogs");
pub const MMDEBSTRAP: Tool = tool("mmdebstrap", "mmdebstrap");
pub const NBD_CLIENT: Tool = tool("nbd-client", "nbd-client");
pub const NBDCOPY: Tool = tool("nbdcopy", "libnbd-bin");
pub const NBDINFO: Tool = tool("nbdinfo", "libnbd-bin");
pub const NDCTL: Tool = tool("ndctl", "ndctl");
pub const PODMAN: Tool = tool("podman", "podman");
pub const PROMETHEUS: Tool = tool("prometheus", "prometheus");
pub const PROMTOOL: Tool = tool("promtool", "prometheus");
pub const QEMU_AARCH64: Tool = tool("qemu-aarch64-static", "qemu-user-static");
pub const QEMU_IMG: Tool = tool("qemu-img", "qemu-utils");
pub const QEMU_IO: Tool = tool("qemu-io", "qemu-utils");
pub const QEMU_NBD: Tool = tool("qemu-nbd", "qemu-utils");
pub const QEMU_DAEMON: Tool = tool("qemu-storage-daemon", "qemu-system-common");
pub const QEMU_SYSTEM: Tool = tool("qemu-system-x86_64", "qemu-system-x86");
pub const QEMU_SYSTEM_ARM: Tool = tool("qemu-system-aarch64", "qemu-system-arm");
pub const RUNC: Tool = tool("runc", "runc");
pub const SOCAT: Tool = tool("socat", "socat");
pub const TAR: Tool = tool("tar", "tar");
pub const UNSHARE: Tool = tool("unshare", "util-linux");
/// Its package has swap made at the next boot of a machine that systemd starts; see [`missing_here`].
pub const ZRAM_GENERATOR: Tool = tool(
    "/usr/lib/systemd/system-generators/zram-generator",
    "systemd-zram-generator",
);
pub const XZ: Tool = tool("xz", "xz-utils");

/// Every program that some step can use.
pub const ALL: &[Tool] = &[
    AARCH64_GCC,
    AARCH64_LIBC,
    AARCH64_FIRMWARE,
    BUILDAH,
    BUSYBOX,
    CHROMIUM,
    CMP,
    CPP,
    E2FSCK,
    FIO,
    LINTIAN,
    LOSETUP,
    BLKDISCARD,
    FUSERMOUNT,
    GDB,
    MKFS,
    MKFS_BTRFS,
    MKFS_XFS,
    MMDEBSTRAP,
    NBD_CLIENT,
    NBDCOPY,
    NBDINFO,
    NDCTL,
    PODMAN,
    PROMETHEUS,
    PROMTOOL,
    QEMU_AARCH64,
    QEMU_IMG,
    QEMU_IO,
    QEMU_NBD,
    QEMU_DAEMON,
    QEMU_SYSTEM,
    QEMU_SYSTEM_ARM,
    RUNC,
    SOCAT,
    XZ,
    ZRAM_GENERATOR,
];

/// The tools of `tools` that are missing.
pub fn missing(tools: &[Tool]) -> Vec<Tool> {
    let absent = |tool: &&Tool| workspace::find_program(tool.program).is_none();
    tools.iter().filter(absent).copied().collect()
}

/// Refuses to go on if anything is missing.
///
/// # Errors
/// One line with what is missing and the command that installs it.
pub fn require(missing: Vec<Tool>) -> Result<(), String> {
    if missing.is_empty() {
        return Ok(());
    }
    let programs: Vec<_> = missing.iter().map(|tool| tool.program).collect();
    let line = apt_line(&packages(&missing));
    Err(format!("no {}; as root: {line}", programs.join(", ")))
}

/// The packages of `tools`, sorted, each once.
pub fn packages(tools: &[Tool]) -> Vec<&'static str> {
    let mut packages: Vec<_> = tools.iter().map(|tool| tool.package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// The one line that installs `packages`.
pub fn apt_line(packages: &[&str]) -> String {
    format!(
        "apt-get update && apt-get install -y --no-install-recommends --no-remove {}",
        packages.join(" ")
    )
}

/// The tools of [`ALL`] that are missing, but for one that would change how this machine boots.
fn missing_here() -> Vec<Tool> {
    let is_booted_by_systemd = Path::new("/run/systemd/system").exists();
    let mut tools = missing(ALL);
    tools.retain(|tool| *tool != ZRAM_GENERATOR || !is_booted_by_systemd);
    tools
}

/// Installs the missing packages of [`ALL`], and removes nothing. A package that cannot be
/// installed is named and stays missing; steps that need it are then left out by name.
pub fn install_missing() {
    let wanted = packages(&missing_here());
    if wanted.is_empty() {
        return;
    }
    if !rustix::process::geteuid().is_root() || workspace::find_program("apt-get").is_none() {
        println!(
            "install: needs root on Debian; as root: {}",
            apt_line(&wanted)
        );
        return;
    }
    println!("install: {}", apt_line(&wanted));
    // An index that is partly out of reach may still have what we need.
    if let Err(message) = apt_get(&["update"], UPDATE_LIMIT) {
        println!("install: {message}");
    }
    if install(&wanted).is_err() {
        for package in &wanted {
            if let Err(message) = install(&[package]) {
                println!("install: {package} is not to be had: {message}");
            }
        }
    }
    install_rest_of_qemu();
    for tool in missing_here() {
        println!("install: no {} even now ({})", tool.program, tool.package);
    }
}

/// QEMU's packages must be of one release, because they exclude each other otherwise. Where one is
/// from backports, which need not be among apt's sources, the others must be as well.
fn install_rest_of_qemu() {
    let mut rest = packages(&missing(ALL));
    rest.retain(|package| package.starts_with("qemu-"));
    if rest.is_empty() {
        return;
    }
    println!("install: {} from backports", rest.join(" "));
    if let Err(message) = debian::install(&rest) {
        println!("install: {message}");
    }
}

/// Whether apt knows a version of `package` to install.
pub fn is_available(package: &str) -> bool {
    let mut policy = workspace::command("apt-cache");
    process::succeed(policy.args(["policy", package]), POLICY_LIMIT)
        .is_ok_and(|said| has_candidate(&said.stdout))
}

fn has_candidate(policy: &str) -> bool {
    let candidate = policy
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate: "));
    candidate.is_some_and(|version| version != "(none)")
}

fn install(packages: &[&str]) -> Result<(), String> {
    let mut arguments = vec!["install", "-y", "--no-install-recommends", "--no-remove"];
    arguments.extend_from_slice(packages);
    apt_get(&arguments, INSTALL_LIMIT)
}

fn apt_get(arguments: &[&str], limit: Duration) -> Result<(), String> {
    let mut command = workspace::command("apt-get");
    command
        .arg("-q")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive");
    let finished = process::run(&mut command, limit, Output::Kept)?;
    match finished.exit {
        process::Exit::Code(0) => Ok(()),
        _ => Err(process::failure(&command, &finished)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_named_once() {
        assert_eq!(packages(&[MKFS, FIO, E2FSCK]), ["e2fsprogs", "fio"]);
    }

    #[test]
    fn absent_programs_are_missing_and_present_ones_are_not() {
        let absent = tool("no-such-program", "no-such-package");
        assert_eq!(missing(&[tool("sh", "dash"), absent]), [absent]);
    }

    #[test]
    fn a_package_without_a_candidate_is_not_available() {
        assert!(has_candidate(
            "fio:\n  Installed: (none)\n  Candidate: 3.33-3\n"
        ));
        assert!(!has_candidate("x:\n  Installed: 1\n  Candidate: (none)\n"));
        assert!(!has_candidate(""));
    }

    #[test]
    fn nothing_is_removed_by_the_line_for_users() {
        assert!(apt_line(&["fio"]).ends_with("--no-remove fio"));
    }
}
