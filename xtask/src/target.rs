//! The targets of builds: this machine, and aarch64 through Debian's cross compiler.
//!
//! The compiler's C library is glibc. For musl the codecs in C are compiled with glibc's headers, and without what
//! only glibc has: checked versions of functions, guards of the stack, and atomics outside of the code.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::install::{self, Tool};
use crate::{process, workspace};

const AARCH64_GNU: &str = "aarch64-unknown-linux-gnu";
const AARCH64_MUSL: &str = "aarch64-unknown-linux-musl";

const CROSS_TOOLS: &[Tool] = &[install::AARCH64_GCC, install::AARCH64_LIBC];
const MUSL_CFLAGS: &str =
    "-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=0 -fno-stack-protector -mno-outline-atomics";
const ASK_LIMIT: Duration = Duration::from_secs(60);
const ADD_LIMIT: Duration = Duration::from_secs(300);

/// A target that can be built for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    triple: String,
    is_cross: bool,
}

impl Target {
    /// This machine.
    ///
    /// # Errors
    /// If the compiler does not say what it is.
    pub fn host() -> Result<Target, String> {
        let finished = process::succeed(rustc().arg("-vV"), ASK_LIMIT)?;
        let host = finished
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix("host: "));
        let triple = host.ok_or("`rustc -vV` names no host")?.to_string();
        let is_cross = false;
        Ok(Target { triple, is_cross })
    }

    /// aarch64 with glibc, as most users build.
    pub fn aarch64_gnu() -> Target {
        Target::cross(AARCH64_GNU)
    }

    /// aarch64 with musl, whose static programs are the smallest.
    pub fn aarch64_musl() -> Target {
        Target::cross(AARCH64_MUSL)
    }

    fn cross(triple: &str) -> Target {
        Target {
            triple: triple.into(),
            is_cross: true,
        }
    }

    /// The target called `triple`.
    ///
    /// # Errors
    /// One line with the known ones.
    pub fn parse(triple: &str) -> Result<Target, String> {
        let host = Target::host()?;
        if host.triple == triple {
            return Ok(host);
        }
        if ![AARCH64_GNU, AARCH64_MUSL].contains(&triple) {
            return Err(format!(
                "target {triple}: must be {}, {AARCH64_GNU} or {AARCH64_MUSL}",
                host.triple
            ));
        }
        Ok(Target::cross(triple))
    }

    pub fn triple(&self) -> &str {
        &self.triple
    }

    /// Whether its programs run on this machine only in an emulator or a guest.
    pub fn is_cross(&self) -> bool {
        self.is_cross
    }

    /// The folder of its files: `base` for this machine's, below it one for each other target.
    pub fn folder(&self, base: PathBuf) -> PathBuf {
        match self.is_cross {
            true => base.join(&self.triple),
            false => base,
        }
    }

    /// The programs that its builds lack.
    pub fn missing_tools(&self) -> Vec<Tool> {
        match self.is_cross {
            true => install::missing(CROSS_TOOLS),
            false => Vec::new(),
        }
    }

    /// Makes sure of all that its builds need; the standard library is fetched through rustup if `may_add`.
    ///
    /// # Errors
    /// One line with what lacks and the command that brings it.
    pub fn require(&self, may_add: bool) -> Result<(), String> {
        install::require(self.missing_tools())?;
        self.require_library(may_add)
    }

    /// Makes sure of its standard library, which is fetched through rustup if `may_add`.
    ///
    /// # Errors
    /// One line with the command that brings it.
    pub fn require_library(&self, may_add: bool) -> Result<(), String> {
        let triple = &self.triple;
        if !self.has_library() && may_add {
            let mut rustup = workspace::command("rustup");
            rustup.args(["target", "add", triple]);
            // The look below says whether it helped.
            let _ = process::succeed(&mut rustup, ADD_LIMIT);
        }
        self.has_library()
            .then_some(())
            .ok_or_else(|| format!("no Rust library for {triple}; rustup target add {triple}"))
    }

    fn has_library(&self) -> bool {
        let mut command = rustc();
        command.args(["--print", "target-libdir", "--target", &self.triple]);
        process::succeed(&mut command, ASK_LIMIT)
            .is_ok_and(|said| Path::new(said.stdout.trim()).is_dir())
    }

    /// Gives `cargo` the target and its compiler.
    pub fn configure(&self, cargo: &mut Command) {
        cargo.args(["--target", &self.triple]);
        if !self.is_cross {
            return;
        }
        let lower = self.triple.replace('-', "_");
        let linker = format!("CARGO_TARGET_{}_LINKER", lower.to_uppercase());
        cargo
            .env(linker, install::AARCH64_GCC.program)
            .env(format!("CC_{lower}"), install::AARCH64_GCC.program);
        if self.triple == AARCH64_MUSL {
            cargo.env(format!("CFLAGS_{lower}"), MUSL_CFLAGS);
        }
    }

    /// The compiler alone, for a program of one file without dependencies.
    pub fn rustc(&self) -> Command {
        let mut command = rustc();
        command.args(["--target", &self.triple]);
        if self.is_cross {
            command.arg(format!("-Clinker={}", install::AARCH64_GCC.program));
        }
        command
    }
}

fn rustc() -> Command {
    workspace::command(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_targets_are_parsed_and_others_named() {
        let host = Target::host().unwrap();
        assert_eq!(Target::parse(host.triple()), Ok(host));
        assert!(Target::parse(AARCH64_MUSL).is_ok());
        let refused = Target::parse("riscv64gc-unknown-linux-gnu").unwrap_err();
        assert!(refused.starts_with("target riscv64gc-unknown-linux-gnu: must be "));
        assert!(refused.contains(AARCH64_GNU), "{refused}");
    }

    #[test]
    fn a_build_with_musl_leaves_out_what_only_glibc_has() {
        let flags = |triple: &str| {
            let mut cargo = Command::new("cargo");
            Target::parse(triple).unwrap().configure(&mut cargo);
            let mut set = cargo.get_envs();
            set.find_map(|(name, value)| {
                (name == "CFLAGS_aarch64_unknown_linux_musl")
                    .then(|| value.map(|value| value.to_owned()))
            })
        };
        let musl = flags(AARCH64_MUSL).flatten().unwrap();
        assert!(musl.to_string_lossy().contains("-mno-outline-atomics"));
        assert_eq!(flags(AARCH64_GNU), None);
    }
}
