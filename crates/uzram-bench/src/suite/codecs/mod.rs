//! Suite `codecs`: every algorithm on every corpus, page by page, beside its library alone and a copy;
//! the matrix of jobs through the interface and past it; and what the store's early rejection is worth.

mod bare;
mod contender;
mod jobs;
mod passes;
mod rejection;

use std::time::Instant;

use uzram::{PageIndex, Store};

use crate::corpus::{Corpus, PAGE_BYTES};
use crate::error::Result;
use crate::machine;
use crate::peers::Peer;
use crate::progress::Progress;
use crate::report::{Aim, Block, Findings, Measured, Ratio, Tradeoff};
use crate::sample::Series;
use crate::suite::Options;
use passes::{Figures, Passes, Times};

/// Pages of a corpus that are measured, at most, evenly from all of it.
const PAGES_MAX: usize = 4096;
const PAGES_MAX_QUICK: usize = 512;
/// Algorithms whose early rejection is measured: the fastest gains least, a dense one more.
const REJECTION: [&str; 2] = ["lz4", "zstd"];
/// Part of the time lost to other processes from which on a block is marked.
const BUSY: f64 = 0.02;

/// Runs the suite: one block for each corpus, and one for the jobs.
pub(crate) fn run(options: &Options, findings: &mut Findings) -> Result<()> {
    let cpus = machine::allowed_cpus();
    let wants_jobs = options.against(Peer::BareLibrary)
        && options.algorithms.iter().any(|n| n == jobs::ALGORITHM);
    let rows = if wants_jobs {
        jobs::rows(options.quick).len()
    } else {
        0
    };
    let mut progress = Progress::new(2 * options.corpora.len() + rows);
    for corpus in &options.corpora {
        let mut block = Block::default();
        let measured = measure(corpus, options, &cpus, &mut block, &mut progress);
        findings.blocks.push(block);
        measured?;
    }
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

/// Measures one corpus into `block`.
fn measure(
    corpus: &Corpus,
    options: &Options,
    cpus: &[usize],
    block: &mut Block,
    progress: &mut Progress,
) -> Result<()> {
    // The last CPU: the first one is where interrupts go by default.
    let cpu = cpus[cpus.len() - 1];
    let pages = sample(corpus, options.quick);
    block.title = format!(
        "{}: {} pages, one thread pinned to CPU {cpu}",
        corpus.name,
        pages.len()
    );
    machine::pin_to(cpu)?;
    let measured = codecs(corpus, &pages, options, cpu, block, progress)
        .and_then(|()| rejections(corpus, &pages, options, cpu, block));
    progress.step();
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
) -> Result<()> {
    let contenders = contender::all(
        &options.algorithms,
        options.against(Peer::BareLibrary),
        options.against(Peer::Memcpy),
    )?;
    let mut passes = Passes::new(pages.to_vec(), contenders, &options.stop)?;
    // The warm-up.
    passes.run(&options.stop)?;
    passes.forget();
    let (started, mut runs) = (Instant::now(), 0);
    while options.schedule.wants_more(runs, started.elapsed()) {
        let part = options.schedule.part(runs, started.elapsed());
        progress.at(&corpus.name, part);
        passes.run(&options.stop)?;
        runs += 1;
    }
    progress.step();
    let (figures, lost) = passes.end();
    if lost > BUSY {
        block.notes.push(format!(
            "BUSY MACHINE: other processes had the CPU for {:.0} % of the time; do not quote",
            lost * 100.0
        ));
    }
    let in_pool = in_pool(pages, options)?;
    let reporter = Reporter {
        name: &corpus.name,
        working_set_bytes: pages.len() * PAGE_BYTES,
        cpu,
    };
    reporter.times(&figures, block);
    reporter.densities(&figures, &in_pool, block);
    block
        .notes
        .extend(overview(&figures, &in_pool, reporter.working_set_bytes));
    block.notes.push(undominated(&figures));
    block.tradeoffs.push(Tradeoff {
        title: "what density costs a write".to_owned(),
        across: "compress_p50",
        up: "compression_ratio",
        chosen: None,
    });
    Ok(())
}

/// Memory that a store takes for all of `pages`, by algorithm, in bytes: with the pool's rounding.
fn in_pool(pages: &[&[u8]], options: &Options) -> Result<Vec<(String, u64)>> {
    let weigh = |algorithm: &String| {
        let size_bytes = (pages.len() * PAGE_BYTES) as u64;
        let store = Store::builder()
            .size(size_bytes)
            .algorithm(algorithm)
            .build()?;
        for (index, page) in (0..).zip(pages) {
            store.write(PageIndex(index), page)?;
        }
        options.stop.check()?;
        Ok((algorithm.clone(), store.stats().mem_used_total_bytes))
    };
    options.algorithms.iter().map(weigh).collect()
}

/// Turns figures of one corpus into results.
struct Reporter<'a> {
    name: &'a str,
    working_set_bytes: usize,
    cpu: usize,
}

impl Reporter<'_> {
    fn times(&self, figures: &[Figures], block: &mut Block) {
        type Of = fn(&Figures) -> &Times;
        let directions: [(&str, [&'static str; 3], Of); 2] = [
            (
                "compress",
                ["compress_mean", "compress_p50", "compress_p99"],
                |f| &f.compress,
            ),
            (
                "decompress",
                ["decompress_mean", "decompress_p50", "decompress_p99"],
                |f| &f.decompress,
            ),
        ];
        for (direction, [mean, p50, p99], times) in directions {
            for (kind, metric) in [("mean", mean), ("p50", p50), ("p99", p99)] {
                let case = format!("{}/{direction}-{kind}", self.name);
                for one in figures {
                    let times = times(one);
                    let series = match kind {
                        "mean" => &times.mean,
                        "p50" => &times.p50,
                        _ => &times.p99,
                    };
                    self.result(&case, &one.name, (metric, "ns"), series, block);
                }
                if kind == "mean" {
                    block.ratios.extend(parities(&case, metric, figures, times));
                }
            }
        }
    }

    fn densities(&self, figures: &[Figures], in_pool: &[(String, u64)], block: &mut Block) {
        let ratio = |bytes: f64| Series::from(vec![self.working_set_bytes as f64 / bytes]);
        let case = format!("{}/ratio", self.name);
        for one in figures {
            let series = ratio(one.compressed_bytes as f64);
            self.result(&case, &one.name, ("compression_ratio", "x"), &series, block);
        }
        let case = format!("{}/ratio-in-pool", self.name);
        for (algorithm, bytes) in in_pool {
            let series = ratio(*bytes as f64);
            self.result(&case, algorithm, ("memory_ratio", "x"), &series, block);
        }
    }

    fn result(
        &self,
        case: &str,
        variant: &str,
        (metric, unit): (&'static str, &'static str),
        series: &Series,
        block: &mut Block,
    ) {
        block.results.extend(series.spread().map(|spread| Measured {
            case: case.to_owned(),
            variant: variant.to_owned(),
            metric,
            unit,
            spread,
            working_set_bytes: self.working_set_bytes as u64,
            pinned: (unit == "ns").then(|| self.cpu.to_string()),
        }));
    }
}

/// Each algorithm's time over that of its library alone.
fn parities(
    case: &str,
    metric: &'static str,
    figures: &[Figures],
    times: fn(&Figures) -> &Times,
) -> Vec<Ratio> {
    let pairs = figures.iter().filter_map(|ours| {
        let bare = format!("bare-{}", ours.name);
        let library = figures.iter().find(|one| one.name == bare)?;
        let top = (ours.name.as_str(), &times(ours).mean);
        let bottom = (bare.as_str(), &times(library).mean);
        Ratio::of(case, metric, top, bottom, Some(Aim::Within(0.02)))
    });
    pairs.collect()
}

/// A table of what most people want to know.
fn overview(figures: &[Figures], in_pool: &[(String, u64)], corpus_bytes: usize) -> Vec<String> {
    let head = "algorithm  ratio  in pool  compress p50    p99  decompress p50    p99 (ns a page)";
    let rows = in_pool.iter().filter_map(|(algorithm, pool_bytes)| {
        let one = figures.iter().find(|one| one.name == *algorithm)?;
        let median = |series: &Series| series.spread().map_or(0.0, |spread| spread.median);
        Some(format!(
            "{algorithm:<9} {:>6.3} {:>8.3} {:>13.0} {:>6.0} {:>15.0} {:>6.0}",
            corpus_bytes as f64 / one.compressed_bytes as f64,
            corpus_bytes as f64 / *pool_bytes as f64,
            median(&one.compress.p50),
            median(&one.compress.p99),
            median(&one.decompress.p50),
            median(&one.decompress.p99),
        ))
    });
    std::iter::once(head.to_owned()).chain(rows).collect()
}

/// Whether some algorithm is denser than lz4 and takes less time to compress.
fn undominated(figures: &[Figures]) -> String {
    let median = |one: &Figures| {
        one.compress
            .mean
            .spread()
            .map_or(0.0, |spread| spread.median)
    };
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
) -> Result<()> {
    for algorithm in REJECTION {
        if options.algorithms.iter().any(|name| name == algorithm) {
            let found = rejection::measure(&corpus.name, algorithm, pages, options, cpu)?;
            block.notes.extend(found.notes);
            block.results.extend(found.results);
            block.ratios.extend(found.ratios);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::Stop;
    use crate::suite::Schedule;
    use std::time::Duration;

    fn options(algorithms: &[&str]) -> Options {
        Options {
            corpora: vec![Corpus::fio(50, 40)],
            peers: Peer::CODECS.to_vec(),
            algorithms: algorithms.iter().map(ToString::to_string).collect(),
            threads: 1,
            schedule: Schedule {
                at_least: Duration::from_nanos(1),
                runs_min: 2,
            },
            quick: true,
            stop: Stop::default(),
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
        }
        for case in [
            "/compress-p50",
            "/decompress-p99",
            "/decompress-mean",
            "/ratio",
        ] {
            assert_eq!(variants(case), expected, "{case}");
        }
        assert_eq!(variants("/ratio-in-pool"), uzram::algorithms());
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
        let corpora = Corpus::synthetic();
        let pages: Vec<&[u8]> = sample(&corpora[1], true).into_iter().take(120).collect();
        let found = rejection::measure("x", "lz4", &pages, &options, 0).unwrap();
        let (caught, rest) = found.notes[0].split_once(" % of").unwrap();
        let caught: f64 = caught.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(caught > 99.0, "{found:?}", found = found.notes);
        assert!(rest.contains(" 0.00 % of"), "{rest}");
        assert_eq!((found.results.len(), found.ratios.len()), (4, 2));
    }
}
