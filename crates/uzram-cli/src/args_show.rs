//! The options of commands that show disks.

use clap::Args;

/// List the disks being served, and the programs that run under a budget
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram list
  uzram list --json
  uzram list -b -n --raw -o NAME,TOTAL,MOUNTPOINT    for scripts

Programs of uzram run have a table of their own: USED is in memory, AWAY compressed, TOTAL what that takes.

DATA is what was stored, COMPR the same compressed, TOTAL the memory that it takes. A disk whose \
server was killed stays as dead, with the line that cleans up.")]
pub struct ListArgs {
    /// As JSON: an array, numbers raw
    #[arg(long, conflicts_with_all = ["bytes", "noheadings", "output", "output_all", "raw"])]
    pub json: bool,
    /// The columns
    #[command(flatten)]
    pub columns: ColumnArgs,
}

/// Columns and their form, as zramctl has them.
#[derive(Clone, Debug, Default, Args)]
pub struct ColumnArgs {
    /// Sizes in bytes
    #[arg(short, long)]
    pub bytes: bool,
    /// Without titles
    #[arg(short, long)]
    pub noheadings: bool,
    /// These columns: NAME, DISKSIZE, DATA, COMPR, ALGORITHM, STREAMS, ZERO-PAGES, TOTAL, MEM-LIMIT,
    /// MEM-USED, MIGRATED, COMP-RATIO, MOUNTPOINT, CLIENTS, PID, ENDPOINT; +LIST adds to the usual ones
    #[arg(short, long, value_name = "LIST", conflicts_with = "output_all")]
    pub output: Option<String>,
    /// All columns
    #[arg(long)]
    pub output_all: bool,
    /// Columns one blank apart, blanks within as \\x20
    #[arg(long)]
    pub raw: bool,
}

/// Do what util-linux's zramctl does, with disks of uzram
#[derive(Debug, Args)]
#[command(
    version,
    after_help = "\
Examples:
  uzram zramctl
  uzram zramctl --find --size 1G --algorithm zstd
  uzram zramctl zram0 --size 1G
  uzram zramctl --reset zram0

A disk here is made with its size, as a block device, by a server in the background (root), and --reset \
ends it. DEVICE is a disk's name or the path of its block device. Called as zramctl, by a link of that \
name, the program takes these options at once."
)]
pub struct ZramctlArgs {
    /// The disks
    #[arg(value_name = "DEVICE")]
    pub devices: Vec<String>,
    /// Codec of a disk that is made
    #[arg(short, long, value_name = "ALG")]
    pub algorithm: Option<String>,
    /// Parameters of the codec
    #[arg(short = 'p', long, value_name = "PARAMS", allow_hyphen_values = true)]
    pub algorithm_params: Option<String>,
    /// Choose a free name, and print the device
    #[arg(short, long, conflicts_with = "reset")]
    pub find: bool,
    /// End these disks
    #[arg(short, long)]
    pub reset: bool,
    /// Make a disk of this size
    #[arg(short, long, value_name = "SIZE", conflicts_with = "reset")]
    pub size: Option<String>,
    /// Left out, as by kernels since 4.7: there is a stream for each CPU
    #[arg(short = 't', long, value_name = "NUMBER")]
    pub streams: Option<String>,
    /// The columns
    #[command(flatten)]
    pub columns: ColumnArgs,
}

/// Show a disk's counters by zram's names (all disks without NAME)
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram stat uzram0
  uzram stat uzram0 --json
  uzram stat uzram0 --raw | head -1      the kernel's mm_stat line, for scripts
  uzram stat --watch                     one line per second and disk
  uzram stat uzram0 --watch=10 --json    a line of JSON every ten seconds

Names and meanings are those of the kernel's mm_stat and io_stat. compr_ratio leaves out pages \
filled with one word, which take no memory and would flatter it.")]
pub struct StatArgs {
    /// The name of the disk, or of a program of uzram run
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

/// Watch all disks on a full screen: memory, requests, times
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram top
  uzram top --delay 5

RATIO is data without same-filled pages over its compressed size, MEMORY what it takes, FRAG the \
share of that between objects. Rates and times are those since the look before; P99 is what 99 of \
100 requests took at most. The selected disk's memory is drawn by its state. q ends it; without a \
terminal, uzram stat --watch prints lines.")]
pub struct TopArgs {
    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0)]
    pub delay: f64,
}

/// Print what disks hold and do in Prometheus's text format (all disks without DISK)
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram metrics
  uzram metrics scratch > /var/lib/node_exporter/uzram.prom
  uzram serve --size 1G --metrics 127.0.0.1:9100    the same over HTTP

Names are those of uzram stat, with uzram_ in front and the unit behind: \
uzram_mem_used_total_bytes{disk=\"scratch\"}. Counters end in _total. Times of reads and writes are \
histograms in seconds. Disks whose servers were killed are left out.")]
pub struct MetricsArgs {
    /// The disks' names
    #[arg(value_name = "DISK")]
    pub names: Vec<String>,
}

/// Run a program that sees disks as the kernel's zram: /dev/zramN, /sys/block/zramN, zram-control
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram serve --attach loop --tree /run/uzram-tree
  uzram view zramctl --tree /run/uzram-tree -- zramctl --find --size 1G
  uzram view generator --tree /run/uzram-tree -- sh zram01.sh

It is a mount namespace, seen by that program only and gone with it; it takes root. Disk uzramN is zramN \
there, modprobe zram num_devices=N makes disks, and the kernel's own zram is hidden. The view zramctl also \
lays the files over those of the disk's block device, for programs that find them by its number; systemd \
refuses such a directory, so generator leaves it alone. Disks that are made outside meanwhile are seen at the \
next hot_add or hot_remove. The tree's server attaches disks as loop: a ublk device has no node before its \
size.")]
pub struct ViewArgs {
    /// The view: for zramctl, or for systemd's generator and scripts
    #[arg(value_name = "VIEW")]
    pub kind: ViewKind,
    /// The directory where a server has its tree (uzram serve --tree DIR)
    #[arg(long, value_name = "DIR")]
    pub tree: std::path::PathBuf,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<std::ffi::OsString>,
}

/// The kind of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ViewKind {
    /// Files lie over those of the disk's block device, too
    Zramctl,
    /// /sys/dev/block is left alone
    Generator,
}
