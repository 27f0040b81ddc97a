//! `cargo xtask vm`: tests that need a kernel with modules, in a guest of Debian's kernel under
//! QEMU.
//!
//! A guest is a kernel (`kernel`, `package`), modules (`modules`), programs (`programs`) in a root
//! filesystem (`initramfs`), a machine (`qemu`) of some kind (`platform`) and its output (`watch`). `tests` lists
//! the tests. All files of a guest lie in `target/vm/TEST`, also after a failure.

mod debian_disk;
mod initramfs;
pub mod kernel;
mod modules;
mod platform;
mod programs;
mod qemu;
mod tests;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use crate::dist::{self, TestProgram};
use crate::install::{self, Tool};
use crate::report::Report;
use crate::workspace;
use debian_disk::System;
use initramfs::Initramfs;
use kernel::{Kernel, Kernels, Series};
use modules::Module;
use platform::Platform;
use programs::Source;
use qemu::Guest;
use tests::{GuestTest, TESTS};
use watch::Failure;

const INIT: &str = include_str!("../../guest/init");
const FINISH: &str = include_str!("../../guest/finish");
/// The drivers of the control port.
const PORT: &[&str] = &["virtio_pci", "virtio_console"];
/// Lines of the console that are quoted with a failure.
const QUOTED_LINES: usize = 15;
/// Memory of a guest for a shell without a test.
const SHELL_MEMORY_MIB: u32 = 1024;

/// The arguments of `vm`.
#[derive(Debug)]
pub struct Options {
    platform: &'static Platform,
    shell: bool,
    install: bool,
    tests: Vec<&'static GuestTest>,
}

impl Options {
    /// Reads the arguments of `vm`.
    ///
    /// # Errors
    /// One line that names the unknown argument.
    pub fn parse(arguments: &[String]) -> Result<Options, String> {
        let mut options = Options {
            platform: Platform::native(),
            shell: false,
            install: false,
            tests: Vec::new(),
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--arch" => {
                    let name = arguments.next().map_or("", String::as_str);
                    options.platform = Platform::parse(name)?;
                }
                "--shell" => options.shell = true,
                "--install" => options.install = true,
                name => match TESTS.iter().find(|test| test.name == name) {
                    Some(test) => options.tests.push(test),
                    None => {
                        let known: Vec<_> = TESTS.iter().map(|test| test.name).collect();
                        return Err(format!(
                            "`{name}` is neither an option nor a test: {}",
                            known.join(" ")
                        ));
                    }
                },
            }
        }
        if options.shell && options.tests.len() > 1 {
            return Err("--shell takes one test at most".into());
        }
        Ok(options)
    }
}

/// `cargo xtask vm`: runs the named tests, or all, and shows the guests' consoles.
pub fn run(options: &Options) -> ExitCode {
    if options.install {
        install::install_missing();
    }
    let result = if options.shell {
        shell(options)
    } else {
        run_tests(options)
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("vm: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run_tests(options: &Options) -> Result<bool, String> {
    let named = &options.tests;
    let by_default = |test: &GuestTest| options.platform.is_native() || test.elsewhere;
    let is_wanted = |test: &&GuestTest| match named.is_empty() {
        true => by_default(test),
        false => named.iter().any(|named| named.name == test.name),
    };
    let wanted: Vec<_> = TESTS.iter().filter(is_wanted).collect();
    let bench = Bench::prepare(options, &wanted)?;
    let mut report = Report::default();
    for test in wanted {
        println!("\n=== {}", test.name);
        bench.run(test, &mut report);
    }
    println!("\n{}", report.counts());
    Ok(report.is_success())
}

/// The suite's step: all tests but benchmarks, or one line with the reason why none could run.
///
/// # Errors
/// If the guests' programs cannot be built.
pub fn step() -> Result<Report, String> {
    let mut report = Report::default();
    let platform = Platform::native();
    let missing = missing_base(platform);
    if !missing.is_empty() {
        let programs: Vec<_> = missing.iter().map(|tool| tool.program).collect();
        report.leave_out(
            format!("vm (no {})", programs.join(", ")),
            &install::packages(&missing),
        );
        return Ok(report);
    }
    let tests: Vec<_> = TESTS.iter().filter(|test| !test.measures).collect();
    let kernels = Kernels::obtain(platform, tests.iter().map(|test| test.kernel));
    if let Err(why) = kernels.get(Series::Backports) {
        report.leave_out(format!("vm (no kernel for the guest: {why})"), &[]);
        return Ok(report);
    }
    let bench = Bench::with_kernels(platform, kernels, &tests, false)?;
    for test in tests {
        bench.run(test, &mut report);
    }
    Ok(report)
}

/// A shell in the guest of a test, or in one with the modules of all tests.
fn shell(options: &Options) -> Result<bool, String> {
    let test = options.tests.first().copied();
    let wanted: Vec<&GuestTest> = match test {
        Some(test) => vec![test],
        None => TESTS.iter().filter(|test| test.planted.is_none()).collect(),
    };
    let bench = Bench::prepare(options, &wanted)?;
    let modules: Vec<&str> = wanted
        .iter()
        .flat_map(|test| test.modules)
        .copied()
        .collect();
    let programs: Vec<Tool> = wanted
        .iter()
        .flat_map(|test| test.programs)
        .copied()
        .collect();
    install::require(bench.programs.missing(&programs))?;
    let series = test.map_or(Series::Backports, |test| test.kernel);
    let kernel = bench.kernels.get(series)?;
    let modules = kernel.modules.resolve(&modules)?;
    let mut root = bench.root(
        kernel,
        &modules,
        &programs,
        wanted.iter().any(|test| test.uzram),
    )?;
    root.file("/test/shell", false, b"");
    if let Some(test) = test {
        add_test(&mut root, test, bench.platform)?;
    }
    let on_disk = test.map_or_else(String::new, |test| script(test.script, bench.platform));
    println!("vm: leave with `exit`, or with Ctrl-A and x");
    let folder = folder(bench.platform, "shell");
    let guest = Guest {
        platform: bench.platform,
        kernel,
        archive: &root.finish(),
        memory_mib: test.map_or(SHELL_MEMORY_MIB, |test| test.memory_mib),
        counts: test.is_some_and(|test| test.counts),
        devices: test.map_or(&[], |test| test.devices),
        uzram: bench.uzram.as_deref(),
        system: test.and_then(|test| bench.system(test, &on_disk)),
        second: None,
        folder: &folder,
    };
    guest.shell().map(|()| true)
}

/// The state that all guests of a run share.
struct Bench {
    platform: &'static Platform,
    kernels: Kernels,
    programs: Source,
    uzram: Option<PathBuf>,
    package: Option<PathBuf>,
    laboratory: Option<PathBuf>,
    tests: Vec<TestProgram>,
    eat: Option<PathBuf>,
    instructions: Option<PathBuf>,
    show: bool,
}

impl Bench {
    fn prepare(options: &Options, tests: &[&GuestTest]) -> Result<Bench, String> {
        let platform = options.platform;
        install::require(missing_base(platform))?;
        platform.target()?.require(options.install)?;
        let wanted = tests.iter().map(|test| test.kernel);
        let kernels = Kernels::obtain(platform, wanted.clone());
        for series in wanted {
            kernels.get(series)?;
        }
        Bench::with_kernels(platform, kernels, tests, true)
    }

    fn with_kernels(
        platform: &'static Platform,
        kernels: Kernels,
        tests: &[&GuestTest],
        show: bool,
    ) -> Result<Bench, String> {
        let target = platform.target()?;
        let wants_uzram = tests.iter().any(|test| test.uzram);
        let uzram = wants_uzram.then(|| dist::build(&target)).transpose()?;
        let can_install = |test: &&&GuestTest| test.debian && debian_disk::missing().is_empty();
        let wants_package = tests.iter().any(|test| can_install(&test));
        let package = wants_package.then(|| dist::package(&target)).transpose()?;
        let wants_laboratory = tests.iter().any(|test| test.laboratory);
        let laboratory = wants_laboratory
            .then(|| dist::build_laboratory(&target))
            .transpose()?;
        let wants_tests = tests.iter().any(|test| test.tests);
        let test_programs = wants_tests
            .then(|| dist::build_tests(&target))
            .transpose()?;
        let wants_eat = tests.iter().any(|test| test.eat);
        let eat = wants_eat
            .then(|| programs::build_eat(&target))
            .transpose()?;
        let wants_instructions = tests.iter().any(|test| test.counts);
        let instructions = wants_instructions
            .then(|| dist::build_instructions(&target))
            .transpose()?;
        for kernel in kernels.iter() {
            println!("vm: Linux {}", kernel.release);
        }
        Ok(Bench {
            platform,
            kernels,
            programs: programs_of(platform)?,
            uzram,
            package,
            laboratory,
            tests: test_programs.unwrap_or_default(),
            eat,
            instructions,
            show,
        })
    }

    /// Runs one test and counts it.
    fn run(&self, test: &GuestTest, report: &mut Report) {
        let mut missing = self.programs.missing(test.programs);
        if test.debian {
            missing.extend(debian_disk::missing());
        }
        if !missing.is_empty() {
            let packages = install::packages(&missing);
            let what = format!("vm: {} (no {})", test.name, packages.join(", "));
            report.leave_out(what, &packages);
            return;
        }
        let kernel = match self.kernels.get(test.kernel) {
            Ok(kernel) => kernel,
            Err(why) => {
                let what = format!("vm: {} (no kernel for the guest: {why})", test.name);
                report.leave_out(what, &[]);
                return;
            }
        };
        let started = Instant::now();
        let folder = folder(self.platform, test.name);
        let result = match (self.attempt(test, kernel, &folder), test.planted) {
            (Err(failure), Some(planted)) if planted(&failure) => Ok(format!("found: {failure}")),
            (Ok(_), Some(_)) => Err("the planted failure went unseen".to_string()),
            (Ok(remark), None) => Ok(remark),
            (Err(failure), _) => Err(format!("{failure}\n{}", self.quote(&folder))),
        };
        report.check(&format!("vm: {}", test.name), started.elapsed(), result);
    }

    /// One guest from start to end: a remark, or the fault.
    fn attempt(&self, test: &GuestTest, kernel: &Kernel, folder: &Path) -> Result<String, Failure> {
        // What was there is of another run.
        let _ = fs::remove_dir_all(folder);
        let modules = kernel.modules.resolve(test.modules);
        let modules = modules.map_err(Failure::Module)?;
        let root = self.root(kernel, &modules, test.programs, test.uzram);
        let mut root = root.map_err(Failure::Other)?;
        add_test(&mut root, test, self.platform).map_err(Failure::Other)?;
        for (name, program) in self.tests.iter().filter(|_| test.tests) {
            let added = programs::add_static(&mut root, program, &format!("/bin/{name}"));
            added.map_err(Failure::Other)?;
        }
        let on_disk = script(test.script, self.platform);
        let mut second = None;
        if let Some(text) = test.second {
            root.file("/test/second", true, script(text, self.platform).as_bytes());
            let mut start = self
                .root(kernel, &modules, &[], false)
                .map_err(Failure::Other)?;
            start.file("/test/root", false, b"");
            second = Some(start.finish());
        }
        let guest = Guest {
            platform: self.platform,
            kernel,
            archive: &root.finish(),
            memory_mib: test.memory_mib,
            counts: test.counts,
            devices: test.devices,
            uzram: self.uzram.as_deref(),
            system: self.system(test, &on_disk),
            second: second.as_deref(),
            folder,
        };
        let run = || guest.run(test.limit, self.show).map_err(Failure::Other);
        let mut ended = run()?;
        if ended.met_a_breakpoint() {
            println!("vm: {}: a breakpoint at boot; once more", test.name);
            ended = run()?;
        }
        ended.verdict?;
        (test.check)(folder, &self.programs).map_err(Failure::Other)?;
        let up = ended.up_after.unwrap_or_default().as_secs_f32();
        let remark = fs::read_to_string(folder.join("files/remark")).unwrap_or_default();
        let remark = remark.lines().next().unwrap_or_default();
        Ok(format!("up in {up:.1} s {remark}"))
    }

    /// The system on the disk of a test that has one, with `script`.
    fn system<'a>(&'a self, test: &GuestTest, script: &'a str) -> Option<System<'a>> {
        let package = self.package.as_deref().filter(|_| test.debian)?;
        Some(System {
            package,
            script,
            finish: FINISH,
        })
    }

    /// The root filesystem, without a script to run in it.
    fn root(
        &self,
        kernel: &Kernel,
        modules: &[Module],
        programs: &[Tool],
        uzram: bool,
    ) -> Result<Initramfs, String> {
        let mut root = Initramfs::default();
        root.file("/init", true, INIT.as_bytes());
        root.file("/test/finish", false, FINISH.as_bytes());
        let port = kernel.modules.resolve(PORT)?;
        add_modules(&mut root, "/etc/port", port.iter())?;
        let modules = modules.iter().filter(|module| !port.contains(module));
        add_modules(&mut root, "/etc/modules", modules)?;
        let busybox = self.programs.find(install::BUSYBOX)?;
        programs::add_static(&mut root, &busybox, "/bin/busybox")?;
        for program in programs {
            self.programs.add(&mut root, *program)?;
        }
        if let Some(binary) = self.uzram.as_ref().filter(|_| uzram) {
            programs::add_static(&mut root, binary, "/bin/uzram")?;
        }
        if let Some(binary) = &self.laboratory {
            programs::add_static(&mut root, binary, "/bin/uzram-bench")?;
        }
        if let Some(eat) = &self.eat {
            programs::add_static(&mut root, eat, "/bin/eat")?;
        }
        if let Some(instructions) = &self.instructions {
            programs::add_static(&mut root, instructions, "/bin/instructions")?;
        }
        for folder in ["/dev", "/proc", "/sys"] {
            root.folder(folder);
        }
        Ok(root)
    }

    /// The last lines of a console that has not been shown.
    fn quote(&self, folder: &Path) -> String {
        let log = folder.join("console.log");
        let console = fs::read(&log).unwrap_or_default();
        if self.show || console.is_empty() {
            return String::new();
        }
        let console = String::from_utf8_lossy(&console);
        let lines: Vec<&str> = console.lines().collect();
        let first = lines.len().saturating_sub(QUOTED_LINES);
        let quoted = lines[first..].join("\n    ");
        format!("    {quoted}\n    all of it: {}", log.display())
    }
}

/// Puts modules into the root, and their names with their parameters into the file `list`.
fn add_modules<'a>(
    root: &mut Initramfs,
    list: &str,
    modules: impl Iterator<Item = &'a Module>,
) -> Result<(), String> {
    let mut to_load = String::new();
    for module in modules {
        let path = format!("/lib/modules/{}.ko", module.name);
        to_load += &format!("{path} {}\n", module.parameters);
        let content = fs::read(&module.file)
            .map_err(|error| format!("{}: {error}", module.file.display()))?;
        root.file(&path, false, &content);
    }
    root.file(list, false, to_load.as_bytes());
    Ok(())
}

/// Puts the test's own files into the root.
fn add_test(root: &mut Initramfs, test: &GuestTest, platform: &Platform) -> Result<(), String> {
    root.file("/test/run", true, script(test.script, platform).as_bytes());
    if test.debian {
        root.file("/test/root", false, b"");
        root.file("/test/systemd", false, b"");
    }
    if test.certificate {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_string()]);
        let made = made.map_err(|error| error.to_string())?;
        root.file("/test/certificate.pem", false, made.cert.pem().as_bytes());
        let key = made.signing_key.serialize_pem();
        root.file("/test/key.pem", false, key.as_bytes());
    }
    Ok(())
}

/// The script `text` as it runs: the first command that fails ends it, and it knows the number of CPUs.
fn script(text: &str, platform: &Platform) -> String {
    format!("set -eu\nCPUS={}\n{text}", platform.cpus)
}

/// The folder of the guest called `name`.
fn folder(platform: &Platform, name: &str) -> PathBuf {
    let guests = workspace::target_dir().join("vm");
    match platform.is_native() {
        true => guests.join(name),
        false => guests.join(platform.name).join(name),
    }
}

/// The place of the programs of `platform`'s guests.
fn programs_of(platform: &Platform) -> Result<Source, String> {
    if platform.is_native() {
        return Ok(Source::ThisMachine);
    }
    let all = TESTS.iter().flat_map(|test| test.programs);
    let all: Vec<Tool> = all.copied().chain([install::BUSYBOX]).collect();
    kernel::obtain_programs(platform, &install::packages(&all)).map(Source::Tree)
}

/// The programs that every guest needs and that are missing. A busybox that needs libraries does not count.
fn missing_base(platform: &Platform) -> Vec<Tool> {
    let mut base = vec![platform.emulator, install::XZ];
    base.extend(platform.firmware);
    base.extend(platform.runner);
    if !platform.is_native() {
        return install::missing(&base);
    }
    base.push(install::BUSYBOX);
    let mut missing = install::missing(&base);
    let busybox = workspace::find_program(install::BUSYBOX.program);
    if busybox.is_some_and(|busybox| !programs::is_static(&busybox)) {
        missing.push(install::BUSYBOX);
    }
    missing
}

#[cfg(test)]
mod unit {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options, String> {
        Options::parse(&words.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn tests_are_named_and_others_refused() {
        let options = parse(&["boot", "planted-panic"]).unwrap();
        assert!(!options.shell && options.tests.len() == 2);
        assert!(parse(&["--shell", "boot"]).unwrap().shell);
        assert!(parse(&["--shell", "boot", "devices"]).is_err());
        let error = parse(&["boots"]).unwrap_err();
        assert!(error.starts_with("`boots` is neither") && error.contains("nbd-ext4"));
    }

    #[test]
    fn tests_have_names_of_their_own_and_plants_say_so() {
        for (index, test) in TESTS.iter().enumerate() {
            assert!(TESTS[..index].iter().all(|other| other.name != test.name));
            let named = test.name.starts_with("planted-");
            assert_eq!(named, test.planted.is_some(), "{}", test.name);
        }
    }

    #[test]
    fn every_script_belongs_to_a_test() {
        let scripts = fs::read_dir(workspace::root().join("xtask/guest")).unwrap();
        for script in scripts.map(|entry| entry.unwrap().path()) {
            let text = fs::read_to_string(&script).unwrap();
            let is_tests =
                |test: &GuestTest| test.script.contains(&text) || test.second == Some(&text);
            let used = text == INIT || text == FINISH || TESTS.iter().any(is_tests);
            assert!(used, "{}", script.display());
        }
    }
}
