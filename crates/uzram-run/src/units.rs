//! Pages, chunks of pages, and ranges of addresses.

/// Bytes of a page, here and in the kernel.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Pages of a chunk: of a huge page.
pub(crate) const CHUNK_PAGES: usize = 512;
/// Bytes of a chunk.
pub(crate) const CHUNK_BYTES: u64 = (CHUNK_PAGES * PAGE_BYTES) as u64;

/// A range of addresses.
pub(crate) type Range = std::ops::Range<u64>;

/// The addresses of the pages of `range`.
pub(crate) fn pages(range: &Range) -> impl Iterator<Item = u64> + use<> {
    range.clone().step_by(PAGE_BYTES)
}
