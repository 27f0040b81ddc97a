//! The targets of jobs.

mod engine;
mod file;
mod nbd;
mod variant;

use super::{BLOCK_MAX_BYTES, Job};
use crate::cpu_time::CpuTime;
use crate::error::Result;

pub(crate) use engine::Engine;
pub(crate) use file::File;
pub(crate) use nbd::{Export, ServedEngine};
pub(crate) use variant::{AnyStore, Make, Variant, store};

/// Something that holds blocks.
pub(crate) trait Target: Sync {
    /// The name in reports and errors.
    fn name(&self) -> &str;

    fn size_bytes(&self) -> u64;

    /// Throws away what is there, so that it is as new.
    fn make_fresh(&mut self) -> Result<()>;

    /// Gives back what the jobs of a row left, where others wait for the memory.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }

    /// One worker's way to it.
    fn open(&self, job: &Job) -> Result<Box<dyn Channel + '_>>;

    /// Its counters. They start at some time in the past.
    fn counts(&self) -> Result<Counts> {
        Ok(Counts::default())
    }

    /// CPU time of other processes that work for it.
    fn cpu_elsewhere(&self) -> CpuTime {
        CpuTime::default()
    }
}

/// A worker's way to a target: one request at a time.
pub(crate) trait Channel: Send {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()>;

    /// Hands on what is still kept back.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A target's own counters, where it has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Bytes of compressed objects now.
    pub(crate) compressed_bytes: Option<u64>,
    /// Writes of pages that had to compress twice.
    pub(crate) slow_path_writes: Option<u64>,
    /// Writers that slept for a stream.
    pub(crate) sleeps: Option<u64>,
}

impl Counts {
    /// The difference to `before`; the compressed size is the present one.
    pub(super) fn since(self, before: Counts) -> Counts {
        let since = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Counts {
            slow_path_writes: since(self.slow_path_writes, before.slow_path_writes),
            sleeps: since(self.sleeps, before.sleeps),
            ..self
        }
    }
}

#[cfg(test)]
mod tests;
