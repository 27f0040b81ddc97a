//! Memory in use is what the statistics say, and it goes back: measured by the system, not by us.
//!
//! Each scenario runs in a process of its own, inside a memory cgroup where this user may make one,
//! and is judged by the cgroup's usage; else by the resident set, with a line that says so.

use std::process::Command;
use std::time::{Duration, Instant};

use uzram::{Bio, BlockDevice, PageIndex, Store, StoreBuilder, Unit, Zeroing, Zram};

use crate::cgroup::{self, Cgroup};
use crate::churn::churn;
use crate::compact::{compact, make_sparse};
use crate::khugepaged::{Hurry, Joined, wait_for_rounds};
use crate::pages::{compressible, noise};

const SCENARIO: &str = "UZRAM_TEST_SCENARIO";

/// Looks at the usage until what was given back is counted.
const LATE_LOOKS_MAX: usize = 300;

/// For ten rounds over a vast disk with little in it: below a second of work.
const VAST_TIME_MAX: Duration = Duration::from_secs(30);

/// Memory that the system may count late or beside the pages: per-CPU batches, page tables, contexts.
pub fn slack_bytes() -> u64 {
    (1 << 20) + cpus() * (256 << 10)
}

fn cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, usize::from) as u64
}

#[test]
fn huge_spans_come_and_go_with_their_pages() {
    measure("huge");
}

#[test]
fn small_spans_come_and_go_with_their_pages() {
    measure("small");
}

#[test]
fn every_pool_gives_its_memory_back() {
    measure("pools");
}

#[test]
fn churn_does_not_grow_a_pool() {
    measure("churn");
}

#[test]
fn room_made_under_the_limit_is_room_for_the_system_too() {
    measure("scattered");
}

#[test]
fn the_spare_shrinks_with_the_use() {
    measure("spare");
}

#[test]
fn what_compaction_frees_goes_back_to_the_system() {
    measure("compacted");
}

/// Parts of huge pages that went back stay away, though the system likes to make pages huge again.
#[test]
fn what_went_back_stays_away() {
    measure_in_a_hurry(Joined::Advised);
}

/// The tables and checksums are not advised to be huge. Where all memory is, they must say that they are not.
#[test]
fn what_went_back_stays_away_where_all_memory_may_be_huge() {
    measure_in_a_hurry(Joined::All);
}

fn measure_in_a_hurry(memory: Joined) {
    match Hurry::make(memory) {
        Some(_hurry) => measure("khugepaged"),
        None => println!("skipped: only root can hurry khugepaged, where there is one"),
    }
}

/// `mkfs` discards and reads whole devices that hold nothing.
#[test]
fn holes_stay_free_when_touched() {
    measure("holes");
}

/// A disk's size costs nothing: neither time nor memory grows with it.
#[test]
fn work_costs_what_a_store_holds_and_not_what_it_could() {
    measure("vast");
}

/// The tables of a store go back to the system with its pages: 192 MiB for 16 million pages.
#[test]
fn a_reset_gives_the_tables_back_too() {
    measure("reset");
}

/// The memory of a pool's tables of blocks goes back with the blocks.
#[test]
fn a_reset_gives_the_pools_tables_back_too() {
    measure("blocks");
}

/// The other process: does nothing unless it was started to.
#[test]
fn child() {
    let Ok(scenario) = std::env::var(SCENARIO) else {
        return;
    };
    cgroup::enter();
    match scenario.as_str() {
        "huge" => comes_and_goes(|| Store::builder().size(256 << 20)),
        "small" => comes_and_goes(|| Store::builder().size(256 << 20).mem_limit(60 << 20)),
        "pools" => every_pool(),
        "churn" => churn(),
        "scattered" => scattered(),
        "spare" => spare(),
        "holes" => holes(),
        "vast" => vast(),
        "reset" => reset(),
        "blocks" => blocks(),
        "compacted" => compacted(),
        "khugepaged" => joined_again(),
        other => panic!("scenario {other}"),
    }
}

fn measure(scenario: &str) {
    let cgroup = Cgroup::make(scenario);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "memory::child", "--nocapture"])
        .env(SCENARIO, scenario);
    match &cgroup {
        Some(cgroup) => cgroup.hold(&mut command),
        None => println!("no memory cgroup: the resident set is measured instead"),
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    text.lines()
        .filter(|line| line.contains(" KiB"))
        .for_each(|line| println!("{line}"));
}

/// Bytes that the system counts for this process now.
pub fn usage() -> u64 {
    if let Some(bytes) = cgroup::usage_bytes() {
        return bytes;
    }
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Usage over `base`, which must be what the store says it holds.
#[track_caller]
fn check(moment: &str, base: u64, store: Option<&Store>) -> u64 {
    let stats = store.map(Store::stats).unwrap_or_default();
    let said = stats.mem_resident_bytes;
    // Beside the pages: a page table for each huge page, should it have to be split, the pool's
    // bookkeeping, and the slots' words.
    let words = stats.orig_data_size_bytes / 4096 * 8;
    let slack = |over| slack_bytes() + over / 512 + stats.side_tables_bytes + words;
    let mut over = usage().saturating_sub(base);
    for _ in 0..LATE_LOOKS_MAX {
        if over <= said + slack(over) {
            break;
        }
        // On a busy machine pages can be on their way for a moment.
        std::thread::sleep(Duration::from_millis(20));
        over = usage().saturating_sub(base);
    }
    let slack = slack(over);
    println!(
        "{moment}: {} KiB by the system, {} KiB by the store",
        over >> 10,
        said >> 10
    );
    assert!(
        over <= said + slack,
        "{moment}: {over} is more than said, {stats:?}"
    );
    assert!(over + slack >= said, "{moment}: less than said");
    assert_eq!(said, stats.mem_used_total_bytes + stats.mem_spare_bytes);
    over
}

const PAGES: u64 = 12_000;

fn fill(store: &Store, pages: u64) {
    for index in 0..pages {
        let page = if index % 2 == 0 {
            noise(index, 4096)
        } else {
            compressible(index, 4096)
        };
        store.write(PageIndex(index), &page).unwrap();
    }
}

fn comes_and_goes(builder: impl Fn() -> StoreBuilder) {
    // Everything once, so that what stays for good (contexts, the heap) is there from the start.
    let warm = builder().build().unwrap();
    fill(&warm, PAGES);
    drop(warm);
    let base = usage();
    let store = builder().build().unwrap();
    check("made", base, Some(&store));
    for _ in 0..2 {
        fill(&store, PAGES);
        let held = check("filled", base, Some(&store));
        assert!(held > PAGES / 2 * 4096, "the system must see the pages");
        for index in 0..PAGES {
            store.trim(PageIndex(index)).unwrap();
        }
        check("discarded", base, Some(&store));
        let stats = store.stats();
        assert_eq!(stats.mem_used_total_bytes, 0);
        assert!(stats.mem_spare_bytes <= 2 << 20, "{stats:?}");
    }
    fill(&store, PAGES);
    store.reset();
    check("reset", base, Some(&store));
    assert_eq!(store.stats().mem_resident_bytes, 0);
    fill(&store, PAGES);
    drop(store);
    check("dropped", base, None);
}

fn every_pool() {
    let pages = PAGES / 4;
    let build = |pool| Store::builder().size(256 << 20).pool(pool).build().unwrap();
    fill(&build(uzram::pools()[0]), pages);
    let base = usage();
    for pool in uzram::pools() {
        let store = build(pool);
        fill(&store, pages);
        let held = check(pool, base, Some(&store));
        assert!(held > pages / 2 * 4096, "the system must see the pages");
        for index in 0..pages {
            store.trim(PageIndex(index)).unwrap();
        }
        check("discarded", base, Some(&store));
        store.reset();
        check("reset", base, Some(&store));
        assert_eq!(store.stats().mem_resident_bytes, 0);
    }
}

/// A random half goes, and with compaction its memory does, where it is asked for and where not.
fn compacted() {
    for pool in uzram::pools() {
        let warm = Store::builder().size(256 << 20).pool(pool).build().unwrap();
        make_sparse(&warm, 2000);
        compact(&warm);
        drop(warm);
        let base = usage();
        let store = Store::builder().size(256 << 20).pool(pool).build().unwrap();
        make_sparse(&store, PAGES);
        let sparse = check(pool, base, Some(&store));
        let resident_bytes = store.stats().mem_resident_bytes;
        compact(&store);
        let given_back = resident_bytes - store.stats().mem_resident_bytes;
        let dense = check("compacted", base, Some(&store));
        let seen = sparse - dense;
        assert!(
            seen.abs_diff(given_back) <= slack_bytes() + sparse / 512,
            "{seen}"
        );
        assert!(seen > sparse / 5, "{pool}: {sparse} to {dense}");
        store.reset();
        check("reset", base, Some(&store));
        make_sparse(&store, PAGES);
        let sparse = store.stats().mem_used_total_bytes;
        while store.maintain(Duration::from_millis(10)) {}
        check("maintained", base, Some(&store));
        let dense = store.stats().mem_used_total_bytes;
        assert!(dense < sparse * 7 / 8, "{pool}: {sparse} to {dense}");
        store.reset();
        check("reset", base, Some(&store));
    }
}

/// Memory that was thinned out, filled to the limit, overwritten and emptied, each time looked at again after
/// the system had time to join its pages.
fn joined_again() {
    const LIMIT_BYTES: u64 = 66 << 20;
    let check_twice = |moment: &str, base: u64, store: &Store| {
        check(moment, base, Some(store));
        if !wait_for_rounds() {
            println!("skipped: khugepaged went through no memory in time");
        }
        check(&format!("{moment}, later"), base, Some(store));
    };
    for pool in uzram::pools() {
        let store = Store::builder()
            .size(256 << 20)
            .mem_limit(LIMIT_BYTES)
            .pool(pool)
            .build()
            .unwrap();
        let base = usage();
        let full = (0..PAGES * 3).take_while(|index| {
            let page = noise(*index, 4096);
            store.write(PageIndex(*index), &page).is_ok()
        });
        let full = full.count() as u64;
        for index in (0..full).filter(|index| index % 512 >= 32) {
            store.trim(PageIndex(index)).unwrap();
        }
        compact(&store);
        check_twice(&format!("{pool}, thinned out"), base, &store);
        for index in 0..PAGES * 5 {
            let _ = store.write(PageIndex(index), &compressible(index, 4096));
        }
        for index in (0..PAGES * 5).step_by(7) {
            let _ = store.write(PageIndex(index), &noise(index, 4096));
        }
        check_twice("overwritten at the limit", base, &store);
        store.reset();
        compact(&store);
        check_twice("reset", base, &store);
    }
}

/// Every second raw page goes; what comes instead needs longer runs than are left, so the free
/// parts of huge spans have to go back first.
fn scattered() {
    let limit = 64 << 20;
    let store = Store::builder()
        .size(1 << 30)
        .mem_limit(limit)
        .build()
        .unwrap();
    let base = usage();
    let pages = limit / 4096;
    for index in 0..pages {
        store.write(PageIndex(index), &noise(index, 4096)).unwrap();
    }
    check("full", base, Some(&store));
    for index in (0..pages).step_by(2) {
        store.trim(PageIndex(index)).unwrap();
    }
    check("every second page gone", base, Some(&store));
    for index in (0..pages).step_by(2) {
        if store
            .write(PageIndex(index), &compressible(index, 4096))
            .is_err()
        {
            break;
        }
    }
    check("others in between", base, Some(&store));
    for index in 0..pages {
        store.trim(PageIndex(index)).unwrap();
    }
    check("discarded", base, Some(&store));
    store.reset();
    check("reset", base, Some(&store));
}

/// A large store keeps a spare of some spans; an empty one has no use for it.
fn spare() {
    let unit = Unit::new(65536).unwrap();
    let store = Store::builder().size(1 << 30).unit(unit).build().unwrap();
    let base = usage();
    let mut page = noise(1, 65536);
    let pages = 520u64 << 4;
    for index in 0..pages {
        page[..8].copy_from_slice(&index.to_le_bytes());
        store.write(PageIndex(index), &page).unwrap();
    }
    while store.maintain(Duration::from_millis(10)) {}
    check("filled", base, Some(&store));
    let spans = 8;
    assert_eq!(
        store.stats().mem_spare_bytes >> 21,
        spans,
        "{:?}",
        store.stats()
    );
    for index in 0..pages {
        store.trim(PageIndex(index)).unwrap();
    }
    while store.maintain(Duration::from_millis(10)) {}
    check("discarded", base, Some(&store));
    assert!(
        store.stats().mem_spare_bytes <= 2 << 20,
        "{:?}",
        store.stats()
    );
}

/// 8 TiB with a few pages far from each other. A look at each slot would take from five seconds, in each of
/// the rounds, to minutes; page tables alone would be 32 MiB.
fn vast() {
    const PAGES_APART: u64 = 1 << 24;
    let disk = Zram::new(Store::builder().size(8 << 40).build().unwrap());
    let store = disk.store();
    let length = store.size_bytes();
    let far: Vec<u64> = (0..store.size_bytes() >> 12)
        .step_by(PAGES_APART as usize)
        .collect();
    let base = usage();
    let start = Instant::now();
    for round in 0..10 {
        for index in &far {
            store
                .write(PageIndex(*index), &noise(*index, 4096))
                .unwrap();
        }
        let extent = disk.extent(4096, length - 4096).unwrap();
        assert_eq!(extent.length_bytes, (PAGES_APART - 1) << 12);
        compact(store);
        while store.maintain(Duration::from_millis(10)) {}
        let discarded = store.stats().notify_free;
        let (offset, zeroing) = (0, Zeroing::MayPunch);
        match round % 3 {
            0 => store.reset(),
            1 => disk.submit(Bio::Trim { offset, length }).unwrap(),
            _ => disk
                .submit(Bio::Zero {
                    offset,
                    length,
                    zeroing,
                })
                .unwrap(),
        }
        if round % 3 == 1 {
            assert_eq!(
                store.stats().notify_free - discarded,
                length >> 12,
                "as zram counts"
            );
        }
        assert_eq!(store.stats().mem_used_total_bytes, 0);
        assert_eq!(disk.extent(0, length).unwrap().length_bytes, length);
        let over = usage().saturating_sub(base);
        assert!(over < 8 << 20, "{over} bytes for nothing");
    }
    assert!(start.elapsed() < VAST_TIME_MAX, "{:?}", start.elapsed());
}

fn reset() {
    const PAGES: u64 = 16 << 20;
    const TABLES_BYTES: u64 = PAGES * (8 + 4);
    let build = |spare_bytes| {
        let builder = Store::builder().size(PAGES << 12).checksum(true);
        builder.spare(spare_bytes).build().unwrap()
    };
    let fill = |store: &Store| {
        let zero = |index| store.zero(PageIndex(index), Zeroing::NoHole).unwrap();
        (0..PAGES).for_each(zero);
    };
    let base = usage();
    let store = build(0);
    for round in 0..2 {
        fill(&store);
        let full = usage().saturating_sub(base);
        assert!(full >= TABLES_BYTES, "{full} bytes of tables");
        let start = Instant::now();
        store.reset();
        let time = start.elapsed();
        let over = usage().saturating_sub(base);
        let (full_kib, over_kib) = (full >> 10, over >> 10);
        println!("reset in {time:?}: {full_kib} KiB, then {over_kib} KiB");
        // Page tables stay: 8 bytes for 4096.
        assert!(over <= slack_bytes() + TABLES_BYTES / 256, "{over} stay");
        let mut page = vec![1; 4096];
        for index in [0, 1023, 1024, 5_000_000, PAGES - 1] {
            store.read(PageIndex(index), &mut page).unwrap();
            assert!(page.iter().all(|byte| *byte == 0), "page {index}");
            let new = noise(index + round, 4096);
            store.write(PageIndex(index), &new).unwrap();
            store.read(PageIndex(index), &mut page).unwrap();
            assert_eq!(page, new);
        }
    }
    drop(store);
    // A store whose writers must not wait for memory keeps its tables.
    let store = build(2 << 20);
    fill(&store);
    store.reset();
    let over = usage().saturating_sub(base);
    assert!(over >= TABLES_BYTES, "{over} bytes of tables");
}

/// The heap keeps freed entries for the process, so only the statistics tell of them.
fn blocks() {
    const PAGES: u64 = 96 << 10;
    const SAID_MAX: u64 = 64 << 10;
    const HEAP_MAX: u64 = 2 << 20;
    /// Lines of kept places stay. How many depends on which CPUs the scenario ran on.
    const LINES_MAX_PER_CPU: u64 = 16 << 10;
    let page = noise(1, 4096);
    for pool in uzram::pools() {
        let builder = Store::builder().size(1 << 30).pool(pool);
        let store = builder.build().unwrap();
        let few = store.stats().side_tables_bytes;
        let base = resident_bytes();
        for _ in 0..2 {
            (0..PAGES).for_each(|index| store.write(PageIndex(index), &page).unwrap());
            let many = store.stats().side_tables_bytes - few;
            store.reset();
            let said = store.stats().side_tables_bytes - few;
            let over = resident_bytes().saturating_sub(base);
            let kib = [many, said, over].map(|bytes| bytes >> 10);
            println!(
                "{pool}: {} KiB of tables, then {} KiB, {} KiB by the system",
                kib[0], kib[1], kib[2]
            );
            assert!(many > 512 << 10, "{pool}: {many}");
            let said_max = SAID_MAX + cpus().min(8) * LINES_MAX_PER_CPU;
            assert!(said <= said_max, "{pool}: {said} stay");
            let heap_max = match pool {
                "bestfit" | "zsmalloc" => HEAP_MAX,
                _ => SAID_MAX,
            };
            assert!(over <= heap_max, "{pool}: {over} stay");
        }
    }
}

/// Bytes of this process's own memory, by its page tables.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() << 10
}

fn holes() {
    let store = Store::builder().size(8 << 30).build().unwrap();
    let mut page = vec![1; 4096];
    let base = usage();
    for index in (0..store.size_bytes() >> 12).map(PageIndex) {
        store.trim(index).unwrap();
        store.zero(index, Zeroing::MayPunch).unwrap();
        store.zero_at(index, 7, 100, Zeroing::MayPunch).unwrap();
        store.read_at(index, 7, &mut page[..100]).unwrap();
        store.read(index, &mut page).unwrap();
    }
    assert!(page.iter().all(|byte| *byte == 0));
    check("8 GiB of holes touched", base, Some(&store));
    store.reset();
    check("reset", base, Some(&store));
}
