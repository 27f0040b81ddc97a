//! Threads that start at once: the one way of all suites.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::machine::{self, Lap, Stopwatch};

/// Runs each work in a thread of its own, none before all threads are there.
///
/// # Errors
/// The first error of a work in their order, or that one panicked.
pub(crate) fn at_once<T, W>(works: impl ExactSizeIterator<Item = W>) -> Result<Vec<T>>
where
    T: Send,
    W: FnOnce() -> Result<T> + Send,
{
    let barrier = &Barrier::new(works.len());
    thread::scope(|scope| {
        let start = |work: W| {
            scope.spawn(move || {
                barrier.wait();
                work()
            })
        };
        // All are started before the first is waited for.
        let threads: Vec<_> = works.map(start).collect();
        let joined = threads.into_iter().map(|thread| {
            let died = |_| Err(Error::Failed("a measuring thread panicked".to_owned()));
            thread.join().unwrap_or_else(died)
        });
        joined.collect()
    })
}

/// Runs each work on its CPU, all starting at once: the time that one of them took, such that
/// the works over it are the sum of the threads' rates.
pub(crate) fn run_together<W>(works: Vec<(usize, W)>) -> Result<Duration>
where
    W: FnOnce() -> Result<()> + Send,
{
    let waiting = &AtomicUsize::new(works.len());
    let works = works.into_iter();
    let laps = at_once(works.map(|(cpu, work)| move || run_pinned(cpu, waiting, work)))?;
    Ok(together(laps.iter().map(|lap| lap.own())))
}

/// The time of one of several works that took these times at once.
fn together(times: impl ExactSizeIterator<Item = Duration>) -> Duration {
    let count = times.len();
    let rates = times.map(|time| 1.0 / time.as_secs_f64().max(1e-9));
    Duration::from_secs_f64(count as f64 / rates.sum::<f64>())
}

fn run_pinned(cpu: usize, waiting: &AtomicUsize, work: impl FnOnce() -> Result<()>) -> Result<Lap> {
    let pinned = machine::pin_to(cpu);
    // Spinning: a sleeping thread would start a wake-up later than the others.
    waiting.fetch_sub(1, Ordering::SeqCst);
    while waiting.load(Ordering::SeqCst) > 0 {
        std::hint::spin_loop();
    }
    pinned?;
    let stopwatch = Stopwatch::start();
    work()?;
    Ok(stopwatch.stop())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn threads_add_their_rates_and_an_error_of_one_is_the_result() {
        // Rates of 1/20 and 1/60 add up to 2/30.
        let times = [20, 60].map(Duration::from_millis);
        let time = together(times.into_iter());
        assert!(time.abs_diff(Duration::from_millis(30)) < Duration::from_micros(1));
        let cpu = machine::allowed_cpus()[0];
        let nap = || -> Result<()> {
            thread::sleep(Duration::from_millis(20));
            Ok(())
        };
        let began = Instant::now();
        let time = run_together(vec![(cpu, nap), (cpu, nap)]).unwrap();
        assert!(time > Duration::ZERO && time <= began.elapsed(), "{time:?}");
        let fails = || -> Result<()> { Err(Error::Failed("no".to_owned())) };
        assert!(run_together(vec![(cpu, fails)]).is_err());
    }
}
