//! Programs that do what makes compressed memory hard, for tests: `behaviours VERB`. Each checks every byte of its memory, and
//! says "right" at its end.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod area;
mod calls;
mod mappings;
#[path = "../pages.rs"]
mod pages;
mod processes;
mod transfers;

use std::process::exit;

fn main() {
    let verb = std::env::args().nth(1).unwrap_or_default();
    match verb.as_str() {
        "brk" => mappings::shrinks_the_heap(),
        "clone" => processes::shares_memory(),
        "collapse" => mappings::has_huge_pages(),
        "core" => calls::dumps_core(),
        "core-check" => calls::checks_core(&std::env::args().skip(2).collect::<Vec<_>>()),
        "descriptors" => calls::closes_all_descriptors(),
        "direct" => transfers::reads_directly(),
        "dumpable" => calls::is_not_dumpable(),
        "filter-after" => calls::filters_itself_later(),
        "filter-before" => calls::filters_itself_first(),
        "fixed" => mappings::maps_over(),
        "forks" => processes::forks_one_after_another(),
        "free" => mappings::frees(),
        "guard" => mappings::guards(),
        "holds" => processes::holds(),
        "lock" => mappings::locks(),
        "move" => mappings::moves(),
        "bomb" => processes::bomb(),
        "outside" => processes::is_read_from_outside(),
        "ring" => transfers::reads_by_a_ring(),
        "setuid" => processes::becomes_setuid(),
        "shared" => mappings::shares_with_a_child(),
        "signals" => calls::takes_signals(),
        "spawn" => processes::spawns(),
        "stack" => calls::has_memory_beside_a_stack(),
        "stack-again" => calls::has_memory_of_an_ended_thread(),
        "traced" => processes::is_traced(),
        "vfork" => processes::vforks(),
        "whole" => transfers::reads_all_at_once(),
        "wipe" => mappings::is_wiped_on_fork(),
        _ => exit(2),
    }
    println!("right");
}
