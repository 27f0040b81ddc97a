//! One connection in the transmission phase: its receiver, its workers, its sender.

mod crew;
mod pace;
mod shared;
mod worker;

use std::sync::Arc;

use super::Limits;
use super::budget::Budget;
use super::handshake::Agreement;
use super::socket::Socket;
use super::transmission::Input;
pub(crate) use crew::Crew;
use shared::Connection;
use worker::Worker;

/// Serves the client until it leaves, on this thread and the helpers that it starts. `received`
/// are the bytes that came behind the handshake.
pub(crate) fn serve(
    socket: Arc<Socket>,
    agreement: Agreement,
    limits: Limits,
    common: (Arc<Budget>, Arc<Crew>),
    name: &str,
    received: &[u8],
) {
    let mut input = Input::default();
    if !input.append(received) {
        return;
    }
    let connection = Connection::new(socket, agreement, limits, common, name, input);
    Worker::new(Arc::clone(&connection), true).run();
    // Helpers start no helpers once the connection has ended.
    let helpers = std::mem::take(&mut connection.lock().helpers);
    for helper in helpers {
        let _ = helper.join();
    }
}
