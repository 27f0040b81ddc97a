//! The container image, from nothing but the binary.

use std::fs;
use std::path::PathBuf;

use super::parts::{PACK_LIMIT, Parts, THIRD_PARTY, VERSION, copy, set_mode, workplace};
use crate::install::{self, Tool};
use crate::{process, workspace};

pub const TOOLS: &[Tool] = &[install::BUILDAH];
/// The image's name within its archive.
pub const NAME: &str = "uzram";
/// The files that packaging/Containerfile copies.
const CONTEXT: [(&str, u32); 4] = [
    ("uzram", 0o755),
    ("LICENSE-MIT", 0o644),
    ("LICENSE-APACHE", 0o644),
    (THIRD_PARTY, 0o644),
];

/// The archive's place.
pub fn file(parts: &Parts) -> PathBuf {
    parts.folder.join("uzram-image.tar")
}

/// Makes `uzram-image.tar`, an archive that `podman load` and `docker load` take.
pub fn image(parts: &Parts) -> Result<PathBuf, String> {
    let work = workplace(parts)?;
    let context = work.path().join("context");
    for (name, mode) in CONTEXT {
        copy(&parts.folder.join(name), &context.join(name), mode)?;
    }
    let failed = |error: std::io::Error| format!("{}: {error}", context.display());
    fs::create_dir_all(context.join("run")).map_err(failed)?;
    set_mode(&context.join("run"), 0o755)?;
    let storage = work.path().join("storage");
    let buildah = || {
        let mut buildah = parts.packer(install::BUILDAH.program);
        // A store of its own: nothing of the system's is read or changed.
        buildah.args(["--storage-driver", "vfs"]);
        buildah.arg("--root").arg(storage.join("root"));
        buildah.arg("--runroot").arg(storage.join("run"));
        buildah
    };
    let tag = format!("{NAME}:{VERSION}");
    let mut build = buildah();
    // Nothing runs while it is built, so no network is set up.
    build.args(["build", "--isolation", "chroot"]);
    build.args([
        "--arch",
        parts.debian,
        "--timestamp",
        &parts.epoch,
        "--tag",
        &tag,
    ]);
    build
        .arg("--file")
        .arg(workspace::root().join("packaging/Containerfile"));
    process::succeed(build.arg(&context), PACK_LIMIT)?;

    let file = file(parts);
    // An archive is not written over.
    let _ = fs::remove_file(&file);
    let mut push = buildah();
    push.args(["push", &tag]);
    push.arg(format!("docker-archive:{}:{tag}", file.display()));
    process::succeed(&mut push, PACK_LIMIT)?;
    Ok(file)
}
