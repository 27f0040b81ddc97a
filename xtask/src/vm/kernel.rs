//! The guests' kernels, and the programs of a guest of another architecture: Debian's, unpacked into a cache
//! outside of the checkout, never installed.
//!
//! The cache is `$XDG_CACHE_HOME/uzram/vm`, else `~/.cache/uzram/vm`. It keeps the first kernel
//! of each kind and series that it got, so that tests do not change by themselves. Remove the folder to get the newest.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::modules::{Modules, files_below};
use super::platform::Platform;
use crate::debian::{self, Suite};
use crate::process;
use crate::workspace;

const UNPACK_LIMIT: Duration = Duration::from_secs(300);
/// Longest wait for another checkout that is downloading.
const LOCK_LIMIT: Duration = Duration::from_secs(900);
const LOCK_POLL: Duration = Duration::from_millis(200);

/// Parts of the tree of modules that are kept: those that a test of block devices can need. The
/// rest, mainly hardware, is ten times as much.
const KEPT: &[&str] = &[
    "arch",
    "block",
    "crypto",
    "drivers/acpi",
    "drivers/block",
    "drivers/char",
    "drivers/dax",
    "drivers/md",
    "drivers/nvdimm",
    "drivers/nvme",
    "drivers/scsi",
    "drivers/vhost",
    "drivers/virtio",
    "fs",
    "lib",
    "mm",
    "net/vmw_vsock",
];

/// The start of the version of the release's own kernels.
const RELEASE_VERSION: &str = "6.1.";

/// A series of Debian's kernels. Backports' has ublk and every kind of zram that is compared. The release's own is what
/// machines of that release run unless told otherwise; its FUSE cannot send again what a dead server had read (6.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    Backports,
    Release,
}

impl Series {
    fn suite(self) -> &'static str {
        match self {
            Series::Backports => debian::BACKPORTS,
            Series::Release => debian::RELEASE,
        }
    }

    /// Whether the kernel of `release`, as `uname -r` prints it, is of the series.
    fn has(self, release: &str) -> bool {
        release.starts_with(RELEASE_VERSION) == (self == Series::Release)
    }
}

/// The kernels that a run's tests want; each may be missing.
#[derive(Debug)]
pub struct Kernels(Vec<(Series, Result<Kernel, String>)>);

impl Kernels {
    /// Obtains the kernel of each of `wanted`, once.
    pub fn obtain(platform: &Platform, wanted: impl Iterator<Item = Series>) -> Kernels {
        let mut kernels = Vec::new();
        for series in wanted {
            if kernels.iter().all(|(known, _)| *known != series) {
                kernels.push((series, Kernel::obtain(platform, series)));
            }
        }
        Kernels(kernels)
    }

    /// The kernel of `series`, or one line with the reason why there is none.
    ///
    /// # Errors
    /// That line.
    pub fn get(&self, series: Series) -> Result<&Kernel, &str> {
        let found = self.0.iter().find(|(known, _)| *known == series);
        let (_, kernel) = found.ok_or("nobody asked for it")?;
        kernel.as_ref().map_err(String::as_str)
    }

    /// Those that there are.
    pub fn iter(&self) -> impl Iterator<Item = &Kernel> {
        self.0.iter().filter_map(|(_, kernel)| kernel.as_ref().ok())
    }
}

/// A kernel that is ready to boot.
#[derive(Debug)]
pub struct Kernel {
    /// Its release, as `uname -r` prints it.
    pub release: String,
    pub image: PathBuf,
    pub modules: Modules,
}

impl Kernel {
    /// The kernel of `series` in the cache; downloads and unpacks it when there is none.
    ///
    /// # Errors
    /// One line with the reason why there is none.
    fn obtain(platform: &Platform, series: Series) -> Result<Kernel, String> {
        let cache = cache_folder("vm")?;
        let _lock = lock(&cache)?;
        let found = newest(&cache, series, platform.kernel_suffix);
        let folder = match found.map_err(|error| format!("{}: {error}", cache.display()))? {
            Some(folder) => folder,
            None => download(&cache, series, platform)?,
        };
        Kernel::open(&folder)
    }

    fn open(folder: &Path) -> Result<Kernel, String> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let builtin = folder.join("modules.builtin");
        let builtin = fs::read_to_string(&builtin)
            .map_err(|error| format!("{}: {error}; remove the folder", builtin.display()))?;
        Ok(Kernel {
            release: name.trim_start_matches(PREFIX).to_string(),
            image: folder.join("vmlinuz"),
            modules: Modules::open(&folder.join("modules"), &builtin)?,
        })
    }
}

/// Prefix of the folders of kernels in the cache, before their release.
const PREFIX: &str = "linux-";
/// Prefix of a folder in which packages are being unpacked.
const UNFINISHED: &str = "unpacking-";

/// The folder `what` in the user's cache.
///
/// # Errors
/// If the environment names no place for it.
pub fn cache_folder(what: &str) -> Result<PathBuf, String> {
    let absolute = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from)?;
        path.is_absolute().then_some(path)
    };
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    base.map(|base| base.join("uzram").join(what))
        .ok_or_else(|| "no place for downloads: set XDG_CACHE_HOME or HOME".to_string())
}

/// The folder with the programs of `packages`, and with all that they need, for `platform`. Its tree is that of
/// a system, without what only an installation does.
///
/// # Errors
/// One line with the reason why there is none.
pub fn obtain_programs(platform: &Platform, packages: &[&str]) -> Result<PathBuf, String> {
    let cache = cache_folder("vm")?;
    let _lock = lock(&cache)?;
    let place = cache.join(format!("programs-{}", platform.debian));
    if place.is_dir() {
        return Ok(place);
    }
    println!("vm: fetching the guest's programs, once");
    let failed = |error: std::io::Error| format!("{}: {error}", cache.display());
    let work = workplace(&cache).map_err(failed)?;
    let release = Suite::open(work.path(), debian::RELEASE, platform.debian)?;
    let unpacked = work.path().join("unpacked");
    for package in release.download_with_needs(packages)? {
        debian::unpack(&package, &unpacked)?;
    }
    fs::rename(&unpacked, &place).map_err(failed)?;
    println!("vm: {}", place.display());
    Ok(place)
}

/// Keeps other processes out of the cache, which is made if need be, until the file is dropped.
fn lock(cache: &Path) -> Result<File, String> {
    fs::create_dir_all(cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    let path = cache.join("lock");
    let file = File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let attempts = LOCK_LIMIT.as_millis() / LOCK_POLL.as_millis();
    for _ in 0..attempts {
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(file);
        }
        std::thread::sleep(LOCK_POLL);
    }
    Err(format!("{}: held by another for too long", path.display()))
}

/// The newest kernel of `series` in the cache whose release ends with `suffix`.
fn newest(cache: &Path, series: Series, suffix: &str) -> std::io::Result<Option<PathBuf>> {
    let mut found = None;
    for entry in fs::read_dir(cache)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let release = name.strip_prefix(PREFIX);
        if release.is_some_and(|release| series.has(release) && release.ends_with(suffix)) {
            let made = entry.metadata()?.modified()?;
            found = found.max(Some((made, entry.path())));
        }
    }
    Ok(found.map(|(_, path)| path))
}

/// Fills `cache`. Under a kernel's name there is always a whole kernel or none.
fn download(cache: &Path, series: Series, platform: &Platform) -> Result<PathBuf, String> {
    let suite = series.suite();
    println!("vm: fetching the guest's kernel of {suite}, once");
    let failed = |error: std::io::Error| format!("{}: {error}", cache.display());
    let work = workplace(cache).map_err(failed)?;
    let suite = Suite::open(work.path(), suite, platform.debian)?;
    let package = suite.download_kernel(platform.kernel_package)?;
    let unpacked = work.path().join("unpacked");
    debian::unpack(&package, &unpacked)?;
    let kernel = work.path().join("kernel");
    let release = arrange(&unpacked, &kernel)?;
    let place = cache.join(format!("{PREFIX}{release}"));
    fs::rename(&kernel, &place).map_err(failed)?;
    println!("vm: {}", place.display());
    Ok(place)
}

/// An empty folder in the cache for a download.
fn workplace(cache: &Path) -> std::io::Result<tempfile::TempDir> {
    sweep(cache)?;
    tempfile::Builder::new()
        .prefix(UNFINISHED)
        .tempdir_in(cache)
}

/// Removes the files of a download that was killed. The lock shows that none is going on.
fn sweep(cache: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(cache)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Moves the needed files of an unpacked package into the folder `kernel`. Returns its release.
fn arrange(unpacked: &Path, kernel: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("unpacked kernel: {error}");
    let modules = ["lib/modules", "usr/lib/modules"]
        .map(|place| unpacked.join(place))
        .into_iter()
        .find(|place| place.is_dir())
        .ok_or("unpacked kernel: it has no modules")?;
    let mut releases = fs::read_dir(&modules).map_err(failed)?;
    let release = releases
        .next()
        .ok_or("unpacked kernel: it has no release")?;
    let release = release.map_err(failed)?.file_name();
    let release = release.to_string_lossy().into_owned();
    let modules = modules.join(&release);
    fs::create_dir_all(kernel).map_err(failed)?;
    let image = unpacked.join("boot").join(format!("vmlinuz-{release}"));
    fs::rename(image, kernel.join("vmlinuz")).map_err(failed)?;
    fs::rename(
        modules.join("modules.builtin"),
        kernel.join("modules.builtin"),
    )
    .map_err(failed)?;
    for kept in KEPT {
        let from = modules.join("kernel").join(kept);
        if from.is_dir() {
            let to = kernel.join("modules").join(kept);
            let parent = to.parent().unwrap_or(kernel);
            fs::create_dir_all(parent).map_err(failed)?;
            fs::rename(from, &to).map_err(failed)?;
        }
    }
    decompress(&kernel.join("modules"))?;
    Ok(release)
}

/// Unpacks `*.ko.xz`, so that the guest can load the modules. Older kernels have them unpacked.
fn decompress(modules: &Path) -> Result<(), String> {
    let files = files_below(modules).map_err(|error| error.to_string())?;
    let compressed = files
        .into_iter()
        .filter(|file| file.extension().is_some_and(|suffix| suffix == "xz"));
    let compressed: Vec<_> = compressed.collect();
    if compressed.is_empty() {
        return Ok(());
    }
    let mut xz = workspace::command("xz");
    xz.arg("--decompress").arg("--").args(compressed);
    process::succeed(&mut xz, UNPACK_LIMIT)
        .map(drop)
        // The command is as long as the list of modules.
        .map_err(|_| "xz cannot decompress the kernel's modules".to_string())
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_kernel_is_of_one_series() {
        let cache = tempfile::tempdir().unwrap();
        let releases = ["6.1.0-44-amd64", "6.12.9+deb12-amd64", "6.12.9+deb12-arm64"];
        for release in releases {
            fs::create_dir(cache.path().join(format!("{PREFIX}{release}"))).unwrap();
        }
        let found = |series, suffix| newest(cache.path(), series, suffix).unwrap();
        let is = |release: &str| Some(cache.path().join(format!("{PREFIX}{release}")));
        assert_eq!(found(Series::Release, "-amd64"), is(releases[0]));
        assert_eq!(found(Series::Backports, "-amd64"), is(releases[1]));
        assert_eq!(found(Series::Release, "-arm64"), None);
    }
}
