//! One line on stderr with the current work and the time left. There is none unless stderr is a
//! terminal, and none in the first two seconds.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const QUIET_FOR: Duration = Duration::from_secs(2);
const REDRAW_AFTER: Duration = Duration::from_millis(250);

/// Progress through a known number of equal steps.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    steps: usize,
    done: usize,
    started: Instant,
    drawn: Option<Instant>,
}

impl Progress {
    /// Towards `steps` steps.
    pub fn new(steps: usize) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress {
            terminal,
            steps,
            done: 0,
            started: Instant::now(),
            drawn: None,
        }
    }

    /// Shows `what`, `part` (0 to 1) of whose step is done.
    pub fn at(&mut self, what: &str, part: f64) {
        let now = Instant::now();
        let elapsed = now - self.started;
        let fresh = self.drawn.is_some_and(|drawn| now - drawn < REDRAW_AFTER);
        if !self.terminal || elapsed < QUIET_FOR || fresh {
            return;
        }
        self.drawn = Some(now);
        let share = (self.done as f64 + part.clamp(0.0, 1.0)) / self.steps.max(1) as f64;
        let left = match time_left(elapsed, share) {
            Some(left) => format!("about {} left", short(left)),
            None => "estimating".to_owned(),
        };
        eprint!("\r\x1b[K[{}/{}] {what}: {left}", self.done + 1, self.steps);
        let _ = std::io::stderr().flush();
    }

    /// A step is complete.
    pub fn step(&mut self) {
        self.done += 1;
        self.clear();
    }

    /// Takes the line away, so that something else can be printed.
    pub fn clear(&mut self) {
        if self.drawn.take().is_some() {
            eprint!("\r\x1b[K");
            let _ = std::io::stderr().flush();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn time_left(elapsed: Duration, share: f64) -> Option<Duration> {
    (share > 0.005).then(|| elapsed.mul_f64((1.0 - share).max(0.0) / share))
}

fn short(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..=99 => format!("{} s", seconds.max(1)),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_in_proportion() {
        assert_eq!(
            time_left(Duration::from_secs(10), 0.25),
            Some(Duration::from_secs(30))
        );
        assert_eq!(time_left(Duration::from_secs(10), 0.0), None);
        assert_eq!(short(Duration::from_secs(30)), "30 s");
        assert_eq!(short(Duration::from_secs(121)), "3 min");
    }
}
