//! How a batch of small requests gets on: when to send replies, when to share what is left.

use std::time::{Duration, Instant};

use crate::nbd::wire::REPLY_BYTES;

/// Replies are sent at the latest when the oldest has waited this long: a client with a full queue
/// then goes on while the rest of the batch is worked on.
const REPLY_DELAY_MAX: Duration = Duration::from_micros(25);
/// Replies that are gathered before they are sent, in bytes.
const REPLY_GATHER_BYTES: usize = 64 << 10;
/// A batch that has taken this long, and will take as long again, is shared: waking a thread costs
/// some 4 us on a busy CPU and 70 us of latency on an idle one.
const SHARE_AFTER: Duration = Duration::from_micros(50);

/// How a batch gets on: when to send, when to share.
pub(super) struct Pace {
    started: Instant,
    sent: Instant,
    now: Instant,
    done: u32,
    share_after: Duration,
}

impl Pace {
    pub fn start() -> Pace {
        let now = Instant::now();
        Pace {
            started: now,
            sent: now,
            now,
            done: 0,
            share_after: SHARE_AFTER,
        }
    }

    pub fn request_done(&mut self) {
        self.done += 1;
        self.now = Instant::now();
    }

    pub fn replies_are_due(&mut self, pending_bytes: usize) -> bool {
        let due = pending_bytes + REPLY_BYTES > REPLY_GATHER_BYTES
            || self.now - self.sent >= REPLY_DELAY_MAX;
        if due {
            self.sent = self.now;
        }
        due
    }

    pub fn is_slow(&self) -> bool {
        self.now - self.started >= self.share_after
    }

    pub fn is_worth_sharing(&self, requests: usize) -> bool {
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        let per_request = (self.now - self.started) / self.done.max(1);
        requests >= 2 && per_request.saturating_mul(requests) >= SHARE_AFTER
    }

    pub fn put_off(&mut self) {
        self.share_after += SHARE_AFTER;
    }
}
