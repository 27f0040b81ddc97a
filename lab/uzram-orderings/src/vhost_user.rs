//! The mark of guest memory that has vanished.

#[allow(dead_code)]
#[path = "../../../crates/uzram-frontends/src/vhost_user/mark.rs"]
mod mark;

use loom::sync::Arc;
use loom::thread;

use self::mark::Mark;
use crate::check;
use crate::sync::{AtomicBool, AtomicUsize, Ordering};

/// Written by the guest.
const WRITTEN: usize = 7;

#[test]
fn who_has_read_a_zero_of_the_replacement_sees_the_mark() {
    check(|| {
        let region = Arc::new((Mark(AtomicBool::new(false)), AtomicUsize::new(WRITTEN)));
        let handler = Arc::clone(&region);
        let handler = thread::spawn(move || {
            handler.0.set();
            // The system call that replaces the memory orders what was before it.
            handler.1.store(0, Ordering::Release);
        });
        let read = region.1.load(Ordering::Relaxed);
        let is_lost = region.0.is_set();
        assert!(
            read == WRITTEN || is_lost,
            "a zero was taken for the guest's"
        );
        handler.join().unwrap();
    });
}
