//! Kernel modules: which files a test needs, in the order in which they can be loaded.
//!
//! The package has no modules.dep (depmod writes it when a kernel is installed). So its content is
//! read from depmod's source: `depends=` and `softdep=pre:` of each module's `.modinfo`. A soft
//! dependency may be an alias (`crypto-crc32c`); aliases are searched among the modules of ciphers
//! and checksums.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::elf;

/// Folders of modules that others name by alias.
const ALIASED: &[&str] = &["arch", "crypto", "lib"];

/// The modules of one kernel.
#[derive(Debug)]
pub struct Modules {
    files: BTreeMap<String, PathBuf>,
    aliased: BTreeSet<String>,
    builtin: BTreeSet<String>,
}

/// One module to load.
#[derive(Debug, PartialEq, Eq)]
pub struct Module {
    pub name: String,
    pub file: PathBuf,
    /// `name=value` words; none for modules that only others need.
    pub parameters: String,
}

impl Modules {
    /// Finds all `*.ko` below `folder`; `builtin` is the text of `modules.builtin`.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn open(folder: &Path, builtin: &str) -> Result<Modules, String> {
        let mut modules = Modules {
            files: BTreeMap::new(),
            aliased: BTreeSet::new(),
            builtin: builtin
                .lines()
                .filter_map(|line| module_name(Path::new(line)))
                .collect(),
        };
        let failed = |error| format!("{}: {error}", folder.display());
        for file in files_below(folder).map_err(failed)? {
            let Some(name) = module_name(&file) else {
                continue;
            };
            let below = file.strip_prefix(folder).unwrap_or(&file);
            if ALIASED.iter().any(|place| below.starts_with(place)) {
                modules.aliased.insert(name.clone());
            }
            modules.files.insert(name, file);
        }
        Ok(modules)
    }

    /// The modules that `wanted` (a name, perhaps followed by parameters) needs, each after its
    /// own dependencies. Modules built into the kernel are left out.
    ///
    /// # Errors
    /// One line that names the module that is neither built in nor a file.
    pub fn resolve(&self, wanted: &[&str]) -> Result<Vec<Module>, String> {
        let mut resolved = Vec::new();
        let mut seen = BTreeSet::new();
        for wanted in wanted {
            let (name, parameters) = wanted.split_once(' ').unwrap_or((wanted, ""));
            self.add(name, parameters, &mut seen, &mut resolved)?;
        }
        Ok(resolved)
    }

    fn add(
        &self,
        name: &str,
        parameters: &str,
        seen: &mut BTreeSet<String>,
        resolved: &mut Vec<Module>,
    ) -> Result<(), String> {
        let name = normal(name);
        if self.builtin.contains(&name) || !seen.insert(name.clone()) {
            return Ok(());
        }
        let Some(file) = self.files.get(&name) else {
            return Err(format!(
                "module {name}: neither built into the kernel nor among the modules that are kept of it; \
                 remove the kernel's folder in the cache if its modules were kept before {name} was"
            ));
        };
        let needs = Needs::read(file)?;
        for needed in needs.hard {
            self.add(&needed, "", seen, resolved)?;
        }
        // Nobody misses what a kernel without it does in another way.
        for alias in needs.soft {
            if let Some(provider) = self.provider(&alias) {
                self.add(&provider, "", seen, resolved)?;
            }
        }
        resolved.push(Module {
            name,
            file: file.clone(),
            parameters: parameters.to_string(),
        });
        Ok(())
    }

    /// The module behind a name or alias; of several the one that runs on every CPU.
    fn provider(&self, alias: &str) -> Option<String> {
        if self.files.contains_key(&normal(alias)) {
            return Some(normal(alias));
        }
        let provides = |name: &&String| {
            let info = self
                .files
                .get(*name)
                .and_then(|file| Needs::read(file).ok());
            info.is_some_and(|info| info.aliases.iter().any(|known| known == alias))
        };
        let mut providers: Vec<_> = self.aliased.iter().filter(provides).cloned().collect();
        providers.sort_by_key(|name| !name.ends_with("_generic"));
        providers.into_iter().next()
    }
}

/// The dependencies in a module's own description.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    hard: Vec<String>,
    soft: Vec<String>,
    aliases: Vec<String>,
}

impl Needs {
    fn read(file: &Path) -> Result<Needs, String> {
        let failed = |error: String| format!("{}: {error}", file.display());
        let bytes = fs::read(file).map_err(|error| failed(error.to_string()))?;
        let info = elf::section(&bytes, ".modinfo").map_err(failed)?;
        Ok(Needs::parse(&String::from_utf8_lossy(info)))
    }

    /// `modinfo` is a row of `key=value`, each ended by a NUL.
    fn parse(modinfo: &str) -> Needs {
        let mut needs = Needs::default();
        for (key, value) in modinfo
            .split('\0')
            .filter_map(|entry| entry.split_once('='))
        {
            let names = value.split([',', ' ']).filter(|name| !name.is_empty());
            match key {
                "depends" => needs.hard.extend(names.map(str::to_string)),
                "alias" => needs.aliases.push(value.to_string()),
                "softdep" => {
                    let before = names
                        .skip_while(|word| *word != "pre:")
                        .skip(1)
                        .take_while(|word| *word != "post:");
                    needs.soft.extend(before.map(str::to_string));
                }
                _ => {}
            }
        }
        needs
    }
}

/// The kernel's name of the module in `file`, if it is one.
fn module_name(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?.strip_suffix(".ko")?;
    Some(normal(name))
}

/// `-` and `_` are the same in names of modules.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// All files below `folder`.
pub fn files_below(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            // Links are not followed, so this ends.
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                files.push(entry.path());
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of modules with the given `.modinfo` each.
    fn planted(modules: &[(&str, &str)]) -> (tempfile::TempDir, Modules) {
        let folder = tempfile::tempdir().unwrap();
        for (path, info) in modules {
            let file = folder.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, elf::tests::with_section(".modinfo", info.as_bytes())).unwrap();
        }
        let modules = Modules::open(folder.path(), "kernel/a/built-in.ko\n").unwrap();
        (folder, modules)
    }

    fn names(modules: &Modules, wanted: &[&str]) -> Vec<String> {
        let resolved = modules.resolve(wanted).unwrap();
        resolved.into_iter().map(|module| module.name).collect()
    }

    #[test]
    fn a_module_comes_after_all_that_it_needs_and_once() {
        let (_folder, modules) = planted(&[
            (
                "fs/ext4.ko",
                "depends=jbd2,crc16\0softdep=pre: crypto-crc32c post: later\0",
            ),
            ("fs/jbd2.ko", "depends=\0"),
            ("lib/crc16.ko", "license=GPL\0depends=built_in\0"),
            (
                "arch/crc32c-intel.ko",
                "alias=crypto-crc32c\0depends=no-such\0",
            ),
            (
                "crypto/crc32c_generic.ko",
                "alias=crypto-crc32c\0depends=\0",
            ),
            ("drivers/later.ko", "depends=\0"),
            ("drivers/nd-x.ko", "depends=jbd2\0"),
        ]);
        assert_eq!(
            names(&modules, &["ext4", "nd_x", "jbd2"]),
            ["jbd2", "crc16", "crc32c_generic", "ext4", "nd_x"]
        );
        assert_eq!(names(&modules, &["built-in"]), [""; 0]);
    }

    #[test]
    fn parameters_go_to_the_module_that_was_asked_for() {
        let (_folder, modules) = planted(&[("brd.ko", "depends=lib\0"), ("lib.ko", "depends=\0")]);
        let resolved = modules.resolve(&["brd rd_nr=1 rd_size=4"]).unwrap();
        assert_eq!(resolved[0].parameters, "");
        assert_eq!(resolved[1].parameters, "rd_nr=1 rd_size=4");
    }

    #[test]
    fn modules_that_need_each_other_end() {
        let (_folder, modules) = planted(&[("a.ko", "depends=b\0"), ("b.ko", "depends=a\0")]);
        assert_eq!(names(&modules, &["a"]), ["b", "a"]);
    }

    #[test]
    fn a_missing_module_is_named_also_when_another_needs_it() {
        let (_folder, modules) = planted(&[("a.ko", "depends=gone\0")]);
        for wanted in ["gone", "a"] {
            let error = modules.resolve(&[wanted]).unwrap_err();
            assert!(error.starts_with("module gone: neither"), "{error}");
        }
    }
}
