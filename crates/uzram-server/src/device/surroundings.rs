//! All that a device has around it: the places where it is found, and what it shares with others.

use std::sync::Arc;

use crate::attachment::GuestSocket;
use crate::compressions::Compressions;
use crate::place::Place;
use crate::state::StateDir;

/// The places where a device is found, and all that it shares with others.
pub(crate) struct Surroundings<'a> {
    pub(crate) places: Vec<Arc<Place>>,
    pub(crate) guests: Option<Arc<GuestSocket>>,
    pub(crate) state: &'a StateDir,
    pub(crate) compressions: Arc<Compressions>,
}
