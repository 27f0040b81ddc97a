//! What was published in 2017 about these paths: mean latencies of the kernel's swap calls under pmbench, in
//! microseconds, on the authors' machines. Orderings and ratios compare, absolute values do not.

/// A published row: device, call, and the means without `rw_page`, by on-stack bio, by `rw_page`.
pub(super) struct Row {
    pub(super) device: &'static str,
    pub(super) call: &'static str,
    pub(super) allocated_us: f64,
    pub(super) on_stack_us: f64,
    pub(super) rw_page_us: f64,
}

const fn row(device: &'static str, call: &'static str, us: [f64; 3]) -> Row {
    Row {
        device,
        call,
        allocated_us: us[0],
        on_stack_us: us[1],
        rw_page_us: us[2],
    }
}

const ROWS: [Row; 4] = [
    row("pmem", "swap_writepage", [5.0, 4.98, 4.7]),
    row("btt", "swap_writepage", [6.8, 6.3, 6.1]),
    row("pmem", "swap_readpage", [3.3, 3.27, 2.9]),
    row("btt", "swap_readpage", [3.7, 3.44, 3.4]),
];

/// The published row of a device and a call.
pub(super) fn row_of(device: &str, call: &str) -> Option<&'static Row> {
    ROWS.iter()
        .find(|row| row.device == device && row.call == call)
}

/// The published lines about zram under swap, ten runs a path.
pub(super) const ZRAM: [&str; 2] = [
    "published: rw_page mean 5.54 us, stddev 8.89 %, max 6.02, min 4.20 (10 runs)",
    "published: on-stack bio mean 5.27 us, stddev 13.03 %, max 5.96, min 3.55 (10 runs)",
];
