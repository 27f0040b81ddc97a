//! `uzram capture`: real pages of a process or a file into a corpus.

use uzram_advise::Error;
use uzram_advise::capture::{
    Counts, NewCorpus, PAGE_BYTES, PAGES_MAX, RUN_PAGES, SCAN_BYTES_MAX, Source,
};
use uzram_advise::command::quoted;
use uzram_server::size::human;

use crate::args::CaptureArgs;
use crate::failure::{Failure, Result};
use crate::output::{print, warn};
use crate::signals::Signals;

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
    warn_of_doubts(&source);
    let runs = source.plan(args.pages_max)?;
    // From here on there is something to clean up.
    let mut signals = Signals::catch(false)?;
    let mut corpus = NewCorpus::create(&args.out)?;
    if args.pid.is_some() {
        warn(&format!(
            "warning: {} will hold memory of {}: passwords, keys, whatever it had; mind who reads it",
            args.out.display(),
            source.name
        ));
    }
    let counts = source.copy(&runs, |pages| match signals.is_ending() {
        true => Err(Error::Failed("interrupted; nothing was kept".into())),
        false => corpus.write(pages),
    })?;
    corpus.keep();
    report(args, &source, &counts)
}

/// Tells where the choice of pages is not exact.
pub fn warn_of_doubts(source: &Source) {
    let name = &source.name;
    if source.doubts.has_no_page_map {
        warn(&format!(
            "note: {name}: no page map; pages that it never touched count as zero pages"
        ));
    }
    if source.doubts.left_out_bytes > 0 {
        let (left_out, most) = (human(source.doubts.left_out_bytes), human(SCAN_BYTES_MAX));
        warn(&format!(
            "note: {name}: {left_out} of mappings left out, as over {most} is too much to look through"
        ));
    }
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
    let corpus = quoted(&args.out.to_string_lossy());
    text.push_str(&format!("Next: uzram advise --corpus {corpus}\n"));
    print(&text)
}
