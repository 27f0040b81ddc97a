//! The command line. What a flag means is said here once and shown by `--help`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

#[path = "args_btt.rs"]
pub mod btt;
#[path = "args_device.rs"]
pub mod device;
#[path = "args_run.rs"]
pub mod run;
#[path = "args_show.rs"]
pub mod show;
#[path = "args_survive.rs"]
pub mod survive;

use btt::BttArgs;
use device::{DeviceArgs, UpDeviceArgs};
pub use run::RunArgs;
pub use show::{ListArgs, MetricsArgs, StatArgs, TopArgs, ViewArgs, ZramctlArgs};
pub use survive::{SurviveArgs, UpgradeArgs};

/// Compressed RAM disks in user space: zram's job, words and counters, without the kernel module
#[derive(Debug, Parser)]
#[command(
    name = "uzram",
    version,
    after_help = "\
Start here:
  uzram serve --size 1G         a compressed RAM disk, served over NBD
  uzram doctor                  what this kernel offers, the best command here
  uzram up --swap               compressed memory as swap, until uzram down swap0
  uzram run --memory 2G -- make a program in 2 GiB of memory, the rest compressed
  uzram stat                    what it holds, by zram's counters
  uzram COMMAND --help          examples of every command

Sizes are binary: 1G is 2^30 bytes, 1.5G and 50% (of the machine's RAM) work.
Exit status: 0 done, 1 failed, 2 wrong usage."
)]
pub struct Cli {
    /// Private directory where running servers are found [default: $XDG_RUNTIME_DIR/uzram, else
    /// /run/uzram for root, /tmp/uzram-UID for others]
    #[arg(long, global = true, value_name = "DIR")]
    pub control_dir: Option<PathBuf>,
    /// The command
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Serve(ServeArgs),
    Up(UpArgs),
    Down(DownArgs),
    Run(RunArgs),
    /// The server that `run` starts beside the program
    #[command(hide = true)]
    RunServer,
    /// The process that unmounts the tree of `serve --tree`
    #[command(hide = true)]
    KeepTree {
        /// Where it is mounted
        directory: PathBuf,
    },
    Doctor(DoctorArgs),
    Add(AddArgs),
    Remove(RemoveArgs),
    List(ListArgs),
    Stat(StatArgs),
    Top(TopArgs),
    Metrics(MetricsArgs),
    Zramctl(ZramctlArgs),
    View(ViewArgs),
    Set(SetArgs),
    Compact(CompactArgs),
    Reset(ResetArgs),
    Upgrade(UpgradeArgs),
    Survive(SurviveArgs),
    Capture(CaptureArgs),
    Btt(BttArgs),
    Advise(AdviseArgs),
    Train(TrainArgs),
    Bench(BenchArgs),
}

/// Make compressed RAM disks and serve them until Ctrl-C or SIGTERM
#[derive(Debug, Args)]
#[command(
    next_line_help = true,
    after_help = "\
Examples:
  uzram serve --size 1G
  uzram serve --size 50% --algorithm zstd --mem-limit 512M --name scratch
  uzram serve --size 4G --socket /tmp/disk.sock
  uzram serve --size 4G --listen 127.0.0.1:10809
  uzram serve --device pmem --path /mnt/dax/disk --size 1G
  uzram serve --config /etc/uzram/uzram.toml
  uzram serve --size 4G --metrics 127.0.0.1:9100    for Prometheus
  uzram serve --size 4G --run 'nbdinfo \"$uri\"'    ends with the command
  uzram serve --size 4G --attach auto    a block device; uzram up does the rest
  uzram serve --size 8G --attach vhost-user --socket vm1.sock    a guest's disk

It stays in the foreground, prints the lines to type next and says how to end it. On SIGINT or \
SIGTERM it answers what is under way and leaves; a second signal, once the first was taken, ends it \
at once, with exit status 1. While an attached disk is mounted or swapped to it refuses to end, and \
says so. Nothing that the disk held survives, unless --device keeps it in a file.

A configuration file has a section a disk, whose keys are the options above; zram-generator's \
zram-size, zram-resident-limit, compression-algorithm and host-memory-limit are understood too:

  [server]                         # may be left out
  log-level = \"info\"
  [scratch]
  size = \"4G\"
  algorithm = \"zstd\"
  [zram0]
  zram-size = \"min(ram / 2, 4096)\"

SIGHUP reads it again: new disks are added, memory limits set, and nothing is removed. Under systemd \
the server says when it is ready and takes sockets that are handed over."
)]
pub struct ServeArgs {
    /// The disk
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Take the disks from this TOML file instead of the options above
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Serve metrics for Prometheus here, by HTTP: IP:PORT, or a path for a Unix socket of mode 0600.
    /// Other machines may read them only with --insecure
    #[arg(long, value_name = "ADDR|SOCKET")]
    pub metrics: Option<String>,
    /// Mount zram's files here: block/NAME/disksize, mm_stat and so on, and class/zram-control/hot_add;
    /// without --size there is no disk at first. Such a server has no sandbox
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    pub tree: Option<PathBuf>,
    /// Let values written to the tree name files below DIR (dict=FILE); may be given several times
    #[arg(long, value_name = "DIR", requires = "tree")]
    pub tree_files: Vec<PathBuf>,
    /// Level of the log on stderr: off, error, warn, info, debug or trace [default: info for the journal,
    /// else warn]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Give nothing up after the set-up, so that a debugger can look in and disks that are added can
    /// have sockets anywhere
    #[arg(long)]
    pub no_sandbox: bool,
    /// Let system calls that serving does not need pass, and have the kernel log them (dmesg), to find
    /// out which the sandbox refuses
    #[arg(long, conflicts_with = "no_sandbox")]
    pub sandbox_log: bool,
    /// Serve in the background, once clients can connect; later log lines are lost
    #[arg(long, conflicts_with = "run")]
    pub fork: bool,
    /// Run COMMAND by the shell once clients can connect, end with it, and have its exit status; $uri is
    /// the first disk's address, $name its name
    #[arg(long, value_name = "COMMAND")]
    pub run: Option<String>,
    /// Let the disks outlive the server: this process holds what they have, starts the server, and starts
    /// another one when it is killed or crashes. Clients of NBD connect again and repeat what was not
    /// answered. uzram upgrade puts another program in its place
    #[arg(long)]
    pub survive: bool,
    /// Serve for a holder at the other end of standard input: `--survive` asks for that.
    #[arg(long, hide = true)]
    pub held: bool,
    /// End with whoever starts it: `--run` asks for that.
    #[arg(long, hide = true)]
    pub end_with_parent: bool,
    /// Leave the session of whoever starts it: `up` asks for that, and its terminal's Ctrl-C is meant
    /// for others.
    #[arg(long, hide = true)]
    pub own_session: bool,
}

/// Set a disk up for use, in the background: as swap, or with a file system on a directory
#[derive(Debug, Args)]
#[command(
    next_line_help = true,
    after_help = "\
Examples:
  uzram up --swap                              half of RAM as compressed swap
  uzram up --size 4G --swap --priority 200
  uzram up --size 4G --mount /mnt/scratch --fs xfs
  uzram down swap0; uzram down /mnt/scratch
  uzram up --config /etc/systemd/zram-generator.conf

Needs root, and of the kernel ublk (the module ublk_drv; preferred), or FUSE and loop devices. What is \
up already stays as it is; what a server that was killed left is taken down first. The server's \
messages go to NAME.log beside its sockets.

Swap: the server is locked in memory, is known to the kernel as one that memory is freed through, is \
spared by the out-of-memory killer, and keeps memory in reserve (64 MiB, or a fiftieth of the disk if \
that is more) that is refilled apart from writing. What the system refuses of this is said. Safest is \
a memory limit on the programs that swap (a memory cgroup), with the server outside of it. If the \
whole machine runs short so fast that the reserve is used up, writes to swap wait for it, a second \
at most, and then fail; the kernel keeps those pages. On ublk the kernel has all that it \
needs to pass a page on. FUSE and the loop driver allocate for that, without a reserve, so with them \
the kernel is told to start swapping sooner (vm.watermark_scale_factor, 256 MiB or a tenth of RAM), and \
not to keep more from them when memory is fragmented (vm.watermark_boost_factor, 0); down sets both \
back. Without that, a machine that is short as a whole comes to a stop. A burst that outruns even this can stall. Swap larger than half of RAM \
gets that as its memory limit, so that pages which do not compress end in a full swap, and the \
kernel's choice of a program to kill, and not in a stall.

A file of zram-generator: each section [zramN] becomes swap, or with mount-point a file system, by the \
name of the section (uzram down zram0). Keys mean what zram-generator.conf(5) says, programs of set! \
are run, and what a disk here does not have is said with its line: recompression, writeback. Only \
this file is read, without the drop-ins beside it."
)]
#[command(group = clap::ArgGroup::new("purpose").required(true).args(["swap", "mount", "config"]))]
pub struct UpArgs {
    /// Use it as swap
    #[arg(long)]
    pub swap: bool,
    /// Put zswap in front, the kernel's compressed cache of swap, where the kernel has it: pages that are
    /// soon wanted again stay at the kernel's speed. down sets it back
    #[arg(long, requires = "swap")]
    pub zswap: bool,
    /// Make a file system and mount it on this directory, which keeps its owner and mode; one that is
    /// not there is made, and removed by down
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Set up the disks of this file of zram-generator (INI)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The disk
    #[command(flatten)]
    pub device: UpDeviceArgs,
    /// Priority among swap devices; higher is used first [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=32767), conflicts_with_all = ["mount", "config"])]
    pub priority: Option<u16>,
    /// The file system [default: ext4]
    #[arg(long, value_enum, conflicts_with_all = ["swap", "config"])]
    pub fs: Option<FileSystem>,
    /// Have its server mount zram's files here, as serve --tree does
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    pub tree: Option<PathBuf>,
    /// Let the disk outlive its server, as serve --survive does: programs wait while a server that was killed is
    /// followed by another one. For swap, that one waits beside the server, and takes some 16 MiB
    #[arg(long, conflicts_with_all = ["config", "tree"])]
    pub survive: bool,
    /// Options of the mount, of a configuration file
    #[arg(skip)]
    pub mount_options: Option<String>,
}

/// File systems that `up` makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FileSystem {
    /// As zram-generator makes unless told
    Ext2,
    /// Without a journal, which memory that is lost at the end has no use for
    Ext4,
    /// At least 300 MiB
    Xfs,
    /// At least 109 MiB
    Btrfs,
}

impl FileSystem {
    /// As `mount -t` takes it.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext2 => "ext2",
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }

    /// The smallest disk that it fits on, in bytes.
    pub fn size_bytes_min(self) -> u64 {
        match self {
            FileSystem::Ext2 | FileSystem::Ext4 => 256 << 10,
            FileSystem::Xfs => 300 << 20,
            FileSystem::Btrfs => 109 << 20,
        }
    }

    /// The program that makes one.
    pub fn mkfs(self) -> &'static str {
        match self {
            FileSystem::Ext2 => "mkfs.ext2",
            FileSystem::Ext4 => "mkfs.ext4",
            FileSystem::Xfs => "mkfs.xfs",
            FileSystem::Btrfs => "mkfs.btrfs",
        }
    }

    /// Debian's package of it.
    pub fn package(self) -> &'static str {
        match self {
            FileSystem::Ext2 | FileSystem::Ext4 => "e2fsprogs",
            FileSystem::Xfs => "xfsprogs",
            FileSystem::Btrfs => "btrfs-progs",
        }
    }

    /// For a device that is new: nothing on it needs to be discarded or asked about.
    pub fn mkfs_arguments(self) -> &'static [&'static str] {
        match self {
            FileSystem::Ext2 => &["-q", "-F", "-m", "0", "-E", "nodiscard"],
            FileSystem::Ext4 => &[
                "-q",
                "-F",
                "-m",
                "0",
                "-O",
                "^has_journal",
                "-E",
                "nodiscard",
            ],
            FileSystem::Xfs => &["-q", "-f", "-K"],
            FileSystem::Btrfs => &["-q", "-f", "-K", "-d", "single", "-m", "single"],
        }
    }
}

/// Undo uzram up: stop using the disk, end its server and leave nothing, also after a crash
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram down swap0
  uzram down /mnt/scratch

What the disk held is lost; what was swapped to it is read back first. A disk in use is left alone, \
and who uses it is said. A server that was killed leaves devices that give errors: they are taken \
down, also after umount. Doing it twice is fine. Of a disk and a directory with one name it takes the \
disk; ./NAME means the directory.")]
pub struct DownArgs {
    /// The disk's name, or the directory that up mounted it on
    #[arg(value_name = "NAME|DIR")]
    pub target: String,
}

/// Show what this kernel offers to compressed memory, and the command that is best here
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram doctor
  uzram doctor --json

It changes nothing and needs no rights, but sees what its user may see: run it as you will run the \
server, in the same container. Each line is a fact, with the file or system call that it is from:

  yes      it can be used now
  off      the kernel has it: a module to load, or a setting
  refused  the kernel has it, and this process may not use it
  no       the kernel does not have it
  unknown  it cannot be told from here, as without /proc or /sys

The command at the end needs only what is known to be there. Its price was measured on the machine of \
docs/figures.md. No command of uzram uses userfaultfd or its MOVE yet.")]
pub struct DoctorArgs {
    /// As JSON: kernel, rights, facts, advice
    #[arg(long)]
    pub json: bool,
}

/// Make a further disk in a server that is running
#[derive(Debug, Args)]
#[command(
    next_line_help = true,
    after_help = "\
Examples:
  uzram add --size 1G
  uzram add --size 2G --name scratch --algorithm zstd --mem-limit 512M
  uzram add --size 1G --listen 127.0.0.1:10809    beside a disk that is there

The disk has a table, a pool and a limit of its own, and lives as long as the server: uzram remove \
ends it sooner. Disks that are given the same --socket or --listen share it as exports by name."
)]
pub struct AddArgs {
    /// The server to add to: the name of a disk of it, or its process id [default: the only one]
    #[arg(long, value_name = "NAME|PID")]
    pub server: Option<String>,
    /// The disk
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// End a disk, while no client is connected; its server goes on
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  uzram remove scratch

What the disk held is lost, and its memory goes back to the system. A disk in use is refused (EBUSY), \
with what uses it; --force hangs up on its NBD clients first, so that what they do next fails.")]
pub struct RemoveArgs {
    /// The disk's name
    pub name: String,
    /// Hang up on clients that are connected
    #[arg(long)]
    pub force: bool,
}

/// Change an attribute of a disk while it is served
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram set scratch mem_limit 512M
  uzram set scratch mem_limit none
  uzram set scratch mem_used_max 0      start the maximum afresh
  uzram set scratch read_only yes       refuse writes from now on
  uzram set log_level debug             of the server: no disk is named
  uzram set run0 memory 1G              the budget of a program of uzram run

Attributes have zram's names; uzram stat shows all. What was fixed when the disk was made is refused, \
with the reason.")]
#[command(
    override_usage = "uzram set [OPTIONS] <NAME> <ATTRIBUTE> <VALUE>\n       \
                            uzram set [OPTIONS] log_level <VALUE>"
)]
pub struct SetArgs {
    /// The name of the disk, or of a program of uzram run; left out for log_level, which is the server's
    pub name: String,
    /// The attribute
    pub attribute: String,
    /// Its new value
    pub value: Option<String>,
    /// The server whose log_level to set: the name of a disk of it, or its process id [default: the
    /// only one]
    #[arg(long, value_name = "NAME|PID")]
    pub server: Option<String>,
}

impl SetArgs {
    /// The disk, the attribute and the value. Of two words the first is the attribute.
    pub fn words(&self) -> (Option<&str>, &str, &str) {
        match &self.value {
            Some(value) => (Some(&self.name), &self.attribute, value),
            None => (None, &self.name, &self.attribute),
        }
    }
}

/// Move a disk's pages together in memory and give what becomes free back to the system
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  uzram compact uzram0

Pages that were overwritten or discarded leave holes between others. The server fills them by itself \
when much is lost; this does it now and as far as it goes. The disk stays in use meanwhile.")]
pub struct CompactArgs {
    /// The disk's name
    pub name: String,
}

/// Empty a disk and zero its counters, while no client is connected
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  uzram reset uzram0

Size, codec and memory limit stay. As in zram it is refused while the disk is in use.")]
pub struct ResetArgs {
    /// The disk's name
    pub name: String,
}

/// Find out which codec, level, unit and pool suit the pages of a process or a file
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram advise --pid 1234
  uzram advise --file disk.img --budget 100us
  uzram advise --corpus heap.pages --html advice.html

It puts a sample of the pages (16 MiB) through stores made in some 60 ways, and takes about 20 seconds. \
Of a process it takes memory of its own that it has touched, while it goes on running; the end of a \
file is padded with zeroes to a page. A quarter of the pages trains a dictionary; what decides and is \
shown was measured on the others.

  saved   memory saved, pool and tables counted, same-filled pages included
  ratio   the same without same-filled pages, which any choice keeps for nothing
  in      time to write a 4 KiB page at a random place; with larger units that
          takes reading and compressing the whole unit
  out     time to read one; both are the least of five runs, as other
          processes only add to them

Recommended is the densest choice that writes and reads a page within the budget. Choices that leave at \
most 1 % more memory in use and cost at most a quarter more are as good: of those a fixed order decides \
(no dictionary, the default pool, a small unit, a fast codec), so the answer is the same each time.")]
#[command(group = clap::ArgGroup::new("source").required(true).args(["pid", "file", "corpus"]))]
pub struct AdviseArgs {
    /// Sample memory of this process
    #[arg(long, value_name = "N")]
    pub pid: Option<u32>,
    /// Sample this file
    #[arg(long, value_name = "P")]
    pub file: Option<PathBuf>,
    /// Sample this file of whole pages, as `uzram capture` makes them
    #[arg(long, value_name = "F")]
    pub corpus: Option<PathBuf>,
    /// Most time to write and read a page, together [default: 30us, a third of an SSD's read]
    #[arg(long, value_name = "TIME", value_parser = uzram_advise::advise::parse_budget)]
    pub budget: Option<Duration>,
    /// Fewer choices on fewer pages: a first look in a few seconds
    #[arg(long)]
    pub quick: bool,
    /// As JSON: every choice, numbers raw
    #[arg(long)]
    pub json: bool,
    /// Also write a page with a chart to FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Copy real pages of a process or a file into a corpus for `uzram bench`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram capture --pid 1234 --out heap.pages
  uzram capture --file /usr/bin/perf --out code.pages --pages-max 1024

Of a process it takes private anonymous memory (heap, stacks, arenas) that was touched, not files, \
shared memory or devices; the process goes on running. More than --pages-max pages are sampled \
evenly in runs of 16. The end of a file is padded with zeroes to a page. The corpus is readable by \
you alone (mode 0600), and must not exist yet: it is somebody's memory.")]
#[command(group = clap::ArgGroup::new("source").required(true).args(["pid", "file"]))]
pub struct CaptureArgs {
    /// Take memory of this process
    #[arg(long, value_name = "N")]
    pub pid: Option<u32>,
    /// Take the content of this file
    #[arg(long, value_name = "P")]
    pub file: Option<PathBuf>,
    /// The corpus to make
    #[arg(long, value_name = "F")]
    pub out: PathBuf,
    /// Most pages of 4 KiB to take
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub pages_max: u64,
}

/// Make a dictionary for zstd, lz4 and lz4hc from pages like those that will be stored
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram capture --pid 1234 --out heap.pages
  uzram train --out heap.dict heap.pages
  uzram serve --size 1G --algorithm zstd \\
    --algorithm-params \"level=6 dict=heap.dict\"

Every other run of 16 pages is trained on, and the rest measured: what is printed is the gain on pages \
that the dictionary has not seen. It pays where pages resemble each other, as those of databases and \
texts do. The file holds pieces of the pages, so it is readable by you alone (mode 0600), and must not \
exist yet.")]
pub struct TrainArgs {
    /// The dictionary to make, 64 KiB at most
    #[arg(long, value_name = "D")]
    pub out: PathBuf,
    /// Files of 4 KiB pages, as `uzram capture` makes them
    #[arg(value_name = "CORPUS", required = true)]
    pub corpora: Vec<PathBuf>,
}

/// Measure uzram against its peers, with the program uzram-bench
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  uzram bench --help
  uzram bench store --quick
  uzram capture --pid 1234 --out heap.pages
  uzram bench store --corpus heap.pages

All arguments go to uzram-bench, which lies beside uzram or in PATH. It is not part of uzram: the \
project's source makes it (cargo install --locked --path lab/uzram-bench)."
)]
pub struct BenchArgs {
    /// Arguments of uzram-bench
    #[arg(
        value_name = "ARGUMENT",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub arguments: Vec<OsString>,
}
