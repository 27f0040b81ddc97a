//! Changes that programs make to their address spaces, followed in the table of their pages.

use uzram_pager::uffd::{Message, Then, Uffd};

use crate::agent::Mark;
use crate::space::Space;
use crate::state::{Fatal, Server};
use crate::table::Place;
use crate::units::Range;

/// Attempts to put a child's mark, which fail only while its parent changes its mappings.
const MARK_ATTEMPTS_MAX: usize = 10_000;

impl Server {
    /// Follows `message` of space `id`, which is no fault.
    ///
    /// # Errors
    /// [`Fatal`]: if a page that was taken can be kept nowhere.
    pub(crate) fn follow(&mut self, id: u32, message: Message) -> Result<(), Fatal> {
        match message {
            Message::Fault { .. } => {}
            Message::Removed { start, end } => self.set(id, start..end, Some(Place::Discarded)),
            Message::Unmapped { start, end } => {
                self.set(id, start..end, None);
                if let Some(space) = self.spaces.get_mut(&id) {
                    space.cut(&(start..end));
                }
            }
            Message::Moved { start, end, to } => {
                // The buffer of taken pages knows them by their addresses.
                self.store_taken()?;
                self.set(id, to..to + (end - start), None);
                if let Some(space) = self.spaces.get_mut(&id) {
                    space.table.shift(&(start..end), to);
                    space.cut(&(start..end));
                    space.cut(&(to..to + (end - start)));
                    space.note_managed(to..to + (end - start));
                }
            }
            Message::Forked { descriptor } => {
                #[allow(unsafe_code)]
                // SAFETY: the number is of this very message, which is taken once.
                let uffd = unsafe { Uffd::of_child(descriptor) };
                self.store_taken()?;
                self.add_child(id, uffd)?;
            }
        }
        Ok(())
    }

    fn set(&mut self, id: u32, range: Range, place: Option<Place>) {
        let Some(space) = self.spaces.get_mut(&id) else {
            return;
        };
        let mut released = Vec::new();
        let was = |place| {
            if matches!(place, Place::Stored(_) | Place::Taken(_)) {
                released.push(place);
            }
        };
        match place {
            Some(place) => {
                // Elsewhere nothing is ever taken before it is managed.
                let mut was = was;
                for part in space.managed_in(&range) {
                    space.table.set(&part, place, &mut was);
                }
            }
            None => space.table.forget(&range, was),
        }
        released.into_iter().for_each(|place| self.release(place));
    }

    /// A child has all that its parent has, and its pages in memory in common with it.
    fn add_child(&mut self, id: u32, uffd: Uffd) -> Result<(), Fatal> {
        let Some(parent) = self.spaces.get_mut(&id) else {
            return Ok(());
        };
        parent.has_forked = true;
        let mark = Mark::new(parent.mark.address);
        let objects = &mut self.objects;
        let table = parent.table.fork(|place| {
            if let Place::Stored(object) = place {
                objects.keep(object);
            }
        });
        let mut child = Space::new(uffd, mark);
        child.table = table;
        child.manage_as(parent);
        child.has_forked = true;
        let page = mark.page();
        for _ in 0..MARK_ATTEMPTS_MAX {
            let done = child.uffd.copy(&page, mark.address, Then::Wake);
            if done.stopped != Some(rustix::io::Errno::AGAIN) {
                break;
            }
            std::thread::yield_now();
        }
        self.add(child);
        Ok(())
    }
}
