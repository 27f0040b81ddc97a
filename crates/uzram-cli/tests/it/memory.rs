//! The memory of a server, seen from outside.

use crate::nbd_client::NbdClient;
use crate::support::{Home, PATIENCE, Served, eventually, field};

const MIB: u64 = 1 << 20;
/// Limits in bytes: the memory of large requests of all clients, and that of the rest of a server.
const BUDGET: u64 = 256 * MIB;
const REST: u64 = 96 * MIB;

/// A figure of the server's status, in bytes.
fn memory(served: &Served, key: &str) -> u64 {
    let path = format!("/proc/{}/status", served.child.id());
    let status = std::fs::read_to_string(path).unwrap();
    let kib = field(&status, key).strip_suffix(" kB").unwrap();
    kib.trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn clients_that_leave_without_their_replies_cost_no_more_than_the_budget() {
    let home = Home::new();
    let served = home.serve(&["--size", "64M"]);
    let socket = home.state().join("uzram0.nbd");
    let connect = || NbdClient::connect(&socket, "uzram0").unwrap();
    let mut clients: Vec<NbdClient> = (0..24).map(|_| connect()).collect();
    for client in &mut clients {
        for _ in 0..4 {
            client.ask_read(0, 32 << 20).unwrap();
        }
    }
    eventually("the budget is used", || {
        memory(&served, "VmRSS") > BUDGET / 2
    });
    drop(clients);
    let gone = || home.json(&["list", "--json"])[0]["connections"] == 0;
    eventually("all have left", gone);
    let most = memory(&served, "VmHWM");
    assert!(most < BUDGET + REST, "{} MiB at most", most / MIB);
    eventually("it is given back", || memory(&served, "VmRSS") < REST);
}

#[test]
fn memory_of_large_requests_goes_back_while_clients_stay() {
    let home = Home::new();
    let served = home.serve(&["--size", "64M"]);
    let socket = home.state().join("uzram0.nbd");
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = NbdClient::connect(&socket, "uzram0").unwrap();
                    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    for length in [1 << 20, 12 << 20, 24 << 20, 3 << 20] {
                        assert_eq!(client.read(0, length).unwrap().len(), length as usize);
                    }
                    client
                })
            })
            .collect();
        let clients: Vec<_> = clients.into_iter().map(|c| c.join().unwrap()).collect();
        eventually("it is given back", || memory(&served, "VmRSS") < REST);
        drop(clients);
    });
}
