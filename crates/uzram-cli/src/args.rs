//! The command line. What a flag means is said here once and shown by `--help`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

#[path = "args_btt.rs"]
pub mod btt;

use btt::BttArgs;

/// Compressed RAM disks in user space: zram's job, words and counters, without the kernel module
#[derive(Debug, Parser)]
#[command(
    name = "uzram",
    version,
    after_help = "\
Start here:
  uzram serve --size 1G         a compressed RAM disk, served over NBD
  uzram up --swap               compressed memory as swap, now; uzram down swap0 ends it
  uzram stat                    what it holds, by zram's counters
  uzram COMMAND --help          examples of every command

Sizes are binary: 1G is 2^30 bytes, 1.5G and 50% (of the machine's RAM) are fine.
Exit status: 0 done, 1 failed, 2 wrong usage."
)]
pub struct Cli {
    /// Private directory where running servers are found [default: $XDG_RUNTIME_DIR/uzram, else
    /// /run/uzram for root, /tmp/uzram-UID for others]
    #[arg(long, global = true, value_name = "DIR")]
    pub control_dir: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Serve(ServeArgs),
    Up(UpArgs),
    Down(DownArgs),
    Add(AddArgs),
    Remove(RemoveArgs),
    List(ListArgs),
    Stat(StatArgs),
    Set(SetArgs),
    Compact(CompactArgs),
    Reset(ResetArgs),
    Capture(CaptureArgs),
    Btt(BttArgs),
    Advise(AdviseArgs),
    Train(uzram_bench::train::Args),
    Bench(BenchArgs),
}

/// Make compressed RAM disks and serve them until Ctrl-C or SIGTERM
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram serve --size 1G
  uzram serve --size 50% --algorithm zstd --mem-limit 512M --name scratch
  uzram serve --size 4G --socket /tmp/disk.sock
  uzram serve --size 4G --listen 127.0.0.1:10809
  uzram serve --device pmem --path /mnt/dax/disk --size 1G
  uzram serve --config /etc/uzram/uzram.toml
  uzram serve --size 4G --attach auto        a block device; uzram up does the rest, too
  uzram serve --size 8G --attach vhost-user --socket /run/vm1.sock    a disk of a guest

It stays in the foreground, prints the lines to type next and says how to end it. On SIGINT or
SIGTERM it answers what is under way and leaves; a second signal ends it at once. Nothing that
the disk held survives, unless --device keeps it in a file.

A configuration file has a section a disk, whose keys are the options above; zram-generator's
zram-size, zram-resident-limit, compression-algorithm and host-memory-limit are understood too:

  [server]                         # may be left out
  log-level = \"info\"
  [scratch]
  size = \"4G\"
  algorithm = \"zstd\"
  [zram0]
  zram-size = \"min(ram / 2, 4096)\"

SIGHUP reads it again: new disks are added, memory limits set, and nothing is removed. Under systemd
the server says when it is ready and takes sockets that are handed over.")]
pub struct ServeArgs {
    /// The disk
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Take the disks from this TOML file instead of the options above
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What to log on stderr: off, error, warn, info, debug or trace [default: info for the journal,
    /// else warn]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Give nothing up after the set-up, so that a debugger can look in and disks that are added can
    /// have sockets anywhere
    #[arg(long)]
    pub no_sandbox: bool,
}

/// What a disk is to be, for all commands that make one. Each field is an option of the same name in
/// the server's table of options, which parses it.
#[derive(Debug, Args)]
pub struct DeviceArgs {
    /// Size of the disk; memory is taken only for what is written (64M, 1.5G, 50%)
    #[arg(long)]
    pub size: Option<String>,
    /// What keeps the data: zram (compressed memory), brd (memory as it is), pmem (a file) or btt (a
    /// file with atomic sectors) [default: zram]
    #[arg(long, value_name = "KIND")]
    pub device: Option<String>,
    /// The file of a pmem or btt; a missing pmem is made with --size
    #[arg(long, value_name = "FILE")]
    pub path: Option<PathBuf>,
    /// Name of the disk and of its NBD export [default: the first free uzram0, uzram1, …]
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub pages: PagesArgs,
    /// Most memory that compressed pages may take; writes past it fail with ENOSPC [default: none]
    #[arg(long, value_name = "SIZE")]
    pub mem_limit: Option<String>,
    /// What is compressed at once: 4K, 8K, 16K, 32K or 64K [default: 4K]
    #[arg(long, value_name = "SIZE")]
    pub unit: Option<String>,
    /// Listen on a Unix socket here, mode 0600 [default: NAME.nbd in the state directory]
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    pub socket: Option<PathBuf>,
    /// Listen on TCP: IP:PORT, port 0 for a free one. Every local user can connect
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Let --listen take an address that other machines reach, unencrypted and unauthenticated
    #[arg(long, requires = "listen")]
    pub insecure: bool,
    /// Speak TLS: the server's certificate and those that vouch for it, in PEM
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Let in only clients with a certificate that one of these vouches for, in PEM
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Refuse clients that do not start TLS; always so where other machines can connect
    #[arg(long)]
    pub tls_required: bool,
    /// How programs reach the disk [default: nbd]
    #[arg(long, value_enum)]
    pub attach: Option<Attach>,
    /// Serve swap without a deadlock: memory locked and in reserve, see uzram up --help (root)
    #[arg(long)]
    pub for_swap: bool,
}

/// How a disk keeps pages, as every command that makes one can be told.
#[derive(Debug, Args)]
pub struct PagesArgs {
    /// Codec; a wrong name shows the list [default: lz4]
    #[arg(long)]
    pub algorithm: Option<String>,
    /// Parameters of the codec, as zram's algorithm_params: level=9
    #[arg(long, value_name = "NAME=VALUE,…", allow_hyphen_values = true)]
    pub algorithm_params: Option<String>,
    /// Allocator of compressed pages; a wrong name shows the list [default: bestfit]
    #[arg(long)]
    pub pool: Option<String>,
    /// Check every page that is read back against a CRC-32
    #[arg(long)]
    pub checksum: bool,
}

/// Ways to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Attach {
    /// A network block device server: any client, here or elsewhere
    Nbd,
    /// A file, through FUSE: for programs that take an image (root, or fusermount3)
    Fuse,
    /// A block device, /dev/loopN: for mkfs, mount and swapon (root)
    Loop,
    /// A block device, /dev/ublkbN, through the kernel's driver ublk_drv: as loop, and faster
    Ublk,
    /// A disk of virtual machines, over vhost-user: QEMU, cloud-hypervisor, crosvm
    VhostUser,
    /// The best that this machine offers: ublk, else loop, else fuse, else nbd
    Auto,
}

impl Attach {
    /// Its name in the server's table of options.
    pub fn name(self) -> &'static str {
        match self {
            Attach::Nbd => "nbd",
            Attach::Fuse => "fuse",
            Attach::Loop => "loop",
            Attach::Ublk => "ublk",
            Attach::VhostUser => "vhost-user",
            Attach::Auto => "auto",
        }
    }
}

/// Set a disk up for use, in the background: as swap, or with a file system on a directory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram up --swap                              half of RAM as compressed swap
  uzram up --size 4G --swap --priority 200
  uzram up --size 4G --mount /mnt/scratch --fs xfs
  uzram down swap0; uzram down /mnt/scratch

Needs root, and of the kernel ublk (the module ublk_drv; preferred), or FUSE and loop devices. What is
up already stays as it is; what a server that was killed left is taken down first. The server's
messages go to NAME.log beside its sockets.

Swap: the server is locked in memory, is known to the kernel as one that memory is freed through, is
spared by the out-of-memory killer, and keeps memory in reserve (64 MiB, or a fiftieth of the disk if
that is more) that is refilled apart from writing. What the system refuses of this is said. Safest is
a memory limit on the programs that swap (a memory cgroup), with the server outside of it. If the
whole machine runs short so fast that the reserve is used up, writes to swap wait for it, a second
at most, and then fail; the kernel keeps those pages. On ublk the kernel has all that it
needs to pass a page on. FUSE and the loop driver allocate for that, without a reserve, so with them
the kernel is told to start swapping sooner (vm.watermark_scale_factor, 256 MiB or a tenth of RAM), and
not to keep more from them when memory is fragmented (vm.watermark_boost_factor, 0); down sets both
back. Without that, a machine that is short as a whole comes to a stop. A burst that outruns even this can stall. Swap larger than half of RAM
gets that as its memory limit, so that pages which do not compress end in a full swap, and the
kernel's choice of a program to kill, and not in a stall.")]
#[command(group = clap::ArgGroup::new("purpose").required(true).args(["swap", "mount"]))]
pub struct UpArgs {
    /// Use it as swap
    #[arg(long)]
    pub swap: bool,
    /// Make a file system and mount it on this directory, which keeps its owner and mode
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Size of the disk (64M, 1.5G, 50%) [default: half of RAM]
    #[arg(long)]
    pub size: Option<String>,
    /// Priority among swap devices; higher is used first [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=32767), conflicts_with = "mount")]
    pub priority: Option<u16>,
    /// The file system
    #[arg(long, value_enum, default_value_t = FileSystem::Ext4, conflicts_with = "swap")]
    pub fs: FileSystem,
    /// Name of the disk [default: swap0 for swap, else the first free uzram0, uzram1, …]
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub pages: PagesArgs,
    /// Most memory that compressed pages may take [default: none; half of RAM for larger swap]
    #[arg(long, value_name = "SIZE")]
    pub mem_limit: Option<String>,
}

/// File systems that `up` makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FileSystem {
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
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }

    /// The program that makes one.
    pub fn mkfs(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "mkfs.ext4",
            FileSystem::Xfs => "mkfs.xfs",
            FileSystem::Btrfs => "mkfs.btrfs",
        }
    }

    /// Debian's package of it.
    pub fn package(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "e2fsprogs",
            FileSystem::Xfs => "xfsprogs",
            FileSystem::Btrfs => "btrfs-progs",
        }
    }

    /// For a device that is new: nothing on it needs to be discarded or asked about.
    pub fn mkfs_arguments(self) -> &'static [&'static str] {
        match self {
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

    /// What is deleted is discarded, which gives its memory back.
    pub fn mount_options(self) -> &'static std::ffi::CStr {
        match self {
            FileSystem::Ext4 | FileSystem::Xfs => c"discard",
            FileSystem::Btrfs => c"discard=async",
        }
    }
}

/// Undo uzram up: stop using the disk, end its server and leave nothing, also after a crash
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram down swap0
  uzram down /mnt/scratch

What the disk held is lost; what was swapped to it is read back first. A disk in use is left alone,
and who uses it is said. A server that was killed leaves devices that give errors: they are taken
down. Doing it twice is fine.")]
pub struct DownArgs {
    /// The disk's name, or the directory that it is mounted on
    #[arg(value_name = "NAME|DIR")]
    pub target: String,
}

/// Make a further disk in a server that is running
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram add --size 1G
  uzram add --size 2G --name scratch --algorithm zstd --mem-limit 512M
  uzram add --size 1G --listen 127.0.0.1:10809      a further export there, if uzram0 has the address

The disk has a table, a pool and a limit of its own, and lives as long as the server: uzram remove
ends it sooner. Disks that are given the same --socket or --listen share it as exports by name.")]
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

What the disk held is lost, and its memory goes back to the system. A disk in use is refused (EBUSY),
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

Attributes have zram's names; uzram stat shows all. What was fixed when the disk was made is refused,
with the reason.")]
pub struct SetArgs {
    /// The disk's name
    pub name: String,
    /// The attribute
    pub attribute: String,
    /// Its new value
    pub value: String,
}

/// List the disks being served
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram list
  uzram list --json

DATA is what was stored, COMPR the same compressed, TOTAL the memory that it takes.
Leftovers of servers that were killed are removed on the way.")]
pub struct ListArgs {
    /// As JSON: an array, numbers raw
    #[arg(long)]
    pub json: bool,
}

/// Show a disk's counters by zram's names (all disks without NAME)
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram stat uzram0
  uzram stat uzram0 --json
  uzram stat uzram0 --raw | head -1      the kernel's mm_stat line, for scripts that know it
  uzram stat --watch                     a line a second for each disk, until Ctrl-C
  uzram stat uzram0 --watch=10 --json    a line of JSON every ten seconds

Names and meanings are those of the kernel's mm_stat and io_stat. compr_ratio leaves out pages
filled with one word, which take no memory and would flatter it.")]
pub struct StatArgs {
    /// The disk's name
    pub name: Option<String>,
    /// As JSON: an object (an array without NAME), numbers raw
    #[arg(long)]
    pub json: bool,
    /// Two lines in the kernel's format: mm_stat, io_stat
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,
    /// Again and again, with what changed: every second, or every SECONDS
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
          default_missing_value = "1", conflicts_with = "raw")]
    pub watch: Option<f64>,
}

/// Move a disk's pages together in memory and give what becomes free back to the system
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  uzram compact uzram0

Pages that were overwritten or discarded leave holes between others. The server fills them by itself
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
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  uzram advise --pid 1234
  uzram advise --file disk.img --budget 100us
  uzram advise --corpus heap.pages --html advice.html

It puts a sample of the pages (16 MiB) through stores made in some 60 ways, and takes about 20 seconds.
Of a process it takes memory of its own that it has touched, while it goes on running; the end of a
file is padded with zeroes to a page. A quarter of the pages trains a dictionary, a quarter is for
choosing, and half is held back; what is shown was measured on pages held back.

  saved   memory saved, pool and tables counted, same-filled pages included
  ratio   the same without same-filled pages, which any choice keeps for nothing
  in      time to write a 4 KiB page at a random place; with larger units that takes reading and
          compressing the whole unit
  out     time to read one; both are the least of five runs, as other processes only add to them

Recommended is the densest choice that brings a page in and out again within the budget, or one within
1 % of memory of that and at least 10 % cheaper; never one that loses on the pages held back to
another that costs no more.")]
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
    /// What a page may cost, in and out together [default: 30us, a third of an SSD's read]
    #[arg(long, value_name = "TIME", value_parser = uzram_bench::advise::parse_budget)]
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
  uzram capture --file /usr/bin/qemu-system-x86_64 --out code.pages --pages-max 1024

Of a process it takes private anonymous memory (heap, stacks, arenas) that was touched, not files,
shared memory or devices; the process goes on running. More than --pages-max pages are sampled
evenly in runs of 16. The end of a file is padded with zeroes to a page. The corpus is readable by
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

/// Measure uzram on your pages, against its peers on this machine
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram bench store --quick
  uzram capture --pid 1234 --out heap.pages && uzram bench store --corpus heap.pages
  uzram bench nbd --corpus heap.pages --json report.json
  uzram bench pools --quick --corpus heap.pages
  uzram bench streams --quick --html streams.html

Peers that are not installed are reported as missing.")]
pub struct BenchArgs {
    /// What to measure
    #[command(subcommand)]
    pub suite: uzram_bench::cli::Args,
}
