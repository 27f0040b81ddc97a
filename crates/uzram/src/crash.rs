//! Points at which a test sees memory as a crash there would leave it: after each change of what outlives a process.

use std::cell::RefCell;

type Hook = Box<dyn FnMut()>;

thread_local! {
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// A change is done; calls the hook of this thread's trace, which passes no points itself.
pub(crate) fn point() {
    if let Some(mut hook) = HOOK.take() {
        hook();
        HOOK.set(Some(hook));
    }
}

/// Calls `hook` at each point that `act` passes in this thread.
pub(crate) fn trace<T>(hook: Hook, act: impl FnOnce() -> T) -> T {
    HOOK.set(Some(hook));
    let done = act();
    HOOK.set(None);
    done
}
