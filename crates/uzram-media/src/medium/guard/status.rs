//! The results of the guarded routines.

/// The memory had vanished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::medium) struct Fault;

/// The value that a routine returns: zero, or one after a fault.
#[repr(transparent)]
pub(super) struct Status(u32);

impl Status {
    pub(super) fn check(self) -> Result<(), Fault> {
        if self.0 == 0 { Ok(()) } else { Err(Fault) }
    }
}
