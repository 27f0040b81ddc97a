//! The devices that are measured, and one that does nothing, whose time is the path's alone.

use std::path::Path;
use std::sync::Arc;

use uzram::{Bio, BlockDevice, Geometry, PageIndex, PageTransfer, Store, Zram};
use uzram_media::{Brd, Btt, BttVersion, Persistence, Pmem, PmemFile};

use crate::error::{Error, Result};

/// Most bytes of a table beside its sectors, besides 1/512 of them.
const TABLE_BYTES: u64 = 1 << 20;
/// Smallest file with a table, in bytes.
const TABLE_FILE_MIN_BYTES: u64 = (16 << 20) + 4096;

/// The kinds that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Brd,
    Pmem,
    Btt,
    Zram,
}

impl Kind {
    pub(super) const ALL: [Kind; 4] = [Kind::Brd, Kind::Pmem, Kind::Btt, Kind::Zram];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Brd => "brd",
            Kind::Pmem => "pmem",
            Kind::Btt => "btt",
            Kind::Zram => "zram",
        }
    }

    /// A device of `size_bytes`. Files are made in `folder` and have no name there any more.
    pub(super) fn make(
        self,
        size_bytes: u64,
        folder: &Path,
        persistence: Persistence,
        algorithm: &str,
    ) -> Result<Arc<dyn BlockDevice>> {
        Ok(match self {
            Kind::Brd => Arc::new(Brd::new(size_bytes)?),
            Kind::Pmem => {
                let file = nameless(folder, size_bytes)?.with_persistence(persistence);
                Arc::new(Pmem::new(file)?)
            }
            Kind::Btt => {
                let bytes = size_bytes + (size_bytes / 512).next_multiple_of(4096) + TABLE_BYTES;
                // Its lanes' free blocks come on top.
                let bytes = (bytes + (2 << 20)).max(TABLE_FILE_MIN_BYTES);
                let file = nameless(folder, bytes)?.with_persistence(persistence);
                Arc::new(Btt::format(file, 4096, BttVersion::V1_1)?)
            }
            Kind::Zram => {
                let store = Store::builder().size(size_bytes).algorithm(algorithm);
                Arc::new(Zram::new(store.build()?))
            }
        })
    }
}

/// A file that goes when it is closed, also if this process is killed.
fn nameless(folder: &Path, size_bytes: u64) -> Result<PmemFile> {
    let name = format!("uzram-bench-{}-iopaths", std::process::id());
    let path = folder.join(name);
    let file = PmemFile::create(&path, size_bytes)?;
    std::fs::remove_file(&path).map_err(|error| Error::io(path.display(), error))?;
    Ok(file)
}

/// Answers at once.
pub(super) struct Nothing;

impl BlockDevice for Nothing {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: 1 << 40,
            preferred_block_bytes: 4096,
        }
    }

    #[inline(never)]
    fn submit(&self, bio: Bio<'_>) -> uzram::Result<()> {
        std::hint::black_box(bio);
        Ok(())
    }

    #[inline(never)]
    fn rw_page(&self, page: PageIndex, transfer: PageTransfer<'_>) -> uzram::Result<()> {
        std::hint::black_box((page, transfer));
        Ok(())
    }
}
