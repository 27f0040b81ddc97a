//! Every crash point: after each change that an operation makes to memory which outlives its process, what is there then is
//! taken over and compared with a model. Acknowledged pages are whole, the page of the operation is old or new, the counters
//! are those of the pages, and nothing leaks.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use super::fault_tests::{compressible, noise};
use super::recover_tests::{
    DENSER, Files, config, make, read, recover, reopened, use_up, with_pool,
};
use super::*;
use crate::codec::Compression;

const PAGES: u64 = 24;

/// Of each page, the old content and the new.
type Model = Vec<[Vec<u8>; 2]>;

#[derive(Clone, Copy)]
struct Kind {
    pool: &'static str,
    checksum: bool,
    limit_bytes: u64,
}

impl Kind {
    fn config(self, backing: &File) -> StoreConfig {
        let mut config = config(PAGES, Unit::DEFAULT, "lz4", self.checksum);
        config.backing_file = Some(Arc::new(reopened(backing)));
        config.mem_limit_bytes = self.limit_bytes;
        config.secondaries[0] = Some(Compression::new(DENSER, Unit::DEFAULT).unwrap());
        with_pool(self.pool, config)
    }
}

/// A store, and what it holds.
struct Run {
    kind: Kind,
    store: Store,
    files: Rc<Files>,
    backing: Rc<File>,
    pages: Model,
    points: Rc<RefCell<u64>>,
}

impl Run {
    fn new(kind: Kind) -> Run {
        let backing = tempfile::tempfile().unwrap();
        let (store, files) = make(kind.config(&backing));
        Run {
            kind,
            store,
            files: Rc::new(files),
            backing: Rc::new(backing),
            pages: vec![[vec![0; 4096], vec![0; 4096]]; PAGES as usize],
            points: Rc::default(),
        }
    }

    /// Does `act`, after which page `index` holds `new` if it succeeds, and crashes at each point.
    fn act(&mut self, index: u64, new: Vec<u8>, act: impl FnOnce(&Store) -> Result<()>) {
        let page = &mut self.pages[index as usize];
        page[1] = new;
        let acted = self.trace(act);
        let page = &mut self.pages[index as usize];
        match acted {
            Ok(()) => page[0] = page[1].clone(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                page[1] = page[0].clone();
            }
        }
        assert!(read(&self.store, index) == page[0]);
    }

    fn trace<T>(&self, act: impl FnOnce(&Store) -> T) -> T {
        let (kind, files, pages) = (self.kind, Rc::clone(&self.files), self.pages.clone());
        let (points, backing) = (Rc::clone(&self.points), Rc::clone(&self.backing));
        let hook = move || {
            let mut point = points.borrow_mut();
            *point += 1;
            crash(kind, (&files, &backing), &pages, *point);
        };
        crate::crash::trace(Box::new(hook), || act(&self.store))
    }

    fn write(&mut self, index: u64, page: Vec<u8>) {
        self.act(index, page.clone(), |store| {
            store.write(PageIndex(index), &page)
        });
    }
}

/// A file as it is now.
pub(super) fn copied(file: &File) -> File {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let copy = tempfile::tempfile().unwrap();
    copy.write_all_at(&bytes, 0).unwrap();
    copy
}

/// The process dies here, and a successor opens what is left.
fn crash(kind: Kind, (files, backing): (&Files, &File), pages: &Model, point: u64) {
    let (store, recovery) = recover(kind.config(&copied(backing)), files.copied());
    let what = format!("{} {} point {point}", kind.pool, kind.checksum);
    assert_eq!(recovery.lost_pages, 0, "{what}");
    assert!(recovery.resealed_pages <= 1, "{what}: {recovery:?}");
    for (index, [old, new]) in pages.iter().enumerate() {
        let seen = read(&store, index as u64);
        assert!(seen == *old || seen == *new, "{what}: page {index}");
    }
    let state = |index| store.state(PageIndex(index)).unwrap();
    let states: Vec<PageState> = (0..PAGES).map(state).collect();
    let count =
        |is: &dyn Fn(&PageState) -> bool| states.iter().filter(|state| is(state)).count() as u64;
    let stats = store.stats();
    let stored = count(&|state| *state != PageState::Hole);
    assert_eq!(stats.orig_data_size_bytes, stored * 4096, "{what}");
    assert_eq!(recovery.pages, stored, "{what}");
    assert_eq!(
        stats.same_pages,
        count(&|state| matches!(state, PageState::Same(_))),
        "{what}"
    );
    let raw = count(&|state| *state == PageState::Raw);
    assert_eq!(stats.huge_pages, raw, "{what}");
    let back = count(&|state| *state == PageState::WrittenBack);
    assert_eq!(stats.bd_count, back, "{what}");
    let packed = states.iter().map(|state| match state {
        PageState::Compressed { size_bytes } => u64::from(*size_bytes),
        _ => 0,
    });
    assert_eq!(
        stats.compr_data_size_bytes,
        packed.sum::<u64>() + raw * 4096,
        "{what}"
    );
    assert!(
        kind.limit_bytes == 0 || stats.mem_used_total_bytes <= kind.limit_bytes,
        "{what}"
    );
    if point.is_multiple_of(7) && kind.limit_bytes == 0 {
        use_up(&store);
    }
}

fn each(limit_bytes: u64, mut test: impl FnMut(&mut Run)) -> u64 {
    let mut points = 0;
    for pool in crate::pools() {
        for checksum in [false, true] {
            let mut run = Run::new(Kind {
                pool,
                checksum,
                limit_bytes,
            });
            test(&mut run);
            points += *run.points.borrow();
        }
    }
    points
}

/// Content of every kind in turn.
fn content(version: u64) -> Vec<u8> {
    match version % 5 {
        0 => noise(version, 4096),
        1 | 2 => compressible(version, 4096),
        3 => vec![version as u8; 4096],
        _ => {
            let mut page = compressible(version, 200);
            page.resize(4096, 0);
            page
        }
    }
}

#[test]
fn a_crash_within_a_write_or_a_free_leaves_the_old_or_the_new_page() {
    let points = each(0, |run| {
        // Each kind of content replaces each other one.
        for version in 0..40 {
            let (index, seed) = (version % 3, version * 7 + version / 5);
            run.write(index, content(seed));
        }
        for index in 0..PAGES {
            run.write(index, content(index + 100));
        }
        for (index, start) in [(0, 100), (1, 3000), (5, 0), (7, 4000)] {
            let part = noise(index, 90);
            let mut page = run.pages[index as usize][0].clone();
            page[start..start + 90].copy_from_slice(&part);
            run.act(index, page, |store| {
                store.write_at(PageIndex(index), start, &part)
            });
        }
        for index in [1, 3, 8, 9, 10] {
            let zeroing = [Zeroing::MayPunch, Zeroing::NoHole][index as usize % 2];
            run.act(index, vec![0; 4096], |store| {
                store.zero(PageIndex(index), zeroing)
            });
        }
        for index in 0..PAGES {
            run.act(index, vec![0; 4096], |store| store.trim(PageIndex(index)));
        }
    });
    assert!(points > 2000, "{points}");
}

#[test]
fn a_crash_at_the_limit_leaves_acknowledged_pages_and_keeps_the_limit() {
    let points = each(48 << 10, |run| {
        for version in 0..60 {
            run.write(version % PAGES, content(version * 3));
        }
    });
    assert!(points > 500, "{points}");
}

#[test]
fn a_crash_within_compaction_recompression_or_a_reset_loses_nothing() {
    let points = each(0, |run| {
        for index in 0..PAGES {
            run.store.write(PageIndex(index), &content(index)).unwrap();
            run.pages[index as usize] = [content(index), content(index)];
        }
        run.trace(Store::mark_idle);
        let passes = crate::store::Recompression::new(1);
        let done = run.trace(|store| store.recompress(&passes, &mut || true).unwrap());
        assert!(done.pages_replaced > 0);
        // Sparse blocks, for the compaction to empty.
        for index in (0..PAGES).filter(|index| index % 4 > 0) {
            run.store.trim(PageIndex(index)).unwrap();
            run.pages[index as usize] = [vec![0; 4096], vec![0; 4096]];
        }
        run.trace(|store| while store.compact(Duration::MAX).unwrap() {});
        run.pages
            .iter_mut()
            .for_each(|page| page[1] = vec![0; 4096]);
        run.trace(Store::reset);
    });
    assert!(points > 500, "{points}");
}

#[test]
fn a_crash_within_a_pass_to_the_backing_file_or_of_pages_there_loses_nothing() {
    let points = each(0, |run| {
        for index in 0..PAGES {
            run.store.write(PageIndex(index), &content(index)).unwrap();
            run.pages[index as usize] = [content(index), content(index)];
        }
        let named: Vec<PageIndex> = (0..PAGES).map(PageIndex).collect();
        for batch_pages in [3, 64] {
            run.store.set_writeback_batch_pages(batch_pages).unwrap();
            assert!(run.trace(|store| store.write_back(&named).unwrap()) > 0);
            // Blocks are given back, and taken by others.
            for index in (0..PAGES).filter(|index| index % 3 == 0) {
                run.write(index, content(index + batch_pages as u64));
                let mut page = run.pages[index as usize + 1][0].clone();
                page[50..90].fill(3);
                run.act(index + 1, page, |store| {
                    store.write_at(PageIndex(index + 1), 50, &[3; 40])
                });
            }
        }
        for index in 0..PAGES {
            run.act(index, vec![0; 4096], |store| store.trim(PageIndex(index)));
        }
    });
    assert!(points > 1000, "{points}");
}

/// A successor may die too, wherever it is. The next one finds the same pages.
#[test]
fn a_crash_within_a_take_over_changes_nothing() {
    for checksum in [false, true] {
        let kind = Kind {
            pool: crate::pools()[0],
            checksum,
            limit_bytes: 0,
        };
        let mut run = Run::new(kind);
        for index in 0..PAGES {
            run.write(index, content(index));
        }
        let back: Vec<PageIndex> = (10..15).map(PageIndex).collect();
        assert!(run.store.write_back(&back).unwrap() > 0);
        // It dies with locked and marked slots, one of them between the checksum and the word.
        for index in [0, 1, 2, 6] {
            let mut guard = run.store.inner.table.lock(PageIndex(index)).unwrap();
            guard.set_flags(guard.flags().with_mark(true));
            drop(guard);
            let guard = run.store.inner.table.lock(PageIndex(index)).unwrap();
            if let (1, Some(cell)) = (index, run.store.inner.checksum_cell(PageIndex(1))) {
                cell.store(1234, Ordering::Relaxed);
            }
            std::mem::forget(guard);
        }
        let dead = Files::holding(run.files.copied());
        let dead_backing = copied(&run.backing);
        let (pages, points) = (run.pages.clone(), Rc::new(RefCell::new(0)));
        let counted = Rc::clone(&points);
        let remains = dead.remains();
        let hook = move || {
            *counted.borrow_mut() += 1;
            crash(kind, (&dead, &dead_backing), &pages, 1);
        };
        let successors = copied(&run.backing);
        let (store, _) = crate::crash::trace(Box::new(hook), || {
            recover(kind.config(&successors), remains)
        });
        assert!(*points.borrow() >= 4);
        drop(store);
    }
}
