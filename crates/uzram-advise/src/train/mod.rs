//! `uzram train`: a dictionary from a part of the corpora, and its gain on the rest.

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
/// Most pages trained on: time and memory grow with them, the dictionary's gain hardly.
const SAMPLES_MAX: usize = 8192;
/// Pages trained on, at least.
const SAMPLES_MIN: usize = 64;
/// Pages held back and measured, at most.
const HELD_BACK_MAX: usize = 4096;
/// The least gain for a suggestion, the dictionary's own memory counted: the table rounds it to
/// 1.01x.
const PAYS_FROM: f64 = 1.005;
const REDRAW_AFTER: Duration = Duration::from_millis(100);

/// The corpora to train on, and the dictionary's file.
#[derive(Clone, Debug)]
pub struct Options {
    /// The dictionary's file, which must not exist yet.
    pub out: PathBuf,
    /// Files of 4 KiB pages.
    pub corpora: Vec<PathBuf>,
}

/// One codec's result on the pages held back.
struct Worth {
    algorithm: &'static str,
    parameters: &'static str,
    plain_bytes: usize,
    with_bytes: usize,
}

/// The codecs to measure: an algorithm and its parameters.
const CODECS: [(&str, &str); 4] = [
    ("zstd", ""),
    ("zstd", "level=6"),
    ("lz4", ""),
    ("lz4hc", ""),
];

/// Trains, writes the dictionary, and prints its gain.
///
/// # Errors
/// [`Error::Usage`] for wrong corpora or a wrong file, [`Error::Failed`] if nothing could be
/// trained or written; nothing is left behind then.
pub fn run(options: &Options) -> Result<()> {
    let shown = options.out.display();
    if options.out.exists() {
        return Err(Error::Usage(format!(
            "out {shown}: exists; remove it or name another"
        )));
    }
    let corpora: Vec<Corpus> = load(&options.corpora)?;
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
    write(&options.out, &dictionary)?;
    let report = render(
        &options.out,
        &dictionary,
        samples.len(),
        &held_back,
        &worths,
    );
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
pub fn dictionary(samples: &[&[u8]]) -> Result<Vec<u8>> {
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
    // The densest of those that gain more than the dictionary takes, as the table shows it.
    let paying = worths.iter().filter(|worth| counted(worth) >= PAYS_FROM);
    let Some(best) = paying.min_by_key(|worth| worth.with_bytes) else {
        out += "\nIt does not pay on these pages; serve them without.\n";
        out += &pays_from(worths, dictionary.len(), held_back.len());
        return out;
    };
    let separator = if best.parameters.is_empty() { "" } else { " " };
    out += &format!(
        "\nNext:\n  uzram serve --size 1G --algorithm {} --algorithm-params \"{}{separator}dict={shown}\"\n",
        best.algorithm, best.parameters,
    );
    out
}

/// The number of pages from which on it would pay, if there is one.
fn pays_from(worths: &[Worth], dictionary_bytes: usize, pages: usize) -> String {
    let saved = |worth: &Worth| worth.plain_bytes.saturating_sub(worth.with_bytes);
    let Some(best) = worths.iter().max_by_key(|worth| saved(worth)) else {
        return String::new();
    };
    if saved(best) == 0 {
        return String::new();
    }
    let from = (dictionary_bytes * pages).div_ceil(saved(best)) * PAGE_BYTES;
    format!(
        "With {} it would from about {} MiB of such pages on.\n",
        [best.algorithm, best.parameters].join(" ").trim_end(),
        from.div_ceil(1 << 20)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(corpus: &[u8]) -> (tempfile::TempDir, Options) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.pages");
        std::fs::write(&file, corpus).unwrap();
        let out = folder.path().join("x.dict");
        (
            folder,
            Options {
                out,
                corpora: vec![file],
            },
        )
    }

    #[test]
    fn a_dictionary_pays_on_pages_that_it_has_not_seen() {
        let [(_, text), ..] = uzram_testkit::pages::synthetic();
        let (folder, options) = arguments(&text[..512 * PAGE_BYTES]);
        run(&options).unwrap();
        let dictionary = std::fs::read(&options.out).unwrap();
        assert!((8192..=SIZE_MAX_BYTES).contains(&dictionary.len()));
        let metadata = std::fs::metadata(&options.out).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
        assert_eq!(mode & 0o777, 0o600);
        let corpus = Corpus::load(&options.corpora[0]).unwrap();
        let [_, odd] = corpus.halves();
        for (algorithm, parameters) in CODECS {
            let worth = worth(algorithm, parameters, &dictionary, &odd).unwrap();
            assert!(
                worth.with_bytes + dictionary.len() < worth.plain_bytes,
                "{algorithm} {parameters}"
            );
        }
        let again = run(&options).unwrap_err();
        assert_eq!(again.exit_status(), 2);
        assert!(again.to_string().contains("x.dict: exists"));
        drop(folder);
    }

    #[test]
    fn too_few_pages_are_refused_and_leave_nothing() {
        let [(_, text), ..] = uzram_testkit::pages::synthetic();
        let (_folder, options) = arguments(&text[..100 * PAGE_BYTES]);
        let error = run(&options).unwrap_err();
        assert_eq!(error.exit_status(), 2);
        assert!(error.to_string().contains("take at least 128"), "{error}");
        assert!(!options.out.exists());
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
        // It gains less than it takes: nothing to type, and where that would change.
        for with_bytes in [920, 896] {
            let text = render(worth(1000, with_bytes));
            assert!(!text.contains("Next:"), "{text}");
            assert!(text.contains("does not pay"), "{text}");
            assert!(
                text.contains("zstd level=6 it would from about 1 MiB"),
                "{text}"
            );
        }
    }
}
