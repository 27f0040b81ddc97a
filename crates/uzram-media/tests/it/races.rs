//! Eight threads on the same pages of each device: every byte that was acknowledged stays until somebody
//! overwrites it.

use uzram_media::{Brd, Btt, BttVersion, Persistence, Pmem, PmemFile};

use crate::race::{Disk, PAGES, TURNS, race};

#[test]
fn requests_of_the_devices_that_compress_nothing_survive_each_other() {
    // A copy is over in 100 ns: fewer turns and nobody meets.
    let turns = TURNS * 5;
    race(&Disk(&Brd::new(PAGES << 12).unwrap()), turns, &|| {});
    let folder = tempfile::tempdir().unwrap();
    let file = PmemFile::create(&folder.path().join("pmem"), PAGES << 12).unwrap();
    race(&Disk(&Pmem::new(file).unwrap()), turns, &|| {});
    let file = PmemFile::create(&folder.path().join("btt"), 17 << 20).unwrap();
    // Else each write waits for the disk three times.
    let file = file.with_persistence(Persistence::Never);
    let btt = Btt::format(file, 4096, BttVersion::V1_1).unwrap();
    race(&Disk(&btt), TURNS / 3, &|| {});
}
