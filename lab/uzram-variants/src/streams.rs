//! Stream policies that the engine does not use: those that zram had before each CPU had its stream.
//!
//! The idle list has `max_comp_streams` streams at most: a writer takes one, makes one if there may be more, or
//! sleeps until one comes back. With one stream a mutex does. Both count who slept, beside the sleep.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use uzram::lab::StreamPolicy;

use crate::sync::{self, AtomicU64, Condvar, Mutex, MutexGuard, Ordering};

/// How often a writer slept for a stream; shared with whoever asks.
#[derive(Clone, Default)]
pub struct Sleeps(Arc<AtomicU64>);

impl Sleeps {
    /// So far.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Streams in a list, `most` of them at most.
pub struct IdleList<C> {
    idle: Mutex<Idle<C>>,
    returned: Condvar,
    most: usize,
    sleeps: Sleeps,
}

struct Idle<C> {
    contexts: Vec<C>,
    /// How many there are, in the list or leased or being made.
    made: usize,
}

/// A context out of the list.
pub struct IdleLease<'a, C> {
    list: &'a IdleList<C>,
    /// `None` only while it is being given back.
    context: Option<C>,
}

impl<C> IdleList<C> {
    /// A list that is to have `most` streams, at least one.
    pub fn new(most: usize, sleeps: Sleeps) -> IdleList<C> {
        let idle = Idle {
            contexts: Vec::with_capacity(most),
            made: 0,
        };
        IdleList {
            idle: Mutex::new(idle),
            returned: Condvar::new(),
            most: most.max(1),
            sleeps,
        }
    }

    /// An idle context, or `None` for the right to make one.
    fn take(&self) -> Option<C> {
        let mut idle = sync::lock(&self.idle);
        let mut has_slept = false;
        loop {
            if let Some(context) = idle.contexts.pop() {
                return Some(context);
            }
            if idle.made < self.most {
                idle.made += 1;
                return None;
            }
            if !std::mem::replace(&mut has_slept, true) {
                self.sleeps.add();
            }
            idle = sync::wait(&self.returned, idle);
        }
    }

    /// A context for the right to make one, which goes back if that fails.
    fn make(&self, make: impl FnOnce() -> uzram::Result<C>) -> uzram::Result<C> {
        make().inspect_err(|_| {
            sync::lock(&self.idle).made -= 1;
            self.returned.notify_one();
        })
    }

    fn give_back(&self, context: C) {
        sync::lock(&self.idle).contexts.push(context);
        self.returned.notify_one();
    }
}

impl<C: Send> StreamPolicy<C> for IdleList<C> {
    type Lease<'a>
        = IdleLease<'a, C>
    where
        C: 'a;

    fn lease(&self, make: impl FnOnce() -> uzram::Result<C>) -> uzram::Result<IdleLease<'_, C>> {
        let context = match self.take() {
            Some(context) => context,
            None => self.make(make)?,
        };
        Ok(IdleLease {
            list: self,
            context: Some(context),
        })
    }

    fn make_all(&self, make: impl Fn() -> uzram::Result<C>) -> uzram::Result<()> {
        let mut idle = sync::lock(&self.idle);
        while idle.made < self.most {
            idle.contexts.push(make()?);
            idle.made += 1;
        }
        Ok(())
    }
}

impl<C> Drop for IdleLease<'_, C> {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            self.list.give_back(context);
        }
    }
}

impl<C> Deref for IdleLease<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.context.as_ref().expect("there until the drop")
    }
}

impl<C> DerefMut for IdleLease<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.context.as_mut().expect("there until the drop")
    }
}

/// One stream for all.
pub struct OneStream<C> {
    context: Mutex<Option<C>>,
    sleeps: Sleeps,
}

/// The one context.
pub struct OneLease<'a, C> {
    context: MutexGuard<'a, Option<C>>,
}

impl<C> OneStream<C> {
    /// The stream, made at the first use.
    pub fn new(sleeps: Sleeps) -> OneStream<C> {
        OneStream {
            context: Mutex::new(None),
            sleeps,
        }
    }
}

impl<C: Send> StreamPolicy<C> for OneStream<C> {
    type Lease<'a>
        = OneLease<'a, C>
    where
        C: 'a;

    fn lease(&self, make: impl FnOnce() -> uzram::Result<C>) -> uzram::Result<OneLease<'_, C>> {
        let mut context = match self.context.try_lock() {
            Ok(context) => context,
            Err(_) => {
                self.sleeps.add();
                sync::lock(&self.context)
            }
        };
        if context.is_none() {
            *context = Some(make()?);
        }
        Ok(OneLease { context })
    }

    fn make_all(&self, make: impl Fn() -> uzram::Result<C>) -> uzram::Result<()> {
        self.lease(make).map(drop)
    }
}

impl<C> Deref for OneLease<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.context.as_ref().expect("made with the first lease")
    }
}

impl<C> DerefMut for OneLease<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.context.as_mut().expect("made with the first lease")
    }
}
