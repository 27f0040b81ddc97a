//! The command line of what concerns disks that outlive their server.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Put this program in the place of the one that serves; the disks stay
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram upgrade uzram0
  uzram upgrade --all

For servers that were started with --survive. The old server answers what is under way and ends, this program \
serves in its place, and if it does not within 30 s the old one does again. Other disks of the same server \
come along. A program that opens another format of what the disks hold is refused before anything is stopped.")]
#[command(group = clap::ArgGroup::new("which").required(true).args(["name", "all"]))]
pub struct UpgradeArgs {
    /// A disk of the server
    pub name: Option<String>,
    /// Every server that was started with --survive
    #[arg(long)]
    pub all: bool,
}

/// Get at disks whose servers failed
#[derive(Debug, Args)]
pub struct SurviveArgs {
    /// The command
    #[command(subcommand)]
    pub command: SurviveCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum SurviveCommand {
    Export(ExportArgs),
}

/// Write a disk that nobody serves any more to a file
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  uzram survive export uzram0 disk.img

After five servers in a row that failed, their holder starts no more and keeps what the disks hold. \
The file is as large as the disk, with holes where it has no content; its mode is 0600. The disk stays kept, until \
uzram down.")]
pub struct ExportArgs {
    /// The disk's name
    pub name: String,
    /// The file to make
    pub file: PathBuf,
    /// Replace a file that is there
    #[arg(long)]
    pub force: bool,
}
