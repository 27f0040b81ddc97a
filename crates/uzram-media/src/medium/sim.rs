//! Persistent memory that is as bad as the rules allow, for tests.
//!
//! A store waits in its thread's list, word by word, until that thread's next fence. When the
//! power is cut, any subset of the waiting words has reached the medium, but never the second of a
//! pair alone. Reads take the memory's content in two steps, with other threads' turns in between.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::Medium;
use uzram::device::check_range;
use uzram::{Error, ErrorKind, Result};
use uzram_testkit::Rng;

/// A bug of the medium's user, as the medium sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Plant {
    #[default]
    None,
    /// The fence of this number, of every three in turn, does nothing.
    MissingFence(usize),
    /// Data is stored one fence later than it should be.
    LateData,
    /// Pairs (the flog's) are stored one fence later than they should be.
    LateFlog,
    /// Pairs are stored the second word first.
    BackwardPairs,
}

/// The fate of waiting words in a power cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Luck {
    /// The seed of the choice.
    pub(crate) seed: u64,
    /// The number of words (or lines) out of 256 that reach the medium.
    pub(crate) kept: u64,
    /// Whether the words of a line of 64 bytes share one fate.
    pub(crate) by_line: bool,
}

#[derive(Debug)]
pub(crate) struct Sim {
    state: Mutex<State>,
    plant: Plant,
    is_read_only: bool,
    /// Loads so far; some of them let other threads run in between.
    loads: AtomicU64,
}

struct State {
    /// The content that programs see.
    memory: Vec<u8>,
    /// The content that a power cut leaves.
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
    /// Whether the word reaches the medium no sooner than the one before.
    follows: bool,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

impl Sim {
    pub(crate) fn new(content: Vec<u8>) -> Sim {
        Sim::with_plant(content, Plant::None)
    }

    pub(crate) fn with_plant(content: Vec<u8>, plant: Plant) -> Sim {
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
            is_read_only: false,
            loads: AtomicU64::new(0),
        }
    }

    /// A medium that takes no stores.
    pub(crate) fn read_only(content: Vec<u8>) -> Sim {
        let mut sim = Sim::new(content);
        sim.is_read_only = true;
        sim
    }

    /// Cuts the power at the `stores`-th store from now. That store may or may not arrive.
    pub(crate) fn cut_at(&self, stores: u64) {
        self.state.lock().unwrap().stores_left = stores;
    }

    /// The number of stores so far.
    pub(crate) fn stores(&self) -> u64 {
        self.state.lock().unwrap().stores
    }

    /// Reads of this range fail.
    pub(crate) fn poison(&self, range: std::ops::Range<u64>) {
        self.state.lock().unwrap().bad.push(range);
    }

    /// The content that programs see now.
    pub(crate) fn memory(&self) -> Vec<u8> {
        self.state.lock().unwrap().memory.clone()
    }

    /// The content of the medium after a power cut now.
    pub(crate) fn after_cut(&self, luck: Luck) -> Vec<u8> {
        let state = self.state.lock().unwrap();
        let mut medium = state.medium.clone();
        let mut random = Rng::new(luck.seed);
        let mut lines = HashMap::new();
        let mut previous = true;
        for store in state.waiting.values().flatten() {
            let mut draw = || random.next() % 256 < luck.kept;
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

    /// Makes a pair of the last two words that this thread stored.
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

    /// Lets other threads run, now and then long enough for a whole request.
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
        self.is_read_only
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
