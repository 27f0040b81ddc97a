//! The disk's description of itself: features, and the configuration space of section 5.2.4 of the
//! virtio 1.3 specification, little-endian on every machine.

use virtio_bindings::bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC,
};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH,
    VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX,
    VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};

use super::{QUEUES_MAX, RANGE_BYTES_MAX, RANGES_MAX, SEGMENT_BYTES_MAX, SEGMENTS_MAX};

/// The unit of a request's range, in bytes.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Length of the configuration space up to the last field in use, in bytes.
const CONFIG_BYTES: usize = 60;
/// Longest part of it that may be asked for, in bytes. It ends in zeroes.
const CONFIG_BYTES_MAX: usize = 256;
/// Place of the one field that the guest may write: whether writes are cached until a flush.
const WRITEBACK_AT: usize = 32;

/// The vhost-user protocol's own bit among the features of virtio.
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;

/// The features of a disk of this kind.
pub(super) fn features(is_read_only: bool) -> u64 {
    let always = [
        VIRTIO_F_VERSION_1,
        VIRTIO_RING_F_INDIRECT_DESC,
        VIRTIO_RING_F_EVENT_IDX,
        VIRTIO_BLK_F_SIZE_MAX,
        VIRTIO_BLK_F_SEG_MAX,
        VIRTIO_BLK_F_BLK_SIZE,
        VIRTIO_BLK_F_TOPOLOGY,
        VIRTIO_BLK_F_FLUSH,
        VIRTIO_BLK_F_CONFIG_WCE,
        VIRTIO_BLK_F_MQ,
    ];
    let writing: &[u32] = match is_read_only {
        true => &[VIRTIO_BLK_F_RO],
        false => &[VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES],
    };
    let bits = always.iter().chain(writing);
    bits.fold(PROTOCOL_FEATURES, |all, bit| all | 1 << bit)
}

/// Whether writes must be durable before they are acknowledged.
pub(super) fn writes_through(acknowledged: u64, is_writeback: bool) -> bool {
    let has = |bit: u32| acknowledged & (1 << bit) != 0;
    // Section 5.2.5.2: a driver that cannot flush does not expect a cache.
    !has(VIRTIO_BLK_F_FLUSH) || has(VIRTIO_BLK_F_CONFIG_WCE) && !is_writeback
}

/// The configuration space of a disk.
pub(super) struct ConfigSpace {
    pub size_bytes: u64,
    pub block_bytes: u32,
    /// Whether writes are cached until a flush.
    pub is_writeback: bool,
}

impl ConfigSpace {
    /// `length` bytes from `offset` on.
    pub fn read(&self, offset: u32, length: u32) -> Option<Vec<u8>> {
        let mut bytes = self.encode().to_vec();
        bytes.resize(CONFIG_BYTES_MAX, 0);
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(length).ok()?)?;
        bytes.get(start..end).map(<[u8]>::to_vec)
    }

    /// Changes the writable field; `None` for anything else.
    pub fn write(&mut self, offset: u32, data: &[u8]) -> Option<()> {
        match (usize::try_from(offset).ok()?, data) {
            (WRITEBACK_AT, &[value @ (0 | 1)]) => {
                self.is_writeback = value == 1;
                Some(())
            }
            _ => None,
        }
    }

    fn encode(&self) -> [u8; CONFIG_BYTES] {
        let mut bytes = [0; CONFIG_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let block_sectors = (u64::from(self.block_bytes) / SECTOR_BYTES).max(1) as u32;
        let range_sectors = (RANGE_BYTES_MAX / SECTOR_BYTES) as u32;
        put(0, &(self.size_bytes / SECTOR_BYTES).to_le_bytes());
        put(8, &SEGMENT_BYTES_MAX.to_le_bytes());
        put(12, &SEGMENTS_MAX.to_le_bytes());
        // Any sector can be written; whole blocks, as the topology says, cost no reading.
        put(20, &(SECTOR_BYTES as u32).to_le_bytes());
        put(24, &[block_sectors.ilog2() as u8]);
        put(26, &(block_sectors as u16).to_le_bytes());
        put(28, &block_sectors.to_le_bytes());
        put(WRITEBACK_AT, &[u8::from(self.is_writeback)]);
        put(34, &QUEUES_MAX.to_le_bytes());
        put(36, &range_sectors.to_le_bytes());
        put(40, &RANGES_MAX.to_le_bytes());
        put(44, &block_sectors.to_le_bytes());
        put(48, &range_sectors.to_le_bytes());
        put(52, &RANGES_MAX.to_le_bytes());
        // Zeroing may give memory back.
        put(56, &[1]);
        bytes
    }
}
