//! Packages of what `dist` has put together: a tarball, a Debian package and a container image.
//!
//! The same commit gives the same bytes: all times are the last commit's. What a missing program would make is left
//! out.

mod check;
mod deb;
mod image;
mod licences;
mod parts;
mod tarball;

use std::path::PathBuf;

use crate::install::{self, Tool};
use crate::report::Report;

pub use check::check;
pub use deb::debian_package;
pub use parts::{Parts, VERSION};

/// Makes a package of the parts, and says where it lies.
type Make = fn(&Parts) -> Result<PathBuf, String>;

/// Makes all packages that this machine can make, and prints their paths.
///
/// # Errors
/// The words of the program that could not pack.
pub fn pack(parts: &Parts, report: &mut Report) -> Result<(), String> {
    let kinds: [(&str, &[Tool], Make); 3] = [
        ("tarball", tarball::TOOLS, tarball::tarball),
        (".deb", deb::TOOLS, |parts| debian_package(parts, VERSION)),
        ("container image", image::TOOLS, image::image),
    ];
    for (kind, tools, make) in kinds {
        let missing = install::missing(tools);
        if missing.is_empty() {
            println!("{}", make(parts)?.display());
            continue;
        }
        let programs: Vec<_> = missing.iter().map(|tool| tool.program).collect();
        let what = format!("dist: {kind} (no {})", programs.join(", "));
        report.leave_out(what, &install::packages(&missing));
    }
    Ok(())
}
