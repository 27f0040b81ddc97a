//! The engine in this process: no system call, no copy but its own.

use uzram::{Bio, BlockDevice, Store, Zram};

use super::{Channel, Counts, Job, Target};
use crate::error::Result;

/// A device of ours.
pub(crate) struct Engine {
    name: String,
    device: Zram,
}

impl Engine {
    /// A device of `size_bytes` with `algorithm`, `name` in reports.
    pub(crate) fn new(name: &str, algorithm: &str, size_bytes: u64) -> Result<Engine> {
        let builder = Store::builder().size(size_bytes).algorithm(algorithm);
        Ok(Engine {
            name: name.to_owned(),
            device: Zram::new(builder.build()?),
        })
    }
}

impl Target for Engine {
    fn name(&self) -> &str {
        &self.name
    }

    fn size_bytes(&self) -> u64 {
        self.device.geometry().size_bytes
    }

    fn make_fresh(&mut self) -> Result<()> {
        self.device.store().reset();
        Ok(())
    }

    fn open(&self, _job: &Job) -> Result<Box<dyn Channel + '_>> {
        Ok(Box::new(&self.device))
    }

    fn counts(&self) -> Result<Counts> {
        let stats = self.device.store().stats();
        Ok(Counts {
            compressed_bytes: Some(stats.compr_data_size_bytes),
            slow_path_writes: Some(stats.slow_path_writes),
            sleeps: None,
        })
    }
}

impl Channel for &Zram {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        Ok(self.submit(Bio::Read { offset, buffer })?)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.submit(Bio::Write { offset, data })?)
    }
}
