//! A thread of a connection: it receives, lays the receiver down and carries out what it has.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::pace::{Pace, RECEIVE_BYTES_MAX};
use super::shared::{Charge, Connection, State};
use crate::nbd::received::Received;
use crate::nbd::socket::RATE_MIN;
use crate::nbd::transmission::{self, Command, Input, Next, Output, Request};
use crate::patience::Patience;

/// Longest buffer that a worker keeps for the next large request, in bytes, until it has been idle.
const BUFFER_KEPT_BYTES: usize = (2 << 20) + 4096;
/// Payloads from this size on are large: while one worker carries the request out (some 100 us of
/// compression), it is worth waking another to receive what comes behind it.
const LARGE_PAYLOAD_BYTES: usize = 64 << 10;
/// The same for requests without payload, which cost some 10 ns per page.
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
    /// The buffer that is laid down with the bytes behind a turn.
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

    /// Waits for the receiver; `None` if this worker is to leave.
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
                self.spare.release();
                self.output.release();
            }
        }
    }

    /// Receives until there are requests, hands the receiver on and carries the requests out.
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
                        if charge.is_none() {
                            return self.connection.abort();
                        }
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

    /// Carries out a turn of small requests at the front of `input`. First it lays the receiver
    /// down with the bytes behind them, for the next worker that is free.
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

    /// Gives the receiver up. Calls another worker only if that is worth waking a thread.
    fn lay_down(&self, receiver: Input) {
        let connection = &self.connection;
        let is_worth_a_call = connection.crew.has_room() && {
            let bytes = receiver.unread() + connection.socket.pending_bytes();
            self.pace.is_worth_a_call(bytes)
        };
        hand_over(connection, receiver, is_worth_a_call);
    }

    /// Carries out the large request at the front of `input`. First it hands the receiver, with
    /// the bytes behind the request, to another worker.
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
        hand_over(&connection, rest, true);
        let reply_bytes = request.reply_payload_bytes();
        let charge = match charge {
            None if reply_bytes > RECEIVE_BYTES_MAX => connection.charge(reply_bytes),
            charge => charge,
        };
        // What has come is written; what nobody will take is not read.
        let is_for_nobody = charge.is_none() && reply_bytes > RECEIVE_BYTES_MAX
            || reply_bytes > 0 && connection.socket.is_gone();
        if is_for_nobody {
            return connection.abort();
        }
        self.execute(request, &input);
        input.consume(request);
        self.flush();
        // Before the request's own bytes are given back: what is kept is counted without a gap.
        input.keep(BUFFER_KEPT_BYTES, &connection.budget);
        self.output.keep(BUFFER_KEPT_BYTES, &connection.budget);
        self.spare = input;
        drop(charge);
    }

    fn execute(&mut self, request: &Request, input: &Input) {
        let device = &*self.connection.lease.export.device;
        let rules = &self.connection.rules;
        let payload = input.payload(request);
        transmission::execute(request, payload, rules, device, &mut self.output);
    }

    /// Sends the pending replies; `false` if the client has gone.
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

    /// Receives towards a request of `bytes` in all, whose first bytes came at `begun`; `false` at
    /// the end.
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

    /// The rest of the time for a request that began to arrive at `begun` and of which `received`
    /// bytes are here.
    fn time_left(&self, begun: Instant, received: usize) -> Duration {
        let limit = self.connection.limits.request_timeout;
        let more = Duration::from_secs((received / RATE_MIN as usize) as u64);
        (limit + more).saturating_sub(begun.elapsed())
    }

    /// Waits until there is something to receive, and gives memory back if that takes long;
    /// `false` if nothing comes within `limit`.
    fn sleep(&mut self, input: &mut Input, limit: Option<Duration>) -> bool {
        let socket = &self.connection.socket;
        let started = Instant::now();
        let awake = limit.map_or(IDLE_AFTER, |limit| limit.min(IDLE_AFTER));
        if !socket.wait(Some(awake)) {
            let rest = limit.map(|limit| limit.saturating_sub(awake));
            if rest.is_some_and(|rest| rest.is_zero()) {
                return false;
            }
            input.release();
            self.spare.release();
            self.output.release();
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

/// Lays the receiver down for the next worker that looks for work. With `is_worth_a_call` a
/// waiting worker, or a new one, is called to take it now.
fn hand_over(connection: &Arc<Connection>, receiver: Input, is_worth_a_call: bool) {
    let mut state = connection.lock();
    state.receiver = Some(receiver);
    if is_worth_a_call {
        call_worker(connection, state);
    }
}

fn call_worker(connection: &Arc<Connection>, mut state: MutexGuard<'_, State>) {
    if state.waiting > 0 {
        connection.called.notify_one();
        return;
    }
    if state.ended || state.workers >= connection.limits.workers_per_connection_max {
        return;
    }
    state.helpers.retain(|helper| !helper.is_finished());
    let name = format!("{}.{}", connection.name, state.workers);
    let worker = Worker::new(Arc::clone(connection), false);
    // Without a thread to spare the giver takes its work back when it is done.
    if let Ok(helper) = thread::Builder::new()
        .name(name)
        .spawn(move || worker.run())
    {
        state.workers += 1;
        state.helpers.push(helper);
    }
}

/// Ends the connection if a device panics, so that neither the client nor the other workers wait.
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
