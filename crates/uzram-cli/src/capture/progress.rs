//! A line that says how far it is: on a terminal only, and only if it takes a while.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Nothing is shown before this.
const PATIENCE: Duration = Duration::from_secs(2);
/// And then no more often than this.
const INTERVAL: Duration = Duration::from_millis(200);

/// Progress towards a number of pages.
pub struct Progress {
    total: u64,
    done: u64,
    next: Option<Instant>,
    is_shown: bool,
}

impl Progress {
    /// Towards `total` pages.
    pub fn new(total: u64) -> Progress {
        let next = std::io::stderr()
            .is_terminal()
            .then(|| Instant::now() + PATIENCE);
        Progress {
            total,
            done: 0,
            next,
            is_shown: false,
        }
    }

    /// `pages` more are done.
    pub fn advance(&mut self, pages: u64) {
        self.done += pages;
        let now = Instant::now();
        if self.next.is_some_and(|next| now >= next) {
            self.next = Some(now + INTERVAL);
            self.is_shown = true;
            let percent = self.done * 100 / self.total.max(1);
            let _ = write!(
                std::io::stderr(),
                "\r{percent:>3} % of {} pages",
                self.total
            );
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
