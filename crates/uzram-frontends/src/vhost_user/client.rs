//! A guest without a virtual machine: the other side of the protocol, for tests and benchmarks.
//!
//! A [`Client`] has memory of its own, lends it to a server, and drives queues in it as a guest's
//! driver does. A queue's requests lie in slots of a fixed size: header, status, room for data.
//! Notifications use event indexes where the server offers them.

use std::fs::File;
use std::io;
use std::num::Wrapping;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC, VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT,
    VRING_DESC_F_WRITE, VRING_USED_F_NO_NOTIFY,
};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// The guest's address of the memory.
pub const GUEST_BASE: u64 = 1 << 30;
/// The owner's address of the memory, as this client claims it.
pub const USER_BASE: u64 = 0x7e00_0000_0000;
/// Bytes of a slot before its data: header, status, a table of descriptors.
const SLOT_HEAD_BYTES: u64 = 4096;
const STATUS_AT: u64 = 16;
const TABLE_AT: u64 = 32;
/// Room for a queue's rings, in bytes: more than those of 1024 requests take.
const RINGS_BYTES: u64 = 64 << 10;

/// The set-up of a client.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Queues.
    pub queues: u16,
    /// Requests in each.
    pub queue_size: u16,
    /// Room for the data of a request, in bytes.
    pub data_bytes: u32,
    /// The features to take of those that are offered.
    pub features: u64,
}

impl Default for Setup {
    /// One queue of 128, 1 MiB of data, all features.
    fn default() -> Setup {
        Setup {
            queues: 1,
            queue_size: 128,
            data_bytes: 1 << 20,
            features: u64::MAX,
        }
    }
}

/// A connection with the memory that it lends.
pub struct Client {
    /// The protocol, for messages beyond those of [`Client::connect`].
    pub frontend: Frontend,
    /// The memory that is lent.
    pub memory: Arc<GuestMemoryMmap>,
    /// The file of that memory.
    pub file: File,
    /// Features that both sides have.
    pub features: u64,
    setup: Setup,
}

impl Client {
    /// Connects and agrees on features; lends nothing yet.
    ///
    /// # Errors
    /// The errors of the system and of the other side.
    pub fn connect(path: &Path, setup: Setup) -> io::Result<Client> {
        let bytes = setup.memory_bytes();
        let file = File::from(rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC)?);
        file.set_len(bytes)?;
        let range = (
            GuestAddress(GUEST_BASE),
            bytes as usize,
            Some(FileOffset::new(file.try_clone()?, 0)),
        );
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).map_err(other)?;
        let mut frontend = Frontend::connect(path, u64::from(setup.queues)).map_err(other)?;
        frontend.set_owner().map_err(other)?;
        let features = frontend.get_features().map_err(other)? & setup.features;
        let protocol = frontend.get_protocol_features().map_err(other)?;
        frontend.set_protocol_features(protocol).map_err(other)?;
        if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            let flags = vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY;
            frontend.set_hdr_flags(flags);
        }
        frontend.set_features(features).map_err(other)?;
        Ok(Client {
            frontend,
            memory: Arc::new(memory),
            file,
            features,
            setup,
        })
    }

    /// Lends the memory and starts all queues, each at its place in `bases`, or at 0.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn start(&mut self, bases: &[u16]) -> io::Result<Vec<Queue>> {
        self.lend(self.setup.memory_bytes())?;
        let queues = 0..self.setup.queues;
        queues
            .map(|index| {
                let base = bases.get(usize::from(index)).copied().unwrap_or(0);
                let queue = Queue::new(self, index, base)?;
                self.start_queue(&queue, base)?;
                Ok(queue)
            })
            .collect()
    }

    /// Lends the memory, and claims that it is `bytes` long.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn lend(&self, bytes: u64) -> io::Result<()> {
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST_BASE,
            memory_size: bytes,
            userspace_addr: USER_BASE,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        };
        self.frontend.set_mem_table(&[region]).map_err(other)?;
        Ok(())
    }

    /// Tells the server of a queue.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn start_queue(&mut self, queue: &Queue, base: u16) -> io::Result<()> {
        let index = usize::from(queue.index);
        let user = |address: u64| address - GUEST_BASE + USER_BASE;
        let addresses = VringConfigData {
            queue_max_size: queue.size,
            queue_size: queue.size,
            flags: 0,
            desc_table_addr: user(queue.descriptors),
            used_ring_addr: user(queue.used),
            avail_ring_addr: user(queue.available),
            log_addr: None,
        };
        self.frontend
            .set_vring_num(index, queue.size)
            .map_err(other)?;
        self.frontend
            .set_vring_addr(index, &addresses)
            .map_err(other)?;
        self.frontend.set_vring_base(index, base).map_err(other)?;
        self.frontend
            .set_vring_call(index, &queue.call)
            .map_err(other)?;
        self.frontend
            .set_vring_err(index, &queue.error)
            .map_err(other)?;
        self.frontend
            .set_vring_kick(index, &queue.kick)
            .map_err(other)?;
        self.frontend.set_vring_enable(index, true).map_err(other)
    }

    /// The first `length` bytes of the configuration space.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn config(&mut self, length: u32) -> io::Result<Vec<u8>> {
        let room = vec![0; length as usize];
        let flags = VhostUserConfigFlags::empty();
        let answer = self.frontend.get_config(0, length, flags, &room);
        answer.map(|(_, bytes)| bytes).map_err(other)
    }
}

impl Setup {
    fn slot_bytes(&self) -> u64 {
        SLOT_HEAD_BYTES + u64::from(self.data_bytes).next_multiple_of(4096)
    }

    fn queue_bytes(&self) -> u64 {
        RINGS_BYTES + u64::from(self.queue_size) * self.slot_bytes()
    }

    /// All of the memory, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.queues) * self.queue_bytes()
    }
}

/// A request that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Its slot.
    pub slot: u16,
    /// 0: success, 1: an error, 2: not supported.
    pub status: u8,
    /// Bytes that the server claims to have written.
    pub written: u32,
}

/// The direction of a request's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// The guest gives this many bytes.
    Given(u32),
    /// The guest takes this many bytes.
    Taken(u32),
}

/// A queue in a client's memory.
pub struct Queue {
    /// The memory.
    pub memory: Arc<GuestMemoryMmap>,
    /// Its number.
    pub index: u16,
    /// Requests that it has room for.
    pub size: u16,
    /// The place of its table of descriptors.
    pub descriptors: u64,
    /// The place of the guest's ring of requests to do.
    pub available: u64,
    /// The place of the server's ring of requests that are done.
    pub used: u64,
    /// The eventfd that wakes the server.
    pub kick: EventFd,
    /// The eventfd that wakes the guest.
    pub call: EventFd,
    /// The eventfd that tells that the queue is broken.
    pub error: EventFd,
    calls: Epoll,
    slots_at: u64,
    slot_bytes: u64,
    next_available: Wrapping<u16>,
    published: Wrapping<u16>,
    next_used: Wrapping<u16>,
    has_event_index: bool,
    has_indirect: bool,
}

impl Queue {
    /// A queue of `client`'s that continues at `base`.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(client: &Client, index: u16, base: u16) -> io::Result<Queue> {
        let setup = client.setup;
        let start = GUEST_BASE + u64::from(index) * setup.queue_bytes();
        let size = u64::from(setup.queue_size);
        let available = start + 16 * size;
        let used = (available + 6 + 2 * size).next_multiple_of(4);
        let (call, calls) = (EventFd::new(EFD_NONBLOCK)?, Epoll::new()?);
        let wish = EpollEvent::new(EventSet::IN, 0);
        calls.ctl(ControlOperation::Add, call.as_raw_fd(), wish)?;
        let has = |bit: u32| client.features & (1 << bit) != 0;
        Ok(Queue {
            memory: Arc::clone(&client.memory),
            index,
            size: setup.queue_size,
            descriptors: start,
            available,
            used,
            kick: EventFd::new(EFD_NONBLOCK)?,
            call,
            calls,
            error: EventFd::new(EFD_NONBLOCK)?,
            slots_at: start + RINGS_BYTES,
            slot_bytes: setup.slot_bytes(),
            next_available: Wrapping(base),
            published: Wrapping(base),
            next_used: Wrapping(base),
            has_event_index: has(VIRTIO_RING_F_EVENT_IDX),
            has_indirect: has(VIRTIO_RING_F_INDIRECT_DESC),
        })
    }

    /// Slots: without indirect descriptors a request takes three of the table.
    #[must_use]
    pub fn slots(&self) -> u16 {
        if self.has_indirect {
            self.size
        } else {
            self.size / 3
        }
    }

    /// The place of the data of `slot`.
    #[must_use]
    pub fn data_at(&self, slot: u16) -> GuestAddress {
        GuestAddress(self.slot_at(slot) + SLOT_HEAD_BYTES)
    }

    /// Puts a request into `slot`, which must be free, without telling the server.
    pub fn submit(&mut self, slot: u16, kind: u32, sector: u64, data: Data) {
        let at = self.slot_at(slot);
        let mut header = [0; 17];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..16].copy_from_slice(&sector.to_le_bytes());
        header[16] = 0xff;
        self.put(at, &header);
        let (length, is_taken) = match data {
            Data::Given(length) => (length, false),
            Data::Taken(length) => (length, true),
        };
        let body = self.data_at(slot).0;
        let parts = [
            (at, 16, false),
            (body, length, is_taken),
            (at + STATUS_AT, 1, true),
        ];
        let parts = parts.iter().filter(|(_, length, _)| *length > 0).copied();
        self.describe(slot, parts);
        let ring_at = u64::from(self.next_available.0 % self.size) * 2;
        let head = if self.has_indirect { slot } else { slot * 3 };
        self.put(self.available + 4 + ring_at, &head.to_le_bytes());
        self.next_available += 1;
    }

    /// Publishes the submitted requests and wakes the server, if it wants to be woken.
    pub fn kick(&mut self) {
        let (old, new) = (self.published, self.next_available);
        self.published = new;
        let index_at = GuestAddress(self.available + 2);
        let stored = self
            .memory
            .store(new.0.to_le(), index_at, Ordering::Release);
        stored.expect("the ring is in this memory");
        // The index is there before the server is asked whether it sleeps.
        fence(Ordering::SeqCst);
        let wants = match self.has_event_index {
            true => {
                let event = Wrapping(self.load(self.used + 4 + 8 * u64::from(self.size)));
                new - event - Wrapping(1) < new - old
            }
            false => u32::from(self.load(self.used)) & VRING_USED_F_NO_NOTIFY == 0,
        };
        if wants {
            self.kick.write(1).expect("an eventfd takes a kick");
        }
    }

    /// The next request that is done.
    pub fn completed(&mut self) -> Option<Completed> {
        let index = self
            .memory
            .load(GuestAddress(self.used + 2), Ordering::Acquire);
        let index: u16 = index.expect("the ring is in this memory");
        if u16::from_le(index) == self.next_used.0 {
            return None;
        }
        let entry_at = self.used + 4 + u64::from(self.next_used.0 % self.size) * 8;
        let mut entry = [0; 8];
        self.get(entry_at, &mut entry);
        let [head, written] = [0, 4].map(|at| {
            let mut word = [0; 4];
            word.copy_from_slice(&entry[at..at + 4]);
            u32::from_le_bytes(word)
        });
        self.next_used += 1;
        let slot = if self.has_indirect { head } else { head / 3 } as u16;
        let mut status = [0];
        self.get(self.slot_at(slot) + STATUS_AT, &mut status);
        Some(Completed {
            slot,
            status: status[0],
            written,
        })
    }

    /// Sleeps until a request is done that was not when this was called, or `limit` has passed.
    pub fn wait(&mut self, limit: Duration) {
        if self.has_event_index {
            let event_at = GuestAddress(self.available + 4 + 2 * u64::from(self.size));
            let stored = self
                .memory
                .store(self.next_used.0.to_le(), event_at, Ordering::Relaxed);
            stored.expect("the ring is in this memory");
            // The wish is there before a last look.
            fence(Ordering::SeqCst);
            if self.load(self.used + 2) != self.next_used.0 {
                return;
            }
        }
        let limit_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        let _ = self.calls.wait(limit_ms, &mut [EpollEvent::default()]);
        let _ = self.call.read();
    }

    /// One request from submission to its end; `None` if it takes longer than `limit`.
    pub fn request(
        &mut self,
        kind: u32,
        sector: u64,
        data: Data,
        limit: Duration,
    ) -> Option<Completed> {
        self.submit(0, kind, sector, data);
        self.kick();
        let begun = std::time::Instant::now();
        loop {
            if let Some(done) = self.completed() {
                return Some(done);
            }
            let left = limit.checked_sub(begun.elapsed())?;
            self.wait(left);
        }
    }

    /// Requests put into the queue so far.
    #[must_use]
    pub fn next_available(&self) -> u16 {
        self.next_available.0
    }

    /// Requests taken out of it so far.
    #[must_use]
    pub fn next_used(&self) -> u16 {
        self.next_used.0
    }

    fn slot_at(&self, slot: u16) -> u64 {
        self.slots_at + u64::from(slot) * self.slot_bytes
    }

    /// Writes the descriptors of a slot: in a table of its own, or three of the queue's.
    fn describe(&self, slot: u16, parts: impl Iterator<Item = (u64, u32, bool)> + Clone) {
        let (table, first) = match self.has_indirect {
            true => (self.slot_at(slot) + TABLE_AT, 0),
            false => (self.descriptors, slot * 3),
        };
        let count = parts.clone().count() as u16;
        for (nth, (address, length, is_taken)) in (0..).zip(parts) {
            let next = (nth + 1 < count).then_some(first + nth + 1);
            let mut flags = next.map_or(0, |_| VRING_DESC_F_NEXT);
            flags |= if is_taken { VRING_DESC_F_WRITE } else { 0 };
            let at = table + u64::from(first + nth) * 16;
            self.put_descriptor(at, address, length, flags as u16, next.unwrap_or(0));
        }
        if self.has_indirect {
            let at = self.descriptors + u64::from(slot) * 16;
            let bytes = u32::from(count) * 16;
            self.put_descriptor(at, table, bytes, VRING_DESC_F_INDIRECT as u16, 0);
        }
    }

    /// Writes one descriptor at the guest's address `at`.
    pub fn put_descriptor(&self, at: u64, address: u64, length: u32, flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.put(at, &bytes);
    }

    fn load(&self, at: u64) -> u16 {
        let word: u16 = self
            .memory
            .load(GuestAddress(at), Ordering::Relaxed)
            .expect("the ring is in this memory");
        u16::from_le(word)
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let put = self.memory.write_slice(bytes, GuestAddress(at));
        put.expect("the queue is in this memory");
    }

    fn get(&self, at: u64, bytes: &mut [u8]) {
        let got = self.memory.read_slice(bytes, GuestAddress(at));
        got.expect("the queue is in this memory");
    }
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}
