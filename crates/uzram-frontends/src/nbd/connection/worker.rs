//! A thread of a connection: it receives, lays the receiver down and carries out what it has.

use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::pace::{Pace, RECEIVE_BYTES_MAX};
use super::{Charge, Connection};
use crate::nbd::socket::{RATE_MIN, Received};
use crate::nbd::transmission::{self, Command, Input, Next, Output, Request};
use crate::patience::Patience;

/// Memory that a worker keeps for the next large request, in bytes, until it has been idle.
const BUFFER_RETAINED_BYTES: usize = (2 << 20) + 4096;
/// Payloads from this size on are large: while one worker carries the request out (some 100 us of
/// compression) another is worth waking to receive what comes behind it.
const LARGE_PAYLOAD_BYTES: usize = 64 << 10;
/// The same for requests without payload, which cost some 10 ns a page.
const LARGE_RANGE_BYTES: u64 = 16 << 20;
/// A worker without work gives back memory and, unless it is the last, its thread after this.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Bytes that a draining connection still takes from a client that keeps sending.
const DRAIN_BYTES_MAX: usize = 64 << 20;

/// A thread of a connection with its buffers.
pub(super) struct Worker {
    connection: Arc<Connection>,
    /// The connection's first thread, which stays until the end.
    is_first: bool,
    /// Buffer to lay down with what is behind a turn.
    spare: Input,
    output: Output,
    patience: Patience,
    pace: Pace,
    /// Bytes received since the connection began to drain.
    drained_bytes: usize,
}

impl Worker {
    pub fn new(connection: Arc<Connection>, is_first: bool) -> Worker {
        Worker {
            connection,
            is_first,
            spare: Input::default(),
            output: Output::default(),
            patience: Patience::default(),
            pace: Pace::new(),
            drained_bytes: 0,
        }
    }

    pub fn run(mut self) {
        let _hang_up = HangUpOnPanic(Arc::clone(&self.connection));
        while let Some(receiver) = self.take_receiver() {
            self.lead(receiver);
        }
    }

    /// Waits for the receiver; `None` when this worker shall leave.
    fn take_receiver(&mut self) -> Option<Input> {
        let connection = Arc::clone(&self.connection);
        let mut is_idle = false;
        let mut state = connection.lock();
        loop {
            if state.ended {
                return None;
            }
            if let Some(receiver) = state.receiver.take() {
                return Some(receiver);
            }
            state.waiting += 1;
            let called = &connection.called;
            let timed_out;
            (state, timed_out) = if is_idle {
                (
                    called.wait(state).unwrap_or_else(PoisonError::into_inner),
                    false,
                )
            } else {
                let wait = called.wait_timeout(state, IDLE_AFTER);
                let (state, wait) = wait.unwrap_or_else(PoisonError::into_inner);
                (state, wait.timed_out())
            };
            state.waiting -= 1;
            if timed_out && state.receiver.is_none() {
                if !self.is_first {
                    state.workers -= 1;
                    return None;
                }
                is_idle = true;
                self.spare.shrink(0);
                self.output.shrink(0);
            }
        }
    }

    /// Receives until there are requests, hands the receiver on and carries them out.
    fn lead(&mut self, mut input: Input) {
        let rules = self.connection.rules;
        let mut charge = None;
        let mut begun = None;
        loop {
            match input.next(&rules) {
                Next::Request(request) if is_large(&request) => {
                    return self.carry_out_large(input, &request, charge);
                }
                Next::Request(_) => return self.carry_out_turn(input),
                Next::Refused(refusal) => {
                    transmission::refuse(&refusal, rules.framing, &mut self.output);
                }
                Next::Incomplete { bytes } => {
                    if !self.flush() {
                        return;
                    }
                    if bytes > RECEIVE_BYTES_MAX && charge.is_none() {
                        charge = self.connection.charge(bytes);
                    }
                    if !input.is_within_a_request() {
                        begun = None;
                    } else if begun.is_none() {
                        begun = Some(Instant::now());
                    }
                    if !self.receive(&mut input, bytes, begun) {
                        return self.connection.end();
                    }
                }
                Next::Disconnect | Next::Violation => {
                    self.flush();
                    return self.connection.end();
                }
            }
        }
    }

    /// Carries out small requests at the front of `input`, a turn of them, after laying down the
    /// receiver with what is behind them for whoever comes by first.
    fn carry_out_turn(&mut self, mut input: Input) {
        let connection = Arc::clone(&self.connection);
        let rules = connection.rules;
        let is_small = |request: &Request| !is_large(request);
        let (_, bytes) = input.run_of(self.pace.requests_a_turn(), &rules, is_small);
        let mut rest = std::mem::take(&mut self.spare);
        if !input.split_off(bytes, &mut rest) {
            // No memory for a second buffer: the client loses its connection, not its data.
            return connection.abort();
        }
        let _working = connection.crew.begin();
        self.lay_down(rest);
        self.pace.turn_begins(bytes);
        while let Next::Request(request) = input.next(&rules) {
            self.execute(&request, &input);
            input.consume(&request);
            self.pace.request_done();
            if self.pace.replies_are_due(self.output.pending().len()) && !self.flush() {
                return;
            }
        }
        self.pace.turn_ends();
        self.flush();
        self.spare = input;
    }

    /// Gives the receiver up; calls somebody to take it only if that is worth waking a thread.
    fn lay_down(&self, receiver: Input) {
        let connection = &self.connection;
        let is_worth_a_call = connection.crew.has_room() && {
            let bytes = receiver.unread() + connection.socket.pending_bytes();
            self.pace.is_worth_a_call(bytes)
        };
        connection.hand_over(receiver, is_worth_a_call);
    }

    /// Carries out the large request at the front of `input`, which this worker leads, after
    /// handing the receiver with what is behind the request to another.
    fn carry_out_large(&mut self, mut input: Input, request: &Request, charge: Option<Charge>) {
        let bytes = request.bytes();
        if !self.flush() {
            return;
        }
        let mut rest = std::mem::take(&mut self.spare);
        if !input.split_off(bytes, &mut rest) {
            // No memory for a second buffer: the client loses its connection, not its data.
            return self.connection.abort();
        }
        let connection = Arc::clone(&self.connection);
        let _working = connection.crew.begin();
        connection.hand_over(rest, true);
        let reply_bytes = request.reply_payload_bytes();
        let charge = match charge {
            None if reply_bytes > RECEIVE_BYTES_MAX => self.connection.charge(reply_bytes),
            charge => charge,
        };
        self.execute(request, &input);
        input.consume(request);
        self.flush();
        let retained_bytes = match self.connection.budget.is_tight() {
            true => 0,
            false => BUFFER_RETAINED_BYTES,
        };
        input.shrink(retained_bytes);
        self.output.shrink(retained_bytes);
        self.spare = input;
        drop(charge);
    }

    fn execute(&mut self, request: &Request, input: &Input) {
        let device = &*self.connection.lease.export.device;
        let rules = &self.connection.rules;
        let payload = input.payload(request);
        transmission::execute(request, payload, rules, device, &mut self.output);
    }

    /// Sends what is pending; `false` if the client has gone.
    fn flush(&mut self) -> bool {
        if self.output.is_empty() {
            return true;
        }
        let writer = self
            .connection
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let sent = self.connection.socket.send(self.output.pending());
        drop(writer);
        self.output.clear();
        if sent.is_err() {
            self.connection.abort();
        }
        sent.is_ok()
    }

    /// Receives something towards a request of `bytes` in all, of which the first came at `begun`;
    /// `false` at the end.
    fn receive(&mut self, input: &mut Input, bytes: usize, begun: Option<Instant>) -> bool {
        let connection = Arc::clone(&self.connection);
        let started = Instant::now();
        loop {
            let base = self.pace.receive_bytes(bytes);
            let Some(room) = input.room(bytes, base) else {
                return false;
            };
            match connection.socket.receive(room) {
                Received::Bytes(length) => {
                    input.received(length);
                    return !connection.socket.is_draining() || self.may_drain(length);
                }
                Received::End => return false,
                Received::Nothing if self.patience.lasts(started) => thread::yield_now(),
                Received::Nothing => {
                    let limit = match begun {
                        Some(begun) => Some(self.time_left(begun, input.unread())),
                        None => connection.limits.idle_timeout,
                    };
                    if !self.sleep(input, limit) {
                        return false;
                    }
                }
            }
        }
    }

    /// What is left of the time for a request that came first at `begun`, and of which `received`
    /// bytes are here.
    fn time_left(&self, begun: Instant, received: usize) -> Duration {
        let limit = self.connection.limits.request_timeout;
        let more = Duration::from_secs((received / RATE_MIN as usize) as u64);
        (limit + more).saturating_sub(begun.elapsed())
    }

    /// Waits until there is something to receive, without memory if that takes long; `false` if
    /// there is nothing for as long as `limit`.
    fn sleep(&mut self, input: &mut Input, limit: Option<Duration>) -> bool {
        let socket = &self.connection.socket;
        let started = Instant::now();
        let awake = limit.map_or(IDLE_AFTER, |limit| limit.min(IDLE_AFTER));
        if !socket.wait(Some(awake)) {
            let rest = limit.map(|limit| limit.saturating_sub(awake));
            if rest.is_some_and(|rest| rest.is_zero()) {
                return false;
            }
            input.shrink(0);
            self.spare.shrink(0);
            self.output.shrink(0);
            if !socket.wait(rest) {
                return false;
            }
        }
        self.patience.slept_since(started);
        true
    }

    fn may_drain(&mut self, length: usize) -> bool {
        self.drained_bytes += length;
        self.drained_bytes <= DRAIN_BYTES_MAX
    }
}

/// A device that panics must not leave the client and the other workers waiting.
struct HangUpOnPanic(Arc<Connection>);

impl Drop for HangUpOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.abort();
        }
    }
}

fn is_large(request: &Request) -> bool {
    match request.command {
        Command::Read { .. } | Command::Write => request.length as usize >= LARGE_PAYLOAD_BYTES,
        Command::Trim
        | Command::WriteZeroes(_)
        | Command::BlockStatus {
            filtered: false, ..
        } => request.length >= LARGE_RANGE_BYTES,
        // Of any length: it may be the whole device.
        Command::BlockStatus { filtered: true, .. } => true,
        Command::Flush | Command::Cache => false,
    }
}
