//! The same laws for every lock and every policy, the engine's included, under every schedule that shuttle
//! makes. A deadlock, a lost wake-up and a waiter that spins for ever fail a schedule too.
//!
//! A promise that a variant does not make is seen broken: the table's lock stops all slots, and a thread that is
//! preempted with the only stream stops all writers.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::sync::Arc;

use uzram::lab::{
    PerCpuStreams, SleepingBit, Slot, SlotLock, StoreWith, Stream, StreamPolicy, Word,
};
use uzram::{
    Codec, Compression, Compressor, Decompress, Decompressor, ErrorKind, Malformed, PageIndex,
    Store, Unit,
};

use crate::locks::{EntryCas, EntryRwLock, EntrySpinlock, SpinningBit, TableRwLock};
use crate::streams::{IdleList, OneStream, Sleeps};
use crate::sync::{self, AtomicU64, Condvar, Mutex, Ordering};

/// Of each kind of schedule.
const SCHEDULES: usize = if cfg!(debug_assertions) { 300 } else { 3000 };

fn check(model: impl Fn() + Send + Sync + 'static) {
    let model = Arc::new(model);
    let random = Arc::clone(&model);
    shuttle::check_random(move || random(), SCHEDULES);
    shuttle::check_pct(move || model(), SCHEDULES, 3);
}

type Work = Box<dyn FnOnce() + Send>;

/// Runs all at once, to their ends.
fn together(threads: Vec<Work>) {
    let threads: Vec<_> = threads.into_iter().map(shuttle::thread::spawn).collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

/// Closed until somebody opens it; who waits is away, as a preempted thread is.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *sync::lock(&self.is_open) = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut is_open = sync::lock(&self.is_open);
        while !*is_open {
            is_open = sync::wait(&self.opened, is_open);
        }
    }
}

/// A table of two entries behind a lock.
struct Table<L> {
    lock: L,
    words: Vec<Word>,
    /// Writers and readers in each slot.
    inside: [[AtomicU64; 2]; 2],
}

impl<L: SlotLock> Table<L> {
    fn new() -> Arc<Table<L>> {
        Arc::new(Table {
            lock: L::new().unwrap(),
            words: (0..2 * L::ENTRY_WORDS).map(|_| Word::new(0)).collect(),
            inside: Default::default(),
        })
    }

    fn slot(&self, index: usize) -> Slot<'_> {
        let at = index * L::ENTRY_WORDS;
        Slot {
            index: index as u64,
            word: &self.words[at],
            lock: &self.words[at + L::ENTRY_WORDS - 1],
        }
    }

    /// Adds one to what the slot holds, above the lock's bits.
    fn write(&self, index: usize) {
        let slot = self.slot(index);
        let word = self.lock.lock(slot);
        let [writers, readers] = &self.inside[index];
        assert_eq!(writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
        assert_eq!(
            readers.load(Ordering::SeqCst),
            0,
            "a reader beside a writer"
        );
        shuttle::thread::yield_now();
        writers.fetch_sub(1, Ordering::SeqCst);
        self.lock.unlock(slot, word + 4);
    }

    fn read(&self, index: usize) -> u64 {
        let slot = self.slot(index);
        let word = self.lock.lock_shared(slot);
        let [writers, readers] = &self.inside[index];
        readers.fetch_add(1, Ordering::SeqCst);
        shuttle::thread::yield_now();
        assert_eq!(
            writers.load(Ordering::SeqCst),
            0,
            "a writer beside a reader"
        );
        readers.fetch_sub(1, Ordering::SeqCst);
        self.lock.unlock_shared(slot, word);
        word / 4
    }
}

/// Mutual exclusion, no lost wake-up, no lost word, and everybody comes to an end.
fn excludes_and_wakes<L: SlotLock + 'static>() {
    check(|| {
        let table = Table::<L>::new();
        let writer = |first: usize| -> Work {
            let table = Arc::clone(&table);
            Box::new(move || {
                for slot in [first, 1 - first, first] {
                    table.write(slot);
                }
            })
        };
        let reader = Arc::clone(&table);
        let reader: Work = Box::new(move || {
            let before = reader.read(0);
            assert!(before <= reader.read(0), "an old word came back");
        });
        together(vec![writer(0), writer(1), reader, writer(0)]);
        assert_eq!([table.read(0), table.read(1)], [5, 4]);
    });
}

/// A holder of one slot is away until somebody has written to another slot.
fn a_holder_stops_nobody_elsewhere<L: SlotLock + 'static>() {
    check(|| {
        let (table, gate) = (Table::<L>::new(), Arc::new(Gate::default()));
        let (away, opener) = (Arc::clone(&table), Arc::clone(&gate));
        let holder: Work = Box::new(move || {
            let word = away.lock.lock(away.slot(0));
            gate.pass();
            away.lock.unlock(away.slot(0), word);
        });
        let other: Work = Box::new(move || {
            table.write(1);
            opener.open();
        });
        together(vec![holder, other]);
    });
}

/// Two readers of one slot that wait for each other while they have it.
fn readers_share<L: SlotLock + 'static>() {
    check(|| {
        let table = Table::<L>::new();
        let gates = [Arc::new(Gate::default()), Arc::new(Gate::default())];
        let reader = |own: usize| -> Work {
            let table = Arc::clone(&table);
            let [own, other] = [Arc::clone(&gates[own]), Arc::clone(&gates[1 - own])];
            Box::new(move || {
                let word = table.lock.lock_shared(table.slot(0));
                own.open();
                other.pass();
                table.lock.unlock_shared(table.slot(0), word);
            })
        };
        together(vec![reader(0), reader(1)]);
    });
}

/// More threads than contexts: nobody shares one, there are never too many, and all get one in the end.
fn contexts_are_exclusive<S: StreamPolicy<AtomicU64> + 'static>(policy: fn() -> S, most: u64) {
    check(move || {
        let (policy, made) = (Arc::new(policy()), Arc::new(AtomicU64::new(0)));
        let work = || -> Work {
            let (policy, made) = (Arc::clone(&policy), Arc::clone(&made));
            Box::new(move || {
                for _ in 0..2 {
                    let context = policy.lease(|| {
                        made.fetch_add(1, Ordering::SeqCst);
                        Ok(AtomicU64::new(0))
                    });
                    let context = context.unwrap();
                    assert_eq!(context.fetch_add(1, Ordering::SeqCst), 0, "shared");
                    shuttle::thread::yield_now();
                    context.fetch_sub(1, Ordering::SeqCst);
                }
            })
        };
        together(vec![work(), work(), work(), work()]);
        let made = made.load(Ordering::SeqCst);
        assert!((1..=most).contains(&made), "{made} contexts");
    });
}

/// The right to make a context is handed on when the making fails.
fn a_failed_making_is_made_up_for<S: StreamPolicy<u8> + 'static>(policy: fn() -> S) {
    check(move || {
        let (policy, failures) = (Arc::new(policy()), Arc::new(AtomicU64::new(0)));
        let work = || -> Work {
            let (policy, failures) = (Arc::clone(&policy), Arc::clone(&failures));
            Box::new(move || {
                let lease = policy.lease(|| match failures.fetch_add(1, Ordering::SeqCst) {
                    0 => Err(refusal()),
                    _ => Ok(7),
                });
                assert!(lease.is_err() || lease.is_ok_and(|context| *context == 7));
            })
        };
        together(vec![work(), work(), work()]);
        assert_eq!(*policy.lease(|| Ok(7)).ok().unwrap(), 7);
    });
}

/// Some error of the engine's.
fn refusal() -> uzram::Error {
    Store::builder().build().unwrap_err()
}

/// A writer is preempted with its stream until another one has compressed.
fn a_compressor_stops_no_writer<S: StreamPolicy<u8> + 'static>(policy: fn() -> S) {
    check(move || {
        let (policy, gate) = (Arc::new(policy()), Arc::new(Gate::default()));
        let (away, opener) = (Arc::clone(&policy), Arc::clone(&gate));
        let holder: Work = Box::new(move || {
            let _stream = away.lease(|| Ok(0)).ok().unwrap();
            gate.pass();
        });
        let other: Work = Box::new(move || {
            drop(policy.lease(|| Ok(0)).ok().unwrap());
            opener.open();
        });
        together(vec![holder, other]);
    });
}

/// Drops the zeroes at a page's end, with state on both sides; a page without any is too big. Of a page that
/// begins with [`AWAY`] the compressor is preempted until the gate opens.
struct Tail(Arc<Gate>);

const AWAY: u8 = 255;

impl Codec for Tail {
    fn name(&self) -> &str {
        "tail"
    }

    fn compressor(&self, _unit: Unit) -> uzram::Result<Box<dyn Compressor>> {
        Ok(Box::new(Tail(Arc::clone(&self.0))))
    }

    fn decompressor(&self, _unit: Unit) -> uzram::Result<Decompressor> {
        Ok(Decompressor::Stateful(Box::new(Tail(Arc::clone(&self.0)))))
    }
}

impl Compressor for Tail {
    fn compress(&mut self, source: &[u8], destination: &mut [u8]) -> Option<usize> {
        if source[0] == AWAY {
            self.0.pass();
        }
        let length = source.len() - source.iter().rev().take_while(|byte| **byte == 0).count();
        destination[..length].copy_from_slice(&source[..length]);
        shuttle::thread::yield_now();
        Some(length)
    }
}

impl Decompress for Tail {
    fn decompress(&mut self, source: &[u8], destination: &mut [u8]) -> Result<(), Malformed> {
        destination.fill(0);
        destination[..source.len()].copy_from_slice(source);
        shuttle::thread::yield_now();
        Ok(())
    }
}

/// A store of four pages of a variant, and the gate of its codec.
struct Subject<L, S> {
    store: Arc<StoreWith<L, S>>,
    gate: Arc<Gate>,
}

impl<L: SlotLock + 'static, S: StreamPolicy<Stream> + 'static> Subject<L, S> {
    fn new(streams: S, mem_limit_bytes: u64) -> Subject<L, S> {
        let gate = Arc::new(Gate::default());
        let codec = Box::new(Tail(Arc::clone(&gate)));
        let compression = Compression::with_codec(codec, Unit::DEFAULT).unwrap();
        let builder = Store::builder().size(4 << 12).compression(compression);
        let store = builder.mem_limit(mem_limit_bytes).build_with(streams);
        Subject {
            store: Arc::new(store.unwrap()),
            gate,
        }
    }

    fn read(store: &StoreWith<L, S>, index: u64) -> Vec<u8> {
        let mut page = vec![0xee; 4096];
        store.read(PageIndex(index), &mut page).unwrap();
        page
    }

    fn write_part(&self, start: usize, bytes: [u8; 2]) -> Work {
        let store = Arc::clone(&self.store);
        Box::new(move || {
            for byte in bytes {
                store.write_at(PageIndex(0), start, &[byte; 16]).unwrap();
            }
        })
    }
}

/// A page with `byte` in its first 64 bytes and nothing behind.
fn short(byte: u8) -> Vec<u8> {
    let mut page = vec![0; 4096];
    page[..64].fill(byte);
    page
}

/// A page that is kept raw.
fn long(byte: u8) -> Vec<u8> {
    (0..4096).map(|at| byte + (at % 7) as u8).collect()
}

/// Writers of different bytes of a page, of all of it, and a reader. The first to write finds no memory, gives
/// slot and stream back, and starts again from the read.
fn writers_keep_each_others_bytes<L, S>(streams: fn() -> S)
where
    L: SlotLock + 'static,
    S: StreamPolicy<Stream> + 'static,
{
    check(move || {
        let subject = Subject::<L, S>::new(streams(), 0);
        let (writer, reader) = (Arc::clone(&subject.store), Arc::clone(&subject.store));
        together(vec![
            subject.write_part(0, [1, 2]),
            subject.write_part(32, [3, 4]),
            Box::new(move || writer.write(PageIndex(0), &short(5)).unwrap()),
            Box::new(move || {
                let page = Subject::read(&reader, 0);
                assert!([0, 1, 2, 5].contains(&page[0]) && [0, 3, 4, 5].contains(&page[32]));
                assert!(page[..16].iter().all(|byte| *byte == page[0]), "torn");
                assert!(page[16..32] == page[48..64] && page[64..].iter().all(|byte| *byte == 0));
            }),
        ]);
        let page = Subject::read(&subject.store, 0);
        assert!([2, 5].contains(&page[0]), "a write came back: {}", page[0]);
        assert!(
            [4, 5].contains(&page[32]),
            "a write came back: {}",
            page[32]
        );
        assert_eq!(
            (&page[16..32], &page[48..64]),
            (&[5; 16][..], &[5; 16][..]),
            "undone"
        );
        assert!(subject.store.stats().slow_path_writes > 0, "no slow path");
        subject.store.trim(PageIndex(0)).unwrap();
        assert_eq!(subject.store.stats().mem_used_total_bytes, 0);
    });
}

/// Two writers compress, find no memory, give their streams back, grow, and compress again, while others use the
/// same streams' buffers: each page gets its own bytes. Then memory for one page, and two that want it: who
/// gets none keeps what was there.
fn the_slow_path_loses_nothing<L, S>(streams: fn() -> S)
where
    L: SlotLock + 'static,
    S: StreamPolicy<Stream> + 'static,
{
    check(move || {
        let subject = Subject::<L, S>::new(streams(), 4096);
        // Filled with one word, so that they take no memory.
        let old = || vec![7; 4096];
        for index in 0..2 {
            subject.store.write(PageIndex(index), &old()).unwrap();
        }
        let written = Arc::new(AtomicU64::new(0));
        let work = |index: u64| -> Work {
            let (store, written) = (Arc::clone(&subject.store), Arc::clone(&written));
            Box::new(
                move || match store.write(PageIndex(index), &long(2 + index as u8)) {
                    Ok(()) => {
                        written.fetch_add(1, Ordering::SeqCst);
                        assert!(Subject::read(&store, index) == long(2 + index as u8));
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::NoSpace);
                        assert!(
                            Subject::read(&store, index) == old(),
                            "the old page is gone"
                        );
                    }
                },
            )
        };
        together(vec![work(0), work(1)]);
        assert_eq!(written.load(Ordering::SeqCst), 1);
        assert_eq!(subject.store.stats().failed_writes, 1);
    });
    check(move || {
        let subject = Subject::<L, S>::new(streams(), 0);
        let work = |index: u64| -> Work {
            let store = Arc::clone(&subject.store);
            Box::new(move || {
                store
                    .write(PageIndex(index), &short(1 + index as u8))
                    .unwrap()
            })
        };
        together((0..3).map(work).collect());
        for index in 0..3 {
            assert!(
                Subject::read(&subject.store, index) == short(1 + index as u8),
                "page {index}"
            );
        }
    });
}

/// A writer of a whole page is preempted while it compresses, until a page has been read: all of them, its own
/// included, can be, for it has no slot yet, and readers use other contexts.
fn no_reader_waits_for_a_compressor<L, S>(streams: fn() -> S)
where
    L: SlotLock + 'static,
    S: StreamPolicy<Stream> + 'static,
{
    check(move || {
        let subject = Subject::<L, S>::new(streams(), 0);
        for index in 0..2 {
            subject.store.write(PageIndex(index), &short(3)).unwrap();
        }
        let (writer, reader) = (Arc::clone(&subject.store), Arc::clone(&subject.store));
        let gate = Arc::clone(&subject.gate);
        together(vec![
            Box::new(move || writer.write(PageIndex(0), &short(AWAY)).unwrap()),
            Box::new(move || {
                assert!(Subject::read(&reader, 1) == short(3));
                assert!(Subject::read(&reader, 0) == short(3));
                gate.open();
            }),
        ]);
        assert!(Subject::read(&subject.store, 0) == short(AWAY));
    });
}

/// A writer of a part has its slot while it compresses: the other slots can be read all the same.
fn a_partial_writer_stops_nobody_elsewhere<L: SlotLock + 'static>() {
    check(move || {
        let subject = Subject::<L, _>::new(IdleList::new(2, Sleeps::default()), 0);
        for index in 0..2 {
            subject.store.write(PageIndex(index), &short(3)).unwrap();
        }
        let (writer, reader) = (Arc::clone(&subject.store), Arc::clone(&subject.store));
        let gate = Arc::clone(&subject.gate);
        together(vec![
            Box::new(move || writer.write_at(PageIndex(0), 0, &[AWAY; 8]).unwrap()),
            Box::new(move || {
                assert!(Subject::read(&reader, 1) == short(3));
                gate.open();
            }),
        ]);
        assert!(
            Subject::read(&subject.store, 0)[..9]
                == [AWAY, AWAY, AWAY, AWAY, AWAY, AWAY, AWAY, AWAY, 3]
        );
    });
}

fn per_cpu<C>() -> PerCpuStreams<C> {
    PerCpuStreams::new().unwrap()
}

fn idle_list_1<C>() -> IdleList<C> {
    IdleList::new(1, Sleeps::default())
}

fn idle_list_2<C>() -> IdleList<C> {
    IdleList::new(2, Sleeps::default())
}

fn one_stream<C>() -> OneStream<C> {
    OneStream::new(Sleeps::default())
}

/// The laws of a lock, in a store with the engine's streams.
macro_rules! lock_laws {
    ($name:ident, $lock:ty) => {
        mod $name {
            use super::*;

            #[test]
            fn shuttle_excludes_and_wakes() {
                excludes_and_wakes::<$lock>();
            }

            #[test]
            fn shuttle_writers_keep_each_others_bytes() {
                writers_keep_each_others_bytes::<$lock, _>(per_cpu);
            }

            #[test]
            fn shuttle_the_slow_path_loses_nothing() {
                the_slow_path_loses_nothing::<$lock, _>(per_cpu);
            }

            #[test]
            fn shuttle_no_reader_waits_for_a_compressor() {
                no_reader_waits_for_a_compressor::<$lock, _>(per_cpu);
            }
        }
    };
}

/// Further promises of a lock of an entry.
macro_rules! entry_lock_laws {
    ($name:ident, $lock:ty) => {
        mod $name {
            use super::*;

            #[test]
            fn shuttle_a_holder_stops_nobody_elsewhere() {
                a_holder_stops_nobody_elsewhere::<$lock>();
            }

            #[test]
            fn shuttle_a_partial_writer_stops_nobody_elsewhere() {
                a_partial_writer_stops_nobody_elsewhere::<$lock>();
            }
        }
    };
}

/// The laws of a policy of at most `$most` contexts, in a store with the engine's lock.
macro_rules! stream_laws {
    ($name:ident, $policy:expr, $most:literal) => {
        mod $name {
            use super::*;

            #[test]
            fn shuttle_contexts_are_exclusive() {
                contexts_are_exclusive(|| $policy(), $most);
            }

            #[test]
            fn shuttle_a_failed_making_is_made_up_for() {
                a_failed_making_is_made_up_for(|| $policy());
            }

            #[test]
            fn shuttle_writers_keep_each_others_bytes() {
                writers_keep_each_others_bytes::<SleepingBit, _>(|| $policy());
            }

            #[test]
            fn shuttle_the_slow_path_loses_nothing() {
                the_slow_path_loses_nothing::<SleepingBit, _>(|| $policy());
            }

            #[test]
            fn shuttle_no_reader_waits_for_a_compressor() {
                no_reader_waits_for_a_compressor::<SleepingBit, _>(|| $policy());
            }
        }
    };
}

lock_laws!(sleeping_bit, SleepingBit);
lock_laws!(spinning_bit, SpinningBit);
lock_laws!(entry_cas, EntryCas);
lock_laws!(entry_spinlock, EntrySpinlock);
lock_laws!(entry_rwlock, EntryRwLock);
lock_laws!(table_rwlock, TableRwLock);

entry_lock_laws!(sleeping_bit_elsewhere, SleepingBit);
entry_lock_laws!(spinning_bit_elsewhere, SpinningBit);
entry_lock_laws!(entry_cas_elsewhere, EntryCas);
entry_lock_laws!(entry_spinlock_elsewhere, EntrySpinlock);
entry_lock_laws!(entry_rwlock_elsewhere, EntryRwLock);

stream_laws!(per_cpu_streams, per_cpu, 2);
stream_laws!(idle_list_of_1, idle_list_1, 1);
stream_laws!(idle_list_of_2, idle_list_2, 2);
stream_laws!(one_stream_for_all, one_stream, 1);

#[test]
fn shuttle_readers_share_a_rwlock() {
    readers_share::<EntryRwLock>();
    readers_share::<TableRwLock>();
}

#[test]
fn shuttle_a_preempted_compressor_stops_no_writer_where_there_are_two_streams() {
    a_compressor_stops_no_writer(per_cpu);
    a_compressor_stops_no_writer(idle_list_2);
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_a_preempted_compressor_stops_the_idle_list_of_1() {
    a_compressor_stops_no_writer(idle_list_1);
}

#[test]
#[should_panic(expected = "deadlock")]
fn shuttle_a_preempted_compressor_stops_one_stream() {
    a_compressor_stops_no_writer(one_stream);
}

#[test]
#[should_panic(expected = "exceeded max_steps bound")]
fn shuttle_a_preempted_holder_of_the_tables_lock_stops_all_slots() {
    a_holder_stops_nobody_elsewhere::<TableRwLock>();
}

#[test]
#[should_panic(expected = "exceeded max_steps bound")]
fn shuttle_a_partial_writer_stops_readers_of_a_table_with_one_lock() {
    a_partial_writer_stops_nobody_elsewhere::<TableRwLock>();
}
