//! A guest without a virtual machine: reads or writes 4 KiB at random places of a disk over vhost-user,
//! and says how long that took. For counting what the server does meanwhile:
//!
//! ```text
//! valgrind --tool=callgrind uzram serve --size 64M --attach vhost-user --socket /tmp/s &
//! cargo run --release --example guest_load --features vhost-user-client -- /tmp/s read 10000
//! ```

use std::time::{Duration, Instant};

use uzram_frontends::vhost_user::client::{Client, Data, Queue, Setup};
use vm_memory::Bytes;

const PAGE_BYTES: u32 = 4096;
const DEPTH: u16 = 32;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, direction, count] = arguments.as_slice() else {
        return Err("SOCKET, read or write, and a number of requests".into());
    };
    let count: u32 = count.parse()?;
    let setup = Setup {
        data_bytes: PAGE_BYTES,
        ..Setup::default()
    };
    let mut client = Client::connect(socket.as_ref(), setup)?;
    let capacity = client.config(8)?;
    let sectors = capacity
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let mut queues = client.start(&[])?;
    let begun = Instant::now();
    load(&mut queues[0], sectors / 8, direction == "write", count);
    let elapsed = begun.elapsed();
    println!(
        "{count} requests in {:.3} s: {:.0} a second",
        elapsed.as_secs_f64(),
        f64::from(count) / elapsed.as_secs_f64()
    );
    Ok(())
}

fn load(queue: &mut Queue, pages: u64, writes: bool, count: u32) {
    let mut random = 1u64;
    let mut submit = |queue: &mut Queue, slot: u16| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let sector = (random >> 33) % pages * 8;
        if !writes {
            return queue.submit(slot, 0, sector, Data::Taken(PAGE_BYTES));
        }
        // Half of it compresses.
        let page: Vec<u8> = (0..u64::from(PAGE_BYTES))
            .map(|at| {
                if at % 2 == 0 {
                    0
                } else {
                    (random >> (at % 57)) as u8
                }
            })
            .collect();
        let written = queue.memory.write_slice(&page, queue.data_at(slot));
        written.expect("a slot has room for a page");
        queue.submit(slot, 1, sector, Data::Given(PAGE_BYTES));
    };
    let (mut asked, mut done) = (0, 0);
    for slot in 0..DEPTH.min(count.try_into().unwrap_or(DEPTH)) {
        submit(queue, slot);
        asked += 1;
    }
    queue.kick();
    while done < count {
        let Some(completed) = queue.completed() else {
            queue.wait(PATIENCE);
            continue;
        };
        assert_eq!(completed.status, 0, "a request failed");
        done += 1;
        if asked < count {
            submit(queue, completed.slot);
            queue.kick();
            asked += 1;
        }
    }
}
