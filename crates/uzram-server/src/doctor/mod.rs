//! Facts about this machine's kernel, as far as compressed memory needs them, and the command that suits it
//! best.
//!
//! ```text
//! fact      one fact: subject, state, reason, source
//! machine   files below a root directory, and the answers of a few system calls
//! probes    a probe per subject
//! advice    from facts to a command
//! ```
//!
//! A probe changes nothing and needs no privilege. Where /proc, /sys or a right is missing the answer is
//! *unknown*, and advice never depends on an unknown.

mod advice;
mod fact;
mod machine;
mod probes;
#[cfg(test)]
mod tests;

pub use advice::Advice;
pub use fact::{Fact, State, Subject};
pub use machine::{Machine, Rights};

/// The facts about a machine, and the best command on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// One fact per subject.
    pub facts: Vec<Fact>,
    /// The best command.
    pub advice: Advice,
}

/// Examines `machine`.
#[must_use]
pub fn examine(machine: &Machine) -> Diagnosis {
    let facts = probes::all(machine);
    let setting = advice::Setting {
        rights: machine.rights,
        ram_bytes: machine.ram_bytes,
        has_zram_swap: probes::is_zram_swap(machine),
    };
    let advice = advice::advise(&facts, &setting);
    Diagnosis { facts, advice }
}
