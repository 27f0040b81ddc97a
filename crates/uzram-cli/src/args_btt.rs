//! The command line of `uzram btt`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Make, check or repair a Block Translation Table: atomic sectors in a file or on persistent memory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram btt create disk.btt --size 1G
  uzram serve --device btt --path disk.btt
  uzram btt check disk.btt
  uzram btt repair disk.btt

The format is that of the UEFI specification and of Linux: `uzram btt create /dev/pmem0` makes what \
the kernel takes as a sector-mode namespace when it sees the device next, and a table that Linux made \
can be served. After a power cut each sector has its old or its new content.")]
pub struct BttArgs {
    /// The command
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
    /// Size of a sector, which is written whole or not at all, also at a power cut: 512 or 4K
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

Sectors whose place cannot be trusted become unreadable until they are written again; none becomes \
zeroes or another sector's content. Make a copy of the file first.")]
pub struct BttRepairArgs {
    /// The file, block device or DAX device
    pub file: PathBuf,
}
