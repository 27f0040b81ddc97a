//! The record of taken slots.
//!
//! Slots come in clusters of 256. Each CPU takes its slots from a cluster of its own, one after
//! the other. So pages that are written together lie together, and CPUs rarely meet. A cluster
//! whose last slot comes back is whole again. When no whole cluster is left, slots come from any
//! cluster that has one.
//!
//! Lock order: lane > cluster > the list of whole clusters.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use uzram::{Error, ErrorKind, PageIndex, Result};

/// Slots of a cluster.
const CLUSTER_SLOTS: u32 = 256;
/// CPUs that have clusters of their own; further CPUs share them.
const LANES: usize = 16;
/// Most slots of an area: 16 TiB.
const SLOTS_MAX: u64 = 1 << 32;

/// One slot, owned. It must be given back to its area.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a slot that is dropped is taken for ever"]
pub struct SwapSlot {
    index: u32,
}

impl SwapSlot {
    /// The page of the device that is the slot.
    #[must_use]
    pub fn page(&self) -> PageIndex {
        PageIndex(u64::from(self.index))
    }
}

pub(super) struct SlotMap {
    clusters: Box<[Mutex<Cluster>]>,
    whole: Mutex<VecDeque<u32>>,
    /// Each lane's cluster, if it has one.
    lanes: [Mutex<Option<u32>>; LANES],
    used: AtomicU64,
    total: u64,
}

#[derive(Default)]
struct Cluster {
    taken: [u64; (CLUSTER_SLOTS / u64::BITS) as usize],
    count: u32,
    /// Slots of this cluster: fewer in the last one.
    slots: u32,
    /// The place where the cluster's lane goes on.
    next: u32,
    has_lane: bool,
    is_listed: bool,
}

impl SlotMap {
    pub(super) fn new(slots: u64) -> Result<SlotMap> {
        if slots == 0 || slots > SLOTS_MAX {
            let text = format!("{slots} pages: a swap area has from 1 to {SLOTS_MAX}");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let count = slots.div_ceil(u64::from(CLUSTER_SLOTS));
        let mut clusters = Vec::new();
        let no_memory = |_| Error::new(ErrorKind::NoMemory, "no memory for the map of a swap area");
        clusters
            .try_reserve_exact(count as usize)
            .map_err(no_memory)?;
        for index in 0..count {
            let rest = slots - index * u64::from(CLUSTER_SLOTS);
            clusters.push(Mutex::new(Cluster {
                slots: rest.min(u64::from(CLUSTER_SLOTS)) as u32,
                is_listed: true,
                ..Cluster::default()
            }));
        }
        Ok(SlotMap {
            clusters: clusters.into_boxed_slice(),
            whole: Mutex::new((0..count as u32).collect()),
            lanes: std::array::from_fn(|_| Mutex::new(None)),
            used: AtomicU64::new(0),
            total: slots,
        })
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn allocate(&self) -> Option<SwapSlot> {
        let mut lane = lock(&self.lanes[rustix::thread::sched_getcpu() % LANES]);
        let slot = self
            .take_from_lane(&mut lane)
            .or_else(|| self.take_anywhere())?;
        self.used.fetch_add(1, Ordering::Relaxed);
        Some(slot)
    }

    pub(super) fn free(&self, slot: SwapSlot) {
        let index = slot.index / CLUSTER_SLOTS;
        let mut cluster = lock(&self.clusters[index as usize]);
        cluster.give_back(slot.index % CLUSTER_SLOTS);
        self.list_if_whole(index, &mut cluster);
        self.used.fetch_sub(1, Ordering::Relaxed);
    }

    /// The next slot of the lane's cluster, or of a whole cluster that the lane gets.
    fn take_from_lane(&self, lane: &mut Option<u32>) -> Option<SwapSlot> {
        loop {
            if let Some(index) = *lane {
                let mut cluster = lock(&self.clusters[index as usize]);
                let from = cluster.next;
                if let Some(slot) = cluster.take(from) {
                    cluster.next = slot + 1;
                    return Some(at(index, slot));
                }
                cluster.has_lane = false;
                *lane = None;
                self.list_if_whole(index, &mut cluster);
            }
            let index = lock(&self.whole).pop_front()?;
            let mut cluster = lock(&self.clusters[index as usize]);
            cluster.is_listed = false;
            cluster.has_lane = true;
            cluster.next = 0;
            *lane = Some(index);
        }
    }

    /// A slot of any cluster, each looked at once.
    fn take_anywhere(&self) -> Option<SwapSlot> {
        if self.used() >= self.total {
            return None;
        }
        let take = |(index, cluster): (usize, &Mutex<Cluster>)| {
            let slot = lock(cluster).take(0)?;
            Some(at(index as u32, slot))
        };
        self.clusters.iter().enumerate().find_map(take)
    }

    fn list_if_whole(&self, index: u32, cluster: &mut Cluster) {
        if cluster.count == 0 && !cluster.has_lane && !cluster.is_listed {
            cluster.is_listed = true;
            lock(&self.whole).push_back(index);
        }
    }
}

impl Cluster {
    /// Takes the first free slot from `from` on.
    fn take(&mut self, from: u32) -> Option<u32> {
        if self.count == self.slots {
            return None;
        }
        let slot = (from..self.slots).find(|slot| !self.has(*slot))?;
        self.taken[(slot / u64::BITS) as usize] |= 1 << (slot % u64::BITS);
        self.count += 1;
        Some(slot)
    }

    fn give_back(&mut self, slot: u32) {
        debug_assert!(self.has(slot), "a slot of another area");
        self.taken[(slot / u64::BITS) as usize] &= !(1 << (slot % u64::BITS));
        self.count -= 1;
    }

    fn has(&self, slot: u32) -> bool {
        self.taken[(slot / u64::BITS) as usize] >> (slot % u64::BITS) & 1 != 0
    }
}

fn at(cluster: u32, slot: u32) -> SwapSlot {
    SwapSlot {
        index: cluster * CLUSTER_SLOTS + slot,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_slot_is_given_once_and_again_when_it_came_back() {
        for slots in [1, 255, 256, 257, 1000] {
            let map = SlotMap::new(slots).unwrap();
            for _ in 0..3 {
                let taken: Vec<_> = (0..slots).map(|_| map.allocate().unwrap()).collect();
                assert_eq!(map.allocate(), None, "{slots}");
                let pages: HashSet<u64> = taken.iter().map(|slot| slot.page().0).collect();
                assert_eq!(pages.len() as u64, slots);
                assert!(pages.iter().all(|page| *page < slots));
                taken.into_iter().for_each(|slot| map.free(slot));
                assert_eq!(map.used(), 0);
            }
        }
        assert!(SlotMap::new(0).is_err() && SlotMap::new(SLOTS_MAX + 1).is_err());
    }

    #[test]
    fn scattered_slots_are_found_when_no_cluster_is_whole() {
        let map = SlotMap::new(2048).unwrap();
        let taken: Vec<_> = (0..2048).map(|_| map.allocate().unwrap()).collect();
        let (back, kept): (Vec<_>, Vec<_>) =
            taken.into_iter().partition(|slot| slot.page().0 % 97 == 5);
        let count = back.len();
        let pages: HashSet<u64> = back.iter().map(|slot| slot.page().0).collect();
        back.into_iter().for_each(|slot| map.free(slot));
        let again: Vec<_> = (0..count).map(|_| map.allocate().unwrap()).collect();
        assert_eq!(
            again
                .iter()
                .map(|slot| slot.page().0)
                .collect::<HashSet<_>>(),
            pages
        );
        assert_eq!(map.allocate(), None);
        assert_eq!(map.used() as usize, kept.len() + count);
    }

    #[test]
    fn threads_never_get_the_same_slot() {
        let map = SlotMap::new(1500).unwrap();
        let owners: Vec<AtomicU64> = (0..1500).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 1..=4u64 {
                let (map, owners) = (&map, &owners);
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for turn in 0..4000u64 {
                        let wants_more = turn % 7 < 4 || held.is_empty();
                        if wants_more && let Some(slot) = map.allocate() {
                            let owner = &owners[slot.page().0 as usize];
                            assert_eq!(owner.swap(thread, Ordering::Relaxed), 0);
                            held.push(slot);
                        } else if !held.is_empty() {
                            let slot: SwapSlot = held.swap_remove(turn as usize % held.len());
                            let owner = &owners[slot.page().0 as usize];
                            assert_eq!(owner.swap(0, Ordering::Relaxed), thread);
                            map.free(slot);
                        }
                    }
                    for slot in held {
                        owners[slot.page().0 as usize].store(0, Ordering::Relaxed);
                        map.free(slot);
                    }
                });
            }
        });
        assert_eq!(map.used(), 0);
        let all: Vec<_> = (0..1500).map(|_| map.allocate().unwrap()).collect();
        assert_eq!(map.allocate(), None);
        drop(all);
    }

    #[test]
    fn successive_slots_lie_next_to_each_other() {
        let map = SlotMap::new(4096).unwrap();
        let pages: Vec<u64> = (0..200).map(|_| map.allocate().unwrap().page().0).collect();
        let neighbours = pages
            .windows(2)
            .filter(|pair| pair[1] == pair[0] + 1)
            .count();
        // A thread may be moved to another CPU in between.
        assert!(neighbours >= 150, "{neighbours}: {pages:?}");
    }
}
