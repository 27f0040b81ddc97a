//! A guest's memory as its owner lends it: mapped files, and their addresses for the guest and for
//! the owner, which names rings by addresses of its own.
//!
//! Everything in it can change at any moment. So nothing is read in place: the library copies it,
//! and the copy is checked.

use std::fs::File;
use std::io;
use std::iter::FusedIterator;
use std::sync::Arc;

use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::guest_memory::{Error as Fault, GuestMemorySliceIterator, Result as Accessed};
use vm_memory::{
    Address, Bytes, FileOffset, GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryMmap,
    GuestMemoryRegion, GuestRegionMmap, MmapRegion, Permissions, VolatileMemory, VolatileSlice,
};

use super::vanish::Watched;

/// Most regions of a guest: those that fit a message.
pub(super) const REGIONS_MAX: usize = 32;

/// A guest's memory, mapped.
///
/// The library's own collection of regions is made for any kind of memory, and takes some 150
/// instructions per access. A request makes a dozen accesses. Here they take half.
#[derive(Debug)]
pub(super) struct Memory {
    // Before the mappings: what is unmapped is not watched any more.
    watched: Vec<Watched>,
    /// The longest first: it is nearly all of the memory.
    regions: Vec<Region>,
}

/// The place of a region, for its owner and for the guest, in bytes.
#[derive(Debug)]
struct Region {
    user_address: u64,
    guest_address: u64,
    length: u64,
    mapping: Arc<MmapRegion>,
}

/// The memory is missing, from the start or since it vanished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outside;

impl Memory {
    /// Maps `regions`; each lies in the file at its place in `files`.
    ///
    /// # Errors
    /// The wrong region, and its fault.
    pub fn map(regions: &[VhostUserMemoryRegion], files: Vec<File>) -> Result<Memory, String> {
        if regions.is_empty() || regions.len() > REGIONS_MAX || regions.len() != files.len() {
            let count = regions.len();
            return Err(format!(
                "{count} memory regions: must be 1 to {REGIONS_MAX}"
            ));
        }
        let mut mapped = Vec::with_capacity(regions.len());
        for (region, file) in regions.iter().zip(files) {
            let (address, length) = (region.guest_phys_addr, region.memory_size);
            let one = map_region(region, file)
                .map_err(|why| format!("guest memory at {address:#x}, {length} bytes: {why}"))?;
            mapped.push(one);
        }
        mapped.sort_by_key(|(region, _)| region.guest_address);
        let (mut regions, maps): (Vec<Region>, Vec<_>) = mapped.into_iter().unzip();
        let watch = |map: &GuestRegionMmap| Watched::new(map.as_ptr(), map.size());
        let watched = maps.iter().map(watch).collect::<io::Result<_>>();
        let watched = watched.map_err(|error| format!("guest memory: SIGBUS: {error}"))?;
        // Judges whether they overlap.
        GuestMemoryMmap::from_regions(maps).map_err(|error| format!("guest memory: {error}"))?;
        regions.sort_by_key(|region| std::cmp::Reverse(region.length));
        Ok(Memory { watched, regions })
    }

    /// Memory of this process, at the same addresses for guest and owner.
    pub fn own(guest: &GuestMemoryMmap) -> Memory {
        let region = |map: &GuestRegionMmap| Region {
            user_address: map.start_addr().raw_value(),
            guest_address: map.start_addr().raw_value(),
            length: map.len(),
            mapping: map.get_mmap(),
        };
        Memory {
            watched: Vec::new(),
            regions: guest.iter().map(region).collect(),
        }
    }

    /// The guest's address of the owner's `user_address`.
    pub fn guest_address(&self, user_address: u64) -> Option<GuestAddress> {
        let into = |region: &Region| {
            let offset = user_address.checked_sub(region.user_address)?;
            (offset < region.length).then(|| GuestAddress(region.guest_address + offset))
        };
        self.regions.iter().find_map(into)
    }

    /// Whether all of it is still the guest's. Must be checked after copying and before the copy
    /// is trusted.
    pub fn is_whole(&self) -> bool {
        !self.watched.iter().any(Watched::has_vanished)
    }

    /// Copies from the guest.
    pub fn read(&self, from: GuestAddress, buffer: &mut [u8]) -> Result<(), Outside> {
        self.read_slice(buffer, from).map_err(|_| Outside)
    }

    /// Copies to the guest.
    pub fn write(&self, to: GuestAddress, data: &[u8]) -> Result<(), Outside> {
        self.write_slice(data, to).map_err(|_| Outside)
    }
}

impl GuestMemory for Memory {
    type PhysicalMemory = GuestMemoryMmap;
    type Bitmap = ();

    fn check_range(&self, address: GuestAddress, length: usize, _access: Permissions) -> bool {
        self.slices(address, length).all(|slice| slice.is_ok())
    }

    fn get_slices<'a>(
        &'a self,
        address: GuestAddress,
        length: usize,
        _access: Permissions,
    ) -> Accessed<impl GuestMemorySliceIterator<'a, ()>> {
        Ok(self.slices(address, length))
    }
}

impl Memory {
    fn slices(&self, address: GuestAddress, length: usize) -> Slices<'_> {
        Slices {
            regions: &self.regions,
            at: address.0,
            left: length,
        }
    }
}

/// A range of the guest's, cut where regions end.
struct Slices<'a> {
    regions: &'a [Region],
    at: u64,
    left: usize,
}

impl<'a> Slices<'a> {
    fn part(&mut self) -> Option<VolatileSlice<'a, ()>> {
        let at = self.at;
        let holds = |region: &&Region| at.wrapping_sub(region.guest_address) < region.length;
        let region = self.regions.iter().find(holds)?;
        let offset = at - region.guest_address;
        let length = (self.left as u64).min(region.length - offset);
        self.left -= length as usize;
        // The address space's last byte may be a region's.
        self.at = at.wrapping_add(length);
        region
            .mapping
            .get_slice(offset as usize, length as usize)
            .ok()
    }
}

impl<'a> Iterator for Slices<'a> {
    type Item = Accessed<VolatileSlice<'a, ()>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let at = GuestAddress(self.at);
        let part = self.part();
        if part.is_none() {
            self.left = 0;
        }
        Some(part.ok_or(Fault::InvalidGuestAddress(at)))
    }
}

impl FusedIterator for Slices<'_> {}

impl<'a> GuestMemorySliceIterator<'a, ()> for Slices<'a> {
    #[inline]
    fn stop_on_error(mut self) -> Accessed<impl Iterator<Item = VolatileSlice<'a, ()>>> {
        let first = self.next().transpose()?;
        Ok(first.into_iter().chain(self.map_while(Result::ok)))
    }
}

fn map_region(
    region: &VhostUserMemoryRegion,
    file: File,
) -> Result<(Region, GuestRegionMmap), String> {
    let (offset, length) = (region.mmap_offset, region.memory_size);
    let end = offset.checked_add(length).ok_or("too long")?;
    let has = uzram::file::size_bytes(&file).map_err(|error| error.to_string())?;
    // What lies beyond the file's end is mapped without a word, and a fault when it is touched.
    if has < end {
        return Err(format!("reaches to {end} in a file of {has} bytes"));
    }
    let bytes = usize::try_from(length).map_err(|_| "too long")?;
    region.user_addr.checked_add(length).ok_or("wraps around")?;
    let mapping = MmapRegion::from_file(FileOffset::new(file, offset), bytes);
    let mapping = mapping.map_err(|error| format!("cannot be mapped: {error}"))?;
    let address = GuestAddress(region.guest_phys_addr);
    let mapping = GuestRegionMmap::new(mapping, address).ok_or("wraps around")?;
    let region = Region {
        user_address: region.user_addr,
        guest_address: region.guest_phys_addr,
        length,
        mapping: mapping.get_mmap(),
    };
    Ok((region, mapping))
}
