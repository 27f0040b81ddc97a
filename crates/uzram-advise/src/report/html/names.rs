//! Names for people: of metrics, cases and blocks.

use crate::report::Block;

/// A metric's name for people.
pub(super) fn words(metric: &str) -> String {
    match metric {
        "iops" => "IOPS".to_owned(),
        metric => metric.replace('_', " "),
    }
}

/// The last part of a case's name: its corpus and algorithm stand in the block's title.
pub(super) fn case_label(case: &str) -> &str {
    case.rsplit('/').next().unwrap_or(case)
}

/// A block's title up to the colon, and the rest.
pub(super) fn title_parts(block: &Block) -> (&str, &str) {
    block.title.split_once(": ").unwrap_or((&block.title, ""))
}

/// The place of a block in the page.
pub(super) fn anchor(block: usize) -> String {
    format!("block-{}", block + 1)
}
