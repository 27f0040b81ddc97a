//! Suite `codecs`: every algorithm on every corpus, page by page, beside its library alone and a copy;
//! the matrix of jobs through the interface and past it; and what the store's early rejection is worth.

mod bare;
mod contender;
mod contenders;
mod foreign;
mod heaps;
mod jobs;
mod passes;
mod rejection;

use uzram::{PageIndex, Store};

use crate::corpus::{Corpus, PAGE_BYTES};
use crate::error::Result;
use crate::figures::Cell;
use crate::machine;
use crate::peers::Peer;
use crate::progress::Progress;
use crate::report::{Block, Findings, Tradeoff};
use crate::sample::Series;
use crate::stop::Stop;
use crate::suite::{Options, Suite, Work};
use contender::Setting;
use heaps::{Heaps, LOOKED, is_for_words};
use passes::{Figures, METRICS};

/// Pages of a corpus that are measured, at most, evenly from all of it.
const PAGES_MAX: usize = 4096;
const PAGES_MAX_QUICK: usize = 512;
/// Algorithms whose early rejection is measured: the fastest gains least, a dense one more.
const REJECTION: [&str; 2] = ["lz4", "zstd"];

/// The suite.
pub(crate) const SUITE: Suite = Suite {
    name: "codecs",
    peers: &Peer::CODECS,
    algorithms: &[],
    corpus: None,
    work: Work::Timed,
    plan: |_, ()| Ok(Box::new(run)),
};

/// Runs the suite: one block for each corpus, and one for the jobs.
fn run(options: &Options, findings: &mut Findings) -> Result<()> {
    let cpus = machine::allowed_cpus();
    let wants_jobs = options.against(Peer::BareLibrary)
        && options.algorithms.iter().any(|n| n == jobs::ALGORITHM);
    let steps = if wants_jobs {
        jobs::steps(options.quick)
    } else {
        0
    };
    let rejections = REJECTION
        .iter()
        .filter(|of| options.algorithms.iter().any(|name| name == *of));
    // With and without random pages.
    let steps_a_corpus = 1 + 2 * rejections.count();
    let mut progress = Progress::new(steps_a_corpus * options.corpora.len() + steps);
    let mut heaps = Heaps::default();
    for corpus in &options.corpora {
        let mut block = Block::default();
        let measured = measure(corpus, options, &cpus, &mut block, &mut progress);
        findings.blocks.push(block);
        heaps.add(corpus, measured?);
    }
    findings.blocks.extend(heaps.block());
    if wants_jobs {
        let mut block = Block {
            title: format!("jobs, {}: a static pattern of 5 bytes", jobs::ALGORITHM),
            ..Block::default()
        };
        let measured = jobs::measure(options, &mut block, &mut progress);
        findings.blocks.push(block);
        measured?;
    }
    Ok(())
}

/// Measures one corpus into `block`; the figures of the codecs.
fn measure(
    corpus: &Corpus,
    options: &Options,
    cpus: &[usize],
    block: &mut Block,
    progress: &mut Progress,
) -> Result<Vec<Figures>> {
    // The last CPU: the first one is where interrupts go by default.
    let cpu = cpus[cpus.len() - 1];
    let pages = sample(corpus, options.quick);
    block.title = format!(
        "{}: {} pages, one thread pinned to CPU {cpu}",
        corpus.name,
        pages.len()
    );
    machine::pin_to(cpu)?;
    let measured = codecs(corpus, &pages, options, cpu, block, progress).and_then(|figures| {
        rejections(corpus, &pages, options, cpu, block, progress)?;
        Ok(figures)
    });
    machine::restrict_to(cpus)?;
    measured
}

/// Pages at even distances.
fn sample(corpus: &Corpus, quick: bool) -> Vec<&[u8]> {
    let pages: Vec<&[u8]> = corpus.pages().chunks_exact(PAGE_BYTES).collect();
    let most = if quick { PAGES_MAX_QUICK } else { PAGES_MAX };
    let count = pages.len().min(most);
    (0..count)
        .map(|nth| pages[nth * pages.len() / count])
        .collect()
}

/// Every algorithm, its library and a copy.
fn codecs(
    corpus: &Corpus,
    pages: &[&[u8]],
    options: &Options,
    cpu: usize,
    block: &mut Block,
    progress: &mut Progress,
) -> Result<Vec<Figures>> {
    let settings = contenders::settings(options);
    let contenders = contenders::all(&settings, options)?;
    let (figures, lost) = passes::measure(pages, contenders, &corpus.name, options, progress)?;
    block.notes.extend(lost.note());
    let in_pool = in_pool(pages, &settings, &options.stop)?;
    let bytes = (pages.len() * PAGE_BYTES) as u64;
    times(&corpus.name, &figures, cpu, bytes, block);
    densities(&corpus.name, &figures, &in_pool, bytes, block);
    block
        .notes
        .extend(overview(&figures, &in_pool, bytes as usize));
    block.notes.push(undominated(&figures));
    block.notes.extend(heaps::choices(&figures));
    block.tradeoffs.push(Tradeoff {
        title: "what density costs a write".to_owned(),
        across: "compress_p50",
        up: "compression_ratio",
        chosen: None,
    });
    Ok(figures)
}

/// Memory that a store takes for all of `pages`, by setting, in bytes: with the pool's rounding.
fn in_pool(pages: &[&[u8]], settings: &[Setting], stop: &Stop) -> Result<Vec<(String, u64)>> {
    let weigh = |setting: &Setting| {
        let size_bytes = (pages.len() * PAGE_BYTES) as u64;
        let store = Store::builder()
            .size(size_bytes)
            .algorithm(&setting.algorithm)
            .parameters(setting.parameters())
            .build()?;
        for (index, page) in (0..).zip(pages) {
            store.write(PageIndex(index), page)?;
        }
        stop.check()?;
        Ok((setting.name(), store.stats().mem_used_total_bytes))
    };
    settings.iter().map(weigh).collect()
}

/// Each metric of every contender, and of means each algorithm's over that of its library alone, lz4's over that
/// of each codec made for words, and lz4's after a look over its own.
fn times(corpus: &str, figures: &[Figures], cpu: usize, bytes: u64, block: &mut Block) {
    let names: Vec<&str> = figures.iter().map(|one| one.name.as_str()).collect();
    for (at, metric) in METRICS.into_iter().enumerate() {
        let case = format!("{corpus}/{}", metric.replace('_', "-"));
        let cell = Cell::new(case, (metric, "ns"), bytes).pinned(&[cpu]);
        let series: Vec<Series> = figures.iter().map(|one| one.times[at].clone()).collect();
        let is_mean = metric.ends_with("_mean");
        let pair = |top: &str, bottom: &str| {
            let is_library = bottom.strip_prefix("bare-") == Some(top);
            let is_looked = metric.starts_with("compress") && (top, bottom) == (LOOKED, "lz4");
            is_mean && (is_library || is_looked || top == "lz4" && is_for_words(bottom))
        };
        cell.add_all(&names, &series, pair, block);
    }
}

/// The ratio of every contender, of those for words also over lz4's, and what a store takes.
fn densities(
    corpus: &str,
    figures: &[Figures],
    in_pool: &[(String, u64)],
    bytes: u64,
    block: &mut Block,
) {
    let ratio = |of: f64| Series::from(vec![bytes as f64 / of]);
    let case = format!("{corpus}/ratio");
    let cell = Cell::new(case, ("compression_ratio", "x"), bytes);
    let names: Vec<&str> = figures.iter().map(|one| one.name.as_str()).collect();
    let ratios = figures.iter().map(|one| ratio(one.compressed_bytes as f64));
    let ratios: Vec<Series> = ratios.collect();
    let pair = |top: &str, bottom: &str| is_for_words(top) && bottom == "lz4";
    cell.add_all(&names, &ratios, pair, block);
    let case = format!("{corpus}/ratio-in-pool");
    let cell = Cell::new(case, ("memory_ratio", "x"), bytes);
    for (algorithm, pool_bytes) in in_pool {
        cell.add(algorithm, &ratio(*pool_bytes as f64), block);
    }
}

/// A table of what most people want to know.
fn overview(figures: &[Figures], in_pool: &[(String, u64)], corpus_bytes: usize) -> Vec<String> {
    let head = "algorithm  ratio  in pool  compress p50    p99  decompress p50    p99 (ns a page)";
    let ratio = |bytes: f64| format!("{:.3}", corpus_bytes as f64 / bytes);
    let codecs = figures
        .iter()
        .filter(|one| !["memcpy", LOOKED].contains(&one.name.as_str()))
        .filter(|one| !one.name.starts_with("bare-"));
    let rows = codecs.map(|one| {
        let in_pool = in_pool.iter().find(|(name, _)| *name == one.name);
        format!(
            "{:<9} {:>6} {:>8} {:>13.0} {:>6.0} {:>15.0} {:>6.0}",
            one.name,
            ratio(one.compressed_bytes as f64),
            in_pool.map_or("-".to_owned(), |(_, bytes)| ratio(*bytes as f64)),
            one.median("compress_p50"),
            one.median("compress_p99"),
            one.median("decompress_p50"),
            one.median("decompress_p99"),
        )
    });
    std::iter::once(head.to_owned()).chain(rows).collect()
}

/// Whether some algorithm is denser than lz4 and takes less time to compress.
fn undominated(figures: &[Figures]) -> String {
    let median = |one: &Figures| one.median("compress_mean");
    let Some(lz4) = figures.iter().find(|one| one.name == "lz4") else {
        return "lz4 was not measured".to_owned();
    };
    let better = figures.iter().filter(|one| {
        median(one) < median(lz4)
            && one.compressed_bytes < lz4.compressed_bytes
            && !one.name.starts_with("bare-")
    });
    let names: Vec<&str> = better.map(|one| one.name.as_str()).collect();
    match names.as_slice() {
        [] => "faster to write and denser than lz4: none".to_owned(),
        names => format!("faster to write and denser than lz4: {}", names.join(", ")),
    }
}

fn rejections(
    corpus: &Corpus,
    pages: &[&[u8]],
    options: &Options,
    cpu: usize,
    block: &mut Block,
    progress: &mut Progress,
) -> Result<()> {
    for algorithm in REJECTION {
        if options.algorithms.iter().any(|name| name == algorithm) {
            let what = (corpus.name.as_str(), algorithm);
            rejection::measure(what, pages, options, cpu, progress, block)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::two_runs;

    fn options(algorithms: &[&str]) -> Options {
        Options {
            corpora: vec![crate::synthetic::fio(50, 40)],
            peers: Peer::CODECS.to_vec(),
            algorithms: algorithms.iter().map(ToString::to_string).collect(),
            quick: true,
            ..two_runs(1)
        }
    }

    #[test]
    fn every_algorithm_is_measured_beside_its_library_and_a_copy() {
        let options = options(&uzram::algorithms());
        let mut findings = Findings::default();
        run(&options, &mut findings).unwrap();
        let block = &findings.blocks[0];
        let variants = |case: &str| -> Vec<&str> {
            let of = block.results.iter().filter(|one| one.case.ends_with(case));
            of.map(|one| one.variant.as_str()).collect()
        };
        let mut expected = vec!["memcpy"];
        for algorithm in uzram::algorithms() {
            expected.push(algorithm);
            expected.extend(match algorithm {
                "lz4" => Some("bare-lz4"),
                "lz4hc" => Some("bare-lz4hc"),
                "zstd" => Some("bare-zstd"),
                "deflate" => Some("bare-deflate"),
                _ => None,
            });
            let levels: &[&str] = match algorithm {
                "words" => &["words:2"],
                "auto" => &["auto:2"],
                "zstd" => &["zstd:-5", "zstd:-3", "zstd:-1", "zstd:1"],
                _ => &[],
            };
            expected.extend(levels);
        }
        expected.extend(["snappy", "wkdm", LOOKED]);
        for case in [
            "/compress-p50",
            "/decompress-p99",
            "/decompress-mean",
            "/ratio",
        ] {
            assert_eq!(variants(case), expected, "{case}");
        }
        let ours = |name: &&str| {
            !["memcpy", "snappy", "wkdm", LOOKED].contains(name) && !name.starts_with("bare-")
        };
        expected.retain(ours);
        assert_eq!(variants("/ratio-in-pool"), expected);
        let value = |case: &str, variant: &str| {
            let mut of = block.results.iter().filter(|one| one.case.ends_with(case));
            of.find(|one| one.variant == variant).unwrap().spread.median
        };
        for library in ["lz4", "lz4hc", "zstd", "deflate"] {
            let (ours, theirs) = (
                value("/ratio", library),
                value("/ratio", &format!("bare-{library}")),
            );
            assert_eq!(ours, theirs, "{library}: both sides compress alike");
        }
        assert_eq!(value("/ratio", "memcpy"), 1.0);
        assert!(
            block
                .notes
                .iter()
                .any(|note| note.contains("random pages caught"))
        );
        assert!(
            findings.blocks[1].ratios.len() == 12 && findings.blocks[1].title.starts_with("jobs")
        );
    }

    #[test]
    fn early_rejection_catches_random_pages_and_spares_the_others() {
        let options = options(&["lz4"]);
        let corpora = crate::synthetic::corpora();
        let pages: Vec<&[u8]> = sample(&corpora[1], true).into_iter().take(120).collect();
        let (mut block, mut progress) = (Block::default(), Progress::new(2));
        rejection::measure(("x", "lz4"), &pages, &options, 0, &mut progress, &mut block).unwrap();
        let (caught, rest) = block.notes[0].split_once(" % of").unwrap();
        let caught: f64 = caught.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(caught > 99.0, "{:?}", block.notes);
        assert!(rest.contains(" 0.00 % of"), "{rest}");
        assert_eq!((block.results.len(), block.ratios.len()), (4, 2));
    }
}
