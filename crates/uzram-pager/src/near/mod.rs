//! The server of faults and the thread that faults, on one CPU: it costs a fraction of what two cost, each of which sleeps
//! while the other works.

mod aside;
mod follow;

use aside::Aside;
pub use aside::Way;
use follow::Follow;

/// The calling thread's nearness to those whose faults it answers.
#[derive(Debug)]
pub struct Near {
    follow: Follow,
    aside: Option<Aside>,
}

impl Near {
    /// For the calling thread, which alone may use it. `threads` is the directory with those that fault: `/proc/self/task`, or
    /// `/proc` for other processes'.
    pub fn new(threads: &'static str) -> Near {
        Near {
            follow: Follow::new(threads),
            aside: Aside::new(),
        }
    }

    /// For nobody: no thread follows, or steps aside.
    pub fn none() -> Near {
        Near {
            follow: Follow::new("/proc/self/task"),
            aside: None,
        }
    }

    /// Within the turn whoever is woken runs on at once. None: it is of no use now.
    pub fn give_way(&self) -> Option<Way> {
        self.aside.as_ref()?.give_way()
    }

    /// Notes that a fault of `thread` was answered, and goes to its CPU, if it seems to be on another.
    pub fn answered(&mut self, thread: u32) {
        let gave_way = self.aside.as_ref().is_some_and(Aside::gave_way);
        self.follow.answered(thread, gave_way);
    }
}
