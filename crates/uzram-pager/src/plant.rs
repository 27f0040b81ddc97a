//! Bugs that are planted on purpose: the soak must find each of them. Only a build with `--cfg uzram_plant` has them.
//!
//! The window of each is widened by a pause, so that one short run is enough to find it.

/// A bug. Its name, in `UZRAM_PAGER_PLANT`, plants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// A fault that costs an eviction is served before discards that were read with it.
    FaultsFirst,
    /// A page that the program discards stays a candidate for eviction until the system has dropped it.
    DiscardedStays,
    /// The compressed form is dropped before the page is in its place.
    ForgetFirst,
    /// The table keeps pages that the program has unmapped as they were.
    UnmappedStays,
    /// A fault that the system does not let be answered at the moment counts as answered.
    LaterDropped,
    /// A page that has changed leaves as if it were as its copy.
    CopyStays,
    /// A handler goes on without the lock.
    LockGivenUp,
    /// A handler takes a descriptor that the program has closed for one that has done its work.
    ClosedIgnored,
    /// The range is still registered when it is unmapped.
    StaysRegistered,
}

#[cfg(not(uzram_plant))]
pub(crate) const fn is_planted(_: Plant) -> bool {
    false
}

#[cfg(uzram_plant)]
pub(crate) fn is_planted(plant: Plant) -> bool {
    use std::sync::OnceLock;
    static NAME: OnceLock<String> = OnceLock::new();
    let name = NAME.get_or_init(|| std::env::var("UZRAM_PAGER_PLANT").unwrap_or_default());
    let is_it = format!("{plant:?}") == *name;
    if is_it {
        std::thread::sleep(std::time::Duration::from_micros(20));
    }
    is_it
}
