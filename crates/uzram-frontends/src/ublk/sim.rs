//! A driver for tests: the kernel's handling of commands, queues and requests, in memory, with the
//! faults that it could have.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::io::Errno;
use uzram::{Bio, BlockDevice};

use super::lifecycle::{Ask, Driver};
use super::protocol::{Control, Descriptor, FEATURE_IOCTL_ENCODE, INFO_BYTES, Info, State};
use super::queue::{Arrival, Channel};

const WRITE: u32 = 1;

/// The behaviour of the driver.
pub(super) struct Rules {
    pub features: u64,
    /// Commands that fail, with their errno.
    pub refused: HashMap<u8, Errno>,
    /// Opening the device's node fails.
    pub node: Option<Errno>,
    /// The answers to a queue's first words.
    pub fetch: i32,
    /// The driver's changes to a wish.
    pub offer: fn(Info) -> Info,
    /// Users without privileges are let in only with their flag.
    pub is_privileged: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            features: FEATURE_IOCTL_ENCODE,
            refused: HashMap::new(),
            node: None,
            fetch: 0,
            offer: |info| info,
            is_privileged: true,
        }
    }
}

/// The record of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub command: Control,
    pub id: u32,
    pub by_path: bool,
}

#[derive(Default)]
struct Inner {
    asked: Vec<Asked>,
    added: Vec<Info>,
    devices: HashMap<u32, Info>,
    queues: HashMap<u16, Sender<Event>>,
    channels_count: usize,
    is_recovering: bool,
    /// Tags fetched since the recovery began.
    fetched: u32,
}

/// The driver. Its clones are the same one.
#[derive(Clone)]
pub(super) struct Sim {
    rules: Arc<Rules>,
    device: Arc<dyn BlockDevice>,
    state: Arc<Mutex<Inner>>,
}

/// A message to a queue.
enum Event {
    Request(Request),
    /// Something that no kernel sends.
    Raw(Arrival),
    Stop,
}

struct Request {
    descriptor: Descriptor,
    data: Vec<u8>,
    answer: Sender<(i32, Vec<u8>)>,
}

impl Inner {
    fn note_fetch(&mut self) {
        if self.is_recovering {
            self.fetched += 1;
        }
    }
}

impl Sim {
    /// The death of the server: its queues end, and the disk waits for another one.
    pub(super) fn kill(&self, id: u32) {
        let mut state = self.lock();
        state.devices.get_mut(&id).unwrap().state = State::Quiesced;
        state.fetched = 0;
        for queue in state.queues.values() {
            let _ = queue.send(Event::Stop);
        }
    }

    pub(super) fn new(device: &Arc<dyn BlockDevice>, rules: Rules) -> Sim {
        Sim {
            rules: Arc::new(rules),
            device: Arc::clone(device),
            state: Arc::default(),
        }
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.lock().asked.clone()
    }

    /// The wishes with which devices were added.
    pub(super) fn added(&self) -> Vec<Info> {
        self.lock().added.clone()
    }

    pub(super) fn devices_count(&self) -> usize {
        self.lock().devices.len()
    }

    pub(super) fn state(&self, id: u32) -> State {
        self.lock().devices[&id].state
    }

    /// Queues that are open.
    pub(super) fn channels_count(&self) -> usize {
        self.lock().channels_count
    }

    /// Hands a request to a queue, and waits for its answer and the content of its buffer then.
    pub(super) fn request(
        &self,
        queue: u16,
        descriptor: Descriptor,
        data: &[u8],
    ) -> (i32, Vec<u8>) {
        self.request_later(queue, descriptor, data).recv().unwrap()
    }

    pub(super) fn request_later(
        &self,
        queue: u16,
        descriptor: Descriptor,
        data: &[u8],
    ) -> Receiver<(i32, Vec<u8>)> {
        let (answer, answered) = mpsc::channel();
        self.send(
            queue,
            Event::Request(Request {
                descriptor,
                data: data.to_vec(),
                answer,
            }),
        );
        answered
    }

    pub(super) fn raw(&self, queue: u16, arrival: Arrival) {
        self.send(queue, Event::Raw(arrival));
    }

    fn send(&self, queue: u16, event: Event) {
        let queue = self.lock().queues[&queue].clone();
        let _ = queue.send(event);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap()
    }

    fn add(&self, data: &mut [u8]) -> io::Result<()> {
        let wish = Info::decode(<&[u8; INFO_BYTES]>::try_from(&*data).unwrap());
        let mut state = self.lock();
        state.added.push(wish);
        if !self.rules.is_privileged && wish.features & (1 << 5) == 0 {
            return Err(Errno::PERM.into());
        }
        let id = state.devices.len() as u32 + 3;
        let info = (self.rules.offer)(Info { id, ..wish });
        state.devices.insert(id, info);
        data.copy_from_slice(&info.encode());
        Ok(())
    }
}

impl Driver for Sim {
    type Node = Sim;
    type Channel = SimChannel;

    fn command(&mut self, ask: Ask<'_>) -> io::Result<()> {
        self.lock().asked.push(Asked {
            command: ask.command,
            id: ask.id,
            by_path: ask.by_path,
        });
        if let Some(errno) = self.rules.refused.get(&(ask.command.code() as u8)) {
            return Err((*errno).into());
        }
        let mut state = self.lock();
        if !matches!(ask.command, Control::Features | Control::Add)
            && !state.devices.contains_key(&ask.id)
        {
            return Err(Errno::NODEV.into());
        }
        match ask.command {
            Control::Features => ask.data.copy_from_slice(&self.rules.features.to_ne_bytes()),
            Control::Add => {
                drop(state);
                return self.add(ask.data);
            }
            Control::Info => ask.data.copy_from_slice(&state.devices[&ask.id].encode()),
            Control::Start => {
                state.devices.get_mut(&ask.id).unwrap().state = State::Live;
            }
            Control::Stop => {
                state.devices.get_mut(&ask.id).unwrap().state = State::Dead;
                for queue in state.queues.values() {
                    let _ = queue.send(Event::Stop);
                }
            }
            Control::Delete | Control::DeleteLater => {
                state.devices.remove(&ask.id);
            }
            Control::StartRecovery => {
                if state.devices[&ask.id].state != State::Quiesced || state.channels_count > 0 {
                    return Err(Errno::BUSY.into());
                }
                state.is_recovering = true;
            }
            Control::EndRecovery => {
                let info = state.devices[&ask.id];
                // A real driver waits here for ever if a tag was not fetched; ours says so.
                if !state.is_recovering
                    || state.fetched < u32::from(info.queues) * u32::from(info.depth)
                {
                    return Err(Errno::TIMEDOUT.into());
                }
                state.is_recovering = false;
                state.devices.get_mut(&ask.id).unwrap().state = State::Live;
            }
            Control::SetParameters | Control::Affinity => {}
        }
        Ok(())
    }

    fn open(&mut self, _id: u32) -> io::Result<Sim> {
        match self.rules.node {
            None => Ok(self.clone()),
            Some(errno) => Err(errno.into()),
        }
    }

    fn channel(node: &Sim, info: &Info, queue: u16) -> io::Result<SimChannel> {
        let (events, arriving) = mpsc::channel();
        let mut state = node.lock();
        state.queues.insert(queue, events);
        state.channels_count += 1;
        drop(state);
        Ok(SimChannel {
            sim: node.clone(),
            arriving,
            said: Vec::new(),
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            tags: (0..info.depth).map(|_| Tag::default()).collect(),
            request_bytes: info.request_bytes as usize,
            is_stopped: false,
        })
    }
}

#[derive(Default)]
struct Tag {
    is_kernels: bool,
    buffer: Vec<u8>,
    request: Option<Request>,
}

/// A queue's channel to the simulated driver.
pub(super) struct SimChannel {
    sim: Sim,
    arriving: Receiver<Event>,
    /// Tags and results for the next submission; a first word has no result.
    said: Vec<(u16, Option<i32>)>,
    ready: VecDeque<Arrival>,
    /// Requests that wait for a tag.
    waiting: VecDeque<Request>,
    tags: Vec<Tag>,
    request_bytes: usize,
    is_stopped: bool,
}

impl SimChannel {
    fn hear(&mut self, tag: u16, result: Option<i32>) {
        let slot = &mut self.tags[usize::from(tag)];
        assert!(!slot.is_kernels, "tag {tag} is the kernel's already");
        slot.is_kernels = true;
        match (result, slot.request.take()) {
            (Some(result), Some(request)) => {
                check_stored(self.sim.device.as_ref(), &request, result);
                let _ = request.answer.send((result, slot.buffer.clone()));
            }
            (Some(_), None) => {}
            (None, _) if self.sim.rules.fetch != 0 => self.ready.push_back(Arrival {
                tag: tag.into(),
                result: self.sim.rules.fetch,
            }),
            (None, _) => self.sim.lock().note_fetch(),
        }
        if self.is_stopped {
            self.hand_back();
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Request(request) => self.waiting.push_back(request),
            Event::Raw(arrival) => {
                if let Some(tag) = self.tags.get_mut(arrival.tag as usize) {
                    tag.is_kernels = false;
                }
                self.ready.push_back(arrival);
            }
            Event::Stop => self.is_stopped = true,
        }
    }

    fn deliver(&mut self) {
        for (index, tag) in self.tags.iter_mut().enumerate() {
            if !tag.is_kernels {
                continue;
            }
            let Some(request) = self.waiting.pop_front() else {
                return;
            };
            // What an earlier request left must not be taken for this one's.
            tag.buffer = vec![0xee; self.request_bytes];
            tag.buffer[..request.data.len()].copy_from_slice(&request.data);
            tag.request = Some(request);
            tag.is_kernels = false;
            self.ready.push_back(Arrival {
                tag: index as u64,
                result: 0,
            });
        }
    }

    fn hand_back(&mut self) {
        for (index, tag) in self.tags.iter_mut().enumerate() {
            if std::mem::take(&mut tag.is_kernels) {
                self.ready.push_back(Arrival {
                    tag: index as u64,
                    result: -Errno::NODEV.raw_os_error(),
                });
            }
        }
    }
}

/// At the moment of the answer to a write its data must be in the device.
fn check_stored(device: &dyn BlockDevice, request: &Request, result: i32) {
    if request.descriptor.operation_and_flags & 0xff != WRITE || result < 0 {
        return;
    }
    let (offset, length) = request.descriptor.range().unwrap();
    let mut buffer = vec![0; length as usize];
    let read = Bio::Read {
        offset,
        buffer: &mut buffer,
    };
    device.submit(read).unwrap();
    if buffer != request.data[..buffer.len()] {
        // Not a panic, which would only end the queue: whoever waits for the answer sees it.
        let _ = request.answer.send((i32::MIN, buffer));
    }
}

impl Channel for SimChannel {
    fn depth(&self) -> u16 {
        self.tags.len() as u16
    }

    fn fetch(&mut self, tag: u16) {
        self.said.push((tag, None));
    }

    fn commit(&mut self, tag: u16, result: i32) {
        self.said.push((tag, Some(result)));
    }

    fn submit(&mut self, wait: bool) -> io::Result<()> {
        for (tag, result) in std::mem::take(&mut self.said) {
            self.hear(tag, result);
        }
        while let Ok(event) = self.arriving.try_recv() {
            self.take(event);
        }
        loop {
            self.deliver();
            if self.is_stopped && self.waiting.is_empty() {
                self.hand_back();
            }
            if !wait || !self.ready.is_empty() {
                return Ok(());
            }
            match self.arriving.recv() {
                Ok(event) => self.take(event),
                Err(_) => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
    }

    fn arrival(&mut self) -> Option<Arrival> {
        self.ready.pop_front()
    }

    fn request(&mut self, tag: u16) -> (Descriptor, &mut [u8]) {
        let slot = &mut self.tags[usize::from(tag)];
        let request = slot.request.as_ref();
        let descriptor = request.map_or(
            Descriptor {
                operation_and_flags: u32::MAX,
                sectors: u32::MAX,
                first_sector: u64::MAX,
            },
            |request| request.descriptor,
        );
        (descriptor, &mut slot.buffer)
    }

    fn abandon(&mut self) {}
}

impl Drop for SimChannel {
    fn drop(&mut self) {
        self.sim.lock().channels_count -= 1;
    }
}
