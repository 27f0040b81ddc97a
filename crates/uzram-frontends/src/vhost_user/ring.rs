//! One queue of a guest: its rings, the order in which its requests are carried out, and the
//! notifications of the guest.
//!
//! Requests are carried out in the order of arrival, and each is finished before the next is
//! taken. So at any moment the used ring of a queue tells how far it got. A guest's owner that
//! comes back, to this server or another, goes on from there. A request that is done twice was not
//! acknowledged before the second time.

use std::num::Wrapping;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use virtio_bindings::bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};

use super::QUEUE_SIZE_MAX;
use super::chain::{Broken, Chain};
use super::memory::Memory;
use super::request::Executor;

/// A ring's parts, by the guest's addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub size: u16,
    pub descriptors: GuestAddress,
    pub available: GuestAddress,
    pub used: GuestAddress,
    /// The first request to take.
    pub base: u16,
    pub has_event_index: bool,
}

const CUT_OFF: Broken = Broken("the guest's memory was cut off while in use");
const UNMAPPED: Broken = Broken("a ring that is not in the guest's memory");

/// A queue being served.
pub(super) struct Ring {
    queue: Queue,
    memory: Arc<Memory>,
    chain: Chain,
    executor: Executor,
}

impl Ring {
    /// # Errors
    /// [`Broken`] if the rings are not in the guest's memory.
    pub fn new(memory: Arc<Memory>, layout: Layout, executor: Executor) -> Result<Ring, Broken> {
        let queue = queue(&memory, layout)?;
        Ok(Ring {
            queue,
            memory,
            chain: Chain::new(),
            executor,
        })
    }

    /// Carries out the next request. Returns the number of bytes that it moved; `None` if there is
    /// no request.
    ///
    /// # Errors
    /// [`Broken`], and then this was the last call.
    pub fn serve_next(&mut self) -> Result<Option<u64>, Broken> {
        let outcome = self.serve_one();
        // Whatever was found, it may have been found in zeroes.
        match self.memory.is_whole() {
            true => outcome,
            false => Err(CUT_OFF),
        }
    }

    fn serve_one(&mut self) -> Result<Option<u64>, Broken> {
        let guest = &*self.memory;
        let available = self.queue.iter(guest);
        let mut available =
            available.map_err(|_| Broken("more requests available than the queue has room for"))?;
        let Some(chain) = available.next() else {
            return Ok(None);
        };
        let head = chain.head_index();
        if head >= self.queue.size() {
            return Err(Broken(
                "a request whose first descriptor is not in the queue",
            ));
        }
        self.chain.load(chain)?;
        let written = self.executor.execute(&self.chain, &self.memory)?;
        let told = self.queue.add_used(guest, head, written);
        told.map_err(|_| UNMAPPED)?;
        Ok(Some(
            self.chain.readable_bytes() + self.chain.writable_bytes(),
        ))
    }

    /// Whether there are requests.
    pub fn has_more(&self) -> Result<bool, Broken> {
        let index = self.queue.avail_idx(&*self.memory, Ordering::Relaxed);
        let index = index.map_err(|_| UNMAPPED)?;
        Ok(index != Wrapping(self.queue.next_avail()))
    }

    /// Whether the guest wants a notification of what was done since the last call.
    pub fn wants_interrupt(&mut self) -> Result<bool, Broken> {
        let guest = &*self.memory;
        let wanted = self.queue.needs_notification(guest).map_err(|_| UNMAPPED)?;
        if self.queue.event_idx_enabled() {
            return Ok(wanted);
        }
        let flags = GuestAddress(self.queue.avail_ring());
        let flags: u16 = guest.load(flags, Ordering::Relaxed).map_err(|_| UNMAPPED)?;
        Ok(u32::from(u16::from_le(flags)) & VRING_AVAIL_F_NO_INTERRUPT == 0)
    }

    /// Asks the guest to announce further requests. True if there are more already, which the
    /// guest need not announce.
    pub fn listen(&mut self) -> Result<bool, Broken> {
        let guest = &*self.memory;
        self.queue.enable_notification(guest).map_err(|_| UNMAPPED)
    }

    /// Asks the guest not to announce requests.
    pub fn ignore(&mut self) -> Result<(), Broken> {
        let guest = &*self.memory;
        self.queue.disable_notification(guest).map_err(|_| UNMAPPED)
    }

    /// The place to go on from.
    pub fn next_available(&self) -> u16 {
        self.queue.next_avail()
    }
}

/// The library's queue. It trusts addresses once they were checked.
fn queue(memory: &Memory, layout: Layout) -> Result<Queue, Broken> {
    let bad_size = Broken("a queue whose size is not a power of two up to 1024");
    let misaligned = Broken("a ring that is not aligned");
    let mut queue = Queue::new(QUEUE_SIZE_MAX).map_err(|_| bad_size)?;
    queue.try_set_size(layout.size).map_err(|_| bad_size)?;
    queue
        .try_set_desc_table_address(layout.descriptors)
        .map_err(|_| misaligned)?;
    queue
        .try_set_avail_ring_address(layout.available)
        .map_err(|_| misaligned)?;
    queue
        .try_set_used_ring_address(layout.used)
        .map_err(|_| misaligned)?;
    let size = usize::from(layout.size);
    // Table; flags, index and entries, and the index that the other side waits for.
    let holds = |at, length| memory.check_range(at, length, Permissions::ReadWrite);
    let is_held = holds(layout.descriptors, 16 * size)
        && holds(layout.available, 6 + 2 * size)
        && holds(layout.used, 6 + 8 * size);
    // At 0 the library takes a ring for one that was never set.
    if !is_held || layout.available.0 == 0 {
        return Err(UNMAPPED);
    }
    queue.set_event_idx(layout.has_event_index);
    queue.set_next_avail(layout.base);
    queue.set_ready(true);
    let used = queue.used_idx(memory, Ordering::Acquire);
    queue.set_next_used(used.map_err(|_| UNMAPPED)?.0);
    Ok(queue)
}
