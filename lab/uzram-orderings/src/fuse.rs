//! The gate of a disk's file: once shut, what its users did is over and seen.

#[allow(dead_code)]
#[path = "../../../crates/uzram-frontends/src/fuse/gate.rs"]
mod gate;

use loom::sync::Arc;
use loom::thread;

use self::gate::Gate;
use crate::cell::Cell;
use crate::check;

#[test]
fn who_shuts_the_gate_sees_all_that_was_done_inside() {
    check(|| {
        let disk = Arc::new((Gate::default(), Cell::new(0)));
        let users: Vec<_> = (0..2)
            .map(|_| {
                let disk = Arc::clone(&disk);
                thread::spawn(move || {
                    if disk.0.enter() {
                        assert_eq!(disk.1.get(), 0);
                        disk.0.leave();
                    }
                })
            })
            .collect();
        if disk.0.shut() {
            disk.1.set(1);
            assert!(!disk.0.enter());
        }
        users.into_iter().for_each(|user| user.join().unwrap());
        assert_eq!(disk.0.opens(), 0);
    });
}

#[test]
fn who_enters_after_a_reopening_sees_what_was_done_meanwhile() {
    check(|| {
        let disk = Arc::new((Gate::default(), Cell::new(0)));
        let user = Arc::clone(&disk);
        let user = thread::spawn(move || {
            if user.0.enter() {
                // Before or after; the gate orders the two.
                assert!(user.1.get() <= 1);
                user.0.leave();
            }
        });
        if disk.0.shut() {
            disk.1.set(1);
            disk.0.reopen();
        }
        user.join().unwrap();
    });
}
