//! One connection in the transmission phase: who receives, who works, who sends.
//!
//! The receiver (an [`Input`]) exists once: it is owned by the worker that leads, or lies in `state` for
//! the next one. Locks: `state` for
//! the receiver's place and the counts, never held across I/O or device work; `writer` for the
//! sending side, held while one worker's replies go out. They are never held together.

mod crew;
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
pub(crate) use crew::Crew;
use worker::Worker;

#[derive(Debug)]
pub(crate) struct Connection {
    socket: Arc<Socket>,
    lease: Lease,
    rules: Rules,
    limits: Limits,
    budget: Arc<Budget>,
    crew: Arc<Crew>,
    name: String,
    state: Mutex<State>,
    /// Somebody is called to take the receiver, or the connection has ended.
    called: Condvar,
    /// Bytes in flight became fewer, or the connection has ended.
    bytes_freed: Condvar,
    writer: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    receiver: Option<Input>,
    /// Workers that wait for the receiver.
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
        (budget, crew): (Arc<Budget>, Arc<Crew>),
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
            crew,
            name: name.to_owned(),
            state: Mutex::new(State {
                receiver: Some(input),
                workers: 1,
                ..State::default()
            }),
            called: Condvar::new(),
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

    /// Lays the receiver down for the next worker that looks for work; `is_worth_a_call`: one that
    /// waits, or a new one, is called to take it now.
    fn hand_over(self: &Arc<Self>, receiver: Input, is_worth_a_call: bool) {
        let mut state = self.lock();
        state.receiver = Some(receiver);
        if is_worth_a_call {
            self.call_worker(state);
        }
    }

    fn call_worker(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.waiting > 0 {
            self.called.notify_one();
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

    /// Receives no more; requests under way are still answered.
    fn end(&self) {
        self.lock().ended = true;
        self.called.notify_all();
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
