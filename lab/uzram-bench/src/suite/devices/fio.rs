//! fio, the load that everybody knows: one call is one case on one device.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::job::fio_program::{self, finish};
use crate::stop::Stop;

/// fio measures nothing sensible in less.
const RUNTIME_MIN: Duration = Duration::from_millis(300);

/// The load that fio makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) is_read: bool,
    pub(super) block_bytes: u32,
    pub(super) depth: u32,
    pub(super) jobs: u32,
}

impl Load {
    pub(super) fn name(self) -> String {
        let verb = if self.is_read { "read" } else { "write" };
        let block = self.block_bytes >> 10;
        format!("random-{verb}-{block}k-{}x{}", self.jobs, self.depth)
    }
}

/// Writes all of `path` once.
pub(super) fn fill(path: &Path, bytes: u64, stop: &Stop) -> Result<()> {
    let mut command = base(path, bytes);
    command.args([
        "--rw=write",
        "--bs=128k",
        "--ioengine=libaio",
        "--iodepth=8",
    ]);
    finish(command, stop).map(drop)
}

/// Operations a second under `load`.
pub(super) fn run(
    path: &Path,
    bytes: u64,
    load: Load,
    runtime: Duration,
    stop: &Stop,
) -> Result<f64> {
    let rw = if load.is_read {
        "randread"
    } else {
        "randwrite"
    };
    let engine = if load.depth == 1 { "psync" } else { "libaio" };
    let runtime = runtime.max(RUNTIME_MIN).as_millis();
    let share = bytes / u64::from(load.jobs);
    let mut command = base(path, share);
    command.args([
        format!("--rw={rw}"),
        format!("--bs={}", load.block_bytes),
        format!("--ioengine={engine}"),
        format!("--iodepth={}", load.depth),
        format!("--numjobs={}", load.jobs),
        format!("--offset_increment={share}"),
        format!("--runtime={runtime}ms"),
        "--time_based".to_owned(),
        "--group_reporting".to_owned(),
    ]);
    let report = finish(command, stop)?;
    let side = if load.is_read { "read" } else { "write" };
    let iops = report["jobs"][0][side]["iops"].as_f64();
    iops.filter(|iops| *iops > 0.0)
        .ok_or_else(|| Error::Failed(format!("fio: no {side} operations on {}", path.display())))
}

/// Buffers that compress to about a half, new for each write.
fn base(path: &Path, bytes: u64) -> Command {
    let mut command = fio_program::on(path);
    command.args([
        "--name=load".to_owned(),
        format!("--size={bytes}"),
        "--direct=1".to_owned(),
        "--randrepeat=0".to_owned(),
        "--norandommap".to_owned(),
        "--refill_buffers".to_owned(),
        "--buffer_compress_percentage=50".to_owned(),
        "--buffer_compress_chunk=4k".to_owned(),
    ]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_has_a_name() {
        let load = Load {
            is_read: true,
            block_bytes: 4096,
            depth: 32,
            jobs: 4,
        };
        assert_eq!(load.name(), "random-read-4k-4x32");
    }
}
