//! Published figures of the allocators, against what was measured.

use super::figures::{ALLOCATORS, DENSITY_FIGURE, FIGURES, Found};
use crate::report::Claim;
use crate::sample::Series;
use crate::suite::orderings::Orders;

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

const DENSER: &str = "Two objects of the larger stream do not fit into one page, and zbud and z3fold share nothing larger; a \
     block of ztree spans pages, so what is lost is a slot's rounding.";

/// Of a disk: every published ordering, and that ztree is denser than its predecessors.
pub(super) fn of_the_comparison(case: &str, found: &[Found]) -> Vec<Claim> {
    let series = |at: usize, name: &str| -> Option<Series> {
        let of = found.iter().find(|(variant, _)| *variant == name)?;
        Some(of.1[at].clone())
    };
    let mut claims = Vec::new();
    for (at, figure) in FIGURES.iter().enumerate() {
        let side = |allocator| {
            let published = figure.published_of(allocator)?;
            Some((allocator, published, series(at, allocator)?))
        };
        let sides: Vec<(&str, f64, Series)> = ALLOCATORS.into_iter().filter_map(side).collect();
        if !sides.is_empty() {
            let mut orders = Orders::default();
            orders.add(None, sides);
            let reason = REASONS.iter().find(|(metric, _)| *metric == figure.metric);
            let why = reason.map_or("", |(_, why)| why);
            claims.extend(orders.claim(case, figure.head, "", why));
        }
    }
    // Published in words.
    let mut denser = Orders::default();
    for peer in ["z3fold", "zbud"] {
        let both = series(DENSITY_FIGURE, "ztree").zip(series(DENSITY_FIGURE, peer));
        if let Some((ours, theirs)) = both {
            denser.add(None, vec![("ztree", 0.0, ours), (peer, 1.0, theirs)]);
        }
    }
    let head = FIGURES[DENSITY_FIGURE].head;
    claims.extend(denser.claim(case, head, "", DENSER));
    claims
}
