//! All that a device has around it: the places where it is found, what it shares with others, and what is left of the one
//! that it follows.

use std::sync::Arc;

use uzram_frontends::fuse::MountRemains;

use crate::attachment::GuestSocket;
use crate::compressions::Compressions;
use crate::place::Place;
use crate::state::StateDir;
use crate::survive::Keeper;

/// The places where a device is found, all that it shares with others, and how the one was that it follows.
pub(crate) struct Surroundings<'a> {
    pub(crate) places: Vec<Arc<Place>>,
    pub(crate) guests: Option<Arc<GuestSocket>>,
    pub(crate) state: &'a StateDir,
    pub(crate) compressions: Arc<Compressions>,
    /// The way to the process that keeps it, if one does.
    pub(crate) keeper: Option<Arc<Keeper>>,
    pub(crate) is_read_only: bool,
    /// Whether a dead server had this device.
    pub(crate) follows: bool,
    /// The mount of that one.
    pub(crate) mount: Option<MountRemains>,
}
