//! One connection in the transmission phase: who receives, who works, who sends.
//!
//! The receiver (an [`Input`]) exists once and is owned by the worker that leads. Locks: `state` for
//! the receiver's place and the counts, never held across I/O or device work; `writer` for the
//! sending side, held while one worker's replies go out. They are never held together.

mod pace;
mod worker;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::Limits;
use super::budget::Budget;
use super::export::Lease;
use super::handshake::Agreement;
use super::socket::Socket;
use super::transmission::{Input, Rules};
use worker::Worker;

#[derive(Debug)]
pub(crate) struct Connection {
    socket: Arc<Socket>,
    lease: Lease,
    rules: Rules,
    limits: Limits,
    budget: Arc<Budget>,
    name: String,
    state: Mutex<State>,
    /// The receiver is free, there is a batch, or the connection has ended.
    work_given: Condvar,
    /// Bytes in flight became fewer, or the connection has ended.
    bytes_freed: Condvar,
    writer: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    receiver: Option<Input>,
    /// Whole small requests that the leader gives away.
    batch: Option<Input>,
    /// Empty buffers for the next batches, so that none is made for each.
    empty: Option<Input>,
    /// Workers that wait for the receiver or a batch.
    waiting: usize,
    workers: usize,
    /// No more requests are received.
    ended: bool,
    /// Bytes of large requests being carried out.
    in_flight_bytes: usize,
    helpers: Vec<JoinHandle<()>>,
}

impl Connection {
    /// Serves the client until it leaves, on this thread and the helpers that it starts. `received`
    /// is what came behind the handshake.
    pub fn serve(
        socket: Arc<Socket>,
        agreement: Agreement,
        limits: Limits,
        budget: Arc<Budget>,
        name: &str,
        received: &[u8],
    ) {
        let mut input = Input::default();
        if !input.append(received) {
            return;
        }
        let connection = Arc::new(Connection {
            socket,
            rules: agreement.rules,
            lease: agreement.lease,
            limits,
            budget,
            name: name.to_owned(),
            state: Mutex::new(State {
                receiver: Some(input),
                workers: 1,
                ..State::default()
            }),
            work_given: Condvar::new(),
            bytes_freed: Condvar::new(),
            writer: Mutex::new(()),
        });
        Worker::new(Arc::clone(&connection), true).run();
        // Helpers start no helpers once the connection has ended.
        let helpers = std::mem::take(&mut connection.lock().helpers);
        for helper in helpers {
            let _ = helper.join();
        }
    }

    /// Gives the receiver to a worker that waits, or to a new one.
    fn hand_over(self: &Arc<Self>, receiver: Input) {
        let mut state = self.lock();
        state.receiver = Some(receiver);
        self.call_worker(state);
    }

    /// Gives `batch` to a worker that waits, or to a new one; returns an empty buffer in exchange.
    /// There is no batch yet: the leader, who alone gives batches, takes back what nobody took.
    fn give_batch(self: &Arc<Self>, batch: Input) -> Input {
        let mut state = self.lock();
        state.batch = Some(batch);
        let empty = state.empty.take().unwrap_or_default();
        self.call_worker(state);
        empty
    }

    fn call_worker(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.waiting > 0 {
            self.work_given.notify_one();
            return;
        }
        if state.ended || state.workers >= self.limits.workers_per_connection_max {
            return;
        }
        state.helpers.retain(|helper| !helper.is_finished());
        let name = format!("{}.{}", self.name, state.workers);
        let worker = Worker::new(Arc::clone(self), false);
        // Without a thread to spare the giver takes its work back when it is done.
        if let Ok(helper) = thread::Builder::new()
            .name(name)
            .spawn(move || worker.run())
        {
            state.workers += 1;
            state.helpers.push(helper);
        }
    }

    fn has_helper(&self) -> bool {
        let state = self.lock();
        if state.batch.is_some() {
            return false;
        }
        state.waiting > 0 || state.workers < self.limits.workers_per_connection_max
    }

    /// Receives no more; requests under way are still answered.
    fn end(&self) {
        self.lock().ended = true;
        self.work_given.notify_all();
        self.bytes_freed.notify_all();
    }

    /// Nothing can be answered any more.
    fn abort(&self) {
        self.end();
        self.socket.abort();
    }

    /// Waits until `bytes` more may be in flight; `None` once the connection has ended.
    fn charge(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        let max = self.limits.in_flight_bytes_max;
        let mut state = self.lock();
        // One request is always let through, so that a small limit slows down but never stops.
        while !state.ended && state.in_flight_bytes > 0 && state.in_flight_bytes + bytes > max {
            state = self
                .bytes_freed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.ended {
            return None;
        }
        state.in_flight_bytes += bytes;
        drop(state);
        // From here on the bytes are given back whatever happens.
        let mut charge = Charge {
            connection: Arc::clone(self),
            bytes,
            is_budgeted: false,
        };
        charge.is_budgeted = self.budget.take(bytes, || self.lock().ended);
        charge.is_budgeted.then_some(charge)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes in flight, until dropped.
struct Charge {
    connection: Arc<Connection>,
    bytes: usize,
    /// Whether they are taken from the server's budget too.
    is_budgeted: bool,
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.is_budgeted {
            self.connection.budget.give_back(self.bytes);
        }
        self.connection.lock().in_flight_bytes -= self.bytes;
        self.connection.bytes_freed.notify_all();
    }
}
