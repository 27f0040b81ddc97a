//! The guest's machine: QEMU without hardware acceleration, so that it runs wherever it is
//! installed.
//!
//! The console and the control port go into files. QEMU never waits for them, and they remain
//! after a failure. They are read as they grow.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::debian_disk::System;
use super::kernel::Kernel;
use super::platform::Platform;
use super::watch::{Failure, Watch};
use crate::process::{self, Exit, Running};
use crate::workspace;

/// Pause between two looks at the guest's output.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const BACKEND_LIMIT: Duration = Duration::from_secs(10);

/// A device to plug into the machine besides CPUs and memory. Each has a file of its size as
/// content, filled with zeroes at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// A virtio disk.
    Disk { size_mib: u32 },
    /// The same, with a whole system on it.
    Debian { size_mib: u32 },
    /// Persistent memory (`/dev/pmem0`).
    Nvdimm { size_mib: u32 },
    /// A virtio disk that another process, qemu-storage-daemon, serves over vhost-user.
    VhostUserBlk { size_mib: u32 },
    /// The same, served by the `uzram` under test.
    Uzram { size_mib: u32 },
    /// The same of a server that is killed again and again, and whose disk outlives it.
    UzramKilled { size_mib: u32 },
}

/// Kills the server of a disk again and again, with a pause that varies. Whatever it asks fails while nobody serves.
const KILLER: &str = r#"
round=0
while sleep "1.$((round % 7))"; do
    server=$("$0" stat "$1" 2> /dev/null | awk '$1 == "pid" { print $2 }')
    [ -n "$server" ] && kill -9 "$server"
    round=$((round + 1))
done
"#;

/// The description of a machine.
pub struct Guest<'a> {
    pub platform: &'a Platform,
    pub kernel: &'a Kernel,
    pub archive: &'a [u8],
    pub memory_mib: u32,
    /// Whether its clock counts instructions, a nanosecond for each; it has one CPU then.
    pub counts: bool,
    pub devices: &'a [Device],
    /// The program that serves [`Device::Uzram`].
    pub uzram: Option<&'a Path>,
    /// The content of [`Device::Debian`].
    pub system: Option<System<'a>>,
    /// The second boot after the first has succeeded, with the same devices.
    pub second: Option<&'a [u8]>,
    /// The folder of the guest's files; emptied before it starts.
    pub folder: &'a Path,
}

/// A guest that has ended.
pub struct Ended {
    pub verdict: Result<(), Failure>,
    pub up_after: Option<Duration>,
}

impl Ended {
    /// Whether the kernel ran into a breakpoint while it booted. The kernel sets and removes
    /// breakpoints where it changes its code. A processor that QEMU emulates may run code that was
    /// translated before, and so a breakpoint that is gone. Seen once in some hundred boots.
    pub fn met_a_breakpoint(&self) -> bool {
        let is_it = |line: &str| line.contains("Oops: int3");
        self.up_after.is_none() && matches!(&self.verdict, Err(Failure::Panic(line)) if is_it(line))
    }
}

impl Guest<'_> {
    /// Boots, and waits until the test has ended or anything went wrong. Files that the test
    /// returned are then in `files` of the folder, the console's text in `console.log`.
    ///
    /// # Errors
    /// If the machine cannot be set up.
    pub fn run(&self, limit: Duration, show: bool) -> Result<Ended, String> {
        let sockets = self.prepare()?;
        let _backends = self.start_backends(sockets.path())?;
        let mut ended = self.boot(sockets.path(), limit, show)?;
        if let (Ok(()), Some(archive)) = (&ended.verdict, self.second) {
            let failed = |error| format!("{}: {error}", self.folder.display());
            let path = |name| self.folder.join(name);
            fs::rename(path("console.log"), path("console-first.log")).map_err(failed)?;
            self.provide(archive)?;
            ended = self.boot(sockets.path(), limit, show)?;
        }
        self.note_stats(sockets.path())?;
        Ok(ended)
    }

    /// One boot, from start to end.
    fn boot(&self, sockets: &Path, limit: Duration, show: bool) -> Result<Ended, String> {
        let mut command = self.command(sockets, "");
        command.args(["-serial", "file:console.log"]);
        let log = self.create("qemu.log")?;
        command.stdout(Stdio::null()).stderr(log);
        let mut watch = Watch::new(limit);
        let mut console = Tail::open(&self.folder.join("console.log"))?;
        let mut control = Tail::open(&self.folder.join("control"))?;

        let started = Instant::now();
        let mut qemu = Running::start(&mut command)?;
        let verdict = loop {
            // Looked at first: what was said until then is heard below.
            let exit = qemu.wait(Duration::ZERO).map(Exit::from);
            let now = started.elapsed();
            let (text, words) = (console.read()?, control.read()?);
            if show {
                let _ = std::io::stdout().write_all(&text);
            }
            watch.console(&text, now);
            watch.control(&words, now);
            let all_heard = text.is_empty() && words.is_empty();
            if let Some(verdict) = watch.verdict(now, exit.filter(|_| all_heard)) {
                break verdict;
            }
            std::thread::sleep(POLL_INTERVAL);
        };
        qemu.kill();
        let up_after = watch.up_after();
        self.keep(watch)?;
        Ok(Ended {
            verdict: verdict.map_err(|failure| self.explain(failure)),
            up_after,
        })
    }

    /// Boots with this terminal as the console, until the guest is switched off.
    ///
    /// # Errors
    /// If the machine cannot be set up, or QEMU fails.
    pub fn shell(&self) -> Result<(), String> {
        let sockets = self.prepare()?;
        let _backends = self.start_backends(sockets.path())?;
        let mut command = self.command(sockets.path(), "quiet");
        command
            .args(["-serial", "mon:stdio"])
            .stdin(Stdio::inherit());
        // In our process group: only then may it read from the terminal.
        let status = command
            .status()
            .map_err(|error| format!("{}: {error}", self.platform.emulator.program))?;
        match Exit::from(status) {
            Exit::Code(0) => Ok(()),
            exit => Err(format!("{} {exit}", self.platform.emulator.program)),
        }
    }

    /// Empties the folder and fills it with QEMU's input. Returns a place for sockets, whose paths
    /// must be short.
    fn prepare(&self) -> Result<tempfile::TempDir, String> {
        let failed = |error| format!("{}: {error}", self.folder.display());
        match fs::remove_dir_all(self.folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(error));
            }
            _ => fs::create_dir_all(self.folder.join("files")).map_err(failed)?,
        }
        self.provide(self.archive)?;
        for (index, device) in self.devices.iter().enumerate() {
            let image = self.create(&image_name(index))?;
            let size_bytes = u64::from(device.size_mib()) << 20;
            image.set_len(size_bytes).map_err(failed)?;
            if let Device::Debian { size_mib } = device {
                let system = self.system.as_ref().ok_or("this test has no system")?;
                system.write(&self.folder.join(image_name(index)), *size_mib)?;
            }
        }
        tempfile::tempdir().map_err(failed)
    }

    /// The input and output files of a boot.
    fn provide(&self, archive: &[u8]) -> Result<(), String> {
        let failed = |error| format!("{}: {error}", self.folder.display());
        let mut initramfs = self.create("initramfs")?;
        initramfs.write_all(archive).map_err(failed)?;
        self.create("control")?;
        self.create("console.log").map(drop)
    }

    fn create(&self, name: &str) -> Result<File, String> {
        let path = self.folder.join(name);
        File::create(&path).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn start_backends(&self, sockets: &Path) -> Result<Vec<Running>, String> {
        let mut backends = Vec::new();
        for (index, device) in self.devices.iter().enumerate() {
            let socket = socket(sockets, index);
            let command = match device {
                Device::VhostUserBlk { .. } => self.storage_daemon(index, &socket),
                Device::Uzram { size_mib } => self.uzram(index, *size_mib, &socket)?,
                Device::UzramKilled { size_mib } => {
                    let mut command = self.uzram(index, *size_mib, &socket)?;
                    command.args(["--survive", "--checksum"]);
                    command
                }
                Device::Disk { .. } | Device::Debian { .. } | Device::Nvdimm { .. } => continue,
            };
            backends.push(self.start_backend(index, command, &socket)?);
            if let Device::UzramKilled { .. } = device {
                backends.push(self.start_killer(index, sockets)?);
            }
        }
        Ok(backends)
    }

    /// The program that serves the image of device `index` over vhost-user at `socket`.
    fn storage_daemon(&self, index: usize, socket: &Path) -> Command {
        let mut daemon = workspace::command("qemu-storage-daemon");
        daemon.current_dir(self.folder).arg("--blockdev");
        daemon.arg(format!(
            "driver=file,node-name=image,filename={}",
            image_name(index)
        ));
        daemon.arg("--export").arg(format!(
            "type=vhost-user-blk,id=export,node-name=image,writable=on,addr.type=unix,addr.path={}",
            socket.display()
        ));
        daemon
    }

    /// The program that serves a compressed disk there.
    fn uzram(&self, index: usize, size_mib: u32, socket: &Path) -> Result<Command, String> {
        let mut command = self.control(socket.parent().unwrap_or(socket))?;
        command.args(["serve", "--attach", "vhost-user", "--algorithm", "lz4"]);
        command.arg("--name").arg(disk_name(index));
        command.arg("--size").arg(format!("{size_mib}M"));
        command.arg("--socket").arg(socket);
        Ok(command)
    }

    /// The program that kills the server of device `index` again and again.
    fn start_killer(&self, index: usize, sockets: &Path) -> Result<Running, String> {
        let program = self.uzram.ok_or("nobody to kill")?;
        let mut command = workspace::command("sh");
        command
            .args(["-c", KILLER])
            .arg(program)
            .arg(disk_name(index));
        command.env("XDG_RUNTIME_DIR", sockets);
        command
            .stdout(Stdio::null())
            .stderr(self.create("killer.log")?);
        Running::start(&mut command)
    }

    /// The program under test, with its state in `sockets`.
    fn control(&self, sockets: &Path) -> Result<Command, String> {
        let program = self
            .uzram
            .ok_or("this test has devices of uzram, and no uzram")?;
        let mut command = match self.platform.runner {
            Some(runner) => workspace::command(runner.program),
            None => workspace::command(program),
        };
        if self.platform.runner.is_some() {
            command.arg(program);
        }
        command.env("XDG_RUNTIME_DIR", sockets);
        Ok(command)
    }

    /// Writes the final content of the compressed disks to files.
    fn note_stats(&self, sockets: &Path) -> Result<(), String> {
        for (index, device) in self.devices.iter().enumerate() {
            if let Device::Uzram { .. } | Device::UzramKilled { .. } = device {
                let mut command = self.control(sockets)?;
                command.args(["stat", &disk_name(index), "--json"]);
                let said = process::succeed(&mut command, BACKEND_LIMIT)?.stdout;
                let name = stat_name(index);
                let written = self.create(&name)?.write_all(said.as_bytes());
                written.map_err(|error| format!("{name}: {error}"))?;
            }
        }
        Ok(())
    }

    fn start_backend(
        &self,
        index: usize,
        mut command: Command,
        socket: &Path,
    ) -> Result<Running, String> {
        let log = self.create(&format!("backend{index}.log"))?;
        command.stdout(Stdio::null()).stderr(log);
        let mut running = Running::start(&mut command)?;
        let deadline = Instant::now() + BACKEND_LIMIT;
        while !socket.exists() {
            if running.wait(POLL_INTERVAL).is_some() || Instant::now() > deadline {
                return Err(format!("no vhost-user backend at {}", socket.display()));
            }
        }
        Ok(running)
    }

    /// QEMU with everything but a console.
    fn command(&self, sockets: &Path, parameters: &str) -> Command {
        let platform = self.platform;
        let mut command = workspace::command(platform.emulator.program);
        command.current_dir(self.folder);
        command.args([
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
        ]);
        let (accelerator, cpus) = match self.counts {
            true => ("tcg,thread=single", 1),
            false => ("tcg,thread=multi", platform.cpus),
        };
        command.args(["-accel", accelerator, "-cpu", platform.cpu]);
        command.arg("-smp").arg(cpus.to_string());
        if self.counts {
            command.args(["-icount", "shift=0,sleep=off"]);
        }
        command.arg("-machine").arg(format!(
            "{},nvdimm={},memory-backend=memory",
            platform.machine,
            if self.has_nvdimm() { "on" } else { "off" }
        ));
        if let Some(firmware) = platform.firmware.filter(|_| self.has_nvdimm()) {
            command.args(["-bios", firmware.program]);
        }
        command.arg("-m").arg(self.memory_slots());
        // Shared, for vhost-user backends write into the guest's memory.
        command.arg("-object").arg(format!(
            "memory-backend-memfd,id=memory,share=on,size={}M",
            self.memory_mib
        ));
        command.arg("-kernel").arg(&self.kernel.image);
        command.args(["-initrd", "initramfs", "-append"]);
        // A kernel that panics or oopses restarts at once, which -no-reboot turns into the end.
        command.arg(format!(
            "console={} loglevel=5 panic=-1 oops=panic {parameters}",
            platform.console
        ));
        command.args([
            "-device",
            "virtio-serial-pci",
            "-chardev",
            "file,id=control,path=control",
        ]);
        command.args(["-device", "virtserialport,chardev=control,name=control"]);
        for (index, device) in self.devices.iter().enumerate() {
            command.args(device.arguments(index, &socket(sockets, index), platform.cpus));
        }
        command
    }

    fn has_nvdimm(&self) -> bool {
        let is_nvdimm = |device: &Device| matches!(device, Device::Nvdimm { .. });
        self.devices.iter().any(is_nvdimm)
    }

    /// Memory, and room to plug more of it.
    fn memory_slots(&self) -> String {
        let memory = self.memory_mib;
        let nvdimms = self.devices.iter().filter_map(|device| match device {
            Device::Nvdimm { size_mib } => Some(*size_mib),
            _ => None,
        });
        let most: u32 = memory + nvdimms.clone().sum::<u32>();
        match nvdimms.count() {
            0 => format!("{memory}M"),
            count => format!("{memory}M,slots={count},maxmem={most}M"),
        }
    }

    /// Writes the files that the test returned.
    fn keep(&self, watch: Watch) -> Result<(), String> {
        for file in watch.into_files() {
            self.create(&format!("files/{}", file.name))?
                .write_all(&file.content)
                .map_err(|error| format!("files/{}: {error}", file.name))?;
        }
        let _ = fs::remove_file(self.folder.join("control"));
        Ok(())
    }

    /// Adds QEMU's output to a failure of QEMU's.
    fn explain(&self, failure: Failure) -> Failure {
        let said = fs::read_to_string(self.folder.join("qemu.log")).unwrap_or_default();
        match failure {
            Failure::Machine(exit) => Failure::Machine(format!("{exit}\n{}", said.trim_end())),
            other => other,
        }
    }
}

impl Device {
    fn size_mib(self) -> u32 {
        match self {
            Device::Disk { size_mib }
            | Device::Debian { size_mib }
            | Device::Nvdimm { size_mib }
            | Device::VhostUserBlk { size_mib }
            | Device::Uzram { size_mib }
            | Device::UzramKilled { size_mib } => size_mib,
        }
    }

    fn arguments(self, index: usize, socket: &Path, cpus: u32) -> [String; 4] {
        let image = image_name(index);
        match self {
            Device::Disk { .. } | Device::Debian { .. } => [
                "-drive".into(),
                format!("if=none,id=disk{index},format=raw,file={image}"),
                "-device".into(),
                format!("virtio-blk-pci,drive=disk{index},discard=on"),
            ],
            Device::Nvdimm { size_mib } => [
                "-object".into(),
                format!(
                    "memory-backend-file,id=pmem{index},share=on,mem-path={image},size={size_mib}M"
                ),
                "-device".into(),
                format!("nvdimm,id=nvdimm{index},memdev=pmem{index}"),
            ],
            Device::VhostUserBlk { .. } | Device::Uzram { .. } | Device::UzramKilled { .. } => [
                "-chardev".into(),
                format!(
                    "socket,id=vhost{index},path={}{}",
                    socket.display(),
                    match self {
                        Device::UzramKilled { .. } => ",reconnect=1",
                        _ => "",
                    }
                ),
                "-device".into(),
                format!(
                    "vhost-user-blk-pci,num-queues={},chardev=vhost{index}",
                    if !matches!(self, Device::VhostUserBlk { .. }) {
                        cpus
                    } else {
                        1
                    }
                ),
            ],
        }
    }
}

/// The name of a compressed disk.
fn disk_name(index: usize) -> String {
    format!("disk{index}")
}

/// The file, in the guest's folder, with the final content of a compressed disk.
pub fn stat_name(index: usize) -> String {
    format!("stat{index}.json")
}

/// The file, in the guest's folder, with a device's content.
pub fn image_name(index: usize) -> String {
    format!("device{index}.img")
}

fn socket(sockets: &Path, index: usize) -> PathBuf {
    sockets.join(format!("device{index}.sock"))
}

/// A file that another process appends to.
struct Tail {
    file: File,
}

impl Tail {
    /// Most bytes of one look. The rest is read at the next.
    const LOOK_MAX_BYTES: u64 = 4 << 20;

    fn open(path: &Path) -> Result<Tail, String> {
        let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Tail { file })
    }

    /// The text appended since the last look.
    fn read(&mut self) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let mut look = (&self.file).take(Self::LOOK_MAX_BYTES);
        look.read_to_end(&mut bytes)
            .map_err(|error| format!("the guest's output: {error}"))?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_breakpoint_at_boot_is_the_emulators() {
        let met = |line: &str, up_after| {
            let verdict = Err(Failure::Panic(line.to_string()));
            Ended { verdict, up_after }.met_a_breakpoint()
        };
        let breakpoint = "Oops: int3: 0000 [#1] PREEMPT SMP NOPTI";
        assert!(met(breakpoint, None));
        assert!(!met(breakpoint, Some(Duration::from_secs(4))));
        assert!(!met("Kernel panic - not syncing: sysrq", None));
    }
}
