//! Packages, used as their users use them: lintian reads the Debian package, a clean system gets it, an upgrade and a
//! purge, and two programs run the container image. Packages for another machine are not installed.

mod clean_system;
mod containers;
mod program;
mod recipes;
mod server;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::deb::{self, debian_package};
use super::parts::{Parts, VERSION, read};
use super::{image, tarball};
use crate::clean_root;
use crate::install::{self, Tool};
use crate::process;
use crate::report::Report;
use crate::workspace;

const LINTIAN_LIMIT: Duration = Duration::from_secs(120);

struct Check {
    name: &'static str,
    tools: &'static [&'static [Tool]],
    needs_root: bool,
    /// Whether the packages must be for this machine.
    is_native: bool,
    run: fn(&Parts) -> Result<String, String>,
}

const CHECKS: &[Check] = &[
    Check {
        name: "the same parts give the same packages",
        tools: &[tarball::TOOLS, deb::TOOLS],
        needs_root: false,
        is_native: false,
        run: same_again,
    },
    Check {
        name: "lintian has no tag without a reason",
        tools: &[deb::TOOLS, &[install::LINTIAN]],
        needs_root: false,
        is_native: false,
        run: lintian,
    },
    Check {
        name: "the tarball has the program of its machine, and it runs",
        tools: &[tarball::TOOLS],
        needs_root: false,
        is_native: false,
        run: program::in_tarball,
    },
    Check {
        name: "the .deb has the program of its machine, and it runs",
        tools: &[deb::TOOLS],
        needs_root: false,
        is_native: false,
        run: program::in_deb,
    },
    Check {
        name: "the image has the program of its machine, and it runs",
        tools: &[image::TOOLS, tarball::TOOLS],
        needs_root: false,
        is_native: false,
        run: program::in_image,
    },
    Check {
        name: "installed, upgraded and purged with a disk up",
        tools: &[deb::TOOLS, clean_root::TOOLS],
        needs_root: true,
        is_native: true,
        run: clean_system::live,
    },
    Check {
        name: "the image serves in podman and in runc",
        tools: &[image::TOOLS, &[install::PODMAN, install::RUNC]],
        needs_root: true,
        is_native: true,
        run: containers::serve,
    },
    Check {
        name: "the commands of docs/recipes work",
        tools: &[
            image::TOOLS,
            &[
                install::PODMAN,
                install::RUNC,
                install::NBDINFO,
                install::NBDCOPY,
                install::MKFS,
                install::UNSHARE,
            ],
        ],
        needs_root: true,
        is_native: true,
        run: recipes::run,
    },
];

type Make = fn(&Parts) -> Result<PathBuf, String>;

/// Checks the packages of `parts`, as far as this machine can.
pub fn check(parts: &Parts, report: &mut Report) {
    let is_root = rustix::process::geteuid().is_root();
    let fits = |check: &&Check| parts.is_native() || !check.is_native;
    for check in CHECKS.iter().filter(fits) {
        let tools: Vec<Tool> = check.tools.iter().copied().flatten().copied().collect();
        let missing = install::missing(&tools);
        if !missing.is_empty() {
            let packages = install::packages(&missing);
            let what = format!("dist: {} (no {})", check.name, packages.join(", "));
            report.leave_out(what, &packages);
        } else if check.needs_root && !is_root {
            report.leave_out(format!("dist: {} (needs root)", check.name), &[]);
        } else {
            let started = Instant::now();
            let result = (check.run)(parts);
            report.check(&format!("dist: {}", check.name), started.elapsed(), result);
        }
    }
}

/// Each made once more, at another time.
fn same_again(parts: &Parts) -> Result<String, String> {
    let makes: [Make; 2] = [tarball::tarball, |parts| debian_package(parts, VERSION)];
    for (make, file) in makes
        .into_iter()
        .zip([tarball::file(parts), deb::file(parts, VERSION)])
    {
        let first = read(&file)?;
        // Times of files are whole seconds.
        std::thread::sleep(Duration::from_millis(1100));
        if read(&make(parts)?)? != first {
            return Err(format!("{}: other bytes the second time", file.display()));
        }
    }
    Ok(String::new())
}

fn lintian(parts: &Parts) -> Result<String, String> {
    let mut lintian = workspace::command(install::LINTIAN.program);
    lintian.args([
        "--allow-root",
        "--no-cfg",
        "--pedantic",
        "--display-info",
        "--tag-display-limit",
        "0",
        // Bytes of machine code can look like words: which ones, if any, changes with each build.
        "--suppress-tags",
        "spelling-error-in-binary",
    ]);
    let said = process::succeed(lintian.arg(deb::file(parts, VERSION)), LINTIAN_LIMIT)?.stdout;
    let tags: Vec<&str> = said
        .lines()
        .filter(|line| !line.starts_with("N: "))
        .collect();
    match tags.is_empty() {
        true => Ok(String::new()),
        false => Err(tags.join("\n")),
    }
}
