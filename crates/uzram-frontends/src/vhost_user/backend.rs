//! The messages of a guest's owner over the socket: memory, rings, features. All of them are
//! checked before use. A wrong one ends the connection, with a reason.
//!
//! A queue is served while everything that it needs is known. A change of one of these things
//! stops the queue first and starts it again, so a queue's thread never sees a change.

use std::fs::File;
use std::sync::Arc;

use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

use super::chain::Broken;
use super::config::{self, ConfigSpace};
use super::memory::Memory;
use super::request::Executor;
use super::ring::{Layout, Ring};
use super::worker::{Call, Event, Worker};
use super::{Disk, Notices, QUEUE_SIZE_MAX, QUEUES_MAX};

/// The places of a ring's parts, by the owner's addresses.
#[derive(Clone, Copy, Debug)]
struct Addresses {
    descriptors: u64,
    available: u64,
    used: u64,
}

/// A queue as far as it is known.
#[derive(Debug, Default)]
struct Queue {
    size: u16,
    base: u16,
    addresses: Option<Addresses>,
    kick: Option<Arc<Event>>,
    call: Arc<Call>,
    error: Option<Arc<Event>>,
    is_enabled: bool,
    worker: Option<Worker>,
    /// The queue is broken until its owner starts it anew.
    is_broken: bool,
}

impl Queue {
    /// Ends serving it, and records the place that it reached.
    fn stop(&mut self) {
        if let Some(worker) = self.worker.take() {
            let ended = worker.stop();
            self.base = ended.next_available;
            self.is_broken |= ended.broken.is_some();
        }
    }
}

/// One guest's use of a disk.
pub(super) struct Backend {
    disk: Disk,
    config: ConfigSpace,
    acknowledged: u64,
    memory: Option<Arc<Memory>>,
    queues: Vec<Queue>,
    notices: Notices,
    /// The reason for the end of the connection.
    problem: Option<String>,
}

impl Backend {
    pub fn new(disk: Disk, notices: Notices) -> Backend {
        let geometry = disk.device.geometry();
        Backend {
            config: ConfigSpace {
                size_bytes: geometry.size_bytes,
                block_bytes: geometry.preferred_block_bytes,
                is_writeback: true,
            },
            disk,
            acknowledged: 0,
            memory: None,
            queues: (0..QUEUES_MAX).map(|_| Queue::default()).collect(),
            notices,
            problem: None,
        }
    }

    /// The first fault, if there was one.
    pub fn problem(&mut self) -> Option<String> {
        self.problem.take()
    }

    /// Ends serving all queues. Requests that were begun are finished.
    pub fn stop(&mut self) {
        self.queues.iter_mut().for_each(Queue::stop);
    }

    fn refuse<T>(&mut self, why: impl Into<String>) -> Result<T> {
        self.problem = Some(why.into());
        Err(Error::InvalidParam)
    }

    /// Stops a queue, changes it, and serves it again if everything is known.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut Queue)) -> Result<()> {
        let place = usize::try_from(index).ok();
        let Some(queue) = place.and_then(|index| self.queues.get_mut(index)) else {
            return self.refuse(format!("queue {index}: there are {QUEUES_MAX}"));
        };
        queue.stop();
        change(queue);
        self.start(index as usize)
    }

    /// Stops all queues, makes a change, and starts them again.
    fn change_all(&mut self, change: impl FnOnce(&mut Backend) -> Result<()>) -> Result<()> {
        self.stop();
        change(self)?;
        (0..self.queues.len()).try_for_each(|index| self.start(index))
    }

    fn start(&mut self, index: usize) -> Result<()> {
        let has_protocol = self.acknowledged & config::PROTOCOL_FEATURES != 0;
        let queue = &mut self.queues[index];
        // Owners that do not negotiate have no word for enabling.
        let is_enabled = queue.is_enabled || !has_protocol;
        let (Some(memory), Some(addresses), Some(kick), true) = (
            &self.memory,
            queue.addresses,
            &queue.kick,
            is_enabled && !queue.is_broken,
        ) else {
            return Ok(());
        };
        let at = |address| memory.guest_address(address);
        let (Some(descriptors), Some(available), Some(used)) = (
            at(addresses.descriptors),
            at(addresses.available),
            at(addresses.used),
        ) else {
            return self.refuse(format!(
                "queue {index}: rings outside of the guest's memory"
            ));
        };
        let layout = Layout {
            size: queue.size,
            descriptors,
            available,
            used,
            base: queue.base,
            has_event_index: self.acknowledged & (1 << VIRTIO_RING_F_EVENT_IDX) != 0,
        };
        let writes_through = config::writes_through(self.acknowledged, self.config.is_writeback);
        let executor = Executor::new(&self.disk, writes_through);
        let ring = match Ring::new(Arc::clone(memory), layout, executor) {
            Ok(ring) => ring,
            Err(Broken(why)) => return self.refuse(format!("queue {index}: {why}")),
        };
        let (error, notices) = (queue.error.clone(), Arc::clone(&self.notices));
        let on_broken = move |Broken(why): Broken| {
            notices(&format!(
                "queue {index}: {why}; not served until the guest resets it"
            ));
            if let Some(error) = error {
                error.signal();
            }
        };
        let worker = Worker::start(ring, Arc::clone(kick), Arc::clone(&queue.call), on_broken);
        match worker {
            Ok(worker) => {
                queue.worker = Some(worker);
                Ok(())
            }
            Err(error) => self.refuse(format!("queue {index}: no thread: {error}")),
        }
    }

    fn event(&mut self, file: Option<File>) -> Result<Option<Event>> {
        match file.map(Event::new).transpose() {
            Ok(event) => Ok(event),
            Err(why) => self.refuse(why),
        }
    }

    fn cannot<T>(&mut self, what: &str) -> Result<T> {
        self.refuse(format!("{what}: not offered, and asked for all the same"))
    }
}

impl VhostUserBackendReqHandlerMut for Backend {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    /// Ends serving until queues are enabled again, as the protocol's description recommends.
    fn reset_owner(&mut self) -> Result<()> {
        self.change_all(|backend| {
            let queues = backend.queues.iter_mut();
            queues.for_each(|queue| queue.is_enabled = false);
            Ok(())
        })
    }

    fn reset_device(&mut self) -> Result<()> {
        self.cannot("a reset of the device")
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(config::features(self.disk.is_read_only))
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !config::features(self.disk.is_read_only);
        if unknown != 0 {
            return self.cannot(&format!("features {unknown:#x}"));
        }
        self.change_all(|backend| {
            backend.acknowledged = features;
            Ok(())
        })
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        // Not offered, as they cannot be honoured: LOG_SHMFD (pages that were written while a guest
        // moves elsewhere), INFLIGHT_SHMFD (nothing is in flight out of order, see `ring`).
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !self.get_protocol_features()?.bits();
        match unknown {
            0 => Ok(()),
            _ => self.cannot(&format!("protocol features {unknown:#x}")),
        }
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(u64::from(QUEUES_MAX))
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        self.change_all(|backend| {
            // First: a guest's memory is mapped once.
            backend.memory = None;
            match Memory::map(regions, files) {
                Ok(memory) => {
                    backend.memory = Some(Arc::new(memory));
                    Ok(())
                }
                Err(why) => backend.refuse(why),
            }
        })?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, size: u32) -> Result<()> {
        let is_power = size.is_power_of_two();
        match u16::try_from(size) {
            Ok(size) if is_power && size <= QUEUE_SIZE_MAX => {
                self.change(index, |queue| queue.size = size)
            }
            _ => self.refuse(format!(
                "queue {index}: size {size}, must be a power of two up to {QUEUE_SIZE_MAX}"
            )),
        }
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _dirty_pages: u64,
    ) -> Result<()> {
        if !flags.is_empty() {
            return self.cannot("a record of the pages that are written");
        }
        let addresses = Addresses {
            descriptors,
            available,
            used,
        };
        self.change(index, |queue| queue.addresses = Some(addresses))
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        match u16::try_from(base) {
            Ok(base) => self.change(index, |queue| queue.base = base),
            Err(_) => self.refuse(format!("queue {index}: begins at {base}, above 65535")),
        }
    }

    /// Stops the queue until a kick is set again.
    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.change(index, |queue| {
            queue.kick = None;
            queue.is_broken = false;
        })?;
        let base = self.queues[index as usize].base;
        Ok(VhostUserVringState::new(index, base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let Some(event) = self.event(file)? else {
            return self.refuse(format!("queue {index}: no kick; polling is not offered"));
        };
        self.change(index.into(), |queue| queue.kick = Some(Arc::new(event)))
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let event = self.event(file)?;
        // While it is served: owners mask and unmask interrupts so.
        match self.queues.get(usize::from(index)) {
            Some(queue) => queue.call.set(event),
            None => return self.refuse(format!("queue {index}: there are {QUEUES_MAX}")),
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let event = self.event(file)?.map(Arc::new);
        self.change(index.into(), |queue| queue.error = event)
    }

    fn set_vring_enable(&mut self, index: u32, is_enabled: bool) -> Result<()> {
        self.change(index, |queue| queue.is_enabled = is_enabled)
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        self.config.read(offset, size).ok_or(Error::InvalidParam)
    }

    fn set_config(&mut self, offset: u32, data: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        let mut changed = None;
        self.change_all(|backend| {
            changed = backend.config.write(offset, data);
            Ok(())
        })?;
        match changed {
            Some(()) => Ok(()),
            None => self.refuse(format!("configuration at {offset}: cannot be written")),
        }
    }

    fn set_gpu_socket(&mut self, _socket: GpuBackend) -> Result<()> {
        self.cannot("a display")
    }

    fn get_shared_object(&mut self, _object: VhostUserSharedMsg) -> Result<File> {
        self.cannot("shared objects")
    }

    fn get_inflight_fd(
        &mut self,
        _inflight: &VhostUserInflight,
    ) -> Result<(VhostUserInflight, File)> {
        self.cannot("a record of requests in flight")
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        self.cannot("a record of requests in flight")
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        self.cannot("memory slots")
    }

    fn add_mem_region(
        &mut self,
        _region: &VhostUserSingleMemoryRegion,
        _file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        self.cannot("memory slots")
    }

    fn remove_mem_region(&mut self, _region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.cannot("memory slots")
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        self.cannot("device state")
    }

    fn check_device_state(&mut self) -> Result<()> {
        self.cannot("device state")
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        self.cannot("shared memory")
    }

    fn set_log_base(&mut self, _pages: &VhostUserLog, _file: File) -> Result<()> {
        self.cannot("a record of the pages that are written")
    }
}
