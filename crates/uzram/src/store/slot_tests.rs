//! The word's layout and the lock, for every interleaving that shuttle or the machine makes.

#[cfg(not(uzram_shuttle))]
use super::*;

#[cfg(not(uzram_shuttle))]
mod words {
    use proptest::prelude::*;

    use super::*;

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
        let old = table.lock(index).unwrap().publish(Entry::Same(7));
        assert_eq!(old, Entry::Empty);
        drop(table.lock(index).unwrap());
        assert_eq!(
            table.lock(index).unwrap().publish(Entry::Empty),
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
                        let _ = guard.publish(Entry::Same(turn));
                    }
                });
            }
        });
    }
}
