//! Addresses to which the program has moved parts of its range. The descriptor serves them there, too.

use crate::uffd::Message;

/// Ranges that do not meet, each within a mapping: there are no more of them than the system lets a process have.
#[derive(Debug, Default)]
pub(super) struct Moved {
    ranges: Vec<(u64, u64)>,
}

impl Moved {
    /// Follows what the program does to its mappings.
    pub fn note(&mut self, message: Message) {
        match message {
            Message::Unmapped { start, end } => self.cut(start, end),
            Message::Moved { start, end, to } => {
                self.cut(start, end);
                let to_end = to.saturating_add(end - start);
                self.cut(to, to_end);
                self.ranges.push((to, to_end));
            }
            Message::Fault { .. } | Message::Removed { .. } | Message::Forked { .. } => {}
        }
    }

    /// The ranges, of addresses: the first, and the one behind the last.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    fn cut(&mut self, start: u64, end: u64) {
        for (from, to) in std::mem::take(&mut self.ranges) {
            let rest = [(from, to.min(start)), (from.max(end), to)];
            self.ranges
                .extend(rest.iter().filter(|(from, to)| from < to));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_moved_is_followed_until_it_is_unmapped() {
        let mut moved = Moved::default();
        let (start, end) = (0x1000, 0x5000);
        let to = 0x11000;
        moved.note(Message::Moved { start, end, to });
        assert_eq!(moved.ranges(), [(0x11000, 0x15000)]);
        let (start, end, to) = (0x12000, 0x13000, 0x21000);
        moved.note(Message::Moved { start, end, to });
        let all = [(0x11000, 0x12000), (0x13000, 0x15000), (0x21000, 0x22000)];
        assert_eq!(moved.ranges(), all);
        let (start, end) = (0x14000, 0x30000);
        moved.note(Message::Unmapped { start, end });
        assert_eq!(moved.ranges(), [(0x11000, 0x12000), (0x13000, 0x14000)]);
        moved.note(Message::Removed { start: 0, end });
        assert_eq!(moved.ranges().len(), 2, "it is served still");
        moved.note(Message::Unmapped { start: 0, end });
        assert!(moved.ranges().is_empty());
    }
}
