//! Published figures and aims, against what was measured.
//!
//! A claim stands or falls only where all runs agree; else nothing is concluded. Of the published
//! orderings each pair is judged by itself, by the difference within each run.

use std::cmp::Ordering;

use super::figures::{ALLOCATORS, DENSITY_FIGURE, FIGURES, Figure, Found};
use super::metrics::{
    COPY, DENSITY, IDLE_OVER_1MS, IN_TURNS, INSERT_MEAN, INSERT_P999, OVER_1MS, OVERWRITE_MEAN,
    OVERWRITES_MEAN, REMOVE_MEAN, REMOVE_P999, SPEEDUP, apart,
};
use crate::aims::limit;
use crate::figures::Metric;
use crate::report::{Basis, Block, Claim, Measured, Standing};
use crate::sample::{Series, Spread};
use crate::suite::orderings::{Pairs, agreement, shown};

/// The numbers of objects that the aims after a fill are for.
const FILLED_OBJECTS: [usize; 3] = [16_384, 65_536, AIMED_OBJECTS];
/// The number of objects that the other aims are for.
const AIMED_OBJECTS: usize = 1_048_576;

/// Why a published ordering does or does not carry over; by the metric.
const REASONS: [(&str, &str); 5] = [
    (
        "insert_mean",
        "In the kernel an insertion may allocate pages, and zsmalloc a handle besides; here pages come \
         2 MiB at a time and a handle is a place, so the search for room and the copy remain.",
    ),
    (
        "remove_mean",
        "A removal here looks its block up by the place and changes a few words beside the pages; the \
         kernel's z3fold frees a handle's cell and may compact the page, and pages go back one by one.",
    ),
    (
        "access_mean",
        "There is nothing to map in user space: an access is an address and the first byte's cache \
         miss, alike for all. zsmalloc needs no copy here for objects that cross pages.",
    ),
    (
        "worst",
        "The worst operation is one that waited for pages, or that the host interrupted; one of some \
         millions, so it orders nothing that was not measured many times.",
    ),
    (
        "over_1ms",
        "No pool sleeps or reclaims here: what takes a millisecond is the system's, populating a span or \
         running something else, and falls on all alike.",
    ),
];

/// Of a disk: every published ordering, and what its authors claim in numbers.
pub(super) fn of_the_comparison(case: &str, found: &[Found]) -> Vec<Claim> {
    let series = |at: usize, name: &str| {
        let of = found.iter().find(|(variant, _)| *variant == name)?;
        Some(&of.1[at])
    };
    let mut claims = Vec::new();
    for (at, figure) in FIGURES.iter().enumerate() {
        if figure.published.is_empty() {
            continue;
        }
        let side = |allocator| {
            let published = figure.published_of(allocator)?;
            Some((allocator, published, series(at, allocator)?))
        };
        let mut sides: Vec<(&str, f64, &Series)> =
            ALLOCATORS.into_iter().filter_map(side).collect();
        sides.sort_by(|one, other| one.1.total_cmp(&other.1));
        claims.push(ordering(case, figure, &sides));
    }
    for peer in ["z3fold", "zbud"] {
        if let Some((ours, theirs)) =
            series(DENSITY_FIGURE, "ztree").zip(series(DENSITY_FIGURE, peer))
        {
            claims.push(denser(case, peer, ours, theirs));
        }
    }
    claims
}

/// One published ordering, pair by pair.
fn ordering(case: &str, figure: &Figure, sides: &[(&str, f64, &Series)]) -> Claim {
    let mut pairs = Pairs::default();
    for (at, (small, _, ours)) in sides.iter().enumerate() {
        for (large, _, theirs) in &sides[at + 1..] {
            pairs.add(small, large, agreement(ours, theirs));
        }
    }
    let names: Vec<&str> = sides.iter().map(|side| side.0).collect();
    let figures = sides.iter().filter_map(|(name, _, series)| {
        let spread = series.spread()?;
        Some(format!("{name} {}", shown(spread)))
    });
    let figures: Vec<String> = figures.collect();
    let reason = REASONS.iter().find(|(metric, _)| *metric == figure.metric);
    Claim {
        basis: Basis::Published,
        case: case.to_owned(),
        claim: format!("{}, published {}", figure.head, names.join(" < ")),
        measured: format!("{}; {}", figures.join(", "), pairs.words()),
        standing: pairs.standing(),
        why: reason.map_or(String::new(), |(_, why)| (*why).to_owned()),
    }
}

fn denser(case: &str, peer: &str, ours: &Series, theirs: &Series) -> Claim {
    let figures = [("ztree", ours), (peer, theirs)].map(|(name, series)| {
        series
            .spread()
            .map_or(String::new(), |spread| format!("{name} {}", shown(spread)))
    });
    Claim {
        basis: Basis::Published,
        case: case.to_owned(),
        claim: format!("ztree is denser than {peer}"),
        measured: figures.join(", "),
        standing: match agreement(ours, theirs) {
            Some(Ordering::Less) => Standing::Held,
            Some(_) => Standing::NotHeld,
            None => Standing::WithinSpread,
        },
        why:
            "Two objects of the larger stream do not fit into one page, and zbud and z3fold share \
              nothing larger; a block of ztree spans pages, so what is lost is a slot's rounding."
                .to_owned(),
    }
}

/// Of a corpus and codec: the aims of the default pool.
pub(super) fn of_the_aims(prefix: &str, counts: &[usize], block: &Block) -> Vec<Claim> {
    let aims = Aims {
        prefix,
        pool: uzram::pools()[0],
        results: &block.results,
    };
    let mut claims = Vec::new();
    for count in FILLED_OBJECTS {
        let limit = limit(&format!("pools/fill/{count}"));
        let claim = format!("{count} objects take at most {limit} of their bytes");
        claims.extend(aims.at_most(&format!("{count}/fill"), DENSITY, limit, claim));
    }
    let largest = format!("{AIMED_OBJECTS}");
    let after = [
        (
            "overwritten",
            limit("pools/overwritten"),
            "after ten overwrites of everything",
        ),
        (
            "compacted",
            limit("pools/compacted"),
            "after half was discarded and compacting",
        ),
    ];
    for (case, limit, when) in after {
        let claim = format!("{when} at most {limit}");
        claims.extend(aims.at_most(&format!("{largest}/{case}"), DENSITY, limit, claim));
    }
    let [insert, remove, p999] =
        ["insert", "remove", "p999"].map(|of| limit(&format!("pools/{of}")));
    let p999_us = p999 / 1e3;
    let costs = [
        (
            INSERT_MEAN,
            insert,
            format!("an insertion costs at most {insert} ns beyond the copy"),
        ),
        (
            REMOVE_MEAN,
            remove,
            format!("a removal costs at most {remove} ns"),
        ),
        (
            INSERT_P999,
            p999,
            format!("999 insertions in 1000 cost at most {p999_us} us beyond the copy"),
        ),
        (
            REMOVE_P999,
            p999,
            format!("999 removals in 1000 cost at most {p999_us} us"),
        ),
    ];
    let count = counts.last().copied().unwrap_or(0);
    let overwrite = format!("{count}/overwrite");
    for (metric, limit, claim) in costs {
        claims.extend(aims.at_most(&overwrite, metric, limit, claim));
    }
    claims.extend(aims.interruptions(&overwrite));
    claims.extend(speedup(prefix, aims.pool, block));
    for (case, when) in [
        ("fill", "after a fill"),
        ("overwritten", "after ten overwrites"),
        ("compacted", "after compacting"),
    ] {
        let claim = format!("the default pool is the densest {when}");
        claims.extend(aims.least(&format!("{count}/{case}"), DENSITY, 3, claim));
    }
    let claim = format!(
        "of ten overwrites of {count} objects each costs the default pool least beyond the copy, on average"
    );
    claims.extend(aims.least(&overwrite, OVERWRITES_MEAN, 0, claim));
    claims.extend(cheapest(prefix, aims.pool, block));
    claims
}

struct Aims<'a> {
    prefix: &'a str,
    pool: &'static str,
    results: &'a [Measured],
}

impl Aims<'_> {
    fn find(&self, case: &str, variant: &str, metric: Metric) -> Option<Spread> {
        let found = self.results.iter().find(|result| {
            let suffix = result
                .case
                .strip_prefix(self.prefix)
                .and_then(|rest| rest.strip_prefix('/'));
            suffix == Some(case) && result.variant == variant && result.metric == metric.0
        });
        found.map(|result| result.spread)
    }

    fn at_most(&self, case: &str, metric: Metric, limit: f64, claim: String) -> Option<Claim> {
        let spread = self.find(case, self.pool, metric)?;
        let measured = format!("{} {}", shown(spread), metric.1);
        Some(self.claim(case, claim, measured, Standing::at_most(limit, spread)))
    }

    /// Operations over 1 ms are no more than an empty loop has; counts scatter by their square root.
    fn interruptions(&self, case: &str) -> Option<Claim> {
        let ours = self.find(case, self.pool, OVER_1MS)?.median;
        let idle = self.find(case, self.pool, IDLE_OVER_1MS)?.median;
        let scatter = 3.0 * (ours + idle).sqrt();
        let standing = match ours - idle {
            more if more <= 0.0 => Standing::Held,
            more if more <= scatter => Standing::WithinSpread,
            _ => Standing::NotHeld,
        };
        let claim = "no more operations over 1 ms than an empty loop has".to_owned();
        let measured = format!("{ours:.0}, the empty loop {idle:.1} in as much time");
        Some(self.claim(case, claim, measured, standing))
    }

    /// That the default pool has the least of all pools; shown with so many `digits`.
    fn least(&self, case: &str, metric: Metric, digits: usize, claim: String) -> Option<Claim> {
        let ours = self.find(case, self.pool, metric)?.median;
        let others = uzram::pools()
            .into_iter()
            .skip(1)
            .filter_map(|name| Some((name, self.find(case, name, metric)?.median)));
        let others: Vec<(&str, f64)> = others.collect();
        let least = others
            .iter()
            .map(|(_, theirs)| *theirs)
            .fold(f64::INFINITY, f64::min);
        let list: Vec<String> = others
            .iter()
            .map(|(name, theirs)| format!("{name} {theirs:.digits$}"))
            .collect();
        let list = list.join(", ");
        let measured = format!("{} {ours:.digits$}, {list} {}", self.pool, metric.1);
        let standing = if ours <= least {
            Standing::Held
        } else {
            Standing::NotHeld
        };
        Some(self.claim(case, claim, measured, standing))
    }

    fn claim(&self, case: &str, claim: String, measured: String, standing: Standing) -> Claim {
        let case = format!("{}/{case}", self.prefix);
        Claim::aim(case, claim, measured, standing)
    }
}

fn speedup(prefix: &str, pool: &str, block: &Block) -> Option<Claim> {
    let apart = apart(pool);
    let find = |numerator: &str, denominator: &str| {
        let ratio = block.ratios.iter().find(|ratio| {
            ratio.metric == SPEEDUP.0
                && ratio.numerator == numerator
                && ratio.denominator == denominator
        });
        ratio.map(|ratio| ratio.spread)
    };
    let spread = find(pool, COPY)?;
    let [alone, shared] = [find(&apart, COPY)?, find(pool, &apart)?].map(shown);
    let least = limit("pools/speedup");
    Some(Claim {
            basis: Basis::Aim,
        case: format!("{prefix}/threads"),
        claim: format!("threads speed it up at least {least} as much as they do the copy"),
        measured: format!(
            "{}; a pool a thread, which share nothing, {alone}, over which it is {shared}",
            shown(spread)
        ),
        standing: Standing::at_least(least, spread),
        why: "Two pools that share nothing are as fast at once as two CPUs let them be: misses of caches \
              wait for each other longer than the copy's, which are streams."
            .to_owned(),
    })
}

fn cheapest(prefix: &str, pool: &str, block: &Block) -> Option<Claim> {
    let pools = uzram::pools();
    let ratios = block.ratios.iter().filter(|ratio| {
        let other = pools.contains(&ratio.denominator.as_str());
        ratio.metric == OVERWRITE_MEAN.0 && ratio.numerator == pool && other
    });
    let (mut list, mut standings) = (Vec::new(), Vec::new());
    for ratio in ratios {
        list.push(format!("{} {}", ratio.denominator, shown(ratio.spread)));
        standings.push(Standing::at_most(1.0, ratio.spread));
    }
    (!list.is_empty()).then(|| {
        let claim = format!("an overwrite in {pool} costs less than in each other pool");
        let measured = format!("its cost over that of {}", list.join(", "));
        let case = format!("{prefix}/{IN_TURNS}");
        Claim::aim(case, claim, measured, Standing::of_all(standings))
    })
}
