//! The disk of a guest that is Debian with systemd: a clean system with the package, and the test's script as a unit.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::clean_root::{self, CleanRoot};
use crate::install::{self, Tool};
use crate::recipes::{self, Mark};
use crate::{process, workspace};

const LIMIT: Duration = Duration::from_secs(300);
/// The test starts with the system, and waits for the rest of it by itself. /test/finish is the other guests'.
const UNIT: &str = "\
[Unit]
Description=The test
[Service]
ExecStart=/bin/sh -c 'exec 3> /dev/vport0p1; cd /test; . /test/finish'
[Install]
WantedBy=multi-user.target
";
const DISKS: &str = "[first]\nsize = \"16M\"\n";
const DEFAULTS: &str = "SWAP_OPTIONS=\"--size 128M --priority 7\"\nMOUNT_OPTIONS=\"--size 64M\"\n";
/// Long enough for a busy machine, and not waited for longer than needed.
const WATCHDOG: &str = "[Service]\nWatchdogSec=15\n";
/// Without an identity the system would take this for its first boot, and enable all units by itself. The service
/// and the swap are enabled as an administrator does it, the consoles' logins are left out.
const PREPARE: &str = "\
dpkg --install --force-confold /test/uzram.deb
echo 00000000000000000000000000000001 > /etc/machine-id
systemctl enable uzram.service uzram-swap.service uzram-test.service
systemctl mask getty.target apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer
systemctl set-default multi-user.target
";

/// The programs that make such a disk and are missing.
pub fn missing() -> Vec<Tool> {
    let own = [install::MKE2FS, install::DPKG_DEB, install::GZIP];
    install::missing(&[clean_root::TOOLS, &own].concat())
}

/// The content of such a disk.
pub struct System<'a> {
    /// The Debian package.
    pub package: &'a Path,
    pub script: &'a str,
    pub finish: &'a str,
}

impl System<'_> {
    /// Makes the image of the disk.
    ///
    /// # Errors
    /// One line that names the refused thing.
    pub fn write(&self, image: &Path, size_mib: u32) -> Result<(), String> {
        let root = CleanRoot::unpack()?;
        let files: [(&str, &[u8]); 6] = [
            ("test/run", self.script.as_bytes()),
            ("test/finish", self.finish.as_bytes()),
            ("etc/uzram/uzram.toml", DISKS.as_bytes()),
            ("etc/default/uzram", DEFAULTS.as_bytes()),
            ("etc/systemd/system/uzram-test.service", UNIT.as_bytes()),
            (
                "etc/systemd/system/uzram.service.d/test.conf",
                WATCHDOG.as_bytes(),
            ),
        ];
        let failed = |error: std::io::Error| format!("{}: {error}", root.path().display());
        for (to, content) in files {
            let path = root.path().join(to);
            fs::create_dir_all(path.parent().unwrap_or(&path)).map_err(failed)?;
            fs::write(path, content).map_err(failed)?;
        }
        for page in recipes::pages()? {
            if let Some(script) = page.script(Mark::Guest) {
                let path = root.path().join("test").join(format!("{}.sh", page.name));
                fs::write(path, script).map_err(failed)?;
            }
        }
        fs::create_dir_all(root.path().join("out")).map_err(failed)?;
        fs::copy(self.package, root.path().join("test/uzram.deb")).map_err(failed)?;
        process::succeed(&mut root.shell(PREPARE), LIMIT)?;
        let mut mke2fs = workspace::command(install::MKE2FS.program);
        mke2fs
            .args(["-q", "-F", "-t", "ext4", "-d"])
            .arg(root.path())
            .arg(image);
        process::succeed(mke2fs.arg(format!("{size_mib}M")), LIMIT).map(drop)
    }
}
