//! The entries for the fuzz targets: a kernel that says anything about requests and devices, and
//! no kernel. Both check that this side keeps to the protocol: a tag is answered once and only
//! while it is ours, and whatever the driver was made to add is deleted.

use std::collections::HashSet;
use std::io;
use std::slice;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use uzram::BlockDevice;

use super::lifecycle::{Ask, Driver, Served, Wish};
use super::protocol::{Control, Descriptor, FEATURE_IOCTL_ENCODE, INFO_BYTES, Info, SECTOR_BYTES};
use super::queue::{Arrival, Channel, Queue};
use super::{DEPTH_MAX, QUEUES_MAX, REQUEST_BYTES_MAX};

/// The kernel's words about a tag and the request under it.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    pub tag: u64,
    pub result: i32,
    pub operation_and_flags: u32,
    pub sectors: u32,
    pub first_sector: u64,
    /// The byte that fills the first sector of the request's buffer when it arrives; each next
    /// sector has the next one.
    pub fill: u8,
    /// Whether the next word arrives only after another system call.
    pub is_last_of_batch: bool,
}

impl Said {
    /// The first bytes of the request's buffer when it arrives.
    pub fn fill(&self, bytes: &mut [u8]) {
        let sectors = bytes.chunks_mut(SECTOR_BYTES as usize);
        for (nth, sector) in (0..=u8::MAX).cycle().zip(sectors) {
            sector.fill(self.fill.wrapping_add(nth));
        }
    }
}

/// A queue, and its end.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub depth: u16,
    pub request_bytes: usize,
    /// At the end the kernel cannot be reached, instead of handing all tags back.
    pub is_lost: bool,
}

/// Serves the words `said` to a queue on `device`. `answered` gets each request that was carried
/// out: the content of its buffer then, and its result.
///
/// # Panics
/// If the queue breaks the protocol, or does not end with the last word.
pub fn serve(
    device: &dyn BlockDevice,
    shape: Shape,
    said: &[Said],
    answered: &mut dyn FnMut(&Said, &[u8], i32),
) {
    let mut is_abandoned = false;
    let script = Script {
        said: said.iter(),
        asked: None,
        holders: vec![Holder::Queue; shape.depth.into()],
        buffer: vec![0; shape.request_bytes],
        is_last_of_batch: false,
        is_over: false,
        is_lost: shape.is_lost,
        is_abandoned: &mut is_abandoned,
        answered,
    };
    let queue = Queue::begin(script, device).expect("nothing is refused yet");
    let ended = queue.run();
    // Tags that stay with the kernel keep their buffers mapped.
    assert_eq!(ended.is_err(), is_abandoned, "{ended:?}");
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Kernel,
    Queue,
    /// Handed back with an error.
    Nobody,
}

/// A queue's channel to a kernel that follows the given words.
struct Script<'a> {
    said: slice::Iter<'a, Said>,
    /// The last arrival, until it is answered.
    asked: Option<&'a Said>,
    /// By tag.
    holders: Vec<Holder>,
    /// One buffer for all tags: requests are carried out one by one, and none relies on the
    /// buffer's former content.
    buffer: Vec<u8>,
    is_last_of_batch: bool,
    is_over: bool,
    is_lost: bool,
    is_abandoned: &'a mut bool,
    answered: &'a mut dyn FnMut(&Said, &[u8], i32),
}

impl Script<'_> {
    /// Takes the queue's word about a tag. From now on the tag is the kernel's.
    fn take(&mut self, tag: u16) {
        let holder = &mut self.holders[usize::from(tag)];
        assert_eq!(*holder, Holder::Queue, "tag {tag}");
        *holder = Holder::Kernel;
    }

    fn hand_back(&mut self) -> Option<Arrival> {
        let mut holders = self.holders.iter();
        let tag = holders.position(|holder| *holder == Holder::Kernel)?;
        self.holders[tag] = Holder::Nobody;
        Some(Arrival {
            tag: tag as u64,
            result: -Errno::NODEV.raw_os_error(),
        })
    }
}

impl Channel for Script<'_> {
    fn depth(&self) -> u16 {
        self.holders.len() as u16
    }

    fn fetch(&mut self, tag: u16) {
        self.take(tag);
    }

    fn commit(&mut self, tag: u16, result: i32) {
        self.take(tag);
        let said = self.asked.take().expect("an answer to nothing");
        assert_eq!(said.tag, u64::from(tag));
        match said.result {
            0 => (self.answered)(said, &self.buffer, result),
            _ => assert!(result < 0, "{said:?}: {result}"),
        }
    }

    fn submit(&mut self, wait: bool) -> io::Result<()> {
        assert!(!*self.is_abandoned);
        if !wait {
            return Ok(());
        }
        self.is_last_of_batch = false;
        if !self.said.as_slice().is_empty() {
            return Ok(());
        }
        if self.is_lost {
            return Err(Errno::NXIO.into());
        }
        assert!(!self.is_over, "all tags are back, and the queue waits");
        self.is_over = true;
        Ok(())
    }

    fn arrival(&mut self) -> Option<Arrival> {
        if self.is_over {
            return self.hand_back();
        }
        if self.is_last_of_batch {
            return None;
        }
        let said = self.said.next()?;
        self.is_last_of_batch = said.is_last_of_batch;
        self.asked = None;
        let tag = usize::try_from(said.tag).ok();
        let holder = tag.and_then(|tag| self.holders.get_mut(tag));
        if let Some(holder) = holder.filter(|holder| **holder == Holder::Kernel) {
            *holder = match said.result {
                0.. => Holder::Queue,
                _ => Holder::Nobody,
            };
            self.asked = Some(said);
        }
        Some(Arrival {
            tag: said.tag,
            result: said.result,
        })
    }

    fn request(&mut self, tag: u16) -> (Descriptor, &mut [u8]) {
        assert_eq!(self.holders[usize::from(tag)], Holder::Queue, "tag {tag}");
        let said = self.asked.expect("a request that nobody made");
        said.fill(&mut self.buffer);
        let descriptor = Descriptor {
            operation_and_flags: said.operation_and_flags,
            sectors: said.sectors,
            first_sector: said.first_sector,
        };
        (descriptor, &mut self.buffer)
    }

    fn abandon(&mut self) {
        *self.is_abandoned = true;
    }
}

/// Makes a disk of `queues` queues, `depth` deep, and takes it away again. The driver answers by
/// `answers` and cooperates once they are used up.
///
/// # Panics
/// If a queue is opened that was not asked for, or the disk is not removed completely.
pub fn start(device: &Arc<dyn BlockDevice>, queues: u16, depth: u16, answers: &[u8]) {
    let wish = Wish {
        queues,
        depth,
        label: 7,
        outlives: false,
    };
    let liar = Liar {
        wish,
        state: Arc::default(),
    };
    liar.lock().answers = answers.iter().rev().copied().collect();
    let served = Served::start(liar.clone(), device, wish);
    if let Ok(served) = &served {
        let state = liar.lock();
        assert!((1..=QUEUES_MAX).contains(&queues) && (1..=DEPTH_MAX).contains(&depth));
        assert!(state.added.is_some_and(|info| info.id == served.id()));
        assert!(state.accepted.contains(&Control::Start.code()));
        assert!(state.accepted.contains(&Control::SetParameters.code()));
        assert!(state.channels_count >= 1);
    }
    if let Ok(mut served) = served
        && served.remove().is_err()
    {
        // May be tried again, which its destructor does too.
        let _ = served.remove();
    }
    let state = liar.lock();
    let is_deleted = state.added.is_none() || state.is_delete_asked;
    assert!(is_deleted, "a device is left");
    assert_eq!(state.channels_count, 0, "queues are left");
}

/// A driver that answers anything. Its clones are the same one.
#[derive(Clone)]
struct Liar {
    wish: Wish,
    state: Arc<(Mutex<Lies>, Condvar)>,
}

#[derive(Default)]
struct Lies {
    /// The last element is the next answer.
    answers: Vec<u8>,
    /// The description of the device when it was added.
    added: Option<Info>,
    accepted: HashSet<u32>,
    is_stop_refused: bool,
    is_delete_asked: bool,
    /// Whether the queues' tags are handed back.
    is_over: bool,
    channels_count: usize,
}

impl Lies {
    fn next(&mut self) -> u8 {
        self.answers.pop().unwrap_or(0)
    }

    /// The driver's output over `data`: nothing, some other byte, or any bytes at all.
    fn spoil(&mut self, data: &mut [u8]) {
        match self.next() % 4 {
            1 => {
                let at = usize::from(self.next());
                if let Some(byte) = data.get_mut(at) {
                    *byte = self.next();
                }
            }
            2 => data.fill_with(|| self.next()),
            _ => {}
        }
    }
}

impl Liar {
    fn lock(&self) -> MutexGuard<'_, Lies> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver for Liar {
    type Node = Liar;
    type Channel = Silent;

    fn command(&mut self, ask: Ask<'_>) -> io::Result<()> {
        let mut state = self.lock();
        match ask.command {
            Control::Stop => {
                state.is_over = true;
                self.state.1.notify_all();
            }
            Control::Delete | Control::DeleteLater => {
                let info = state.added.expect("a deletion of nothing");
                assert_eq!(ask.id, info.id);
                state.is_delete_asked = true;
            }
            // Who deletes waits for the number to be free.
            Control::Info if state.is_delete_asked => return Err(Errno::NODEV.into()),
            Control::Features => {
                let mut features = FEATURE_IOCTL_ENCODE.to_ne_bytes();
                state.spoil(&mut features);
                ask.data.copy_from_slice(&features);
            }
            Control::Add | Control::Info | Control::Affinity => state.spoil(ask.data),
            Control::SetParameters | Control::Start => {}
            Control::StartRecovery | Control::EndRecovery => panic!("a recovery of a new device"),
        }
        let errno = i32::from(state.next().saturating_sub(0x80));
        if errno != 0 {
            let is_stop = ask.command == Control::Stop;
            // Once, and of a disk that is there: who refuses it for ever keeps the queues for ever.
            let is_started = state.accepted.contains(&Control::Start.code());
            if !is_stop || is_started && !state.is_stop_refused {
                state.is_stop_refused |= is_stop;
                return Err(Errno::from_raw_os_error(errno).into());
            }
        }
        if ask.command == Control::Add {
            let said = <&[u8; INFO_BYTES]>::try_from(&*ask.data).expect("what Add is given");
            state.added = Some(Info::decode(said));
        }
        state.accepted.insert(ask.command.code());
        Ok(())
    }

    fn open(&mut self, id: u32) -> io::Result<Liar> {
        let mut state = self.lock();
        assert!(state.added.is_some_and(|info| info.id == id));
        match state.next() {
            0..=0xf0 => Ok(self.clone()),
            _ => Err(Errno::ACCESS.into()),
        }
    }

    fn channel(node: &Liar, info: &Info, queue: u16) -> io::Result<Silent> {
        let wish = node.wish;
        assert!(queue < info.queues && info.queues <= wish.queues);
        assert!((1..=wish.depth).contains(&info.depth));
        assert!((512..=REQUEST_BYTES_MAX).contains(&info.request_bytes));
        let mut state = node.lock();
        if state.next() > 0xf0 {
            return Err(Errno::NOMEM.into());
        }
        let refusal = match state.next() {
            0..=0xe0 => None,
            other => Some(i32::from(other) - 0xf0),
        };
        state.channels_count += 1;
        drop(state);
        Ok(Silent {
            liar: node.clone(),
            depth: info.depth,
            refusal,
            handed_back: 0,
            is_over: false,
        })
    }
}

/// A queue's channel to a driver that has no requests for it.
struct Silent {
    liar: Liar,
    depth: u16,
    /// The answers to the first words.
    refusal: Option<i32>,
    handed_back: u16,
    is_over: bool,
}

impl Channel for Silent {
    fn depth(&self) -> u16 {
        self.depth
    }

    fn fetch(&mut self, tag: u16) {
        assert!(tag < self.depth);
    }

    fn commit(&mut self, tag: u16, _result: i32) {
        panic!("tag {tag}: an answer to nothing");
    }

    fn submit(&mut self, wait: bool) -> io::Result<()> {
        if !wait {
            return Ok(());
        }
        let is_served = |state: &mut Lies| !state.is_over;
        let state = self.liar.state.1.wait_while(self.liar.lock(), is_served);
        drop(state.unwrap_or_else(PoisonError::into_inner));
        self.is_over = true;
        Ok(())
    }

    fn arrival(&mut self) -> Option<Arrival> {
        if let Some(result) = self.refusal.take() {
            return Some(Arrival { tag: 0, result });
        }
        let is_one = self.is_over && self.handed_back < self.depth;
        self.handed_back += u16::from(is_one);
        is_one.then(|| Arrival {
            tag: u64::from(self.handed_back - 1),
            result: -Errno::NODEV.raw_os_error(),
        })
    }

    fn request(&mut self, tag: u16) -> (Descriptor, &mut [u8]) {
        panic!("tag {tag}: no request was made");
    }

    fn abandon(&mut self) {}
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.liar.lock().channels_count -= 1;
    }
}
