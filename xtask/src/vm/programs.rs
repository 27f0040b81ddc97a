//! Programs for the guest, with the libraries that they load: copied from this machine, or from packages of the
//! guest's architecture, unpacked into a folder.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::initramfs::Initramfs;
use crate::elf::{self, Needs};
use crate::install::{self, Tool};
use crate::process;
use crate::target::Target;
use crate::workspace;

const LDD_LIMIT: Duration = Duration::from_secs(20);
const RUSTC_LIMIT: Duration = Duration::from_secs(120);
/// Places of programs and libraries in an unpacked tree of packages.
const PROGRAM_FOLDERS: [&str; 4] = ["usr/sbin", "usr/bin", "sbin", "bin"];
/// The last is where a library of others says that it is.
const LIBRARY_FOLDERS: [&str; 4] = [
    "lib",
    "lib/aarch64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/aarch64-linux-gnu/ceph",
];

/// The place that programs are copied from.
#[derive(Debug)]
pub enum Source {
    ThisMachine,
    /// A tree of unpacked packages.
    Tree(PathBuf),
}

impl Source {
    /// The file of `tool`.
    ///
    /// # Errors
    /// One line that names it, if there is none.
    pub fn find(&self, tool: Tool) -> Result<PathBuf, String> {
        let found = match self {
            Source::ThisMachine => workspace::find_program(tool.program),
            Source::Tree(tree) => find_in(tree, &PROGRAM_FOLDERS, tool.program),
        };
        found.ok_or_else(|| match self {
            Source::ThisMachine => format!("no {}", tool.program),
            Source::Tree(tree) => {
                format!(
                    "no {} in {}; remove the folder",
                    tool.program,
                    tree.display()
                )
            }
        })
    }

    /// The tools of `tools` that this machine lacks. A tree has them, or [`find`](Self::find) says so.
    pub fn missing(&self, tools: &[Tool]) -> Vec<Tool> {
        match self {
            Source::ThisMachine => install::missing(tools),
            Source::Tree(_) => Vec::new(),
        }
    }

    /// Puts `tool` and its libraries at the same paths in the guest.
    ///
    /// # Errors
    /// One line that names the file that cannot be read or found.
    pub fn add(&self, root: &mut Initramfs, tool: Tool) -> Result<(), String> {
        let program = self.find(tool)?;
        let tree = match self {
            Source::ThisMachine => return add(root, &program),
            Source::Tree(tree) => tree,
        };
        let mut wanted = vec![program];
        let mut seen = BTreeSet::new();
        while let Some(file) = wanted.pop() {
            if !seen.insert(file.clone()) {
                continue;
            }
            let content = read(&file)?;
            let inside = file.strip_prefix(tree).unwrap_or(&file);
            root.file(&format!("/{}", inside.display()), true, &content);
            for library in elf::libraries(&content)? {
                let found = find_in(tree, &LIBRARY_FOLDERS, &library);
                wanted.push(found.ok_or_else(|| format!("{}: no {library}", file.display()))?);
            }
        }
        Ok(())
    }
}

fn find_in(tree: &Path, folders: &[&str], name: &str) -> Option<PathBuf> {
    let places = folders.iter().map(|folder| tree.join(folder).join(name));
    places.into_iter().find(|place| place.is_file())
}

/// Puts `program` of this machine and its libraries at the same paths in the guest.
fn add(root: &mut Initramfs, program: &Path) -> Result<(), String> {
    let content = read(program)?;
    root.file(&program.to_string_lossy(), true, &content);
    if is_static(program) {
        return Ok(());
    }
    let mut ldd = workspace::command("ldd");
    let said = process::succeed(ldd.arg(program), LDD_LIMIT)?;
    let libraries = libraries(&said.stdout)
        .map_err(|missing| format!("{}: no {missing}", program.display()))?;
    for library in libraries {
        root.file(&library.to_string_lossy(), true, &read(&library)?);
    }
    Ok(())
}

/// Puts `program`, which must need no libraries, at `place`.
///
/// # Errors
/// One line that says so if it needs libraries.
pub fn add_static(root: &mut Initramfs, program: &Path, place: &str) -> Result<(), String> {
    if !is_static(program) {
        return Err(format!("{}: not a static program", program.display()));
    }
    root.file(place, true, &read(program)?);
    Ok(())
}

/// Makes the static program `eat`, which uses more memory than there is.
///
/// It is built by `rustc` itself: it has no dependencies, and cargo would build all of xtask's for
/// it.
///
/// # Errors
/// If it cannot be built.
pub fn build_eat(target: &Target) -> Result<PathBuf, String> {
    let folder = target.folder(workspace::tools_dir());
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let program = folder.join("eat");
    let mut command = target.rustc();
    command.args(["--edition=2024", "-O", "-Ctarget-feature=+crt-static"]);
    command.arg("-Cstrip=symbols").arg("-o").arg(&program);
    process::succeed(command.arg("xtask/examples/eat.rs"), RUSTC_LIMIT)?;
    Ok(program)
}

/// Whether `program` runs without libraries.
pub fn is_static(program: &Path) -> bool {
    let needs = fs::read(program)
        .ok()
        .and_then(|file| elf::needs(&file).ok());
    needs.is_some_and(|needs| needs == Needs::default())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The files that `ldd` found, the loader included, or the name of the one that it did not find.
fn libraries(said: &str) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for line in said.lines() {
        let (name, path) = line.split_once("=>").unwrap_or((line, line));
        if path.trim().starts_with("not found") {
            return Err(name.trim().to_string());
        }
        // The kernel brings linux-vdso itself; it has no path.
        let path = path.split_whitespace().next().unwrap_or_default();
        if path.starts_with('/') {
            found.push(PathBuf::from(path));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_found() {
        let said = "\tlinux-vdso.so.1 (0x00007f46869f5000)\n\
            \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f468641e000)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f46869fe000)\n";
        let expected = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(libraries(said).unwrap(), expected.map(PathBuf::from));
        assert_eq!(libraries("\tliba.so => not found\n"), Err("liba.so".into()));
    }

    #[test]
    fn a_program_brings_its_libraries_and_a_dynamic_one_is_not_static() {
        let this = std::env::current_exe().unwrap();
        let mut root = Initramfs::default();
        add(&mut root, &this).unwrap();
        let archive = root.finish();
        let dynamic = elf::needs(&fs::read(&this).unwrap()).unwrap().libraries > 0;
        let has_libc = archive.windows(9).any(|bytes| bytes == b"libc.so.6");
        assert_eq!(has_libc, dynamic);
        let refused = add_static(&mut Initramfs::default(), &this, "/bin/this");
        assert_eq!(refused.is_err(), dynamic);
    }
}
