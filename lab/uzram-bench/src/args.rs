//! The options that every suite has.

use std::path::PathBuf;

/// The options that every suite has.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SuiteArgs {
    /// A file of 4 KiB pages, as `uzram capture` makes them; repeatable. Default: synthetic pages
    #[arg(long = "corpus", value_name = "FILE")]
    pub corpora: Vec<PathBuf>,
    /// A peer to measure against, or FILE.json of an earlier run to compare with; repeatable. Default: all of the
    /// suite's peers
    #[arg(long = "against", value_name = "PEER")]
    pub against: Vec<String>,
    /// An algorithm; repeatable. Default: all; for nbd and pools lz4 and zstd, for
    /// devices lz4, for pager lz4 and words, for streams and locks lzo
    #[arg(long = "algorithm", value_name = "NAME")]
    pub algorithms: Vec<String>,
    /// Threads of the case with several, at most one a CPU; 1 leaves it out. Default: 2 if possible; for
    /// streams and locks 10, at most 64
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Time for each case, at least. Default: 5, with --quick 1; none for streams and locks
    #[arg(long, value_name = "S")]
    pub seconds: Option<u32>,
    /// A smaller working set (64 MiB, which caches may hold) and fewer runs: for a first look
    #[arg(long)]
    pub quick: bool,
    /// Print every figure instead of a few lines
    #[arg(long)]
    pub table: bool,
    /// Also say what is aimed at, and whether it is met
    #[arg(long)]
    pub aims: bool,
    /// Also show what was published, and what of it holds here
    #[arg(long)]
    pub published: bool,
    /// Also write the report to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write the report to FILE as one HTML page with charts, which needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// The options that every suite has, and a suite's own.
#[derive(Clone, Debug, clap::Args)]
pub struct With<A: clap::Args> {
    /// The options that every suite has
    #[command(flatten)]
    pub suite: SuiteArgs,
    /// The suite's own
    #[command(flatten)]
    pub own: A,
}
