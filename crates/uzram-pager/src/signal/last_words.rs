//! The line on standard error where a touch finds no page, which ends most programs. It takes no memory and no lock.

use std::fmt;
use std::io::{Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

/// The longest line, in bytes.
const LINE_BYTES: usize = 256;

/// A program that lives on may touch many lost pages.
static WAS_SAID: AtomicBool = AtomicBool::new(false);

/// Says that the page at `address` is lost.
pub(super) fn lost(address: usize) {
    say(format_args!(
        "uzram: SIGBUS: compressed memory at {address:#x} is lost: what was stored is damaged, or the system had no memory for it\n"
    ));
}

/// Says that the system has refused the page at `address`.
pub(super) fn refused(address: usize, errno: Errno) {
    let number = errno.raw_os_error();
    let why = match errno {
        Errno::BADF => "the program has closed the descriptor of userfaultfd",
        _ => "the system refuses its page",
    };
    say(format_args!(
        "uzram: SIGBUS: compressed memory at {address:#x} cannot be brought: {why} (errno {number})\n"
    ));
}

fn say(text: fmt::Arguments<'_>) {
    if WAS_SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let mut line = [0; LINE_BYTES];
    let mut rest = &mut line[..];
    // As much as fits.
    let _ = rest.write_fmt(text);
    let length = LINE_BYTES - rest.len();
    let _ = rustix::io::write(stderr(), &line[..length]);
}
