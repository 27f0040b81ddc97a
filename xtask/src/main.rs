//! The project's own commands, run as `cargo xtask COMMAND`:
//! - `test`: the whole suite, with a summary of what ran, what failed and what was left out;
//! - `vm`: tests in a guest kernel with modules, and a shell there;
//! - `soak`: long runs of model processes, and bugs planted for them; servers that are killed;
//! - `man`: manual pages and completions;
//! - `dist`: the static binary, built and checked, with all that is packed beside it;
//! - `release --dry-run`: all of a release except to publish it.

mod aarch64;
mod across;
mod beside;
mod builds;
mod clean_root;
mod debian;
mod dist;
mod e2e;
mod elf;
mod fuzz;
mod install;
mod leftovers;
mod man;
mod members;
mod packages;
mod process;
mod recipes;
mod release;
mod report;
mod soak;
mod suite;
mod target;
mod vm;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask test [--install] [--quick] [STEP...]
       cargo xtask vm [--install] [--arch ARCH] [--shell] [TEST...]
       cargo xtask soak pager|survive
       cargo xtask man
       cargo xtask dist [--install] [--target TARGET]
       cargo xtask release --dry-run

test   runs the whole suite, or the named steps only, and ends with `N passed, N failed`
         --install  as root on Debian, install missing test programs (CI=true does the same)
         --quick    leave out the slow steps and use small images
vm     runs all tests that need a guest kernel, or the named ones only, and shows its console
         --install  as root on Debian, install missing test programs
         --arch     the guest's machine: x86_64, aarch64 or aarch64-16k, whose pages are larger; all tests are then
                    those that fit
         --shell    give a shell in the guest instead, set up as for TEST if one is named
soak   pager: runs random programs on compressed memory for ten minutes, after it found each planted bug;
       survive: kills servers a thousand times under each kind of disk
man    writes manual pages and completions for bash, zsh and fish into target/dist
dist   builds target/dist/uzram, one static binary, and checks that it serves with nothing else around it;
       puts manual pages, completions, systemd units and an example of a configuration beside it, and makes a
       tarball, a Debian package and a container image of them
         --install  as root on Debian, install missing programs, and the target's Rust library
         --target   this machine's target, aarch64-unknown-linux-gnu or aarch64-unknown-linux-musl; what is
                    not this machine's goes to target/dist/TARGET, and its packages are checked as far as can be
release --dry-run
       checks, packages, builds from its package and documents every crate that is published";

fn main() -> ExitCode {
    process::die_with_children_on_signals();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("", &[][..]),
    };
    match command {
        "test" => match suite::Options::parse(rest) {
            Ok(options) => suite::run(&options),
            Err(message) => wrong_usage(&message),
        },
        "vm" => match vm::Options::parse(rest) {
            Ok(options) => vm::run(&options),
            Err(message) => wrong_usage(&message),
        },
        "soak" if rest == ["pager"] => done("soak", soak::pager()),
        "soak" if rest == ["survive"] => done("soak", soak::survive()),
        "soak" => wrong_usage("soak: give pager or survive"),
        "man" if rest.is_empty() => done("man", man::man(&workspace::dist_dir())),
        "dist" => match dist::Options::parse(rest) {
            Ok(options) => {
                let mut report = report::Report::default();
                let made = dist::dist(&options, &mut report);
                let checked = made.and_then(|_| match report.has_failures() {
                    true => Err(report.counts()),
                    false => Ok(()),
                });
                done("dist", checked)
            }
            Err(message) => wrong_usage(&message),
        },
        "release" if rest == ["--dry-run"] => done("release", release::dry_run()),
        "release" => wrong_usage("release: give --dry-run; to publish is left to people"),
        "help" | "--help" | "-h" => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        "" => wrong_usage("no command given"),
        other => wrong_usage(&format!(
            "`{other}` with {} arguments is unknown",
            rest.len()
        )),
    }
}

fn done(command: &str, result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{command}: {message}");
            ExitCode::FAILURE
        }
    }
}

fn wrong_usage(message: &str) -> ExitCode {
    eprintln!("xtask: {message}\n{USAGE}");
    ExitCode::from(2)
}
