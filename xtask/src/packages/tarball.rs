//! The tarball: the parts as they are, in one folder.

use std::path::PathBuf;

use super::parts::{FILES, PACK_LIMIT, Parts, THIRD_PARTY, VERSION};
use crate::install::{self, Tool};
use crate::process;

pub const TOOLS: &[Tool] = &[install::TAR, install::GZIP];
const MADE: &[&str] = &["uzram", "man", "completions", THIRD_PARTY];

/// The archive's place.
pub fn file(parts: &Parts) -> PathBuf {
    parts.folder.join(format!("{}.tar.gz", name(parts)))
}

fn name(parts: &Parts) -> String {
    format!("uzram-{VERSION}-{}", parts.machine)
}

/// Makes `uzram-VERSION-MACHINE.tar.gz`.
pub fn tarball(parts: &Parts) -> Result<PathBuf, String> {
    let (name, file) = (name(parts), file(parts));
    let mut tar = parts.packer(install::TAR.program);
    tar.args(["--create", "--use-compress-program=gzip -9n", "--sort=name"]);
    tar.args(["--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    tar.arg("--mode=u+rw,go+r-w,a+X");
    tar.arg(format!("--mtime=@{}", parts.epoch));
    tar.arg(format!("--transform=s,^,{name}/,"));
    tar.arg("--file").arg(&file);
    tar.arg("--directory").arg(&parts.folder);
    tar.args(MADE).args(FILES.iter().map(|(_, to)| to));
    process::succeed(&mut tar, PACK_LIMIT)?;
    Ok(file)
}
