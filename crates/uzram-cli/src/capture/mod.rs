//! `uzram capture`: real pages of a process or a file into a corpus.
//!
//! A corpus is a plain concatenation of 4 KiB pages. The process is not stopped, so a page that it
//! writes meanwhile may be half old and half new; as data to compress that does not matter.

mod maps;
mod plan;
mod progress;
mod source;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::args::CaptureArgs;
use crate::failure::{Failure, Result};
use crate::output::{print, warn};
use crate::signals::Signals;
use plan::{PAGE_BYTES, RUN_PAGES};
use source::Counts;
use uzram_server::size::human;

pub use source::Source;

/// Most pages that one corpus takes: 64 GiB.
pub const PAGES_MAX: u64 = 1 << 24;

/// Runs the command.
pub fn run(args: &CaptureArgs) -> Result {
    if args.pages_max == 0 || args.pages_max > PAGES_MAX {
        let text = format!("--pages-max {}: must be 1 to {PAGES_MAX}", args.pages_max);
        return Err(Failure::Usage(text));
    }
    let source = match (args.pid, &args.file) {
        (Some(pid), _) => Source::of_process(pid)?,
        (None, Some(path)) => Source::of_file(path)?,
        (None, None) => return Err(Failure::Usage("name a source: --pid N or --file P".into())),
    };
    let runs = source.plan(args.pages_max)?;
    // From here on there is something to clean up.
    let signals = Signals::catch(false)?;
    let mut corpus = Corpus::create(&args.out)?;
    if args.pid.is_some() {
        warn(&format!(
            "warning: {} will hold memory of {}: passwords, keys, whatever it had; mind who reads it",
            args.out.display(),
            source.name
        ));
    }
    let counts = source.copy(&runs, |pages| match signals.is_ending() {
        true => Err(Failure::Failed("interrupted; nothing was kept".into())),
        false => corpus.write(pages),
    })?;
    corpus.keep();
    report(args, &source, &counts)
}

fn report(args: &CaptureArgs, source: &Source, counts: &Counts) -> Result {
    let out = args.out.display();
    let available = source.pages();
    let mut text = format!(
        "{out}: {} pages ({}) of the {available} of {}, in runs of {RUN_PAGES}; {} of them zero\n",
        counts.taken,
        human(counts.taken * PAGE_BYTES),
        source.name,
        counts.zero,
    );
    if counts.unreadable > 0 {
        text.push_str(&format!(
            "{} pages could not be read and were left out\n",
            counts.unreadable
        ));
    }
    text.push_str(&format!("Next: uzram bench store --corpus {out}\n"));
    print(&text)
}

/// The file being written; removed again unless it is kept.
struct Corpus<'a> {
    path: &'a Path,
    file: File,
    is_kept: bool,
}

impl<'a> Corpus<'a> {
    fn create(path: &'a Path) -> Result<Corpus<'a>> {
        // create_new: never through a link that somebody laid, never into a file of other modes.
        let created = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        let file = created.map_err(|e| {
            let remedy = match e.kind() {
                io::ErrorKind::AlreadyExists => "; remove it or choose another --out",
                io::ErrorKind::NotFound => "; create its directory",
                _ => "",
            };
            Failure::Failed(format!("{}: {e}{remedy}", path.display()))
        })?;
        Ok(Corpus {
            path,
            file,
            is_kept: false,
        })
    }

    fn write(&mut self, pages: &[u8]) -> Result {
        self.file
            .write_all(pages)
            .map_err(|e| Failure::Failed(format!("{}: {e}; nothing was kept", self.path.display())))
    }

    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Corpus<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_that_ends_meanwhile_is_an_error_and_leaves_nothing() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let runs = loop {
            // Until the child has become sleep and has a heap.
            let source = Source::of_process(child.id()).unwrap();
            match source.plan(1000) {
                Ok(runs) if runs.len() > 1 => break (source, runs),
                _ => {}
            }
        };
        let (source, runs) = runs;
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("out");
        let mut corpus = Corpus::create(&path).unwrap();
        source
            .copy(&runs[..1], |pages| corpus.write(pages))
            .unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let error = source.copy(&runs, |pages| corpus.write(pages));
        let error = error.err().unwrap().to_string();
        assert!(
            error.contains("ended after 0 pages; nothing was kept"),
            "{error}"
        );
        assert!(path.exists());
        drop(corpus);
        assert!(!path.exists());
    }
}
