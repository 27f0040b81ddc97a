//! A request's descriptors, copied once: the checked bytes are the bytes that are used.

use virtio_queue::DescriptorChain;
use virtio_queue::desc::split::Descriptor;
use vm_memory::GuestAddress;

use super::memory::{Memory, Outside};

/// Most descriptors of a request: the longest queue.
pub(super) const DESCRIPTORS_MAX: usize = super::QUEUE_SIZE_MAX as usize;

/// The reason why a queue cannot be served any further: its guest breaks the format, so there is
/// no place where an error could be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken(pub &'static str);

/// Bytes in the guest's memory, at the address that the guest claims.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: GuestAddress,
    length: u32,
}

/// The descriptors of one request. The value is reused for its memory.
#[derive(Debug, Default)]
pub(super) struct Chain {
    readable: Vec<Segment>,
    writable: Vec<Segment>,
    readable_bytes: u64,
    writable_bytes: u64,
}

impl Chain {
    /// Room for any request, so that no request has to wait for memory.
    pub fn new() -> Chain {
        Chain {
            readable: Vec::with_capacity(DESCRIPTORS_MAX),
            writable: Vec::with_capacity(DESCRIPTORS_MAX),
            ..Chain::default()
        }
    }

    /// Takes the descriptors of `chain`.
    ///
    /// # Errors
    /// [`Broken`] if they do not end, or are not in the format's order.
    pub fn load(&mut self, chain: DescriptorChain<&Memory>) -> Result<(), Broken> {
        self.readable.clear();
        self.writable.clear();
        (self.readable_bytes, self.writable_bytes) = (0, 0);
        let mut is_complete = false;
        for descriptor in chain {
            is_complete = !descriptor.has_next();
            self.push(descriptor)?;
        }
        match is_complete {
            true => Ok(()),
            // The library stops without a word at a loop, and at what lies outside.
            false => Err(Broken("a descriptor chain that loops or leads outside")),
        }
    }

    fn push(&mut self, descriptor: Descriptor) -> Result<(), Broken> {
        let segment = Segment {
            address: descriptor.addr(),
            length: descriptor.len(),
        };
        if self.readable.len() + self.writable.len() == DESCRIPTORS_MAX {
            return Err(Broken("a request of too many descriptors"));
        }
        if descriptor.is_write_only() {
            self.writable_bytes += u64::from(segment.length);
            self.writable.push(segment);
        } else if self.writable.is_empty() {
            self.readable_bytes += u64::from(segment.length);
            self.readable.push(segment);
        } else {
            return Err(Broken("a descriptor to read behind one to write"));
        }
        Ok(())
    }

    /// Bytes that the guest gives.
    pub fn readable_bytes(&self) -> u64 {
        self.readable_bytes
    }

    /// Bytes that the guest takes.
    pub fn writable_bytes(&self) -> u64 {
        self.writable_bytes
    }

    /// The bytes that the guest gives, from the first on.
    pub fn readable(&self) -> Cursor<'_> {
        Cursor::new(&self.readable)
    }

    /// The bytes that the guest takes, from the first on.
    pub fn writable(&self) -> Cursor<'_> {
        Cursor::new(&self.writable)
    }

    /// The place of the last byte that the guest takes.
    pub fn last_writable(&self) -> Option<GuestAddress> {
        let last = self.writable.iter().rfind(|segment| segment.length > 0)?;
        let address = last.address.0.checked_add(u64::from(last.length) - 1)?;
        Some(GuestAddress(address))
    }
}

/// A place in a request's bytes.
pub(super) struct Cursor<'a> {
    segments: &'a [Segment],
    /// Within the first of them, in bytes.
    offset: u32,
}

impl<'a> Cursor<'a> {
    fn new(segments: &'a [Segment]) -> Cursor<'a> {
        Cursor {
            segments,
            offset: 0,
        }
    }

    /// Copies the next bytes from the guest.
    pub fn read(&mut self, memory: &Memory, buffer: &mut [u8]) -> Result<(), Outside> {
        let mut done = 0;
        while done < buffer.len() {
            let (at, length) = self.next(buffer.len() - done)?;
            memory.read(at, &mut buffer[done..done + length])?;
            done += length;
        }
        Ok(())
    }

    /// Copies the next bytes to the guest.
    pub fn write(&mut self, memory: &Memory, data: &[u8]) -> Result<(), Outside> {
        let mut done = 0;
        while done < data.len() {
            let (at, length) = self.next(data.len() - done)?;
            memory.write(at, &data[done..done + length])?;
            done += length;
        }
        Ok(())
    }

    /// The next bytes that lie together, at most `length`.
    fn next(&mut self, length: usize) -> Result<(GuestAddress, usize), Outside> {
        let first = loop {
            let first = self.segments.first().ok_or(Outside)?;
            if self.offset < first.length {
                break first;
            }
            self.segments = &self.segments[1..];
            self.offset = 0;
        };
        let length = length.min((first.length - self.offset) as usize);
        let address = first.address.0.checked_add(u64::from(self.offset));
        let address = GuestAddress(address.ok_or(Outside)?);
        self.offset += length as u32;
        Ok((address, length))
    }
}
