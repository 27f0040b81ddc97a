//! The protocol between a server and the kernel's driver, as bytes: commands, descriptions of
//! devices and of requests. Written from the kernel's documentation (Documentation/block/ublk.rst)
//! and its public interface (linux/ublk_cmd.h). Integers are in the machine's own byte order.
//!
//! Nothing here does I/O. Requests are read as hostile input: a field may hold any value.

use rustix::thread::CpuSet;

/// Bytes of a control command's argument.
pub(super) const CONTROL_BYTES: usize = 32;
/// Bytes of a request command's argument.
pub(super) const IO_BYTES: usize = 16;
/// Bytes of a device's description.
pub(super) const INFO_BYTES: usize = 64;
/// Bytes of the parameters that are set: the header, and those of blocks and of discarding.
pub(super) const PARAMETERS_BYTES: usize = 60;
/// Bytes of a request's description.
pub(super) const DESCRIPTOR_BYTES: usize = 24;
/// Bytes of the set of CPUs of a queue.
pub(super) const AFFINITY_BYTES: usize = 128;
/// Bytes of the word of features.
pub(super) const FEATURES_BYTES: usize = 8;
/// Entries of each queue's table of descriptions in the kernel, whatever the queue's depth.
pub(super) const DEPTH_MAX: u16 = 4096;
/// The unit of a request's range, in bytes.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Any number: the kernel chooses one that is free.
pub(super) const ANY_ID: u32 = u32::MAX;

/// A feature: commands are numbered as ioctls are. Only this numbering stays.
pub(super) const FEATURE_IOCTL_ENCODE: u64 = 1 << 6;
/// A feature: devices of users without privileges.
pub(super) const FEATURE_UNPRIVILEGED: u64 = 1 << 5;
/// Two features: the disk waits for another server when its own dies, and gets the requests again
/// that the dead one had taken and not answered.
pub(super) const FEATURES_RECOVERY: u64 = 1 << 3 | 1 << 4;

/// A command about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// Gets the CPUs of a queue.
    Affinity,
    /// Makes a device, without its disk.
    Add,
    /// Deletes a device and waits until no program has it open.
    Delete,
    /// Deletes a device; its number is free once no program has it open.
    DeleteLater,
    /// Makes the disk.
    Start,
    /// Takes the disk away and hands all requests back.
    Stop,
    /// Sets the properties of the disk.
    SetParameters,
    /// Begins the recovery of a device whose server is dead.
    StartRecovery,
    /// Ends it, once all queues have fetched: the disk goes on.
    EndRecovery,
    /// Gets the description of a device, by its number and path.
    Info,
    /// Gets the driver's features.
    Features,
}

impl Control {
    /// The command's number: that of an ioctl with an argument of [`CONTROL_BYTES`].
    pub(super) fn code(self) -> u32 {
        match self {
            Control::Affinity => read_code(0x01),
            Control::Add => write_code(0x04),
            Control::Delete => write_code(0x05),
            Control::Start => write_code(0x06),
            Control::Stop => write_code(0x07),
            Control::SetParameters => write_code(0x08),
            Control::StartRecovery => write_code(0x10),
            Control::EndRecovery => write_code(0x11),
            Control::Info => read_code(0x12),
            Control::Features => read_code(0x13),
            Control::DeleteLater => read_code(0x14),
        }
    }
}

fn read_code(number: u8) -> u32 {
    rustix::ioctl::opcode::read::<[u8; CONTROL_BYTES]>(b'u', number) as u32
}

fn write_code(number: u8) -> u32 {
    rustix::ioctl::opcode::read_write::<[u8; CONTROL_BYTES]>(b'u', number) as u32
}

/// A command about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Io {
    /// There is room for a request.
    Fetch,
    /// A request is done, and there is room for the next one.
    CommitAndFetch,
}

impl Io {
    /// The command's number: that of an ioctl with an argument of [`IO_BYTES`].
    pub(super) fn code(self) -> u32 {
        let number = match self {
            Io::Fetch => 0x20,
            Io::CommitAndFetch => 0x21,
        };
        rustix::ioctl::opcode::read_write::<[u8; IO_BYTES]>(b'u', number) as u32
    }
}

/// The argument of a control command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ControlArgument {
    pub id: u32,
    /// The address of the data: the path of the device first, if there is one.
    pub address: u64,
    pub length: u16,
    /// Bytes of the path within the data, with its terminating zero.
    pub path_length: u16,
    /// A value of one word: a queue's number, a process's.
    pub word: u64,
}

impl ControlArgument {
    /// The argument as the driver takes it, at the start of the space in a submission.
    pub(super) fn encode(&self) -> [u8; 80] {
        const NO_QUEUE: u16 = u16::MAX;
        let mut bytes = [0; 80];
        put(&mut bytes, 0, &self.id.to_ne_bytes());
        put(&mut bytes, 4, &NO_QUEUE.to_ne_bytes());
        put(&mut bytes, 6, &self.length.to_ne_bytes());
        put(&mut bytes, 8, &self.address.to_ne_bytes());
        put(&mut bytes, 16, &self.word.to_ne_bytes());
        put(&mut bytes, 24, &self.path_length.to_ne_bytes());
        bytes
    }
}

/// The argument of a request's command: `address` is the request's buffer.
pub(super) fn encode_io(queue: u16, tag: u16, result: i32, address: u64) -> [u8; IO_BYTES] {
    let mut bytes = [0; IO_BYTES];
    put(&mut bytes, 0, &queue.to_ne_bytes());
    put(&mut bytes, 2, &tag.to_ne_bytes());
    put(&mut bytes, 4, &result.to_ne_bytes());
    put(&mut bytes, 8, &address.to_ne_bytes());
    bytes
}

/// The state of a device's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// There is no disk, not yet or not any more.
    Dead,
    /// The disk is there and served.
    Live,
    /// The server is dead, and the disk waits for another one.
    Quiesced,
    /// Any other state: of devices of others.
    Other(u16),
}

/// A device, in a request for it and in the driver's description of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Info {
    pub queues: u16,
    pub depth: u16,
    pub state: State,
    /// Most data in one request, in bytes.
    pub request_bytes: u32,
    pub id: u32,
    /// Features of the device.
    pub features: u64,
    /// A word for the maker of the device. The driver only keeps it.
    pub label: u64,
}

impl Info {
    pub(super) fn encode(&self) -> [u8; INFO_BYTES] {
        let mut bytes = [0; INFO_BYTES];
        let state = match self.state {
            State::Dead => 0,
            State::Live => 1,
            State::Quiesced => 2,
            State::Other(other) => other,
        };
        put(&mut bytes, 4, &state.to_ne_bytes());
        put(&mut bytes, 0, &self.queues.to_ne_bytes());
        put(&mut bytes, 2, &self.depth.to_ne_bytes());
        put(&mut bytes, 8, &self.request_bytes.to_ne_bytes());
        put(&mut bytes, 12, &self.id.to_ne_bytes());
        put(&mut bytes, 24, &self.features.to_ne_bytes());
        put(&mut bytes, 32, &self.label.to_ne_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; INFO_BYTES]) -> Info {
        Info {
            queues: u16::from_ne_bytes(at(bytes, 0)),
            depth: u16::from_ne_bytes(at(bytes, 2)),
            state: match u16::from_ne_bytes(at(bytes, 4)) {
                0 => State::Dead,
                1 => State::Live,
                2 => State::Quiesced,
                other => State::Other(other),
            },
            request_bytes: u32::from_ne_bytes(at(bytes, 8)),
            id: u32::from_ne_bytes(at(bytes, 12)),
            features: u64::from_ne_bytes(at(bytes, 24)),
            label: u64::from_ne_bytes(at(bytes, 32)),
        }
    }
}

/// The properties of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    /// Smallest request, in bytes; a power of two.
    pub logical_block_bytes: u32,
    /// Preferred size of a write, in bytes; a power of two.
    pub preferred_block_bytes: u32,
    pub size_bytes: u64,
    pub request_bytes: u32,
    /// Most that one request discards or zeroes, in bytes.
    pub range_bytes: u64,
}

impl Parameters {
    /// The parameters as the driver takes them: the header, the basic ones, those of discarding.
    pub(super) fn encode(&self) -> [u8; PARAMETERS_BYTES] {
        const BASIC_AND_DISCARD: u32 = 0b11;
        const VOLATILE_CACHE: u32 = 1 << 2;
        /// Memory is mapped in pages: no larger block is announced as the physical one.
        const PHYSICAL_SHIFT_MAX: u32 = 12;
        let logical = self.logical_block_bytes.trailing_zeros();
        let preferred = self.preferred_block_bytes.trailing_zeros().max(logical);
        let sectors = |bytes: u64| u32::try_from(bytes / SECTOR_BYTES).unwrap_or(u32::MAX);
        let mut bytes = [0; PARAMETERS_BYTES];
        put(&mut bytes, 0, &(PARAMETERS_BYTES as u32).to_ne_bytes());
        put(&mut bytes, 4, &BASIC_AND_DISCARD.to_ne_bytes());
        put(&mut bytes, 8, &VOLATILE_CACHE.to_ne_bytes());
        let physical = preferred.min(PHYSICAL_SHIFT_MAX).max(logical);
        bytes[12..16].copy_from_slice(&[logical, physical, preferred, preferred].map(|s| s as u8));
        put(
            &mut bytes,
            16,
            &sectors(self.request_bytes.into()).to_ne_bytes(),
        );
        put(
            &mut bytes,
            24,
            &(self.size_bytes / SECTOR_BYTES).to_ne_bytes(),
        );
        put(&mut bytes, 44, &(1u32 << preferred).to_ne_bytes());
        put(&mut bytes, 48, &sectors(self.range_bytes).to_ne_bytes());
        put(&mut bytes, 52, &sectors(self.range_bytes).to_ne_bytes());
        put(&mut bytes, 56, &1u16.to_ne_bytes());
        bytes
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
    /// An operation that was never offered.
    Unknown(u8),
}

/// A request, as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// The operation in the low byte, and flags.
    pub operation_and_flags: u32,
    pub sectors: u32,
    pub first_sector: u64,
}

impl Descriptor {
    pub(super) fn operation(&self) -> Operation {
        match self.operation_and_flags as u8 {
            0 => Operation::Read,
            1 => Operation::Write,
            2 => Operation::Flush,
            3 => Operation::Discard,
            5 => Operation::WriteZeroes,
            other => Operation::Unknown(other),
        }
    }

    /// Whether the write is to be durable before it is acknowledged.
    pub(super) fn is_forced(&self) -> bool {
        self.operation_and_flags & (1 << 13) != 0
    }

    /// Whether zeroed blocks must stay allocated.
    pub(super) fn keeps_blocks(&self) -> bool {
        self.operation_and_flags & (1 << 15) != 0
    }

    /// Its range in bytes, first and length; `None` if its end cannot be counted.
    pub(super) fn range(&self) -> Option<(u64, u64)> {
        let offset = self.first_sector.checked_mul(SECTOR_BYTES)?;
        let length = u64::from(self.sectors) * SECTOR_BYTES;
        offset.checked_add(length).map(|_end| (offset, length))
    }
}

/// The CPUs of a queue, as the driver says them.
pub(super) fn cpu_set(bits: &[u8; AFFINITY_BYTES]) -> CpuSet {
    let mut cpus = CpuSet::new();
    let all = 0..(AFFINITY_BYTES * 8).min(CpuSet::MAX_CPU);
    for cpu in all.filter(|cpu| bits[cpu / 8] & (1 << (cpu % 8)) != 0) {
        cpus.set(cpu);
    }
    cpus
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn at<const N: usize>(bytes: &[u8; INFO_BYTES], offset: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[offset..offset + N]);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that the header's macros give on x86-64 and aarch64.
    #[test]
    fn commands_have_the_kernels_numbers() {
        assert_eq!(Control::Add.code(), 0xc020_7504);
        assert_eq!(Control::Delete.code(), 0xc020_7505);
        assert_eq!(Control::StartRecovery.code(), 0xc020_7510);
        assert_eq!(Control::EndRecovery.code(), 0xc020_7511);
        assert_eq!(Control::Info.code(), 0x8020_7512);
        assert_eq!(Control::Features.code(), 0x8020_7513);
        assert_eq!(Control::DeleteLater.code(), 0x8020_7514);
        assert_eq!(Io::Fetch.code(), 0xc010_7520);
        assert_eq!(Io::CommitAndFetch.code(), 0xc010_7521);
    }

    #[test]
    fn a_device_is_described_and_read_back() {
        let info = Info {
            queues: 3,
            depth: 64,
            state: State::Dead,
            request_bytes: 1 << 17,
            id: 7,
            features: 1 << 6,
            label: 0xfeed_f00d_dead_beef,
        };
        let mut bytes = info.encode();
        assert_eq!(Info::decode(&bytes), info);
        bytes[4] = 1;
        assert_eq!(Info::decode(&bytes).state, State::Live);
        bytes[4] = 2;
        assert_eq!(Info::decode(&bytes).state, State::Quiesced);
        bytes[4] = 3;
        assert_eq!(Info::decode(&bytes).state, State::Other(3));
    }

    #[test]
    fn parameters_stand_where_the_driver_looks() {
        let parameters = Parameters {
            logical_block_bytes: 4096,
            preferred_block_bytes: 16384,
            size_bytes: 1 << 30,
            request_bytes: 1 << 17,
            range_bytes: 1 << 30,
        };
        let bytes = parameters.encode();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4), word(8)), (60, 3, 4));
        assert_eq!(bytes[12..16], [12, 12, 14, 14]);
        assert_eq!((word(16), word(24)), (256, 1 << 21));
        assert_eq!((word(44), word(48), word(52)), (16384, 1 << 21, 1 << 21));
        assert_eq!(bytes[56..60], [1u16.to_ne_bytes(), [0, 0]].concat());
    }

    #[test]
    fn ranges_that_cannot_be_counted_have_none() {
        let request = |first_sector, sectors| Descriptor {
            operation_and_flags: 0,
            sectors,
            first_sector,
        };
        assert_eq!(request(2, 3).range(), Some((1024, 1536)));
        assert_eq!(request(1 << 55, 1).range(), None);
        assert_eq!(request(u64::MAX, u32::MAX).range(), None);
        assert_eq!(request((1 << 55) - 1, 1).range(), None);
    }
}
