//! `uzram-bench render`: a report's JSON printed later, or made a page with charts.

use std::io::Write as _;
use std::path::PathBuf;

use crate::command;
use crate::earlier;
use crate::error::{Error, Result};
use crate::report;
use crate::saved::Saved;

/// The arguments of `render`.
#[derive(Clone, Debug, clap::Args)]
pub struct RenderArgs {
    /// A report that --json wrote
    #[arg(value_name = "REPORT")]
    pub report: PathBuf,
    /// An earlier report of the same suite and machine to compare with
    #[arg(long, value_name = "FILE.json")]
    pub against: Option<PathBuf>,
    /// Also write the report to FILE as one HTML page with charts, which needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Prints the report.
///
/// # Errors
/// [`Error::Usage`] if a file is no report or is of something else, [`Error::Failed`] if it cannot be printed.
pub(crate) fn run(args: &RenderArgs) -> Result<()> {
    let report = Saved::load(&args.report)?.into_report()?;
    let earlier = args.against.as_deref();
    let earlier = earlier
        .map(|path| earlier::load(path, report.suite, &[]))
        .transpose()?;
    if let Some(earlier) = &earlier {
        earlier::check_machine(earlier, &report.machine)?;
    }
    if let Some(path) = &args.html {
        command::check_writable("html", Some(path))?;
        report::write_html(&report, path)?;
    }
    let beside = earlier.map(|earlier| earlier::render(&report, &earlier));
    let printed = report::print_table(&report).and_then(|()| {
        let text = beside.unwrap_or_default();
        std::io::stdout().lock().write_all(text.as_bytes())
    });
    let printed = printed.or_else(command::ignore_closed_pipe);
    printed.map_err(|error| Error::io("standard output", error))
}
