//! The arguments of `uzram run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// Run a program in less memory than it needs: beyond a budget its memory is compressed
#[derive(Debug, Args)]
#[command(
    next_line_help = true,
    after_help = "\
Examples:
  uzram run --memory 2G -- make -j8
  uzram run --memory 25% --stats -- python3 train.py
  uzram run --memory 512M --algorithm zstd -- ./server
  uzram run --memory 2G --spill /var/tmp/spill -- ./render
  uzram run --memory 2G --name build -- make -j8
  uzram stat build                    its figures, and those of each process
  uzram set build memory 1G           another budget while it runs

The budget is for the private memory of the program and of all processes that it begins, together; \
what they keep in files counts elsewhere. Compressed pages come on top. As long as all fits nothing is done \
to the program. It needs root (CAP_SYS_PTRACE) and Linux 6.8 or newer; uzram doctor tells what is there.

On SIGUSR1 it says what it has done so far.
Exit status: the program's, or 128 + N after signal N; 125 uzram failed, 126 the program cannot be \
executed, 127 it was not found."
)]
pub struct RunArgs {
    /// Memory that all processes together may have uncompressed: bytes with K, M, G, or a part of RAM as 25%
    #[arg(long, short, value_name = "SIZE")]
    pub memory: String,
    /// The codec, by zram's name; auto chooses for each page
    #[arg(long, short, value_name = "NAME", default_value = "auto")]
    pub algorithm: String,
    /// A file or block device for pages that do not compress: they would take as much memory as before. A new file has no name
    /// while it is used, and is gone afterwards
    #[arg(long, value_name = "FILE")]
    pub spill: Option<PathBuf>,
    /// Its name for list, stat and set [default: run0, or the next that is free]
    #[arg(long, short, value_name = "NAME")]
    pub name: Option<String>,
    /// At the end, say what was done
    #[arg(long)]
    pub stats: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}
