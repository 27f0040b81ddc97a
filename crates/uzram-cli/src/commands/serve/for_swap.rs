//! Processes that serve swap, or hold what is swapped to.

use rustix::process::DumpableBehavior;
use uzram_server::swap;

/// Makes this process fit to serve swap, before it has threads. Of one with a holder, that has said what is refused.
pub fn prepare(has_holder: bool) {
    if has_holder {
        // A program that takes core dumps needs memory, which nobody has until a successor serves; and before Linux 5.16 a dump
        // ends the process that keeps the memory locked.
        let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
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
