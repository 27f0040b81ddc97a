//! The choice of who answers a touch of a page that is not there.

/// The thread that answers a touch of a page of [`CompressedMemory`](crate::CompressedMemory) that is not in memory as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultHandler {
    /// A thread of the memory. Any touch is answered, the system's too: the bytes can be used as any others can.
    #[default]
    OwnThread,
    /// The thread that touches, in a handler of SIGBUS. It spares the switch to another thread and back, and needs no
    /// right to use userfaultfd but that the system call is allowed.
    ///
    /// Choose it only for bytes that the system never touches, and for threads that leave SIGBUS alone:
    ///
    /// - **A system call that touches an absent page fails with EFAULT**, or reads or writes only a part: `read` and
    ///   `write`, a futex, a socket's message, `mlock`, `MADV_POPULATE_READ`, the fixed buffers of io_uring. Absent pages
    ///   leave and come at any moment, so a touch beforehand helps only by chance. Copy through other memory.
    /// - **A thread that blocks SIGBUS is killed** by its touch, and the program with it.
    /// - The process gets a handler of SIGBUS with the first such memory, and keeps it. Signals of other memory go to the
    ///   handler that was there before. One that is installed later must pass on what is not its own, and block all signals
    ///   meanwhile (`sa_mask`).
    /// - The process's descriptors include that of userfaultfd. Closing it, as daemons close all, ends the program by SIGBUS
    ///   at the next touch of an absent page.
    /// - Debuggers stop at each such touch, unless told to pass SIGBUS on.
    /// - A panic of a codec in a handler aborts the program.
    FaultingThread,
}
