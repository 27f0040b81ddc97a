//! Debian's packages, fetched from the mirror that this machine's apt uses already: the guests' kernels, the
//! programs of guests of another architecture, and from backports the other packages of a family whose first
//! member is from there.
//!
//! apt runs with sources and lists of its own, so the system's stay unchanged. Keys, proxies and
//! passwords are the system's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process;
use crate::workspace;

/// The suite whose kernels have ublk and every kind of zram that is compared.
pub const BACKPORTS: &str = "bookworm-backports";
/// The release to which the suite belongs; its mirror has both.
pub const RELEASE: &str = "bookworm";
/// The architecture of this machine's packages.
pub const AMD64: &str = "amd64";
/// The keys that sign Debian's suites, where Debian installs them.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

const ASK_LIMIT: Duration = Duration::from_secs(60);
const UPDATE_LIMIT: Duration = Duration::from_secs(120);
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(600);
const UNPACK_LIMIT: Duration = Duration::from_secs(300);
const INSTALL_LIMIT: Duration = Duration::from_secs(900);
/// The place of apt's sources besides its one file.
const SYSTEM_PARTS: &str = "/etc/apt/sources.list.d";

/// A suite, read through a list of sources in a folder.
pub struct Suite {
    folder: PathBuf,
    config: PathBuf,
}

impl Suite {
    /// Fetches the list of the packages of `suite` for `architecture` into `folder`, which must be empty.
    ///
    /// # Errors
    /// One line that names the missing or refused thing.
    pub fn open(folder: &Path, suite: &str, architecture: &str) -> Result<Suite, String> {
        let source = source(suite, architecture)?;
        let config = configure_alone(folder, &source, architecture)
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        let folder = folder.to_path_buf();
        let suite = Suite { folder, config };
        ask(suite.apt("apt-get").arg("update"), UPDATE_LIMIT)?;
        Ok(suite)
    }

    /// Downloads the newest kernel on which `package` depends.
    ///
    /// # Errors
    /// One line that names the missing or refused thing.
    pub fn download_kernel(&self, package: &str) -> Result<PathBuf, String> {
        let mut show = self.apt("apt-cache");
        let shown = ask(show.args(["--no-all-versions", "show", package]), ASK_LIMIT)?;
        let kernel =
            kernel_package(&shown).ok_or_else(|| format!("{package} depends on no kernel"))?;
        self.download(&kernel)
    }

    /// Downloads the newest version of `package`.
    ///
    /// # Errors
    /// One line that names the refused thing.
    pub fn download(&self, package: &str) -> Result<PathBuf, String> {
        ask(
            self.apt("apt-get").args(["download", package]),
            DOWNLOAD_LIMIT,
        )?;
        packages_in(&self.folder)?
            .pop()
            .ok_or_else(|| format!("apt-get downloaded no file of {package}"))
    }

    /// Downloads the newest versions of `packages` and of all that they need, and of nothing else. Nothing is
    /// installed.
    ///
    /// # Errors
    /// One line that names the refused thing.
    pub fn download_with_needs(&self, packages: &[&str]) -> Result<Vec<PathBuf>, String> {
        let mut install = self.apt("apt-get");
        install.args([
            "install",
            "--download-only",
            "-y",
            "--no-install-recommends",
        ]);
        ask(install.args(packages), DOWNLOAD_LIMIT)?;
        packages_in(&self.folder.join("apt/cache/archives"))
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = workspace::command(program);
        command
            .arg("-q")
            .arg("-c")
            .arg(&self.config)
            .current_dir(&self.folder);
        command
    }
}

fn packages_in(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let files = fs::read_dir(folder).map_err(failed)?;
    let files = files.filter_map(|entry| Some(entry.ok()?.path()));
    let is_package = |file: &PathBuf| file.extension().is_some_and(|suffix| suffix == "deb");
    Ok(files.filter(is_package).collect())
}

/// Unpacks the file of a package into `folder`.
///
/// # Errors
/// One line that says why it cannot be.
pub fn unpack(package: &Path, folder: &Path) -> Result<(), String> {
    let mut unpack = workspace::command("dpkg-deb");
    unpack.arg("-x").arg(package).arg(folder);
    process::succeed(&mut unpack, UNPACK_LIMIT).map(drop)
}

/// Installs `packages` of backports on this system, and removes nothing.
///
/// # Errors
/// One line that names the missing or refused thing.
pub fn install(packages: &[&str]) -> Result<(), String> {
    let work = tempfile::tempdir().map_err(|error| error.to_string())?;
    let failed = |error: std::io::Error| format!("{}: {error}", work.path().display());
    let config = configure_beside(work.path(), &source(BACKPORTS, AMD64)?).map_err(failed)?;
    let apt = |arguments: &[&str]| {
        let mut command = workspace::command("apt-get");
        command.arg("-q").arg("-c").arg(&config).args(arguments);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    // Sources of others may be out of reach; the installation says what it lacks.
    let _ = ask(&mut apt(&["update"]), UPDATE_LIMIT);
    let mut install = apt(&["install", "-y", "--no-install-recommends", "--no-remove"]);
    install.arg(format!("--target-release={BACKPORTS}"));
    ask(install.args(packages), INSTALL_LIMIT).map(drop)
}

/// The line of apt's sources for `suite`.
///
/// # Errors
/// One line with what is missing.
pub fn source(suite: &str, architecture: &str) -> Result<String, String> {
    if workspace::find_program("apt-get").is_none() {
        return Err(format!(
            "no apt-get here, and packages of {suite} are Debian's"
        ));
    }
    let mut targets = workspace::command("apt-get");
    targets.args([
        "indextargets",
        "--format",
        "$(RELEASE) $(COMPONENT) $(REPO_URI)",
    ]);
    let targets = ask(targets.arg("Identifier: Packages"), ASK_LIMIT)?;
    let mirror = mirror(&targets).ok_or("apt's sources name no Debian mirror")?;
    let signed_by = if Path::new(KEYRING).exists() {
        format!("signed-by={KEYRING} ")
    } else {
        String::new()
    };
    Ok(format!(
        "deb [{signed_by}arch={architecture} lang=none targets=Packages] {mirror} {suite} main\n"
    ))
}

/// The output of a command of apt. A failure is the line with which apt explains it.
fn ask(command: &mut Command, limit: Duration) -> Result<String, String> {
    let finished = process::run(command, limit, process::Output::Kept)?;
    if finished.exit == process::Exit::Code(0) {
        return Ok(finished.stdout);
    }
    let reason = finished
        .stderr
        .lines()
        .find_map(|line| line.strip_prefix("E: "));
    let reason = reason.map_or_else(|| finished.exit.to_string(), str::to_string);
    let program = command.get_program().to_string_lossy();
    Err(format!("{program}: {reason}"))
}

/// The address of Debian's mirror for this machine, from lines of release, component, address.
fn mirror(targets: &str) -> Option<String> {
    let targets: Vec<(&str, &str)> = targets
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (release, component) = (words.next()?, words.next()?);
            let address = words.next()?;
            (component == "main" && !address.starts_with("cdrom:")).then_some((release, address))
        })
        .collect();
    let same_release = targets.iter().find(|(release, _)| *release == RELEASE);
    // A newer Debian's mirror has the older suites beside its own.
    let is_debian = |address: &str| address.trim_end_matches('/').ends_with("/debian");
    let found = same_release.or_else(|| targets.iter().find(|(_, address)| is_debian(address)));
    found.map(|(_, address)| (*address).to_string())
}

/// Writes a configuration for apt under `folder` that knows the suite alone and no installed
/// package. Returns its path.
fn configure_alone(folder: &Path, source: &str, architecture: &str) -> std::io::Result<PathBuf> {
    let apt = folder.join("apt");
    fs::create_dir_all(apt.join("lists/partial"))?;
    fs::create_dir_all(apt.join("cache/archives/partial"))?;
    fs::write(apt.join("status"), "")?;
    fs::write(apt.join("sources.list"), source)?;
    let at = apt.display();
    // The hooks are for the system's lists, which do not change.
    let config = format!(
        "Dir::Etc::SourceList \"{at}/sources.list\";\n\
         Dir::Etc::SourceParts \"/dev/null\";\n\
         Dir::Etc::Preferences \"/dev/null\";\n\
         Dir::Etc::PreferencesParts \"/dev/null\";\n\
         Dir::State \"{at}\";\n\
         Dir::State::Status \"{at}/status\";\n\
         Dir::Cache \"{at}/cache\";\n\
         APT::Architecture \"{architecture}\";\n\
         APT::Architectures \"{architecture}\";\n\
         APT::Update::Error-Mode \"any\";\n\
         {WITHOUT_PATIENCE}{WITHOUT_HOOKS}"
    );
    write_config(&apt, &config)
}

/// Writes a configuration for apt under `folder` that knows the suite, the system's sources and
/// its installed packages. Returns its path.
fn configure_beside(folder: &Path, source: &str) -> std::io::Result<PathBuf> {
    let apt = folder.join("apt");
    let parts = apt.join("parts");
    fs::create_dir_all(apt.join("lists/partial"))?;
    fs::create_dir_all(apt.join("cache/archives/partial"))?;
    fs::create_dir_all(&parts)?;
    for entry in fs::read_dir(SYSTEM_PARTS).into_iter().flatten() {
        let entry = entry?;
        fs::copy(entry.path(), parts.join(entry.file_name()))?;
    }
    fs::write(parts.join("uzram-backports.list"), source)?;
    let at = apt.display();
    let config = format!(
        "Dir::Etc::SourceParts \"{at}/parts\";\n\
         Dir::State::Lists \"{at}/lists\";\n\
         Dir::Cache \"{at}/cache\";\n\
         {WITHOUT_PATIENCE}{WITHOUT_HOOKS}"
    );
    write_config(&apt, &config)
}

const WITHOUT_PATIENCE: &str = "\
    Acquire::Retries \"1\";\n\
    Acquire::http::Timeout \"20\";\n\
    Acquire::https::Timeout \"20\";\n";
const WITHOUT_HOOKS: &str = "\
    #clear APT::Update::Pre-Invoke;\n\
    #clear APT::Update::Post-Invoke;\n\
    #clear APT::Update::Post-Invoke-Success;\n";

fn write_config(apt: &Path, config: &str) -> std::io::Result<PathBuf> {
    let path = apt.join("apt.conf");
    fs::write(&path, config)?;
    Ok(path)
}

/// The kernel that the package without a version depends on.
fn kernel_package(shown: &str) -> Option<String> {
    let depends = shown
        .lines()
        .find_map(|line| line.strip_prefix("Depends: "))?;
    let mut names = depends
        .split([',', '|'])
        .filter_map(|dependency| dependency.split_whitespace().next());
    let kernel = |name: &&str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "+.-".contains(c);
        name.starts_with("linux-image-") && name.chars().all(allowed)
    };
    names.find(kernel).map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_one_that_apt_uses_for_the_release() {
        let security = "bookworm-security main http://a.example/debian-security/\n";
        let updates = "bookworm-updates main http://b.example/debian/\n";
        let release = "bookworm main http://c.example/mirror/\n";
        let all = [security, updates, release].concat();
        assert_eq!(mirror(&all).unwrap(), "http://c.example/mirror/");
        // Another release of Debian: its mirror will do, its security archive will not.
        let trixie = "trixie-security main http://a.example/debian-security/\n\
            trixie contrib http://x.example/debian/\n\
            trixie main http://d.example/debian\n";
        assert_eq!(mirror(trixie).unwrap(), "http://d.example/debian");
        for none in [
            "noble main http://e.example/ubuntu/\n",
            "bookworm main cdrom:[x]/\n",
            "",
        ] {
            assert_eq!(mirror(none), None);
        }
    }

    #[test]
    fn the_suite_is_looked_at_alone_and_installed_from_beside_the_system() {
        let folder = tempfile::tempdir().unwrap();
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        let alone = read(&configure_alone(folder.path(), "deb x y z\n", "arm64").unwrap());
        assert!(alone.contains("Dir::State::Status"));
        assert!(alone.contains("APT::Architecture \"arm64\""));
        assert!(alone.contains("SourceParts \"/dev/null\""));
        let beside = read(&configure_beside(folder.path(), "deb x y z\n").unwrap());
        assert!(!beside.contains("Status"));
        assert!(!beside.contains("SourceList"));
        let part = folder.path().join("apt/parts/uzram-backports.list");
        assert_eq!(read(&part), "deb x y z\n");
    }

    #[test]
    fn the_kernel_behind_the_package_is_found() {
        let shown = "Package: linux-image-amd64\nDepends: base, linux-image-6.12.9+deb12-amd64 (= 6.12.9-1~bpo12+1)\n";
        let found = kernel_package(shown).unwrap();
        assert_eq!(found, "linux-image-6.12.9+deb12-amd64");
        assert_eq!(kernel_package("Package: x\n"), None);
        assert_eq!(kernel_package("Depends: linux-image-$(x)\n"), None);
    }
}
