//! The machines that guests can be: this machine's architecture, and aarch64 with small and large pages.

use crate::debian;
use crate::install::{self, Tool};
use crate::target::Target;

/// A kind of machine.
#[derive(Debug, PartialEq, Eq)]
pub struct Platform {
    /// The word for `--arch`.
    pub name: &'static str,
    /// Debian's word for the architecture.
    pub debian: &'static str,
    /// The package that depends on the newest kernel, and the end of that kernel's release.
    pub kernel_package: &'static str,
    pub kernel_suffix: &'static str,
    pub emulator: Tool,
    /// QEMU's machine and its processor.
    pub machine: &'static str,
    pub cpu: &'static str,
    /// An emulated foreign processor is slow, so it is a single one.
    pub cpus: u32,
    /// The kernel's name of the console.
    pub console: &'static str,
    /// The firmware, which describes persistent memory to the kernel where the machine itself does not.
    pub firmware: Option<Tool>,
    /// The program that runs the guest's programs on this machine.
    pub runner: Option<Tool>,
}

const AARCH64: Platform = Platform {
    name: "aarch64",
    debian: "arm64",
    kernel_package: "linux-image-arm64",
    kernel_suffix: "-arm64",
    emulator: install::QEMU_SYSTEM_ARM,
    machine: "virt,gic-version=3",
    // The real signatures of pointers take half of an emulated processor's time.
    cpu: "max,pauth-impdef=on",
    cpus: 1,
    console: "ttyAMA0",
    firmware: Some(install::AARCH64_FIRMWARE),
    runner: Some(install::QEMU_AARCH64),
};

/// This machine's first.
pub const PLATFORMS: &[Platform] = &[
    Platform {
        name: "x86_64",
        debian: debian::AMD64,
        kernel_package: "linux-image-amd64",
        kernel_suffix: "-amd64",
        emulator: install::QEMU_SYSTEM,
        machine: "q35",
        cpu: "max",
        cpus: 2,
        console: "ttyS0",
        firmware: None,
        runner: None,
    },
    AARCH64,
    Platform {
        name: "aarch64-16k",
        kernel_package: "linux-image-arm64-16k",
        kernel_suffix: "-arm64-16k",
        ..AARCH64
    },
];

impl Platform {
    /// The platform called `name`.
    ///
    /// # Errors
    /// One line with the known ones.
    pub fn parse(name: &str) -> Result<&'static Platform, String> {
        let found = PLATFORMS.iter().find(|platform| platform.name == name);
        found.ok_or_else(|| {
            let known: Vec<_> = PLATFORMS.iter().map(|platform| platform.name).collect();
            format!("--arch {name}: must be {}", known.join(" or "))
        })
    }

    /// This machine's.
    pub fn native() -> &'static Platform {
        &PLATFORMS[0]
    }

    pub fn is_native(&self) -> bool {
        self.runner.is_none()
    }

    /// The target for which the guest's programs are built.
    ///
    /// # Errors
    /// If the compiler does not say what this machine is.
    pub fn target(&self) -> Result<Target, String> {
        match self.is_native() {
            true => Target::host(),
            false => Ok(Target::aarch64_musl()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_named_and_others_refused() {
        assert_eq!(Platform::parse("x86_64"), Ok(Platform::native()));
        assert!(!Platform::parse("aarch64-16k").unwrap().is_native());
        let error = Platform::parse("riscv64").unwrap_err();
        assert!(
            error.starts_with("--arch riscv64: must be x86_64 or aarch64"),
            "{error}"
        );
    }
}
