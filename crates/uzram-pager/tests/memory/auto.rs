//! The budget that follows what the system leaves, in a real memory cgroup.

use std::fs;
use std::path::{Path, PathBuf};

use super::{PAGE, apart, is_body, mark, memory, until_true};

/// Where memory cgroups (version 1) are.
const CGROUPS: &str = "/sys/fs/cgroup/memory";
const LIMIT_BYTES: usize = 96 << 20;

/// A group that goes with the test.
struct Group(PathBuf);

impl Group {
    /// That of the test's process `process`.
    fn of(process: u32) -> Group {
        Group(Path::new(CGROUPS).join(format!("uzram-test-auto-{process}")))
    }

    fn write(&self, name: &str, value: usize) {
        fs::write(self.0.join(name), value.to_string()).unwrap();
    }

    fn usage_bytes(&self) -> usize {
        let text = fs::read_to_string(self.0.join("memory.usage_in_bytes")).unwrap();
        text.trim().parse().unwrap()
    }
}

#[test]
fn a_budget_follows_the_memory_that_a_cgroup_leaves() {
    let group = Group::of(std::process::id());
    if !is_body() {
        if fs::create_dir(&group.0).is_err() {
            println!("skipped: it needs memory cgroups of version 1 at {CGROUPS}");
            return;
        }
        group.write("memory.limit_in_bytes", LIMIT_BYTES);
    }
    let ended = std::panic::catch_unwind(|| {
        apart(
            "auto::a_budget_follows_the_memory_that_a_cgroup_leaves",
            body,
        );
    });
    if !is_body() {
        fs::remove_dir(&group.0).unwrap();
    }
    ended.unwrap();
}

fn body() {
    const PAGES: usize = 40_000;
    let group = Group::of(std::os::unix::process::parent_id());
    group.write("cgroup.procs", std::process::id() as usize);
    let Some(mut memory) = memory(PAGES, 64) else {
        return;
    };
    for (seed, page) in memory.chunks_exact_mut(PAGE).enumerate() {
        mark(&mut page[..PAGE / 8], seed as u64);
    }
    let touch_all = || {
        for (seed, page) in memory.chunks_exact(PAGE).enumerate() {
            let word = seed.to_le_bytes();
            assert!(
                page[8..16] == word && page[PAGE / 8 - 8..PAGE / 8] == word,
                "page {seed}"
            );
        }
    };
    let resident = || memory.statistics().resident_bytes as usize;
    touch_all();
    assert!(resident() <= 64 * PAGE);

    memory.set_auto_budget(64 * PAGE).unwrap();
    until_true(&memory, "it grows into what is free", || {
        touch_all();
        resident() > 30 << 20
    });
    // More than the group had left, in steps below the reserve.
    let mut plain = Vec::new();
    for _ in 0..6 {
        plain.push(vec![1u8; 8 << 20]);
        until_true(&memory, "it makes room", || {
            group.usage_bytes() <= LIMIT_BYTES - (10 << 20)
        });
    }
    assert!(resident() < 30 << 20, "{:?}", memory.statistics());
    touch_all();
    drop(plain);
    until_true(&memory, "it grows again", || {
        touch_all();
        resident() > 30 << 20
    });

    memory.set_budget(64 * PAGE).unwrap();
    until_true(&memory, "a budget in bytes holds", || {
        resident() <= 64 * PAGE
    });
    // A reason for another budget, and time to look.
    let plain = vec![1u8; 8 << 20];
    std::thread::sleep(std::time::Duration::from_millis(500));
    touch_all();
    assert!(resident() <= 64 * PAGE, "nothing follows any more");
    assert!(!memory.statistics().has_failed);
    drop(plain);
}
