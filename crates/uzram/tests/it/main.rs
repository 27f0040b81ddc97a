//! The engine through its public interface, one binary, modules named for what they show.
//!
//! Where each invariant of the engine is tested (`lib` = unit tests beside the source):
//!
//! | # | Invariant | Tests |
//! |---|---|---|
//! | 1 | an entry is read or changed only through its guard | lib `slot::tests`, `store::shuttle_tests::shuttle_the_slot_lock_excludes_and_wakes`; `races` |
//! | 2 | the lock order; nobody waits for memory while holding a stream or a slot | lib `store::shuttle_tests` and `codec::streams::shuttle_tests`, where a deadlock fails a schedule; `codecs::state_is_never_shared`; `cpus` |
//! | 3 | an object has one owner | lib `pool::conformance::{threads_never_share_an_object, a_double_free_is_caught}`, `store::shuttle_tests::shuttle_a_pool_gives_each_object_memory_of_its_own`, `store::recover_tests` |
//! | 4 | prepare, then publish: a failed write leaves the old page | lib `store::fault_tests`, `store::shuttle_tests`; `model`, `limits`, `codecs`, `cold` |
//! | 5 | every loop, retry and buffer has a limit | `limits`, `headroom`, `memory::the_spare_shrinks_with_the_use`; lib `pool::arena::tests`, `store::shuttle_tests::shuttle_writers_at_the_limit_do_not_starve_each_other` |
//! | 6 | no byte can panic or corrupt | lib `store::corrupt_tests`, `codec::conformance`; fuzz targets `codec_decode`, `store_ops` |
//! | 7 | memory in use is what the statistics say, and goes back to the system | `memory`, `model`, `compact`; lib `store::fault_tests::memory_that_was_made_and_not_used_goes_back_too` |
//! | 8 | offsets only, the slot word is the only truth | lib `store::{recover_tests, crash_tests, superblock}`, `store::corrupt_tests::hostile_words_are_lost_or_are_pages` |
//!
//! Release builds run more cases and longer races; `RUSTFLAGS="--cfg uzram_shuttle" cargo test -p uzram
//! --lib shuttle --release` runs the models.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod cgroup;
mod churn;
mod codecs;
mod cold;
mod compact;
mod cpus;
mod headroom;
mod history;
mod khugepaged;
mod limits;
mod memory;
mod model;
mod pages;
mod race;
mod races;
mod runs;
mod spare;
