//! The word's layout and the lock, for every interleaving that shuttle or the machine makes.

#[cfg(not(uzram_shuttle))]
use super::*;

#[cfg(not(uzram_shuttle))]
mod words {
    use proptest::prelude::*;

    use super::*;
    use crate::pool::GRANULE_BITS;
    use crate::region::Region;
    use crate::store::layout::Flags;

    /// Pages of the system that go back together, or stay.
    const CHUNK_PAGES: usize = 2;

    fn object() -> impl Strategy<Value = (u64, u32)> {
        (0..1u64 << GRANULE_BITS, 1..=65536u32)
    }

    proptest! {
        #[test]
        fn entries_survive_the_word(kind in 0..4u8, fill: u32, (granule, size) in object()) {
            // SAFETY: no pool exists whose memory these handles could touch.
            let handle = || unsafe { Handle::from_parts(granule, size) };
            let make = || match kind {
                0 => Entry::Empty,
                1 => Entry::Same(fill),
                2 => Entry::Raw(handle()),
                _ => Entry::Packed(handle()),
            };
            let word = make().encode();
            prop_assert_eq!(word & (LOCK_BITS), 0, "the lock's bits stay free");
            // SAFETY: encoded above, once, and decoded once.
            let decoded = unsafe { Entry::decode(word) };
            let expected = make();
            prop_assert_eq!(&decoded, &expected);
            for entry in [decoded, expected] {
                entry.encode();
            }
        }
    }

    #[test]
    fn a_dropped_guard_changes_nothing_and_a_published_one_returns_the_old() {
        let table: SlotTable = SlotTable::new(8192, Unit::DEFAULT, Backing::Private).unwrap();
        let index = PageIndex(1);
        let old = table
            .lock(index)
            .unwrap()
            .publish(Entry::Same(7), Flags::NONE);
        assert_eq!(old, Entry::Empty);
        drop(table.lock(index).unwrap());
        assert_eq!(
            table
                .lock(index)
                .unwrap()
                .publish(Entry::Empty, Flags::NONE),
            Entry::Same(7)
        );
        assert_eq!(
            table.lock(PageIndex(2)).unwrap_err().kind(),
            ErrorKind::OutOfRange
        );
    }

    #[test]
    #[should_panic(expected = "a leak")]
    #[cfg(debug_assertions)]
    fn a_lost_object_is_reported() {
        // SAFETY: no pool exists whose memory this handle could touch.
        drop(unsafe { Handle::from_parts(1, 1) });
    }

    /// Whatever the system's page: what is empty goes back, and a slot in use keeps two pages at most.
    #[test]
    fn empty_chunks_go_back_in_whole_pages_of_the_system() {
        const SLOTS: u64 = 40_000;
        const KEPT: PageIndex = PageIndex(20_000);
        for page_bytes in [4096, 16384, 65536] {
            if page_bytes < crate::system_page::size_bytes() {
                continue;
            }
            let table_bytes = (SLOTS as usize * 8).next_multiple_of(page_bytes);
            let region = Region::reserve(table_bytes, Backing::Private).unwrap();
            let words = Words::over(region.with_system_pages(page_bytes));
            let table: SlotTable = SlotTable::over(words, SLOTS).unwrap();
            let resident_bytes = || table.words().region().resident_bytes();
            let publish = |index, entry| table.lock(index).unwrap().publish(entry, Flags::NONE);
            (0..SLOTS).for_each(|index| drop(publish(PageIndex(index), Entry::Empty)));
            assert!(resident_bytes() >= SLOTS as usize * 8);

            let _ = publish(KEPT, Entry::Same(7));
            let mut forgotten = Vec::new();
            table.give_back(|run| forgotten.push(run));
            assert_eq!(resident_bytes(), CHUNK_PAGES * page_bytes);
            let whole_checksums = |run: &Range<u64>| {
                run.start.is_multiple_of(page_bytes as u64 / 4) && !run.contains(&KEPT.0)
            };
            assert!(forgotten.iter().all(whole_checksums), "{forgotten:?}");
            assert_eq!(publish(KEPT, Entry::Empty), Entry::Same(7));
            table.give_back(|_| {});
            assert_eq!(resident_bytes(), 0, "pages of {page_bytes} bytes");
            assert_eq!(table.next_touched(0), SLOTS);
        }
    }

    /// Threads that hold the lock long enough for others to fall asleep.
    #[test]
    fn sleepers_are_woken_and_exclude_each_other() {
        let table: SlotTable = SlotTable::new(8192, Unit::DEFAULT, Backing::Private).unwrap();
        let inside = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let (table, inside) = (&table, &inside);
                scope.spawn(move || {
                    for turn in 0..200u32 {
                        let guard = table
                            .lock(PageIndex(u64::from((thread + turn) % 2)))
                            .unwrap();
                        if guard.index() == PageIndex(0) {
                            assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                            std::thread::sleep(std::time::Duration::from_micros(50));
                            inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        }
                        let _ = guard.publish(Entry::Same(turn), Flags::NONE);
                    }
                });
            }
        });
    }
}
