//! A device is offered to its clients, and taken from them: over NBD, to guests, as a ublk device.

use uzram::ErrorKind;
use uzram_frontends::nbd::Export;
use uzram_frontends::vhost_user::Disk;

use super::{Device, Live};
use crate::attachment::Attach;
use crate::error::{Error, Result};

/// Users of a device that a refusal names, at most.
const USERS_SHOWN_MAX: usize = 8;

impl Device {
    /// Offers it everywhere, or nowhere. Without a size it is nowhere.
    pub(super) fn publish(&self) -> Result<()> {
        let Some(live) = self.live() else {
            return Ok(());
        };
        if self.config.attach == Attach::Ublk {
            return self.attach(live.block_device());
        }
        if let Some(guests) = &self.guests {
            guests.seat().offer(Disk {
                name: self.name.clone(),
                device: live.block_device(),
                is_read_only: self.is_read_only(),
            })?;
            return Ok(());
        }
        for (done, place) in self.places.iter().enumerate() {
            if let Err(error) = place.exports().add(self.export(&live)) {
                self.remove_exports(done);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Stops offering it, unless clients are connected somewhere.
    pub(super) fn withdraw(&self) -> Result<()> {
        let Some(live) = self.live() else {
            return Ok(());
        };
        if let Some(guests) = &self.guests {
            return guests.seat().withdraw().map_err(|_in_use| self.busy());
        }
        for (done, place) in self.places.iter().enumerate() {
            match place.exports().remove(&self.name) {
                Ok(_) => {}
                // An earlier change failed half-way: then it is not offered, which is the aim.
                Err(error) if error.kind() == ErrorKind::UnknownName => {}
                Err(error) => {
                    for place in &self.places[..done] {
                        place.exports().add(self.export(&live))?;
                    }
                    return Err(match error.kind() {
                        ErrorKind::Busy => self.busy(),
                        _ => error.into(),
                    });
                }
            }
        }
        Ok(())
    }

    fn remove_exports(&self, count: usize) {
        for place in &self.places[..count] {
            // A client that came at once keeps its lease on an export that nobody else finds.
            let _ = place.exports().remove(&self.name);
        }
    }

    pub(super) fn busy(&self) -> Error {
        let users = self.users();
        let text = match self.connections() {
            1 => format!("1 client is connected{users}; disconnect it first"),
            // 0: the last one left just now.
            count => format!("{count} clients are connected{users}; disconnect them first"),
        };
        Error::new(ErrorKind::Busy, format!("{}: {text}", self.name))
    }

    /// ` (process 12, 127.0.0.1:5000)`, as far as they are known and there is room.
    fn users(&self) -> String {
        let peers = self.places.iter().flat_map(|place| place.peers(&self.name));
        let guests = self.guests.iter();
        let guests = guests.filter_map(|guests| guests.seat().user());
        let mut names: Vec<String> = peers.chain(guests).map(|peer| peer.to_string()).collect();
        names.sort();
        names.dedup();
        if names.len() > USERS_SHOWN_MAX {
            names.truncate(USERS_SHOWN_MAX);
            names.push("others".into());
        }
        match names.as_slice() {
            [] => String::new(),
            names => format!(" ({})", names.join(", ")),
        }
    }

    fn export(&self, live: &Live) -> Export {
        Export {
            name: self.name.clone(),
            description: "uzram".into(),
            device: live.block_device(),
            read_only: self.is_read_only(),
        }
    }
}
