//! Pages that leave: chosen by a hand that goes round each address space, moved out by its agent, compressed here.
//!
//! No interface tells which pages are read. A page that had to come back is spared once by the hand.

use std::time::{Duration, Instant};

use log::debug;

use crate::agent::{Agent, NoAgent, RUNS_MAX, TakeError, Taken, is_takeable};
use crate::process;
use crate::protocol::ToFront;
use crate::space::Space;
use crate::state::{Fatal, STUCK_TIME, Server};
use crate::table::Place;
use crate::units::{CHUNK_BYTES, CHUNK_PAGES, PAGE_BYTES, Range, pages};

/// Pages that are compressed before faults are looked for again.
const STORED_MAX: usize = 16;
/// Chunks that are looked through before faults are looked for again.
const CHUNKS_MAX: usize = 32;
/// Attempts to make room before a page comes all the same: pages cannot go while the program changes its mappings.
const TRIES_MAX: usize = 16;
/// Rounds of the hand until a page that may go has been found: its heat, and one more.
const ROUNDS_MAX: u64 = 4;
/// Pages that are worth a call of the agent.
const PAGES_WANTED: usize = 128;
/// A look that finds fewer is not worth another one for so many times as long as it took.
const PAGES_FEW: u64 = 32;
const POOR_PART: u32 = 4;
const POOR_TIME_MAX: Duration = Duration::from_millis(2);
/// Room that is kept below the budget, so that faults do not wait for it.
const ROOM_BYTES: std::ops::Range<u64> = 1 << 20..16 << 20;
const ROOM_PART: u64 = 64;
/// Time within which a process has ended whose pages can no longer be read.
const END_TIME_MAX: Duration = Duration::from_secs(1);

impl Server {
    /// Room that is to be below the budget.
    pub(crate) fn room_bytes(&self) -> u64 {
        (self.statistics.budget_bytes / ROOM_PART).clamp(ROOM_BYTES.start, ROOM_BYTES.end)
    }

    /// Whether pages have to leave.
    pub(crate) fn must_evict(&self) -> bool {
        self.statistics.used_bytes + self.room_bytes() > self.statistics.budget_bytes
    }

    /// Takes or compresses some pages, if there are too many.
    ///
    /// # Errors
    /// [`Fatal`].
    pub(crate) fn evict(&mut self) -> Result<(), Fatal> {
        if !self.taken.is_empty() {
            return self.store_some(STORED_MAX);
        }
        if self.must_evict() && !self.is_stuck() {
            self.try_to_take()?;
        }
        Ok(())
    }

    /// Before a page comes: there must be room for it, if there can be.
    ///
    /// # Errors
    /// [`Fatal`].
    pub(crate) fn make_room(&mut self) -> Result<(), Fatal> {
        for _ in 0..TRIES_MAX {
            let is_over = self.statistics.used_bytes > self.statistics.budget_bytes;
            if !is_over || self.is_stuck() {
                break;
            }
            self.store_taken()?;
            self.try_to_take()?;
        }
        Ok(())
    }

    fn try_to_take(&mut self) -> Result<(), Fatal> {
        let (begin, pages_before) = (Instant::now(), self.statistics.pages_out);
        let may_have_more = self.take_some()?;
        let now = Instant::now();
        if !may_have_more {
            // What is left cannot go. To take the little that comes back, over and over, would be of no use.
            self.stuck_until = Some(now + self.stuck_time);
            self.stuck_time = (self.stuck_time * 2).min(STUCK_TIME.end);
        } else if self.statistics.pages_out - pages_before < PAGES_FEW {
            // Most of what is there is in common with other processes. Who waits for a page waits no longer for this.
            self.stuck_until = Some(now + ((now - begin) * POOR_PART).min(POOR_TIME_MAX));
        }
        Ok(())
    }

    /// Whether nothing could be taken lately.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck_until.is_some_and(|until| Instant::now() < until)
    }

    /// Compresses all pages that were taken.
    ///
    /// # Errors
    /// [`Fatal`].
    pub(crate) fn store_taken(&mut self) -> Result<(), Fatal> {
        self.store_some(CHUNK_PAGES)
    }

    fn store_some(&mut self, pages: usize) -> Result<(), Fatal> {
        for _ in 0..pages {
            let Some((id, address, page)) = self.taken.next() else {
                break;
            };
            let is_zero = page.iter().all(|byte| *byte == 0);
            let place = match is_zero {
                true => Place::Zero,
                false => match self.objects.put(page) {
                    Ok(object) => Place::Stored(object),
                    Err(error) => {
                        return Err(Fatal(format!("there is no memory for more: {error}")));
                    }
                },
            };
            if let Some(space) = self.spaces.get_mut(&id) {
                space.table.put(address, place);
            }
        }
        if self.taken.is_empty() {
            self.objects.spill();
        }
        Ok(())
    }

    /// Takes pages from the largest process that has some. False if none has.
    fn take_some(&mut self) -> Result<bool, Fatal> {
        for (pid, bytes) in self.large.clone() {
            if bytes < self.process_bytes_min || self.alone.contains(&pid) {
                continue;
            }
            let Some(id) = self.space_of(pid) else {
                continue;
            };
            if self.take_from(id)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The space of process `pid`, with an agent in it.
    fn space_of(&mut self, pid: i32) -> Option<u32> {
        let known = self
            .spaces
            .iter()
            .find(|(_, space)| space.owner == Some(pid));
        let id = known.map(|(id, _)| *id);
        let has_agent = |id| self.spaces[&id].agent.is_some();
        match id {
            Some(id) if has_agent(id) => Some(id),
            _ => self.enter(pid, id),
        }
    }

    fn enter(&mut self, pid: i32, id: Option<u32>) -> Option<u32> {
        // A thread that is stopped otherwise cannot begin an agent.
        self.throttle.end();
        let entered = match id.and_then(|id| self.spaces.get_mut(&id)) {
            Some(space) => Agent::enter_again(pid, &space.uffd).map(|agent| {
                space.agent = Some(agent);
                id
            }),
            None => Agent::enter(pid).map(|(agent, uffd, mark)| {
                let mut space = Space::new(uffd, mark);
                space.owner = Some(pid);
                space.agent = Some(agent);
                Some(self.add(space))
            }),
        };
        match entered {
            Ok(Some(id)) => {
                let space = self.spaces.get_mut(&id)?;
                space.look();
                let fence = self.throttle.fence.as_ref();
                let outside = fence.zip(space.agent.as_ref());
                if let Some(Err(error)) = outside.map(|(fence, agent)| fence.take_out(agent.pid()))
                {
                    debug!("programs cannot be stopped: {error}");
                    self.throttle.fence = None;
                }
                Some(id)
            }
            Ok(None) => None,
            Err(NoAgent::Gone) => None,
            Err(NoAgent::Later(thread)) => {
                thread
                    .into_iter()
                    .for_each(|thread| self.lets_go_later(thread));
                None
            }
            Err(NoAgent::Never(reason)) => {
                let name = process::name(pid);
                self.alone.insert(pid);
                let text = format!("{name} ({pid}) is left alone: {reason}");
                self.tell(&ToFront::Warning(text));
                None
            }
        }
    }

    /// Takes pages from a space. False if it has none.
    fn take_from(&mut self, id: u32) -> Result<bool, Fatal> {
        let Some(space) = self.spaces.get_mut(&id) else {
            return Ok(false);
        };
        match space.agent.as_mut().map(Agent::is_idle) {
            Some(Ok(true)) => {}
            Some(Ok(false)) | None => return Ok(false),
            Some(Err(_)) => {
                space.agent = None;
                return Ok(false);
            }
        }
        space.look_at_threads();
        let runs = space.choose();
        let dropped = std::mem::take(&mut space.dropped);
        let taken = match &mut space.agent {
            Some(agent) if !runs.is_empty() => {
                agent.take(&space.uffd, &runs, self.taken.bytes_mut())
            }
            _ => Ok(Taken::default()),
        };
        let taken = self.settle_taking(id, taken);
        dropped.into_iter().for_each(|place| self.release(place));
        taken
    }

    fn settle_taking(&mut self, id: u32, taken: Result<Taken, TakeError>) -> Result<bool, Fatal> {
        let Some(space) = self.spaces.get_mut(&id) else {
            return Ok(false);
        };
        match taken {
            Ok(taken) => {
                space.unshare(&taken.busy);
                let may_have_more = !taken.addresses.is_empty() || !space.is_exhausted;
                if space.is_exhausted || !taken.addresses.is_empty() {
                    (space.fruitless, space.is_exhausted) = (0, false);
                }
                if taken.addresses.len() >= PAGES_WANTED {
                    self.stuck_time = STUCK_TIME.start;
                }
                self.note_taken(id, &taken.addresses);
                Ok(may_have_more)
            }
            // Another agent is made when there is need of one; pages come back without.
            Err(TakeError::Lost(lost)) => {
                debug!("an agent is lost: {lost:?}");
                space.agent = None;
                Ok(false)
            }
            Err(TakeError::Torn) => {
                space.agent = None;
                let owner = space.owner;
                if owner.is_none_or(ends_soon) {
                    // Nobody misses them.
                    return Ok(false);
                }
                let name = self.name_of(id);
                Err(Fatal(format!(
                    "pages of {name} were moved and cannot be read"
                )))
            }
        }
    }

    fn note_taken(&mut self, id: u32, addresses: &[u64]) {
        self.taken.begin(id, addresses);
        if let Some(space) = self.spaces.get_mut(&id) {
            for (slot, address) in (0_u16..).zip(addresses) {
                space.table.put(*address, Place::Taken(slot));
            }
        }
        let bytes = (addresses.len() * PAGE_BYTES) as u64;
        self.statistics.pages_out += addresses.len() as u64;
        self.statistics.used_bytes = self.statistics.used_bytes.saturating_sub(bytes);
    }
}

impl Space {
    /// Chooses runs of pages from the hand on, in mappings that are served from now on.
    fn choose(&mut self) -> Vec<Range> {
        let mut chosen = Vec::new();
        let mut chosen_pages = 0;
        for _ in 0..CHUNKS_MAX {
            let Some((area, chunk)) = self.next_chunk() else {
                self.begin_round();
                if self.is_exhausted {
                    break;
                }
                continue;
            };
            self.fruitless += 1;
            let found = self.candidates(&chunk);
            if found.is_empty() {
                continue;
            }
            if self.manage(&area).is_err() {
                // It is another's, or has changed.
                self.areas.retain(|other| *other != area);
                continue;
            }
            let found_runs: Vec<Range> = runs(found.iter().copied()).collect();
            let fits = chosen_pages + found.len() <= CHUNK_PAGES;
            if !fits || chosen.len() + found_runs.len() > RUNS_MAX {
                self.hand = chunk.start;
                break;
            }
            chosen_pages += found.len();
            chosen.extend(found_runs);
            if chosen_pages >= PAGES_WANTED {
                break;
            }
        }
        chosen
    }

    /// On from the beginning, by the mappings that are there now.
    fn begin_round(&mut self) {
        self.hand = 0;
        self.look();
        let bytes: u64 = self.areas.iter().map(|area| area.end - area.start).sum();
        let chunks = bytes / CHUNK_BYTES + self.areas.len() as u64;
        self.is_exhausted = self.fruitless >= ROUNDS_MAX * chunks;
    }

    /// The pages of a chunk that may go.
    fn candidates(&mut self, chunk: &Range) -> Vec<u64> {
        let Some(agent) = &self.agent else {
            return Vec::new();
        };
        let first = chunk.start - chunk.start % CHUNK_BYTES;
        let words = agent.page_words(first);
        let word = |address: u64| words[((address - first) as usize) / PAGE_BYTES];
        let may_go = |address: &u64| is_takeable(word(*address)) && !self.is_kept(*address);
        let mut found: Vec<u64> = pages(chunk).filter(may_go).collect();
        found.retain(|address| self.cools(*address));
        found
    }

    /// Pages that were in common with a child can be moved later.
    fn unshare(&mut self, busy: &[Range]) {
        if !self.has_forked || busy.is_empty() {
            return;
        }
        let begun = self.agent.as_mut().map(|agent| agent.begin_unsharing(busy));
        if let Some(Err(_)) = begun {
            self.agent = None;
        }
    }

    /// The next chunk of a mapping that may be taken from, from the hand on, and moves the hand behind it.
    fn next_chunk(&mut self) -> Option<(Range, Range)> {
        let area = self.areas.iter().find(|area| area.end > self.hand)?.clone();
        let start = self.hand.max(area.start);
        let end = (start - start % CHUNK_BYTES + CHUNK_BYTES).min(area.end);
        self.hand = end;
        Some((area, start..end))
    }

    /// Whether the page at `address` may go. One that had to come back is spared instead, once.
    fn cools(&mut self, address: u64) -> bool {
        match self.table.place(address) {
            Place::Memory { heat: 0 } => true,
            Place::Memory { heat } => {
                self.table.came(address, heat - 1);
                false
            }
            _ => false,
        }
    }
}

/// Whether a process ends, as one that is killed.
fn ends_soon(pid: i32) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < END_TIME_MAX {
        if process::has_ended(pid) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Addresses of pages, in order, as ranges.
fn runs(addresses: impl Iterator<Item = u64>) -> impl Iterator<Item = Range> {
    let mut addresses = addresses.peekable();
    std::iter::from_fn(move || {
        let start = addresses.next()?;
        let mut end = start + PAGE_BYTES as u64;
        while addresses.next_if_eq(&end).is_some() {
            end += PAGE_BYTES as u64;
        }
        Some(start..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_where_pages_miss() {
        let addresses = [0x1000, 0x2000, 0x4000, 0x5000, 0x6000, 0x9000];
        let found: Vec<Range> = runs(addresses.into_iter()).collect();
        assert_eq!(found, [0x1000..0x3000, 0x4000..0x7000, 0x9000..0xA000]);
    }
}
