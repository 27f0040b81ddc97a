//! The operations of workers and their counts, on a target that remembers them.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::thread;

use super::*;
use crate::job::{Calls, fio};

/// Remembers requests; each takes a while, eight times as long for each next worker: on a busy machine the
/// first one is still the first.
#[derive(Default)]
struct Recorder {
    requests: Mutex<Vec<(u64, bool)>>,
    opened: AtomicU64,
    pause: Duration,
    fails_at: Option<u64>,
}

struct Way<'a>(&'a Recorder, u64);

impl Target for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn size_bytes(&self) -> u64 {
        1 << 30
    }

    fn make_fresh(&mut self) -> Result<()> {
        self.requests.lock().unwrap().clear();
        Ok(())
    }

    fn open(&self, _job: &Job) -> Result<Box<dyn Channel + '_>> {
        let number = self.opened.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(Way(self, number)))
    }
}

impl Way<'_> {
    fn request(&mut self, offset: u64, is_write: bool) -> Result<()> {
        if self.0.fails_at == Some(offset) {
            return Err(Error::Failed("a bad block".to_owned()));
        }
        self.0.requests.lock().unwrap().push((offset, is_write));
        thread::sleep(self.0.pause * (1 << (3 * self.1)));
        Ok(())
    }
}

impl Channel for Way<'_> {
    fn read(&mut self, offset: u64, _buffer: &mut [u8]) -> Result<()> {
        self.request(offset, false)
    }

    fn write(&mut self, offset: u64, _data: &[u8]) -> Result<()> {
        self.request(offset, true)
    }
}

fn requests(words: &str) -> Vec<(u64, bool)> {
    let mut recorder = Recorder::default();
    let job = fio::parse(words).unwrap();
    let outcome = run(&job, &mut recorder, &Stop::default()).unwrap();
    let requests = recorder.requests.into_inner().unwrap();
    let writes = requests.iter().filter(|(_, is_write)| *is_write).count() as u64;
    assert_eq!(outcome.writes, writes);
    assert_eq!(outcome.reads + writes, requests.len() as u64);
    requests
}

#[test]
fn a_mixed_job_covers_its_size_once_a_loop_as_fio_does() {
    let random = requests("rw=randrw bs=4k size=1m loops=2");
    assert_eq!(random.len(), 512);
    for pass in random.chunks(256) {
        let mut offsets: Vec<u64> = pass.iter().map(|(offset, _)| *offset).collect();
        offsets.sort_unstable();
        assert!(offsets.into_iter().eq((0..256).map(|block| block * 4096)));
        let writes = pass.iter().filter(|(_, is_write)| *is_write).count();
        assert!((90..166).contains(&writes), "{writes}");
    }
    assert_ne!(random[..256], random[256..], "another order each loop");
    // In order, each direction goes on from where it was itself.
    let sequential = requests("rw=rw bs=4k size=1m");
    for direction in [false, true] {
        let own = sequential
            .iter()
            .filter(|(_, is_write)| *is_write == direction);
        assert!(
            own.enumerate()
                .all(|(nth, (offset, _))| *offset == nth as u64 * 4096)
        );
    }
    assert_eq!(
        requests("rw=randread bs=4k size=1m randseed=3"),
        requests("rw=randread bs=4k size=1m randseed=3")
    );
    assert_ne!(
        requests("rw=randread bs=4k size=1m randseed=3"),
        requests("rw=randread bs=4k size=1m randseed=4")
    );
}

#[test]
fn jobs_of_fio_share_their_blocks_and_those_of_iozone_do_not() {
    let shared = requests("rw=write bs=4k size=16k numjobs=3");
    assert_eq!(shared.len(), 12);
    assert!(shared.iter().all(|(offset, _)| *offset < 16384));
    let mut recorder = Recorder::default();
    let job = Job {
        sharing: Sharing::Apart,
        mix: Mix::ByWorker,
        calls: Calls::Seek,
        ..fio::parse("rw=write bs=4k size=16k numjobs=3").unwrap()
    };
    run(&job, &mut recorder, &Stop::default()).unwrap();
    let requests = recorder.requests.into_inner().unwrap();
    for worker in 0..3 {
        let part = worker * 16384..(worker + 1) * 16384;
        let own = requests.iter().filter(|(offset, _)| part.contains(offset));
        assert_eq!(own.clone().count(), 4);
        assert!(
            own.into_iter()
                .all(|(_, is_write)| *is_write == (worker == 1))
        );
    }
}

/// The second worker is half as fast: by iozone's clock it has done half when the first is done.
#[test]
fn iozones_clock_stops_with_the_first_and_fios_with_the_last() {
    let job = |clock| Job {
        clock,
        ..fio::parse("rw=read bs=4k size=80k numjobs=2").unwrap()
    };
    let slow = || Recorder {
        pause: Duration::from_millis(2),
        ..Recorder::default()
    };
    let mut recorder = slow();
    let first = run(&job(Clock::FirstDone), &mut recorder, &Stop::default()).unwrap();
    let finished = recorder.requests.into_inner().unwrap().len();
    assert_eq!(finished, 40, "the slower one goes on to its end");
    assert!((20..40).contains(&first.reads), "{first:?}");
    let last = run(&job(Clock::LastDone), &mut slow(), &Stop::default()).unwrap();
    assert_eq!(last.reads, 40);
    assert!(last.operations_per_second() < first.operations_per_second());
    assert!(last.worst_ns >= 4_000_000);
}

#[test]
fn a_failed_request_fails_the_job_and_a_signal_ends_it() {
    let job = fio::parse("rw=write bs=4k size=1m numjobs=2").unwrap();
    let mut bad = Recorder {
        fails_at: Some(8192),
        ..Recorder::default()
    };
    let error = run(&job, &mut bad, &Stop::default()).unwrap_err();
    assert_eq!(error.to_string(), "a bad block");
    let stop = Stop::default();
    stop.raise();
    let error = run(&job, &mut Recorder::default(), &stop).unwrap_err();
    assert!(matches!(error, Error::Interrupted));
}

#[test]
fn a_job_that_does_not_fit_is_refused_with_both_sizes() {
    let job = fio::parse("rw=write bs=4k size=2g").unwrap();
    let error = run(&job, &mut Recorder::default(), &Stop::default()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("recorder: 1073741824 bytes; write needs 2147483648"),
        "{text}"
    );
}

/// On one CPU eight workers do what one does in a second, though each runs alone for a while, at full
/// speed.
#[test]
fn a_worker_that_waits_for_its_turn_is_on_the_clock() {
    struct Work;
    impl Target for Work {
        fn name(&self) -> &str {
            "work"
        }
        fn size_bytes(&self) -> u64 {
            1 << 30
        }
        fn make_fresh(&mut self) -> Result<()> {
            Ok(())
        }
        fn open(&self, _job: &Job) -> Result<Box<dyn Channel + '_>> {
            Ok(Box::new(Work))
        }
    }
    impl Channel for Work {
        fn read(&mut self, offset: u64, _buffer: &mut [u8]) -> Result<()> {
            // Amounts of work, not of time: what waits for the CPU must take longer.
            std::hint::black_box((0..20_000).fold(offset, |sum, n| {
                std::hint::black_box(sum.wrapping_mul(31).wrapping_add(n))
            }));
            Ok(())
        }
        fn write(&mut self, _offset: u64, _data: &[u8]) -> Result<()> {
            Ok(())
        }
    }
    let cpu = crate::machine::allowed_cpus()[0];
    let pinned = thread::spawn(move || {
        crate::machine::pin_to(cpu).unwrap();
        for clock in [Clock::FirstDone, Clock::LastDone] {
            let rate = |workers: u32| {
                let job = Job {
                    clock,
                    workers,
                    ..fio::parse("rw=read bs=4k size=16k").unwrap()
                };
                // The best of some: other programs only ever slow it down.
                let runs = (0..9).map(|_| run(&job, &mut Work, &Stop::default()).unwrap());
                let rates = runs.map(|outcome| outcome.operations_per_second());
                rates.fold(0.0, f64::max)
            };
            let (alone, together) = (rate(1), rate(8));
            assert!(together < 2.0 * alone, "{clock:?}: {together} and {alone}");
        }
    });
    pinned.join().unwrap();
}
