//! `cargo xtask dist`: one static binary, the proof that it serves with nothing else around it, and its packages.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::elf::{self, Needs};
use crate::packages::{self, Parts};
use crate::process::{self, Exit, Output, Running};
use crate::report::Report;
use crate::target::Target;
use crate::{e2e, install, man, workspace};

/// The binary must fit a small initramfs.
const SIZE_MAX_BYTES: u64 = 12 << 20;
const BUILD_LIMIT: Duration = Duration::from_secs(1200);
const TOOL_LIMIT: Duration = Duration::from_secs(60);
const START_LIMIT: Duration = Duration::from_secs(20);

/// The arguments of `dist`.
#[derive(Debug)]
pub struct Options {
    target: Target,
    install: bool,
}

impl Options {
    /// Reads the arguments of `dist`.
    ///
    /// # Errors
    /// One line that names the unknown argument.
    pub fn parse(arguments: &[String]) -> Result<Options, String> {
        let mut options = Options::native()?;
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--install" => options.install = true,
                "--target" => {
                    let triple = arguments.next().ok_or("--target: give a target")?;
                    options.target = Target::parse(triple)?;
                }
                other => return Err(format!("dist: `{other}` is unknown")),
            }
        }
        Ok(options)
    }

    /// Those of a build for this machine.
    ///
    /// # Errors
    /// If the compiler does not say what this machine is.
    pub fn native() -> Result<Options, String> {
        Ok(Options {
            target: Target::host()?,
            install: false,
        })
    }
}

/// Builds the binary, checks it, packs it and prints the paths. What cannot be packed here is in the report.
///
/// # Errors
/// If it cannot be built, is too large, needs anything, does not serve, or cannot be packed.
pub fn dist(options: &Options, report: &mut Report) -> Result<Parts, String> {
    let target = &options.target;
    if options.install {
        install::install_missing();
    }
    target.require(options.install)?;
    let path = build(target)?;
    check(&path, target)?;
    let out = target.folder(workspace::dist_dir());
    man::man(&out)?;
    println!("{}", path.display());
    let parts = Parts::gather(&out, target)?;
    packages::pack(&parts, report)?;
    // Those of this machine are checked by the suite, which takes minutes.
    if target.is_cross() {
        packages::check(&parts, report);
    }
    Ok(parts)
}

/// Builds the Debian package, unchecked.
///
/// # Errors
/// If it cannot be built.
pub fn package(target: &Target) -> Result<PathBuf, String> {
    build(target)?;
    let out = target.folder(workspace::dist_dir());
    man::man(&out)?;
    packages::debian_package(&Parts::gather(&out, target)?, packages::VERSION)
}

/// Builds the binary, unchecked.
///
/// # Errors
/// If it cannot be built.
pub fn build(target: &Target) -> Result<PathBuf, String> {
    let out = target.folder(workspace::dist_dir());
    build_program("uzram-cli", "--bin", "uzram", target, &out)
}

/// Builds the laboratory's program in the same way. It goes to the guests' other files, because it
/// is not shipped.
///
/// # Errors
/// If it cannot be built.
pub fn build_laboratory(target: &Target) -> Result<PathBuf, String> {
    let out = target.folder(workspace::tools_dir());
    build_program("uzram-bench", "--bin", "uzram-bench", target, &out)
}

/// Builds the engine's example `instructions`, static.
///
/// # Errors
/// If it cannot be built.
pub fn build_instructions(target: &Target) -> Result<PathBuf, String> {
    let out = target.folder(workspace::tools_dir());
    build_program("uzram", "--example", "instructions", target, &out)
}

/// A program of tests: its package and its kind joined, as `uzram-unit`, and its file.
pub type TestProgram = (String, PathBuf);

/// Builds the engine's and the devices' tests, static, for guests.
///
/// # Errors
/// If they cannot be built.
pub fn build_tests(target: &Target) -> Result<Vec<TestProgram>, String> {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--no-run", "--message-format=json"]);
    cargo.args(["-p", "uzram", "-p", "uzram-media", "--lib", "--test", "it"]);
    target.configure(&mut cargo);
    let flags = "-Ctarget-feature=+crt-static\x1f-Cstrip=debuginfo";
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags);
    let finished = process::succeed(&mut cargo, BUILD_LIMIT)?;
    let programs: Vec<_> = workspace::messages(&finished.stdout)
        .filter_map(|message| test_program(&message))
        .collect();
    match programs.is_empty() {
        true => Err(format!("`{}` named no program", process::line(&cargo))),
        false => Ok(programs),
    }
}

/// The program that one of cargo's messages tells of.
fn test_program(message: &serde_json::Value) -> Option<TestProgram> {
    let file = PathBuf::from(message["executable"].as_str()?);
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let package = manifest.parent()?.file_name()?.to_str()?;
    let kind = match message["target"]["kind"][0].as_str()? {
        "test" => message["target"]["name"].as_str()?,
        _ => "unit",
    };
    Some((format!("{package}-{kind}"), file))
}

fn build_program(
    package: &str,
    kind: &str,
    name: &str,
    target: &Target,
    out: &Path,
) -> Result<PathBuf, String> {
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--profile", "dist", "-p", package, kind, name]);
    // Without a target the flags would also go to procedural macros, which must be dynamic.
    target.configure(&mut cargo);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static");
    let finished = process::run(&mut cargo, BUILD_LIMIT, Output::Shown)?;
    if finished.exit != Exit::Code(0) {
        return Err(process::failure(&cargo, &finished));
    }
    let built = workspace::target_dir().join(target.triple());
    let folder = match kind {
        "--example" => "dist/examples",
        _ => "dist",
    };
    let built = built.join(folder).join(name);
    let path = out.join(name);
    let copy = fs::create_dir_all(out).and_then(|()| fs::copy(&built, &path));
    copy.map_err(|error| format!("{} to {}: {error}", built.display(), path.display()))?;
    Ok(path)
}

fn check(path: &Path, target: &Target) -> Result<(), String> {
    let file = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let size_bytes = file.len() as u64;
    if size_bytes > SIZE_MAX_BYTES {
        return Err(format!(
            "the binary has {size_bytes} bytes, at most {SIZE_MAX_BYTES} are allowed"
        ));
    }
    let needs = elf::needs(&file)?;
    if needs != Needs::default() {
        return Err(format!("the binary is not static: {needs:?}"));
    }
    println!("dist: static, {size_bytes} bytes of at most {SIZE_MAX_BYTES}");
    println!("dist: {}", serve_alone(path, target)?);
    let mut sum = workspace::command("sha256sum");
    if let Ok(finished) = process::succeed(sum.arg(path), TOOL_LIMIT) {
        print!("{}", finished.stdout);
    }
    Ok(())
}

/// Serves from a root directory that holds the binary and nothing else: no /dev, /proc, /run, no
/// libraries. For another architecture an emulator is there too. `Ok` tells how it was tested, or why
/// it could not be.
fn serve_alone(binary: &Path, target: &Target) -> Result<String, String> {
    let io_error = |error: std::io::Error| format!("bare root directory: {error}");
    let root = tempfile::tempdir().map_err(io_error)?;
    fs::copy(binary, root.path().join("uzram")).map_err(io_error)?;
    let mut start = vec!["/uzram"];
    if target.is_cross() {
        let Some(emulator) = workspace::find_program(install::QEMU_AARCH64.program) else {
            return Ok("not tested alone: no emulator here".into());
        };
        fs::copy(emulator, root.path().join("emulator")).map_err(io_error)?;
        start.insert(0, "/emulator");
    }
    let Some(mut command) = enter(root.path(), &start) else {
        return Ok("not tested alone: neither root nor user namespaces here".into());
    };
    command.args(["serve", "--size", "16M", "--socket", "/socket"]);
    command.env_clear();
    // The log lies outside of the root that the server sees.
    let log = tempfile::NamedTempFile::new().map_err(io_error)?;
    command.stdout(Stdio::from(log.reopen().map_err(io_error)?));
    command.stderr(Stdio::from(log.reopen().map_err(io_error)?));
    let said = || fs::read_to_string(log.path()).unwrap_or_default();

    let mut server = Running::start(&mut command)?;
    let socket = root.path().join("socket");
    let deadline = Instant::now() + START_LIMIT;
    // Its socket is there a moment before it listens.
    while UnixStream::connect(&socket).is_err() {
        if server.wait(Duration::from_millis(20)).is_some() || Instant::now() > deadline {
            return Err(format!(
                "does not serve in a bare root directory:\n{}",
                said()
            ));
        }
    }
    e2e::write_and_read(&socket, 16 << 20).map_err(|error| format!("{error}\n{}", said()))?;
    server.terminate();
    match server.wait(START_LIMIT).map(Exit::from) {
        Some(Exit::Code(0)) => Ok("serves from a root directory that holds nothing else".into()),
        other => Err(format!(
            "the server did not leave when asked to ({other:?}):\n{}",
            said()
        )),
    }
}

/// The command `start` with `root` as its root directory, if this user may do that.
fn enter(root: &Path, start: &[&str]) -> Option<Command> {
    let mut attempts = vec![vec!["chroot"]];
    if !rustix::process::geteuid().is_root() {
        attempts = vec![vec!["unshare", "--user", "--map-root-user", "chroot"]];
    }
    attempts.into_iter().find_map(|words| {
        let make = || {
            let program = workspace::find_program(words[0])?;
            let mut command = workspace::command(program);
            command.args(&words[1..]).arg(root).args(start);
            Some(command)
        };
        // `--version` needs nothing but the binary itself.
        let probe = process::succeed(make()?.arg("--version"), TOOL_LIMIT);
        probe.is_ok().then(make).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_tests_are_named_by_package_and_kind() {
        let message = |kind: &str, executable: Option<&str>| {
            let message = serde_json::json!({
                "manifest_path": "/there/crates/uzram-media/Cargo.toml",
                "target": {"kind": [kind], "name": "it"},
                "executable": executable,
            });
            test_program(&message).map(|(name, _)| name)
        };
        assert_eq!(message("lib", Some("a")).unwrap(), "uzram-media-unit");
        assert_eq!(message("test", Some("b")).unwrap(), "uzram-media-it");
        assert_eq!(message("lib", None), None);
    }
}
