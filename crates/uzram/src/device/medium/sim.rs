//! Persistent memory that is as bad as it may be, for tests.
//!
//! A store waits in its thread's list, word by word, until that thread's next fence. When the power is
//! cut, any subset of the words that wait has reached the medium, but of a pair never the second alone.
//! Reads take the memory's content
//! in two steps with other threads' turns in between.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::Medium;
use crate::device::check_range;
use crate::error::{Error, ErrorKind, Result};

/// A bug of who uses the medium, as the medium sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::device) enum Plant {
    #[default]
    None,
    /// Of every three fences in turn, the one of this number does nothing.
    MissingFence(usize),
    /// Data is stored one fence later than it should be.
    LateData,
    /// Pairs (the flog's) are stored one fence later than they should be.
    LateFlog,
    /// Pairs are stored the second word first.
    BackwardPairs,
}

/// How the words that wait fare in a power cut.
#[derive(Clone, Copy, Debug)]
pub(in crate::device) struct Luck {
    /// Where the choice begins.
    pub(in crate::device) seed: u64,
    /// Of 256 words (or lines), how many reach the medium.
    pub(in crate::device) kept: u64,
    /// Whether lines of 64 bytes fare as one.
    pub(in crate::device) by_line: bool,
}

#[derive(Debug)]
pub(in crate::device) struct Sim {
    state: Mutex<State>,
    plant: Plant,
    /// Loads so far; some of them let other threads run in between.
    loads: AtomicU64,
}

struct State {
    /// What programs see.
    memory: Vec<u8>,
    /// What a power cut leaves.
    medium: Vec<u8>,
    waiting: HashMap<ThreadId, Vec<Store>>,
    fences: HashMap<ThreadId, usize>,
    /// Stores until the power is cut; all fail from then on.
    stores_left: u64,
    stores: u64,
    bad: Vec<std::ops::Range<u64>>,
}

#[derive(Clone, Debug)]
struct Store {
    offset: u64,
    bytes: Vec<u8>,
    fences_needed: usize,
    /// Reaches the medium no sooner than the one before.
    follows: bool,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

impl Sim {
    pub(in crate::device) fn new(content: Vec<u8>) -> Sim {
        Sim::with_plant(content, Plant::None)
    }

    pub(in crate::device) fn with_plant(content: Vec<u8>, plant: Plant) -> Sim {
        Sim {
            state: Mutex::new(State {
                memory: content.clone(),
                medium: content,
                waiting: HashMap::new(),
                fences: HashMap::new(),
                stores_left: u64::MAX,
                stores: 0,
                bad: Vec::new(),
            }),
            plant,
            loads: AtomicU64::new(0),
        }
    }

    /// Cuts the power at the `stores`-th store from now, which may or may not arrive.
    pub(in crate::device) fn cut_at(&self, stores: u64) {
        self.state.lock().unwrap().stores_left = stores;
    }

    /// Stores so far.
    pub(in crate::device) fn stores(&self) -> u64 {
        self.state.lock().unwrap().stores
    }

    /// Reads of this range fail.
    pub(in crate::device) fn poison(&self, range: std::ops::Range<u64>) {
        self.state.lock().unwrap().bad.push(range);
    }

    /// What programs see now.
    pub(in crate::device) fn memory(&self) -> Vec<u8> {
        self.state.lock().unwrap().memory.clone()
    }

    /// What the medium holds after a power cut now.
    pub(in crate::device) fn after_cut(&self, luck: Luck) -> Vec<u8> {
        let state = self.state.lock().unwrap();
        let mut medium = state.medium.clone();
        let mut random = luck.seed;
        let mut lines = HashMap::new();
        let mut previous = true;
        for store in state.waiting.values().flatten() {
            let mut draw = || {
                random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                (mixed ^ mixed >> 27) % 256 < luck.kept
            };
            let arrives = match luck.by_line {
                true => *lines.entry(store.offset / 64).or_insert_with(draw),
                false => draw(),
            };
            let arrives = arrives && (previous || !store.follows);
            previous = arrives;
            if arrives {
                let at = store.offset as usize;
                medium[at..at + store.bytes.len()].copy_from_slice(&store.bytes);
            }
        }
        medium
    }

    fn store(&self, offset: u64, bytes: &[u8], is_late: bool) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        check_range(offset, bytes.len() as u64, state.memory.len() as u64)?;
        if state.stores_left == 0 {
            return Err(Error::new(ErrorKind::Io, "the power is off"));
        }
        state.stores_left -= 1;
        state.stores += 1;
        let at = offset as usize;
        state.memory[at..at + bytes.len()].copy_from_slice(bytes);
        let waiting = state.waiting.entry(thread::current().id()).or_default();
        let mut from = 0;
        while from < bytes.len() {
            // Up to the next multiple of 8.
            let word = (8 - (at + from) % 8).min(bytes.len() - from);
            waiting.push(Store {
                offset: offset + from as u64,
                bytes: bytes[from..from + word].to_vec(),
                fences_needed: if is_late { 2 } else { 1 },
                follows: false,
            });
            from += word;
        }
        Ok(())
    }

    /// Makes the last two words that this thread stored a pair.
    fn pair(&self) {
        let mut state = self.state.lock().unwrap();
        let waiting = state.waiting.entry(thread::current().id()).or_default();
        if let [.., first, second] = &mut waiting[..] {
            if self.plant == Plant::BackwardPairs {
                std::mem::swap(first, second);
            }
            second.follows = true;
        }
    }

    fn settle(&self) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.stores_left == 0 {
            return Err(Error::new(ErrorKind::Io, "the power is off"));
        }
        let this = thread::current().id();
        let count = state.fences.entry(this).or_default();
        *count += 1;
        if let Plant::MissingFence(number) = self.plant
            && *count % 3 == number
        {
            return Ok(());
        }
        let mut waiting = state.waiting.remove(&this).unwrap_or_default();
        waiting.retain_mut(|store| {
            store.fences_needed -= 1;
            if store.fences_needed == 0 {
                let at = store.offset as usize;
                state.medium[at..at + store.bytes.len()].copy_from_slice(&store.bytes);
            }
            store.fences_needed > 0
        });
        state.waiting.insert(this, waiting);
        Ok(())
    }

    /// Now and then long enough for another thread's whole request.
    fn pause(&self) {
        if self
            .loads
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(61)
        {
            thread::sleep(Duration::from_micros(50));
        }
    }

    fn load(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let state = self.state.lock().unwrap();
        check_range(offset, buffer.len() as u64, state.memory.len() as u64)?;
        let end = offset + buffer.len() as u64;
        if state
            .bad
            .iter()
            .any(|bad| offset < bad.end && bad.start < end)
        {
            return Err(Error::new(
                ErrorKind::Io,
                format!("offset {offset}: the medium is bad"),
            ));
        }
        let at = offset as usize;
        buffer.copy_from_slice(&state.memory[at..at + buffer.len()]);
        Ok(())
    }
}

impl Medium for std::sync::Arc<Sim> {
    fn size_bytes(&self) -> u64 {
        self.state.lock().unwrap().memory.len() as u64
    }

    fn name(&self) -> String {
        "sim".into()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn waits_for_disk(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let (first, second) = buffer.split_at_mut(buffer.len() / 2);
        self.load(offset, first)?;
        self.pause();
        self.load(offset + first.len() as u64, second)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.store(offset, data, self.plant == Plant::LateData)
    }

    fn zero(&self, offset: u64, length: u64) -> Result<()> {
        self.store(offset, &vec![0; length as usize], false)
    }

    fn load_u32(&self, offset: u64) -> Result<u32> {
        let mut word = [0; 4];
        self.load(offset, &mut word)?;
        self.pause();
        Ok(u32::from_le_bytes(word))
    }

    fn store_u32(&self, offset: u64, word: u32) -> Result<()> {
        self.store(offset, &word.to_le_bytes(), false)
    }

    fn store_pair(&self, offset: u64, words: [u64; 2]) -> Result<()> {
        let bytes = words.map(u64::to_le_bytes);
        self.store(offset, bytes.as_flattened(), self.plant == Plant::LateFlog)?;
        self.pair();
        Ok(())
    }

    fn publish(&self) {}

    fn fence(&self) -> Result<()> {
        self.settle()
    }

    fn flush(&self) -> Result<()> {
        self.settle()
    }
}
