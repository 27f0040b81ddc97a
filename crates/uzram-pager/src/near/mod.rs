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
    /// Faults until it is tried without stepping aside: who stays on this CPU anyway needs nothing of it.
    aside_faults: u32,
    /// Threads that wait for this one.
    waiting: usize,
}

/// Faults with stepping aside, after a thread has left the CPU. Without, it is seen to leave within ten.
const ASIDE_FAULTS: u32 = 4096;

impl Near {
    /// For the calling thread, which alone may use it. `threads` is the directory with those that fault: `/proc/self/task`, or
    /// `/proc` for other processes'.
    pub fn new(threads: &'static str) -> Near {
        Near {
            follow: Follow::new(threads),
            aside: Aside::new(),
            aside_faults: 0,
            waiting: 1,
        }
    }

    /// So many threads wait. If there are several, the next one's answer comes before anybody runs on.
    pub fn note_waiting(&mut self, threads: usize) {
        self.waiting = threads;
    }

    /// Until the end of what is returned whoever is woken runs on at once. None: it is of no use now.
    pub fn give_way(&self) -> Option<Way> {
        match (self.aside_faults, self.waiting) {
            (1.., ..=1) => self.aside.as_ref()?.give_way(),
            _ => None,
        }
    }

    /// Notes that a fault of `thread` was answered, and goes to its CPU, if it seems to be on another.
    pub fn answered(&mut self, thread: u32) {
        let may_give_way = self.aside_faults > 0 && self.waiting <= 1;
        let gave_way = may_give_way && self.aside.as_ref().is_some_and(Aside::gave_way);
        self.aside_faults = self.aside_faults.saturating_sub(1);
        if self.follow.answered(thread, gave_way) {
            self.aside_faults = ASIDE_FAULTS;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The thread is on `cpu`.
    fn place(threads: &str, cpu: usize) {
        let file = Path::new(threads).join("7/stat");
        let before = ["0"; 36].join(" ");
        fs::write(file, format!("7 (t) {before} {cpu} 0")).unwrap();
    }

    #[test]
    fn the_server_steps_aside_only_for_threads_that_leave() {
        let all = rustix::thread::sched_getaffinity(None).unwrap();
        if all.count() < 2 {
            return;
        }
        let mut cpus = (0..1024).filter(|cpu| all.is_set(*cpu));
        let [first, second] = [cpus.next().unwrap(), cpus.next().unwrap()];
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("7")).unwrap();
        let threads: &'static str = directory.path().to_str().unwrap().to_owned().leak();
        let mut near = Near::new(threads);
        place(threads, first);
        (0..100).for_each(|_| near.answered(7));
        assert_eq!(near.aside_faults, 0);
        assert!(near.give_way().is_none());
        place(threads, second);
        (0..1000).for_each(|_| near.answered(7));
        assert!(near.aside_faults > 0);
        assert_eq!(near.give_way().is_some(), near.aside.is_some());
        near.note_waiting(2);
        assert!(near.give_way().is_none());
        (0..ASIDE_FAULTS).for_each(|_| near.answered(7));
        assert_eq!(near.aside_faults, 0);
        // Threads that take turns.
        place(threads, first);
        (0..1000).for_each(|_| [7, 8].into_iter().for_each(|thread| near.answered(thread)));
        assert_eq!(near.aside_faults, 0);
    }
}
