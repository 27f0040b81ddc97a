//! Owners of guests that set up what cannot be: each is hung up on, and the next is served.

use std::os::fd::AsRawFd;

use uzram_frontends::vhost_user::client::{GUEST_BASE, Setup, USER_BASE};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::vhost_user::{VhostUserFrontend, message::VhostUserConfigFlags};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use super::device::Bytes as Device;
use super::*;

type Wrong = fn(&mut Client);

fn region(client: &Client, offset: u64, bytes: u64) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: GUEST_BASE,
        memory_size: bytes,
        userspace_addr: USER_BASE,
        mmap_offset: offset,
        mmap_handle: client.file.as_raw_fd(),
    }
}

fn addresses(descriptors: u64, available: u64, used: u64) -> VringConfigData {
    VringConfigData {
        queue_max_size: 128,
        queue_size: 128,
        flags: 0,
        desc_table_addr: descriptors,
        used_ring_addr: used,
        avail_ring_addr: available,
        log_addr: None,
    }
}

/// Sets up all of queue 0 but what was set up wrong.
fn start_at(client: &mut Client, descriptors: u64, available: u64, used: u64) {
    client.lend(1 << 20).unwrap();
    let _ = client.frontend.set_vring_num(0, 128);
    let _ = client
        .frontend
        .set_vring_addr(0, &addresses(descriptors, available, used));
    let _ = client.frontend.set_vring_enable(0, true);
    let _ = client.frontend.set_vring_kick(0, &EventFd::new(0).unwrap());
}

#[test]
fn what_cannot_be_ends_the_connection_with_a_reason() {
    const BASE: u64 = USER_BASE;
    let wrongs: &[(&str, Wrong)] = &[
        ("size 0", |c| drop(c.frontend.set_vring_num(0, 0))),
        ("size 3", |c| drop(c.frontend.set_vring_num(0, 3))),
        ("size 2048", |c| drop(c.frontend.set_vring_num(0, 2048))),
        ("features 0x4000000", |c| {
            let log_all = 1 << 26;
            drop(c.frontend.set_features(c.features | log_all));
        }),
        ("protocol features 0x1000", |c| {
            let inflight = VhostUserProtocolFeatures::INFLIGHT_SHMFD;
            drop(c.frontend.set_protocol_features(inflight));
        }),
        ("reaches to 1048576 in a file", |c| {
            c.file.set_len(4096).unwrap();
            drop(c.frontend.set_mem_table(&[region(c, 0, 1 << 20)]));
        }),
        ("cannot be mapped", |c| {
            drop(c.frontend.set_mem_table(&[region(c, 1, 4096)]));
        }),
        ("intersect", |c| {
            let twice = [region(c, 0, 8192), region(c, 4096, 8192)];
            drop(c.frontend.set_mem_table(&twice));
        }),
        ("rings outside", |c| start_at(c, 0, BASE, BASE)),
        ("rings outside", |c| start_at(c, BASE, BASE, !15)),
        ("not in the guest's memory", |c| {
            start_at(c, BASE + (1 << 20) - 16, BASE, BASE);
        }),
        ("not in the guest's memory", |c| {
            start_at(c, BASE, BASE, BASE + (1 << 20) - 4);
        }),
        ("invalid message", |c| start_at(c, BASE + 8, BASE, BASE)),
        ("invalid message", |c| start_at(c, BASE, BASE + 1, BASE)),
        ("invalid message", |c| start_at(c, BASE, BASE, BASE + 2)),
        ("size", |c| {
            c.lend(1 << 20).unwrap();
            let _ = c.frontend.set_vring_addr(0, &addresses(BASE, BASE, BASE));
            let _ = c.frontend.set_vring_enable(0, true);
            drop(c.frontend.set_vring_kick(0, &EventFd::new(0).unwrap()));
        }),
        ("no eventfd", |c| {
            use std::os::fd::{FromRawFd, IntoRawFd};
            let (_reader, pipe) = std::io::pipe().unwrap();
            // SAFETY: the descriptor is open and given away.
            let pipe = unsafe { EventFd::from_raw_fd(pipe.into_raw_fd()) };
            drop(c.frontend.set_vring_call(0, &pipe));
        }),
        ("cannot be written", |c| {
            let flags = VhostUserConfigFlags::WRITABLE;
            drop(c.frontend.set_config(0, flags, &[0; 8]));
        }),
    ];
    let served = Served::new(Device::new(1 << 20));
    for (reason, wrong) in wrongs {
        served.notices.lock().unwrap().clear();
        let mut client = served.connect(Setup::default());
        wrong(&mut client);
        let notice = served.notice("disconnected");
        assert!(notice.contains(reason), "{reason}: {notice}");
        assert!(client.config(60).is_err(), "{reason}: still served");
        drop(client);
    }
    // A queue that does not exist, which the client's own library would not ask for.
    let client = served.connect(Setup {
        queues: 200,
        queue_size: 2,
        ..Setup::default()
    });
    client.frontend.set_vring_num(64, 128).unwrap_err();
    drop(client);
    let (_client, mut queues) = served.guest(Setup::default());
    assert_eq!(write(&mut queues[0], 0, &[1; 512]), OK);
}

#[test]
fn garbage_on_the_socket_ends_the_connection() {
    use std::io::{Read, Write};
    let served = Served::new(Device::new(1 << 20));
    let mut messages = vec![vec![0xff; 4096], b"GET / HTTP/1.1\r\n\r\n".to_vec()];
    let mut state = 1u32;
    for _ in 0..200 {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        let (kind, size) = (next() % 50, next() % 64);
        let mut message = [kind, 1 | (next() % 2 * 8), size]
            .map(u32::to_le_bytes)
            .concat();
        message.extend((0..size).map(|_| next() as u8));
        messages.push(message);
    }
    for message in messages {
        let mut stream = std::os::unix::net::UnixStream::connect(served.path()).unwrap();
        let _ = stream.write_all(&message);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        stream.set_read_timeout(Some(SOON)).unwrap();
        // Whatever it answers, it hangs up.
        let mut answer = Vec::new();
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(
                error.kind(),
                std::io::ErrorKind::ConnectionReset,
                "{message:?}"
            );
        }
    }
    let (_client, mut queues) = served.guest(Setup::default());
    assert_eq!(write(&mut queues[0], 0, &[1; 512]), OK);
}

#[test]
fn who_stops_within_a_message_is_hung_up_on() {
    use std::io::{Read, Write};
    let served = Served::new(Device::new(1 << 20));
    let mut stream = std::os::unix::net::UnixStream::connect(served.path()).unwrap();
    stream.write_all(&[1, 0, 0]).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let hung_up = stream.read(&mut [0]).unwrap_err();
    assert_eq!(hung_up.kind(), std::io::ErrorKind::ConnectionReset);
    served.notice("within a message");
}
