//! The command line. What a flag means is said here once and shown by `--help`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Compressed RAM disks in user space: zram's job, words and counters, without the kernel module
#[derive(Debug, Parser)]
#[command(
    name = "uzram",
    version,
    after_help = "\
Start here:
  uzram serve --size 1G         a compressed RAM disk, served over NBD
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
    Add(AddArgs),
    Remove(RemoveArgs),
    List(ListArgs),
    Stat(StatArgs),
    Set(SetArgs),
    Reset(ResetArgs),
    Capture(CaptureArgs),
    Btt(BttArgs),
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
    /// How clients reach the disk
    #[arg(long, value_enum, default_value_t = Attach::Nbd)]
    pub attach: Attach,
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
    /// Codec; a wrong name shows the list [default: lz4]
    #[arg(long)]
    pub algorithm: Option<String>,
    /// Parameters of the codec, as zram's algorithm_params: level=9
    #[arg(long, value_name = "NAME=VALUE,…", allow_hyphen_values = true)]
    pub algorithm_params: Option<String>,
    /// Allocator of compressed pages; a wrong name shows the list [default: zsmalloc]
    #[arg(long)]
    pub pool: Option<String>,
    /// Most memory that compressed pages may take; writes past it fail with ENOSPC [default: none]
    #[arg(long, value_name = "SIZE")]
    pub mem_limit: Option<String>,
    /// What is compressed at once: 4K, 8K, 16K, 32K or 64K [default: 4K]
    #[arg(long, value_name = "SIZE")]
    pub unit: Option<String>,
    /// Check every page that is read back against a CRC-32
    #[arg(long)]
    pub checksum: bool,
    /// Listen on a Unix socket here, mode 0600 [default: NAME.nbd in the state directory]
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    pub socket: Option<PathBuf>,
    /// Listen on TCP: IP:PORT, port 0 for a free one. Every local user can connect
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Let --listen take an address that other machines reach, unencrypted and unauthenticated
    #[arg(long, requires = "listen")]
    pub insecure: bool,
}

/// Ways to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Attach {
    /// A network block device server
    Nbd,
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
with what uses it.")]
pub struct RemoveArgs {
    /// The disk's name
    pub name: String,
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

/// Make, check or repair a Block Translation Table: atomic sectors in a file or on persistent memory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram btt create disk.btt --size 1G
  uzram serve --device btt --path disk.btt
  uzram btt check disk.btt
  uzram btt repair disk.btt

The format is that of the UEFI specification and of Linux: `uzram btt create /dev/pmem0` makes what
the kernel takes as a sector-mode namespace when it sees the device next, and a table that Linux made
can be served. After a power cut each sector has its old or its new content.")]
pub struct BttArgs {
    /// What to do
    #[command(subcommand)]
    pub command: BttCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum BttCommand {
    Create(BttCreateArgs),
    Check(BttCheckArgs),
    Repair(BttRepairArgs),
}

/// Make an empty table
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram btt create disk.btt --size 1G
  uzram btt create /dev/pmem0 --sector-size 512 --force

About 1/1000 of the file (1/100 with sectors of 512 bytes) is the table; the rest is the disk.")]
pub struct BttCreateArgs {
    /// The file, block device or DAX device
    pub file: PathBuf,
    /// Size of a new file, table and all (at least 16M + 4K)
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// What is written in one piece, whatever happens: 512 or 4K
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    pub sector_size: String,
    /// Version of the layout
    #[arg(long, value_enum, default_value_t = BttLayout::V1_1)]
    pub layout: BttLayout,
    /// Take a file that holds something, which is lost
    #[arg(long)]
    pub force: bool,
}

/// Versions of the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BttLayout {
    /// Linux's, after 4096 free bytes
    #[value(name = "1.1")]
    V1_1,
    /// The UEFI specification's, from the start (Linux wants a namespace label for it)
    #[value(name = "2.0")]
    V2_0,
}

/// Say whether a table is sound: exit status 0, or 1 if it is not
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram btt check disk.btt
  uzram btt check disk.btt --json

Nothing is changed. What a power cut leaves half done is no problem: the next start finishes it.")]
pub struct BttCheckArgs {
    /// The file, block device or DAX device
    pub file: PathBuf,
    /// As JSON: an object, numbers raw
    #[arg(long)]
    pub json: bool,
}

/// Mend what is wrong with a table
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  uzram btt check disk.btt || uzram btt repair disk.btt

Sectors whose place cannot be trusted become unreadable until they are written again; none becomes
zeroes or another sector's content. Make a copy of the file first.")]
pub struct BttRepairArgs {
    /// The file, block device or DAX device
    pub file: PathBuf,
}

/// Measure uzram on your pages, against its peers on this machine
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram bench store --quick
  uzram capture --pid 1234 --out heap.pages && uzram bench store --corpus heap.pages
  uzram bench nbd --corpus heap.pages --json report.json

Peers that are not installed are reported as missing.")]
pub struct BenchArgs {
    /// What to measure
    #[command(subcommand)]
    pub suite: uzram_bench::cli::Args,
}
