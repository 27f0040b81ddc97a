//! Tests of the frontends through their public interfaces. `client` speaks the protocol byte by
//! byte, independently of the crate's own encoders; `device` has devices that record, block and
//! fail.
#![allow(clippy::unwrap_used)]

mod chunks;
mod client;
mod device;

mod commands;
mod conformance;
mod endpoint;
mod faults;
mod handshake;
mod ordering;
mod patience;
mod programs;
#[path = "../../../uzram/tests/it/runs.rs"]
mod runs;
mod shutdown;
mod structured;
#[cfg(feature = "tls")]
mod tls;

use std::sync::Arc;
use std::time::{Duration, Instant};

use uzram::BlockDevice;
use uzram_frontends::nbd::{Endpoint, Export, Exports, Limits, Server, ServerHandle};

/// A server with one export `disk` on a socket in a directory of its own.
struct Served {
    handle: Option<ServerHandle>,
    exports: Arc<Exports>,
    directory: tempfile::TempDir,
}

impl Served {
    fn new(device: Arc<dyn BlockDevice>) -> Served {
        Served::with(device, Limits::default())
    }

    fn with(device: Arc<dyn BlockDevice>, limits: Limits) -> Served {
        let exports = Arc::new(Exports::new());
        exports.add(export("disk", device)).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::Unix(directory.path().join("s"));
        let server = Server::bind(&endpoint, Arc::clone(&exports), limits).unwrap();
        Served {
            handle: Some(server.spawn().unwrap()),
            exports,
            directory,
        }
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("s")
    }

    fn uri(&self) -> String {
        self.handle().endpoint().uri("disk")
    }

    fn handle(&self) -> &ServerHandle {
        self.handle.as_ref().unwrap()
    }

    fn connect(&self) -> client::Client {
        client::Client::go(client::unix(&self.path()), "disk")
    }
}

fn export(name: &str, device: Arc<dyn BlockDevice>) -> Export {
    Export {
        name: name.into(),
        description: format!("about {name}"),
        device,
        read_only: false,
    }
}

/// Waits until `condition` holds; panics after ten seconds.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "not within ten seconds: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
