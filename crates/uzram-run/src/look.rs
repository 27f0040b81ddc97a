//! Looks at the tree now and then: who is in it, what memory it has, and which spaces are still somebody's.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::process;
use crate::state::{Fatal, Server};

/// Between two looks at the memory: as long as a fast program takes to fill what is left.
const LOOK: std::ops::Range<Duration> = Duration::from_millis(5)..Duration::from_millis(50);
const FILL_BYTES_PER_MS: u64 = 2 << 20;
/// Between two looks at who there is.
const TREE: Duration = Duration::from_millis(100);

impl Server {
    /// Looks, if it is time to.
    ///
    /// # Errors
    /// [`Fatal`].
    pub(crate) fn look_if_due(&mut self) -> Result<(), Fatal> {
        let now = Instant::now();
        if now < self.next_look {
            return Ok(());
        }
        if now >= self.next_tree {
            self.next_tree = now + TREE;
            self.look_at_tree();
            self.look_at_spaces();
        }
        self.look_at_memory(now);
        self.let_go();
        let left = self
            .statistics
            .budget_bytes
            .saturating_sub(self.statistics.used_bytes);
        let wait = Duration::from_millis(left / FILL_BYTES_PER_MS).clamp(LOOK.start, LOOK.end);
        self.next_look = Instant::now() + wait;
        self.maintain();
        Ok(())
    }

    fn look_at_tree(&mut self) {
        if !self.has_begun {
            return;
        }
        let own = std::process::id() as i32;
        let mut found = process::descendants(&self.roots());
        found.retain(|pid| *pid != own && *pid != self.front_process && !process::has_ended(*pid));
        let agents = self.agents();
        self.tree = found.difference(&agents).copied().collect();
        self.alone.retain(|pid| self.tree.contains(pid));
        if self.tree.is_empty() && self.front.is_none() {
            self.is_ending = true;
        }
    }

    /// The processes whose descendants the tree is: those that are known, and the front, which adopts those whose parents have ended. Once
    /// it has ended they are adopted by a stranger, and so is this process.
    fn roots(&self) -> BTreeSet<i32> {
        let mut roots = self.tree.clone();
        let own = std::process::id() as i32;
        if process::parent(own) == Some(self.front_process) {
            roots.insert(self.front_process);
        }
        roots
    }

    fn look_at_spaces(&mut self) {
        let ids: Vec<u32> = self.spaces.keys().copied().collect();
        for id in ids {
            let Some(space) = self.spaces.get(&id) else {
                continue;
            };
            let has_owner = space
                .owner
                .is_some_and(|pid| self.tree.contains(&pid) && space.mark.is_of(pid));
            if has_owner {
                continue;
            }
            let mark = space.mark;
            let owner = self.tree.iter().copied().find(|pid| mark.is_of(*pid));
            let Some(space) = self.spaces.get_mut(&id) else {
                continue;
            };
            space.owner = owner;
            if owner.is_some() {
                continue;
            }
            // Its memory is held by nobody else: the program has ended, or is another now.
            space.agent = None;
            if space.is_dead() {
                self.forget(id);
            }
        }
    }

    fn look_at_memory(&mut self, now: Instant) {
        let mut bytes = 0;
        let mut large: Vec<(i32, u64)> = Vec::new();
        for pid in &self.tree {
            let Some(its) = process::anonymous_bytes(*pid) else {
                continue;
            };
            if its < self.process_bytes_min {
                bytes += its;
            } else if !large
                .iter()
                .any(|(other, _)| process::share_memory(*pid, *other))
            {
                large.push((*pid, its));
            }
        }
        large.sort_by_key(|(_, its)| std::cmp::Reverse(*its));
        let with_common: u64 = bytes + large.iter().map(|(_, its)| its).sum::<u64>();
        if with_common > self.statistics.budget_bytes {
            self.common.look(&large, now);
        }
        let common = |(pid, its): &(i32, u64)| self.common.of(*pid).min(*its);
        let bytes = with_common - large.iter().map(common).sum::<u64>();
        self.large = large;
        self.statistics.used_bytes = bytes;
        self.statistics.peak_bytes = self.statistics.peak_bytes.max(bytes);
        if bytes > self.statistics.budget_bytes {
            self.serve_all_areas();
        }
    }

    /// Serves all that may grow, so that it waits for room.
    fn serve_all_areas(&mut self) {
        let mut dropped = Vec::new();
        for space in self.spaces.values_mut() {
            if space.agent.is_none() {
                continue;
            }
            space.look();
            // Those of taken pages mean what they say only until these are stored.
            dropped.append(&mut space.dropped);
            for area in space.areas.clone() {
                // Another's, or gone meanwhile: it is left alone.
                let _ = space.manage(&area);
            }
        }
        dropped.into_iter().for_each(|place| self.release(place));
    }
}
