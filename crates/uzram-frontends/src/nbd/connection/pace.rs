//! The pace of small requests: the length of a turn, when to send replies, when to call another
//! worker.

use std::time::{Duration, Instant};

use crate::nbd::wire::REPLY_BYTES;

/// The work that a worker takes at a time, and its bounds. The rest is for the next worker that is
/// free. Waking a thread costs some 4 us on a busy CPU and 70 us of latency on an idle one.
struct Share {
    turn: Duration,
    /// Another worker is called if the rest will take this long.
    call_after: Duration,
    /// Replies are sent at the latest when the oldest has waited this long. This is a little more
    /// than a turn, so that it matters only for requests that took longer than expected.
    reply_delay_max: Duration,
}

/// For requests without payload.
const SHARE: Share = Share {
    turn: Duration::from_micros(50),
    call_after: Duration::from_micros(100),
    reply_delay_max: Duration::from_micros(60),
};
/// For writes, which cost server and client more. Longer turns wake the client less often, and an
/// early call keeps both of two CPUs at work while it sends.
const SHARE_OF_WRITES: Share = Share {
    turn: Duration::from_micros(100),
    call_after: Duration::from_micros(50),
    reply_delay_max: Duration::from_micros(120),
};
/// Most writes of a turn that is longer than [`SHARE`]'s: about a third of the 32 that clients
/// like to have in flight. So a second worker finds as many, and the rest is on its way.
const WRITES_A_TURN_MAX: usize = 12;
/// Requests of more bytes than this, on average, are mostly writes.
const WRITE_BYTES_MIN: usize = 2048;
/// Replies that are gathered before they are sent, in bytes.
const REPLY_GATHER_BYTES: usize = 64 << 10;
/// The assumed cost and size of a request before the first is done.
const COST_AT_FIRST: Duration = Duration::from_micros(2);
const REQUEST_BYTES_AT_FIRST: usize = 4096;
/// The most that a request is assumed to cost. So one that blocked is soon forgotten.
const COST_MAX: Duration = Duration::from_millis(1);
/// Bytes that are received at once: at least the first, so that no call is made for next to
/// nothing, and at most half of a CPU's L2, some 30 writes of 4 KiB.
const RECEIVE_BYTES_MIN: usize = 20 << 10;
pub(super) const RECEIVE_BYTES_MAX: usize = 128 << 10;

/// The progress of a worker's turn, and the recent cost of requests.
pub(super) struct Pace {
    started: Instant,
    sent: Instant,
    now: Instant,
    done: u32,
    bytes: usize,
    cost: Duration,
    request_bytes: usize,
}

impl Pace {
    pub fn new() -> Pace {
        let now = Instant::now();
        Pace {
            started: now,
            sent: now,
            now,
            done: 0,
            bytes: 0,
            cost: COST_AT_FIRST,
            request_bytes: REQUEST_BYTES_AT_FIRST,
        }
    }

    /// Begins a turn of the requests within `bytes` received bytes.
    pub fn turn_begins(&mut self, bytes: usize) {
        let now = Instant::now();
        (self.started, self.sent, self.now) = (now, now, now);
        self.done = 0;
        self.bytes = bytes;
    }

    pub fn request_done(&mut self) {
        self.done += 1;
        self.now = Instant::now();
    }

    pub fn replies_are_due(&mut self, pending_bytes: usize) -> bool {
        let due = pending_bytes + REPLY_BYTES > REPLY_GATHER_BYTES
            || self.now - self.sent >= self.share().reply_delay_max;
        if due {
            self.sent = self.now;
        }
        due
    }

    /// Learns from the requests of this turn.
    pub fn turn_ends(&mut self) {
        if self.done > 0 {
            self.learn(self.now - self.started);
        }
    }

    fn learn(&mut self, taken: Duration) {
        let cost = (taken / self.done).min(COST_MAX);
        self.cost = (self.cost * 3 + cost) / 4;
        self.request_bytes = (self.bytes / self.done as usize).max(1);
    }

    /// The number of requests of a turn, at least one.
    pub fn requests_a_turn(&self) -> usize {
        let within = |turn: Duration| (turn.as_nanos() / self.cost.as_nanos().max(1)) as usize;
        let long = within(self.share().turn).min(WRITES_A_TURN_MAX);
        long.max(within(SHARE.turn)).max(1)
    }

    fn share(&self) -> &'static Share {
        match self.request_bytes > WRITE_BYTES_MIN {
            true => &SHARE_OF_WRITES,
            false => &SHARE,
        }
    }

    /// The bytes to receive while a request of `bytes` is awaited: a turn's, and more than one
    /// such request.
    pub fn receive_bytes(&self, bytes: usize) -> usize {
        let turn = self.requests_a_turn().saturating_mul(self.request_bytes);
        let wanted = turn.max(RECEIVE_BYTES_MIN).max(2 * bytes + 1);
        wanted.min(RECEIVE_BYTES_MAX)
    }

    /// Whether `bytes` of requests are worth waking a thread.
    pub fn is_worth_a_call(&self, bytes: usize) -> bool {
        let requests = u32::try_from(bytes / self.request_bytes).unwrap_or(u32::MAX);
        self.cost.saturating_mul(requests) >= self.share().call_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pace after many requests of this many bytes and microseconds.
    fn used_to(bytes: usize, cost_us: u64) -> Pace {
        let mut pace = Pace::new();
        for _ in 0..50 {
            (pace.done, pace.bytes) = (4, 4 * bytes);
            pace.learn(Duration::from_micros(4 * cost_us));
        }
        pace
    }

    #[test]
    fn a_turn_is_as_many_requests_as_fit_its_time_and_one_at_least() {
        assert!((4..=5).contains(&used_to(28, 10).requests_a_turn()));
        assert!((49..=51).contains(&used_to(28, 1).requests_a_turn()));
        assert_eq!(used_to(4124, 300).requests_a_turn(), 1);
        assert!(used_to(28, 0).requests_a_turn() > 1000);
    }

    #[test]
    fn a_turn_of_dear_writes_is_longer_but_leaves_some_to_others() {
        assert!((9..=10).contains(&used_to(4124, 10).requests_a_turn()));
        assert_eq!(used_to(4124, 6).requests_a_turn(), WRITES_A_TURN_MAX);
        // Never less than fits the short turn.
        assert!((24..=25).contains(&used_to(4124, 2).requests_a_turn()));
        assert!((7..=8).contains(&used_to(28, 6).requests_a_turn()));
    }

    #[test]
    fn replies_wait_for_the_end_of_a_turn_and_hardly_longer() {
        for (bytes, cost_us) in [(28, 10), (4124, 10), (4124, 6)] {
            let mut pace = used_to(bytes, cost_us);
            let turn = pace.cost * pace.requests_a_turn() as u32;
            pace.now = pace.sent + turn;
            assert!(!pace.replies_are_due(16), "{bytes} bytes");
            pace.now = pace.sent + pace.share().turn * 13 / 10;
            assert!(pace.replies_are_due(16), "{bytes} bytes");
        }
    }

    #[test]
    fn what_is_received_is_a_turn_within_bounds() {
        assert_eq!(used_to(4124, 40).receive_bytes(28), RECEIVE_BYTES_MIN);
        assert_eq!(used_to(28, 1).receive_bytes(28), RECEIVE_BYTES_MIN);
        assert_eq!(used_to(4124, 1).receive_bytes(4124), RECEIVE_BYTES_MAX);
        let between = used_to(4124, 5).receive_bytes(4124);
        assert!((11 * 4124..=13 * 4124).contains(&between), "{between}");
        // An incomplete request does not come in a call of its own.
        assert!(used_to(4124, 40).receive_bytes(16 << 10) > 32 << 10);
        assert_eq!(used_to(4124, 40).receive_bytes(1 << 20), RECEIVE_BYTES_MAX);
    }

    #[test]
    fn a_thread_is_called_for_as_much_work_as_that_is_worth() {
        let dear = used_to(4124, 10);
        assert!(!dear.is_worth_a_call(4 * 4124) && dear.is_worth_a_call(6 * 4124));
        let dear = used_to(28, 10);
        assert!(!dear.is_worth_a_call(8 * 28) && dear.is_worth_a_call(11 * 28));
        assert!(!used_to(28, 1).is_worth_a_call(32 * 28));
        assert!(!used_to(28, 0).is_worth_a_call(0));
    }

    #[test]
    fn a_request_that_blocked_is_soon_forgotten() {
        let mut pace = used_to(4124, 10);
        (pace.done, pace.bytes) = (1, 4124);
        pace.learn(Duration::from_secs(60));
        assert!(pace.cost < COST_MAX);
        (0..30).for_each(|_| pace.learn(Duration::from_micros(10)));
        assert!(pace.requests_a_turn() >= 4);
    }
}
