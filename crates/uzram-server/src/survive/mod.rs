//! Disks that outlive their server: a *holder* starts it, keeps what it has, and starts a successor when it dies.
//!
//! ```text
//! message    what they say to each other
//! kept       what is kept
//! keeper     the server's end
//! program    the file that is started
//! running    a server, from its start to its end
//! commands   `uzram upgrade` and `uzram survive export`
//! export     the second of them: a store that nobody serves
//! holder     the holder's loop
//! twin       memory that stays locked, for swap
//! ```
//!
//! # Kept
//!
//! | key | note | files |
//! |---|---|---|
//! | `server` | its number | `claim`, `control` |
//! | `inherited/N` | the name of a socket that somebody handed over | `socket` |
//! | `place/URI` | – | `socket` |
//! | `claim/NAME` | – | `claim` |
//! | `memory` | – | `twin` |
//! | `device/NAME` | how it was made, and where it is found | those of its store, and of its attachment |
//!
//! A lock of a name belongs to an open file, of which the holder has another descriptor: the name stays taken while nobody
//! serves. Sockets go on listening, and clients wait.
//!
//! # Trust
//!
//! A server is in a sandbox, and what it sends may be hostile. The holder keeps it within the bounds below and reads
//! nothing of it but keys. It starts the program that it was started as, or one that a command of its own user hands over.
//! A successor checks what comes from the holder as it would check what comes from anybody.
//!
//! # Bounds
//!
//! | what | limit | beyond it |
//! |---|---|---|
//! | a message | 16 KiB, 16 files | not kept, said in the log |
//! | things kept | 4096 | not kept, said in the log |
//! | crashes in a row, each within a minute of a start | 5 | no more servers are started; all is kept |
//! | a hand-over, a new program's start | 10 s, 30 s | it is killed; then the old program again |

mod commands;
mod export;
mod holder;
mod keeper;
mod kept;
mod message;
mod program;
mod running;
mod twin;

pub use commands::{holder_at, let_go, upgrade};
pub use export::left_store;
pub use holder::{END, Holder, RELOAD};
pub use keeper::{Joined, Keeper};
pub(crate) use kept::{CONTROL, Kept, MEMORY_KEY, SERVER_KEY};
pub use message::{Begin, Death};
