//! Devices for tests: bytes in memory that record, block and fail on demand.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use uzram::{Bio, BlockDevice, Error, ErrorKind, Geometry, Result, Zeroing};

/// A request that a device got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Read(u64, u64),
    Write(u64, u64),
    Flush,
    Trim(u64, u64),
    Zero(u64, u64, Zeroing),
}

/// A device of plain bytes.
pub struct Bytes {
    bytes: Mutex<Vec<u8>>,
    seen: Mutex<Vec<Seen>>,
    rule: Mutex<Rule>,
    changed: Condvar,
    entered: Mutex<usize>,
}

type Rule = Box<dyn Fn(Seen) -> Action + Send>;

/// The effect of a rule on a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Pass,
    /// Wait until the rule says otherwise.
    Block,
    Fail(ErrorKind),
    Panic,
}

impl Bytes {
    pub fn new(size_bytes: usize) -> Arc<Bytes> {
        Arc::new(Bytes {
            bytes: Mutex::new(vec![0; size_bytes]),
            seen: Mutex::default(),
            rule: Mutex::new(Box::new(|_| Action::Pass)),
            changed: Condvar::new(),
            entered: Mutex::new(0),
        })
    }

    pub fn set_rule(&self, rule: impl Fn(Seen) -> Action + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
        self.changed.notify_all();
    }

    /// The requests since the last call.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    /// Requests that were submitted, blocked ones included.
    pub fn entered(&self) -> usize {
        *self.entered.lock().unwrap()
    }
}

impl BlockDevice for Bytes {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.bytes.lock().unwrap().len() as u64,
            preferred_block_bytes: 4096,
        }
    }

    fn submit(&self, bio: Bio<'_>) -> Result<()> {
        let (at, length) = bio.range().unwrap_or_default();
        let seen = match bio {
            Bio::Read { .. } => Seen::Read(at, length),
            Bio::Write { .. } => Seen::Write(at, length),
            Bio::Flush => Seen::Flush,
            Bio::Trim { .. } => Seen::Trim(at, length),
            Bio::Zero { zeroing, .. } => Seen::Zero(at, length, zeroing),
        };
        *self.entered.lock().unwrap() += 1;
        let mut rule = self.rule.lock().unwrap();
        loop {
            match rule(seen) {
                Action::Pass => break,
                Action::Block => {
                    let wait = self
                        .changed
                        .wait_timeout(rule, Duration::from_secs(30))
                        .unwrap();
                    assert!(!wait.1.timed_out(), "blocked for ever: {seen:?}");
                    rule = wait.0;
                }
                Action::Fail(kind) => return Err(Error::new(kind, "told to")),
                Action::Panic => {
                    drop(rule);
                    panic!("told to")
                }
            }
        }
        drop(rule);
        self.seen.lock().unwrap().push(seen);
        let mut bytes = self.bytes.lock().unwrap();
        let range = at as usize..(at + length) as usize;
        match bio {
            Bio::Read { buffer, .. } => buffer.copy_from_slice(&bytes[range]),
            Bio::Write { data, .. } => bytes[range].copy_from_slice(data),
            Bio::Zero { .. } => bytes[range].fill(0),
            // Whole pages read as zeroes, partial ones stay.
            Bio::Trim { .. } => {
                let start = range.start.next_multiple_of(4096);
                let end = range.end / 4096 * 4096;
                if start < end {
                    bytes[start..end].fill(0);
                }
            }
            Bio::Flush => {}
        }
        Ok(())
    }
}
