//! The engine through its public interface, one binary, modules named for what they show.
//!
//! Where each invariant of the engine is tested (`lib` = unit tests beside the source):
//!
//! | # | Invariant | Tests |
//! |---|---|---|
//! | 1 | an entry is read or changed only through its guard | lib `store::slot::tests`, `store::shuttle_tests::the_slot_lock_excludes_and_wakes`; `races` |
//! | 2 | the lock order, and a stream never waits for memory | lib `store::shuttle_tests` (a deadlock fails a schedule); `codecs::state_is_never_shared` |
//! | 3 | an object has one owner | lib `pool::conformance::{threads_never_share_an_object, a_double_free_is_caught}`, `store::recover_tests` |
//! | 4 | prepare, then publish: a failed write leaves the old page | lib `store::fault_tests`; `model`, `limits`, `codecs` |
//! | 5 | every loop and buffer has a limit | `limits::the_limit_holds_at_every_moment`, `memory`; lib `pool::arena::tests` |
//! | 6 | no byte can panic or corrupt | lib `store::corrupt_tests`, `codec::conformance`; fuzz `codec_decode`, `store_ops` |
//! | 7 | memory in use is what the stats say and goes back | `memory`, `model` |
//! | 8 | offsets only, the slot word is the only truth | lib `store::recover_tests` |

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod codecs;
mod cpus;
mod history;
mod limits;
mod memory;
mod model;
mod pages;
mod races;
