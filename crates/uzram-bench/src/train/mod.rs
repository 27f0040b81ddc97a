//! `uzram train`: a dictionary from a part of the corpora, and what it is worth on the rest.

mod trainer;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use uzram::{Compression, Parameters, Unit};

use crate::corpus::{Corpus, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Largest dictionary, in bytes: what the lz4 format reaches. A larger one gains zstd little.
const SIZE_MAX_BYTES: usize = 64 << 10;
/// A dictionary is at most this part of what it is trained on: a larger one would be a copy of it.
const SIZE_PART: usize = 16;
/// Pages trained on, at most: time and memory grow with them, the dictionary's worth hardly.
const SAMPLES_MAX: usize = 8192;
/// Pages trained on, at least.
const SAMPLES_MIN: usize = 64;
/// Pages held back and measured, at most.
const HELD_BACK_MAX: usize = 4096;
const REDRAW_AFTER: Duration = Duration::from_millis(100);

/// Make a dictionary for zstd, lz4 and lz4hc from pages like those that will be stored
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  uzram capture --pid 1234 --out heap.pages && uzram train --out heap.dict heap.pages
  uzram serve --size 1G --algorithm zstd --algorithm-params \"level=6 dict=heap.dict\"

Every other run of 16 pages is trained on, and the rest measured: what is printed is the gain on pages
that the dictionary has not seen. It pays where pages resemble each other, as those of databases and
texts do. The file holds pieces of the pages, so it is readable by you alone (mode 0600), and must not
exist yet.")]
pub struct Args {
    /// The dictionary to make, 64 KiB at most
    #[arg(long, value_name = "D")]
    pub out: PathBuf,
    /// Files of 4 KiB pages, as `uzram capture` makes them
    #[arg(value_name = "CORPUS", required = true)]
    pub corpora: Vec<PathBuf>,
}

/// What one codec makes of the pages held back.
struct Worth {
    algorithm: &'static str,
    parameters: &'static str,
    plain_bytes: usize,
    with_bytes: usize,
}

/// What to measure: an algorithm and its parameters.
const CODECS: [(&str, &str); 4] = [
    ("zstd", ""),
    ("zstd", "level=6"),
    ("lz4", ""),
    ("lz4hc", ""),
];

/// Trains, writes the dictionary, and prints its worth.
///
/// # Errors
/// [`Error::Usage`] for corpora or a file that cannot be, [`Error::Failed`] if nothing could be trained
/// or written; nothing is left behind then.
pub fn run(args: &Args) -> Result<()> {
    let shown = args.out.display();
    if args.out.exists() {
        return Err(Error::Usage(format!(
            "out {shown}: exists; remove it or name another"
        )));
    }
    let corpora: Vec<Corpus> = load(&args.corpora)?;
    let [samples, held_back] = split(&corpora)?;
    let mut progress = Progress::new(1 + CODECS.len());
    let dictionary = trained(&samples, &mut progress)?;
    let mut worths = Vec::new();
    for (algorithm, parameters) in CODECS {
        progress.at(algorithm, 0.0);
        worths.push(worth(algorithm, parameters, &dictionary, &held_back)?);
        progress.step();
    }
    drop(progress);
    write(&args.out, &dictionary)?;
    let report = render(&args.out, &dictionary, samples.len(), &held_back, &worths);
    match std::io::stdout().lock().write_all(report.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::io("standard output", error))
        }
        _ => Ok(()),
    }
}

/// A dictionary for pages that resemble `samples`.
///
/// # Errors
/// [`Error::Failed`] if they are too few or have nothing in common.
pub(crate) fn dictionary(samples: &[&[u8]]) -> Result<Vec<u8>> {
    let bytes = samples.concat();
    let size_bytes = SIZE_MAX_BYTES.min(bytes.len() / SIZE_PART);
    trainer::train(&bytes, PAGE_BYTES, size_bytes)
}

fn load(paths: &[PathBuf]) -> Result<Vec<Corpus>> {
    paths.iter().map(|path| Corpus::load(path)).collect()
}

/// Pages to train on and pages to measure, from other runs, evenly from all that there are.
fn split(corpora: &[Corpus]) -> Result<[Vec<&[u8]>; 2]> {
    let (mut samples, mut held_back) = (Vec::new(), Vec::new());
    for corpus in corpora {
        let [even, odd] = corpus.halves();
        samples.extend(even);
        held_back.extend(odd);
    }
    if samples.len() < SAMPLES_MIN || held_back.len() < SAMPLES_MIN {
        let (found, wanted) = (samples.len().min(held_back.len()), 2 * SAMPLES_MIN);
        return Err(Error::Usage(format!(
            "{} pages that are not same-filled: take at least {wanted}, better thousands",
            2 * found
        )));
    }
    Ok([
        evenly(&samples, SAMPLES_MAX),
        evenly(&held_back, HELD_BACK_MAX),
    ])
}

/// At most `most` of `pages`, at even distances.
fn evenly<'a>(pages: &[&'a [u8]], most: usize) -> Vec<&'a [u8]> {
    let count = pages.len().min(most);
    (0..count)
        .map(|nth| pages[nth * pages.len() / count])
        .collect()
}

/// The trainer is one call that takes seconds: somebody else shows that it goes on.
fn trained(samples: &[&[u8]], progress: &mut Progress) -> Result<Vec<u8>> {
    let what = format!("training on {} pages", samples.len());
    let dictionary = thread::scope(|scope| {
        let training = scope.spawn(|| dictionary(samples));
        while !training.is_finished() {
            progress.at(&what, 0.0);
            thread::sleep(REDRAW_AFTER);
        }
        let ended = training.join();
        ended.unwrap_or_else(|_| Err(Error::Failed("the trainer panicked".to_owned())))
    });
    progress.step();
    dictionary
}

fn worth(
    algorithm: &'static str,
    parameters: &'static str,
    dictionary: &[u8],
    pages: &[&[u8]],
) -> Result<Worth> {
    let plain: Parameters = parameters.parse()?;
    let with = plain.clone().dictionary(dictionary);
    Ok(Worth {
        algorithm,
        parameters,
        plain_bytes: compressed_bytes(algorithm, &plain, pages)?,
        with_bytes: compressed_bytes(algorithm, &with, pages)?,
    })
}

fn compressed_bytes(algorithm: &str, parameters: &Parameters, pages: &[&[u8]]) -> Result<usize> {
    let compression = Compression::with_parameters(algorithm, parameters, Unit::DEFAULT)?;
    let mut compressor = compression.codec().compressor(Unit::DEFAULT)?;
    let mut packed = vec![0; 2 * PAGE_BYTES];
    let sizes = pages.iter().map(|page| {
        let length = compressor.compress(page, &mut packed);
        length.unwrap_or(PAGE_BYTES).min(PAGE_BYTES)
    });
    Ok(sizes.sum())
}

fn write(path: &Path, dictionary: &[u8]) -> Result<()> {
    let failed = |error| Error::io(format!("out {}", path.display()), error);
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(path);
    opened
        .map_err(failed)?
        .write_all(dictionary)
        .inspect_err(|_| {
            // A part of a dictionary is none; that it stays behind cannot be helped.
            let _ = std::fs::remove_file(path);
        })
        .map_err(failed)
}

fn render(
    path: &Path,
    dictionary: &[u8],
    samples: usize,
    held_back: &[&[u8]],
    worths: &[Worth],
) -> String {
    let shown = path.display();
    let pages_bytes = held_back.len() * PAGE_BYTES;
    let mut out = format!(
        "{shown}: {} bytes, trained on {samples} pages, measured on {} others\n\n\
         algorithm  params    ratio   with it   gain   dictionary counted\n",
        dictionary.len(),
        held_back.len(),
    );
    let counted =
        |worth: &Worth| worth.plain_bytes as f64 / (worth.with_bytes + dictionary.len()) as f64;
    for worth in worths {
        let ratio = |bytes: usize| pages_bytes as f64 / bytes.max(1) as f64;
        out += &format!(
            "{:<9}  {:<8}  {:>5.3}   {:>7.3}   {:>4.2}x  {:>17.2}x\n",
            worth.algorithm,
            worth.parameters,
            ratio(worth.plain_bytes),
            ratio(worth.with_bytes),
            worth.plain_bytes as f64 / worth.with_bytes.max(1) as f64,
            counted(worth),
        );
    }
    // The densest of those that gain.
    let gaining = worths
        .iter()
        .filter(|worth| worth.with_bytes < worth.plain_bytes);
    let Some(best) = gaining.min_by_key(|worth| worth.with_bytes) else {
        out += "\nIt does not pay on these pages; serve them without.\n";
        return out;
    };
    let separator = if best.parameters.is_empty() { "" } else { " " };
    out += &format!(
        "\nNext:\n  uzram serve --size 1G --algorithm {} --algorithm-params \"{}{separator}dict={shown}\"\n",
        best.algorithm, best.parameters,
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(corpus: &[u8]) -> (tempfile::TempDir, Args) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.pages");
        std::fs::write(&file, corpus).unwrap();
        let out = folder.path().join("x.dict");
        (
            folder,
            Args {
                out,
                corpora: vec![file],
            },
        )
    }

    #[test]
    fn a_dictionary_pays_on_pages_that_it_has_not_seen() {
        let synthetic = &Corpus::synthetic()[0];
        let (folder, args) = arguments(&synthetic.pages()[..512 * PAGE_BYTES]);
        run(&args).unwrap();
        let dictionary = std::fs::read(&args.out).unwrap();
        assert!((8192..=SIZE_MAX_BYTES).contains(&dictionary.len()));
        let metadata = std::fs::metadata(&args.out).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
        assert_eq!(mode & 0o777, 0o600);
        let corpus = Corpus::load(&args.corpora[0]).unwrap();
        let [_, odd] = corpus.halves();
        for (algorithm, parameters) in CODECS {
            let worth = worth(algorithm, parameters, &dictionary, &odd).unwrap();
            assert!(
                worth.with_bytes + dictionary.len() < worth.plain_bytes,
                "{algorithm} {parameters}"
            );
        }
        let again = run(&args).unwrap_err();
        assert_eq!(again.exit_status(), 2);
        assert!(again.to_string().contains("x.dict: exists"));
        drop(folder);
    }

    #[test]
    fn too_few_pages_are_refused_and_leave_nothing() {
        let (_folder, args) = arguments(&Corpus::synthetic()[0].pages()[..100 * PAGE_BYTES]);
        let error = run(&args).unwrap_err();
        assert_eq!(error.exit_status(), 2);
        assert!(error.to_string().contains("take at least 128"), "{error}");
        assert!(!args.out.exists());
    }

    #[test]
    fn what_does_not_pay_is_said() {
        let worth = |plain_bytes, with_bytes| Worth {
            algorithm: "zstd",
            parameters: "level=6",
            plain_bytes,
            with_bytes,
        };
        let page = [0; PAGE_BYTES];
        let pages = [&page[..]; 4];
        let render = |worth| render(Path::new("d"), &[0; 100], 7, &pages, &[worth]);
        assert!(render(worth(1000, 1000)).contains("does not pay"));
        let text = render(worth(1000, 700));
        assert!(
            text.contains("--algorithm-params \"level=6 dict=d\""),
            "{text}"
        );
        assert!(text.contains("1.43x") && text.contains("1.25x"), "{text}");
    }
}
