//! Memory in use is what the statistics say, and it goes back: measured by the system, not by us.
//!
//! Each scenario runs in a process of its own, inside a memory cgroup where this user may make one,
//! and is judged by the cgroup's usage; else by the resident set, with a line that says so.

use std::path::{Path, PathBuf};
use std::process::Command;

use uzram::{BarePool, Objects, PageIndex, Store, StoreBuilder, Unit, Zeroing};

use crate::compact::{compact, make_sparse};
use crate::pages::{compressible, noise};

const SCENARIO: &str = "UZRAM_TEST_SCENARIO";
const CGROUP: &str = "UZRAM_TEST_CGROUP";

/// Looks at the usage until what was given back is counted.
const LATE_LOOKS_MAX: usize = 100;

/// What the system may count late or beside the pages: per-CPU batches, page tables, contexts.
fn slack_bytes() -> u64 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    (1 << 20) + cpus * (256 << 10)
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

/// `mkfs` discards and reads whole devices that hold nothing.
#[test]
fn holes_stay_free_when_touched() {
    measure("holes");
}

/// The other process: does nothing unless it was started to.
#[test]
fn child() {
    let Ok(scenario) = std::env::var(SCENARIO) else {
        return;
    };
    if let Ok(cgroup) = std::env::var(CGROUP) {
        std::fs::write(
            Path::new(&cgroup).join("cgroup.procs"),
            std::process::id().to_string(),
        )
        .unwrap();
    }
    match scenario.as_str() {
        "huge" => comes_and_goes(|| Store::builder().size(256 << 20)),
        "small" => comes_and_goes(|| Store::builder().size(256 << 20).mem_limit(60 << 20)),
        "pools" => every_pool(),
        "churn" => churn(),
        "scattered" => scattered(),
        "spare" => spare(),
        "holes" => holes(),
        "compacted" => compacted(),
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
        Some(cgroup) => drop(command.env(CGROUP, &cgroup.path)),
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

/// A memory cgroup of version 1 or 2, removed when dropped.
struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    fn make(name: &str) -> Option<Cgroup> {
        let name = format!("uzram-test-{}-{name}", std::process::id());
        let places = [
            ("/sys/fs/cgroup/memory", "memory.usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.current"),
        ];
        places.iter().find_map(|(root, file)| {
            let cgroup = Cgroup {
                path: Path::new(root).join(&name),
            };
            std::fs::create_dir(&cgroup.path).ok()?;
            cgroup.path.join(file).exists().then_some(cgroup)
        })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Bytes that the system counts for this process now.
fn usage() -> u64 {
    if let Ok(cgroup) = std::env::var(CGROUP) {
        let read = |file: &str| std::fs::read_to_string(Path::new(&cgroup).join(file)).ok();
        let text = read("memory.usage_in_bytes")
            .or_else(|| read("memory.current"))
            .unwrap();
        return text.trim().parse().unwrap();
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
        std::thread::sleep(std::time::Duration::from_millis(20));
        over = usage().saturating_sub(base);
    }
    let slack = slack(over);
    println!(
        "{moment}: {} KiB by the system, {} KiB by the store",
        over >> 10,
        said >> 10
    );
    assert!(over <= said + slack, "{moment}: more than said");
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

/// Overwrites at random, with sizes that drift from small to large and back: what one tide leaves
/// behind, the next must use or give back.
fn churn() {
    const OBJECTS: usize = 4_000;
    const TIDES: u64 = 6;
    /// Memory comes and goes in spans, and where a tide's peak lies among them is chance.
    const SPAN_BYTES: u64 = 2 << 20;
    let sizes: [fn(u64) -> u64; 4] = [
        |draw| 1 + draw % 300,
        |draw| 600 + draw % 1500,
        |draw| 2500 + draw % 1597,
        |draw| 1 + draw % 4096,
    ];
    for name in uzram::pools() {
        let pool = BarePool::new(name, Unit::DEFAULT, 256 << 20, 0).unwrap();
        let mut objects = pool.objects(OBJECTS);
        let base = usage();
        let mut draws = (1u64..).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20);
        let mut draw = || draws.next().unwrap();
        let (mut high_bytes, mut high_side_bytes) = (0, 0);
        for tide in 0..TIDES {
            for size in sizes {
                for _ in 0..2 * OBJECTS {
                    overwrite(&mut objects, draw() as usize % OBJECTS, size(draw()));
                }
            }
            let stats = pool.stats();
            let over = usage().saturating_sub(base);
            println!("{name}, tide {tide}: {} KiB by the system", over >> 10);
            assert!(
                stats.used_bytes <= (OBJECTS * 4096) as u64,
                "{name}: {stats:?}"
            );
            let said = stats.resident_bytes + stats.side_bytes;
            let slack = slack_bytes() + over / 512;
            assert!(
                over <= said + slack,
                "{name}: {over} is more than {stats:?}"
            );
            match tide {
                // The first fills it, the second meets what the first left.
                0 | 1 => {
                    high_bytes = high_bytes.max(over);
                    high_side_bytes = high_side_bytes.max(stats.side_bytes);
                }
                _ => {
                    let grown = over > high_bytes + slack_bytes() + SPAN_BYTES;
                    let side_grown = stats.side_bytes > high_side_bytes * 5 / 4;
                    assert!(!grown, "{name}: {over} after {high_bytes}, {stats:?}");
                    assert!(!side_grown, "{name}: {stats:?} after {high_side_bytes}");
                }
            }
        }
        drop(objects);
        pool.trim();
        let stats = pool.stats();
        assert_eq!((stats.used_bytes, stats.resident_bytes), (0, 0), "{name}");
        let over = usage().saturating_sub(base);
        let slack = slack_bytes() + stats.side_bytes;
        assert!(over <= slack, "{name}: {over} bytes stay of nothing");
    }
}

/// Replaces an object, which must still begin with its place, by one that does.
fn overwrite(objects: &mut Objects, place: usize, size: u64) {
    let name = (place as u64).to_le_bytes();
    if let Some(old) = objects.bytes(place) {
        let known = old.len().min(name.len());
        assert_eq!(old[..known], name[..known], "an object is not as it was");
    }
    objects.remove(place);
    let mut bytes = [0; 4096];
    bytes[..8].copy_from_slice(&name);
    objects.insert(place, &bytes[..size as usize]).unwrap();
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
        while store.maintain(std::time::Duration::from_millis(10)) {}
        check("maintained", base, Some(&store));
        let dense = store.stats().mem_used_total_bytes;
        assert!(dense < sparse * 7 / 8, "{pool}: {sparse} to {dense}");
        store.reset();
        check("reset", base, Some(&store));
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
    while store.maintain(std::time::Duration::from_millis(10)) {}
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
    while store.maintain(std::time::Duration::from_millis(10)) {}
    check("discarded", base, Some(&store));
    assert!(
        store.stats().mem_spare_bytes <= 2 << 20,
        "{:?}",
        store.stats()
    );
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
