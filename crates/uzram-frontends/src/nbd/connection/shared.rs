//! The state that the threads of one connection share.
//!
//! The receiver (an [`Input`]) exists once: the leading worker owns it, or it lies in `state` for
//! the next one. Locks: `state` for the receiver's place and the counts, never held across I/O or
//! device work; `writer` for the sending side, held while one worker's replies go out. They are
//! never held together.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::crew::Crew;
use crate::nbd::Limits;
use crate::nbd::budget::{Budget, LOOK_EVERY};
use crate::nbd::export::Lease;
use crate::nbd::handshake::Agreement;
use crate::nbd::socket::Socket;
use crate::nbd::transmission::{Input, Rules};

#[derive(Debug)]
pub(super) struct Connection {
    pub socket: Arc<Socket>,
    pub lease: Lease,
    pub rules: Rules,
    pub limits: Limits,
    pub budget: Arc<Budget>,
    pub crew: Arc<Crew>,
    pub name: String,
    state: Mutex<State>,
    /// A worker is called to take the receiver, or the connection has ended.
    pub called: Condvar,
    /// Bytes in flight became fewer, or the connection has ended.
    bytes_freed: Condvar,
    pub writer: Mutex<()>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub receiver: Option<Input>,
    /// Workers that wait for the receiver.
    pub waiting: usize,
    pub workers: usize,
    /// No more requests are received.
    pub ended: bool,
    /// Bytes of large requests being carried out.
    in_flight_bytes: usize,
    pub helpers: Vec<JoinHandle<()>>,
}

impl Connection {
    /// A connection whose first worker is about to start. Its threads are called `name`, and
    /// `input` are the bytes that came behind the handshake.
    pub fn new(
        socket: Arc<Socket>,
        agreement: Agreement,
        limits: Limits,
        (budget, crew): (Arc<Budget>, Arc<Crew>),
        name: &str,
        input: Input,
    ) -> Arc<Connection> {
        Arc::new(Connection {
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
        })
    }

    /// Receives no more; requests under way are still answered.
    pub fn end(&self) {
        self.lock().ended = true;
        self.called.notify_all();
        self.bytes_freed.notify_all();
    }

    /// Ends the connection: nothing is answered any more.
    pub fn abort(&self) {
        self.end();
        self.socket.abort();
    }

    /// Waits until `bytes` more may be in flight; `None` once the client has gone. If the client
    /// has only stopped sending, the requests under way are still carried out, within the same
    /// bounds.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        let max = self.limits.in_flight_bytes_max;
        let mut state = self.lock();
        // One request is always let through, so that a small limit slows down but never stops.
        while state.in_flight_bytes > 0 && state.in_flight_bytes + bytes > max {
            // A look that waits for nothing.
            if self.socket.is_gone() {
                return None;
            }
            let wait = self.bytes_freed.wait_timeout(state, LOOK_EVERY);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.in_flight_bytes += bytes;
        drop(state);
        // From here on the bytes are given back whatever happens.
        let mut charge = Charge {
            connection: Arc::clone(self),
            bytes,
            is_budgeted: false,
        };
        charge.is_budgeted = self.budget.take(bytes, || self.socket.is_gone());
        charge.is_budgeted.then_some(charge)
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes in flight. Dropping this gives them back.
pub(super) struct Charge {
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
