//! Places (the checkout, the target directory) and commands with a predictable environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the checkout for which cargo runs this program. It may differ from the one in which
/// the program was compiled, because checkouts may share a target directory.
pub fn root() -> PathBuf {
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR");
    let xtask = xtask.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    xtask.parent().map_or(xtask.clone(), Path::to_path_buf)
}

/// Cargo's target directory: `CARGO_TARGET_DIR`, else `target`.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The folder in which the files of a package are put together.
pub fn dist_dir() -> PathBuf {
    target_dir().join("dist")
}

/// The folder of programs that the suite builds for itself.
pub fn tools_dir() -> PathBuf {
    target_dir().join("tools")
}

/// The program in the first directory of the search path that has it.
pub fn find_program(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&search_path())
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

/// A command that runs in the root of the checkout, in the C locale, without input.
pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command.env("PATH", search_path());
    command.env("LC_ALL", "C");
    command.stdin(std::process::Stdio::null());
    command
}

/// The messages that cargo has written as JSON, a line each.
pub fn messages(stdout: &str) -> impl DoubleEndedIterator<Item = serde_json::Value> {
    let lines = stdout.lines();
    lines.filter_map(|line| serde_json::from_str(line).ok())
}

/// Cargo, of the toolchain that runs us, with the shared target directory. It is not told for which crate cargo
/// runs us: some build scripts would run again, and all that needs theirs be built again.
pub fn cargo() -> Command {
    let mut cargo = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo.env("CARGO_TARGET_DIR", target_dir());
    cargo
}

/// `PATH` with the administrator's programs, because plain users lack them.
fn search_path() -> OsString {
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&inherited).collect();
    dirs.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    std::env::join_paths(dirs).unwrap_or(inherited)
}
