//! Processes that serve swap, or hold what is swapped to.

use uzram_server::swap;

/// Makes this process fit to serve swap, before it has threads. Of one with a holder, that has said what is refused.
pub fn prepare(has_holder: bool) {
    for refused in swap::prepare_process() {
        match has_holder {
            true => log::debug!("{refused}"),
            false => log::warn!("{refused}"),
        }
    }
    log::info!("for-swap: runs at nice {}", swap::niceness());
    // A line of a log may wait for a disk, and the disk for memory.
    log::set_max_level(log::max_level().min(log::LevelFilter::Info));
}
