//! Metadata contexts: the facts that `BLOCK_STATUS` can tell about a range, by name and number.
//!
//! `base:allocation` is the protocol's. `uzram:state` is uzram's own and tells how each unit is
//! kept:
//!
//! | bits  | meaning                                                                         |
//! |-------|---------------------------------------------------------------------------------|
//! | 0-3   | 0 hole, 1 filled with one word, 2 kept as it is, 3 compressed                    |
//! | 4-20  | of a compressed unit, its compressed size in bytes; else 0                       |
//! | 21-31 | 0                                                                               |
//!
//! A write to an extent that is no hole may still be refused with `ENOSPC`, because the new
//! content may compress less well. The protocol lets another context say so, and this one does.

use uzram::PageState;

use super::wire;

const STATE_HOLE: u32 = 0;
const STATE_SAME: u32 = 1;
const STATE_RAW: u32 = 2;
const STATE_COMPRESSED: u32 = 3;
const STATE_SIZE_SHIFT: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// `base:allocation`
    Allocation,
    /// `uzram:state`
    State,
}

impl Context {
    pub const ALL: [Context; 2] = [Context::Allocation, Context::State];

    /// Its number on the wire, the same in every handshake.
    pub fn id(self) -> u32 {
        match self {
            Context::Allocation => 1,
            Context::State => 2,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Context::Allocation => "base:allocation",
            Context::State => "uzram:state",
        }
    }

    /// The namespace with its colon: the wildcard of a list.
    pub fn namespace(self) -> &'static str {
        match self {
            Context::Allocation => "base:",
            Context::State => "uzram:",
        }
    }

    /// The status of a page.
    pub fn status(self, state: PageState) -> u32 {
        match (self, state) {
            (Context::Allocation, PageState::Hole) => wire::STATE_HOLE | wire::STATE_ZERO,
            (Context::Allocation, PageState::Same(0)) => wire::STATE_ZERO,
            (Context::Allocation, _) => 0,
            (Context::State, PageState::Hole) => STATE_HOLE,
            (Context::State, PageState::Same(_)) => STATE_SAME,
            (Context::State, PageState::Compressed { size_bytes }) => {
                STATE_COMPRESSED | size_bytes << STATE_SIZE_SHIFT
            }
            // As it is, or in a way that has no number here.
            (Context::State, _) => STATE_RAW,
        }
    }
}

/// A set of contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contexts(u8);

impl Contexts {
    pub fn insert(&mut self, context: Context) {
        self.0 |= 1 << context as u8;
    }

    pub fn contains(self, context: Context) -> bool {
        self.0 & 1 << context as u8 != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub fn iter(self) -> impl Iterator<Item = Context> {
        Context::ALL
            .into_iter()
            .filter(move |&context| self.contains(context))
    }

    /// The contexts that a request's payload names by number: at least one, each of the set and
    /// each once; else `None`.
    pub fn filtered(self, ids: impl Iterator<Item = u32>) -> Option<Contexts> {
        let mut chosen = Contexts::default();
        for id in ids {
            let context = self.iter().find(|context| context.id() == id)?;
            if chosen.contains(context) {
                return None;
            }
            chosen.insert(context);
        }
        (!chosen.is_empty()).then_some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_its_flags() {
        let compressed = PageState::Compressed { size_bytes: 65536 };
        for (state, allocation, own) in [
            (PageState::Hole, 3, 0),
            (PageState::Same(0), 2, 1),
            (PageState::Same(7), 0, 1),
            (PageState::Raw, 0, 2),
            (compressed, 0, 65536 << 4 | 3),
        ] {
            assert_eq!(Context::Allocation.status(state), allocation, "{state:?}");
            assert_eq!(Context::State.status(state), own, "{state:?}");
        }
    }

    #[test]
    fn a_filter_takes_each_number_of_the_set_once() {
        let mut both = Contexts::default();
        both.insert(Context::State);
        let own = both;
        both.insert(Context::Allocation);
        let filtered = |set: Contexts, ids: &[u32]| set.filtered(ids.iter().copied());
        assert_eq!(filtered(both, &[2]), Some(own));
        assert_eq!(filtered(both, &[2, 1]), Some(both));
        for ids in [&[][..], &[0], &[3], &[1, 1], &[1, 2, 1]] {
            assert_eq!(filtered(both, ids), None, "{ids:?}");
        }
        assert_eq!(filtered(own, &[1]), None);
    }
}
