//! A job by fio and by us comes to the same: what is stored, and how fast.

use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::cpu_time::CpuTime;
use crate::job::target::{File, Target};
use crate::machine;
use crate::peers::kernel_zram::{Device, Kernel};
use crate::stop::Stop;

/// Other programs may have the only zram for a while.
const PATIENCE: Duration = Duration::from_secs(20);
const DISK_BYTES: u64 = 32 << 20;
/// How far fio's figures may be from ours.
const SIZE_TOLERANCE: f64 = 0.03;
const IOPS_TOLERANCE: f64 = 0.1;
/// The part of all CPUs' time that a job leaves: where it was less, rates say who else was running. A job
/// has one CPU at most, and its device the less of the other.
const SPARE_MIN: f64 = 0.1;
/// Pairs of runs.
const ROUNDS_MIN: usize = 5;
const ROUNDS_MAX: usize = 25;

#[test]
fn a_report_of_another_form_gives_no_figures() {
    let job = fio::parse("size=1m").unwrap();
    assert!(outcome(&Value::Null, &job).is_none());
    let half = serde_json::json!({"read": {"iops": 1.0}});
    assert!(outcome(&half, &job).is_none());
}

#[test]
fn what_fio_cannot_do_is_an_error_in_a_line() {
    if let Some(reason) = missing() {
        return eprintln!("left out: {reason}");
    }
    let job = fio::parse("rw=write size=1m").unwrap();
    let error = run(&job, Path::new("/dev/null/no/file"), &Stop::default()).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("fio: ") && !text.contains('\n'), "{text}");
}

#[test]
fn a_signal_ends_fio_too() {
    if let Some(reason) = missing() {
        return eprintln!("left out: {reason}");
    }
    let folder = tempfile::tempdir().unwrap();
    let job = fio::parse("rw=write bs=4k size=1m loops=20000 direct=0").unwrap();
    let stop = Stop::default();
    let raised = stop.clone();
    let signal = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        raised.raise();
    });
    let started = Instant::now();
    let ended = run(&job, &folder.path().join("disk"), &stop);
    signal.join().unwrap();
    assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
    assert!(started.elapsed() < Duration::from_secs(5));
}

/// A free zram of the kernel's; says why there is none.
fn kernel_zram() -> Option<Device> {
    if let Some(reason) = missing() {
        eprintln!("left out: {reason}");
        return None;
    }
    let until = Instant::now() + PATIENCE;
    loop {
        match Kernel::default().acquire("lzo", DISK_BYTES) {
            Ok(device) => return Some(device),
            Err(reason) if Instant::now() > until || !reason.contains("in use") => {
                eprintln!("left out: {reason}");
                return None;
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Whoever fills the buffers, the kernel's zram makes the same of them.
#[test]
fn what_fio_writes_and_what_we_write_compress_to_the_same_size() {
    let Some(device) = kernel_zram() else { return };
    let path = device.path();
    let mut zram = File::kernel_zram("kernel-zram", Arc::new(device), DISK_BYTES);
    let mut sizes = Vec::new();
    for buffers in [
        "",
        "refill_buffers",
        "buffer_pattern=\"uzram\"",
        "buffer_compress_percentage=50",
        "buffer_compress_percentage=50 refill_buffers scramble_buffers=1",
        "buffer_compress_percentage=70 buffer_pattern=0xdeadface",
        "buffer_compress_percentage=30",
    ] {
        for rw in ["write", "randwrite"] {
            let words = format!("rw={rw} bs=32k size=8m randseed=100 {buffers}");
            let job = fio::parse(&words).unwrap();
            let mut stored = |by_fio: bool| {
                zram.make_fresh().unwrap();
                match by_fio {
                    true => drop(run(&job, &path, &Stop::default()).unwrap()),
                    false => drop(crate::job::run(&job, &mut zram, &Stop::default()).unwrap()),
                }
                zram.counts().unwrap().compressed_bytes.unwrap() as f64
            };
            let (fios, ours) = (stored(true), stored(false));
            assert!(fios > 1000.0, "{words}: {fios}");
            let ratio = ours / fios;
            assert!((ratio - 1.0).abs() <= SIZE_TOLERANCE, "{words}: {ratio}");
            sizes.push(fios as u64);
        }
    }
    sizes.sort_unstable();
    assert!(
        sizes[0] * 4 < sizes[sizes.len() - 1],
        "all alike: {sizes:?}"
    );
}

/// Whether a job has the same rate by fio and by us: the median of pairs of runs that take turns, as many
/// pairs as it takes up to a limit. It does not where three quarters of all pairs say so; where noise
/// leaves it open, nothing is concluded.
fn agree(target: &mut dyn Target, path: &Path, words: &str) {
    let job = fio::parse(words).unwrap();
    let stop = Stop::default();
    let mut ratios = Vec::new();
    let Some(awake) = Awake::keep() else {
        return eprintln!("left out: no program chrt");
    };
    for round in 0..=ROUNDS_MAX {
        let by_fio = || run(&job, path, &stop).unwrap().operations_per_second();
        let mut by_us = || {
            let outcome = crate::job::run(&job, target, &stop).unwrap();
            outcome.operations_per_second()
        };
        let ratio = match round % 2 {
            0 => by_us() / by_fio(),
            _ => (1.0 / by_fio()) * by_us(),
        };
        // The first is a warm-up.
        if round > 0 {
            ratios.push(ratio);
        }
        ratios.sort_by(f64::total_cmp);
        let median = ratios.get(ratios.len() / 2).copied().unwrap_or(0.0);
        if ratios.len() >= ROUNDS_MIN && (median - 1.0).abs() <= IOPS_TOLERANCE {
            return eprintln!("{words} on {}: {median:.3} {ratios:.2?}", path.display());
        }
    }
    let (low, high) = (ratios[ratios.len() / 4], ratios[ratios.len() * 3 / 4]);
    let said = format!(
        "{words} on {}: ours over fio's {ratios:.2?}",
        path.display()
    );
    let spare = awake.spare();
    assert!(
        spare < SPARE_MIN || low <= 1.0 + IOPS_TOLERANCE && high >= 1.0 - IOPS_TOLERANCE,
        "{said}"
    );
    eprintln!("left out: no verdict on rates ({spare:.2} of the CPUs left): {said}");
}

/// Programs that spin on every CPU whenever nobody else wants it: what they get is what was left. No CPU
/// halts meanwhile, and to wake one takes tens of microseconds under a hypervisor.
struct Awake {
    spinning: Vec<Child>,
    since: Instant,
}

impl Awake {
    /// `None` without the program that starts them so.
    fn keep() -> Option<Awake> {
        let spinner = |cpu: usize| {
            machine::pin_to(cpu).unwrap();
            let mut command = Command::new("chrt");
            command.args(["--idle", "0", "sh", "-c", "while :; do :; done"]);
            command.spawn().ok()
        };
        let start = |cpu| std::thread::spawn(move || spinner(cpu)).join().unwrap();
        let mut awake = Awake {
            spinning: Vec::new(),
            since: Instant::now(),
        };
        for cpu in machine::allowed_cpus() {
            awake.spinning.push(start(cpu)?);
        }
        Some(awake)
    }

    /// The part of all CPUs' time that nobody else wanted, so far.
    fn spare(&self) -> f64 {
        let spun = |child: &Child| CpuTime::of_process(child.id()).user.as_secs_f64();
        let spun: f64 = self.spinning.iter().map(spun).sum();
        spun / self.since.elapsed().as_secs_f64() / self.spinning.len() as f64
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for child in &mut self.spinning {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

const JOBS: [&str; 3] = ["randread", "randwrite", "randrw"];

fn words(rw: &str) -> String {
    let buffers = "buffer_compress_percentage=50 refill_buffers scramble_buffers=1";
    format!("rw={rw} bs=32k size=32m loops=16 randseed=100 numjobs=1 direct=1 {buffers}")
}

/// On a zram, for who writes there does all of the work. The rates of a loop device differ by up to four with the
/// CPU that its worker is on, whoever runs the job; those of a file in memory are mostly the programs' own time.
#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "rates mean something in release builds only"
)]
fn a_zram_does_as_many_operations_for_fio_as_for_us() {
    let Some(device) = kernel_zram() else { return };
    let path = device.path();
    let mut zram = File::kernel_zram("kernel-zram", Arc::new(device), DISK_BYTES);
    run(
        &fio::parse("rw=write bs=32k size=32m buffer_compress_percentage=50").unwrap(),
        &path,
        &Stop::default(),
    )
    .unwrap();
    JOBS.iter()
        .for_each(|rw| agree(&mut zram, &path, &words(rw)));
}
