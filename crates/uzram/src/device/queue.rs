//! Requests that outlive the call that submits them: one page each, from a bounded pool. The call
//! completes them, or later any thread.
//!
//! A request is a value. Completing consumes it, so it completes once. Dropping it completes it
//! with an error. So no request is completed twice, and none never, unless it is leaked on purpose
//! (`mem::forget`). Its page is owned and travels with it, so no borrow has to last.
//!
//! The pool takes all of its memory when it is made. So requests go on when memory is short, which
//! is when pages are swapped. A request returns to the pool before its end is reported, so the
//! receiver of the report can submit the next one. A thread that waits for a request and holds
//! none waits for requests that a device has, and those end. A stack of devices needs one pool per
//! layer.

use std::fmt;

use super::bio::{PAGE_BYTES, PageTransfer};
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::page::PageIndex;
use crate::sync::{Arc, Condvar, Mutex, wait};

/// Most requests of a pool.
const REQUESTS_MAX: usize = 1 << 16;

/// A page that a request carries.
pub type PageBuffer = Box<[u8; PAGE_BYTES]>;

/// The direction of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// The receiver of a request's end.
pub trait EndIo: Send + Sync {
    /// The request has ended with `done`. Called once per request, by the thread that completes
    /// it, with no lock held.
    fn end_io(&self, done: CompletedBio);
}

/// A request that has ended, and its page.
#[derive(Debug)]
pub struct CompletedBio {
    /// The page that was read or written. After a failed read its content is unspecified.
    pub buffer: PageBuffer,
    /// The result.
    pub result: Result<()>,
}

/// A bounded pool of requests.
#[derive(Clone, Debug)]
pub struct BioPool {
    free: Arc<Free>,
}

#[derive(Debug)]
struct Free {
    #[expect(
        clippy::vec_box,
        reason = "a request moves between pool, device and end as a pointer"
    )]
    requests: Mutex<Vec<Box<Request>>>,
    returned: Condvar,
}

/// The state of a request; empty while it is in the pool.
struct Request {
    page: PageIndex,
    direction: Direction,
    buffer: Option<PageBuffer>,
    end: Option<Arc<dyn EndIo>>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("page", &self.page)
            .field("direction", &self.direction)
            .finish_non_exhaustive()
    }
}

impl BioPool {
    /// A pool of `requests` requests.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for none or more than 65536, [`ErrorKind::NoMemory`].
    pub fn new(requests: usize) -> Result<BioPool> {
        if !(1..=REQUESTS_MAX).contains(&requests) {
            let text = format!("{requests} requests: must be from 1 to {REQUESTS_MAX}");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let mut free = Vec::new();
        for _ in 0..requests {
            let request = Request {
                page: PageIndex(0),
                direction: Direction::Read,
                buffer: None,
                end: None,
            };
            memory::push(&mut free, Box::new(request))?;
        }
        Ok(BioPool {
            free: Arc::new(Free {
                requests: Mutex::new(free),
                returned: Condvar::new(),
            }),
        })
    }

    /// A request to move `buffer` to or from page `page` and to report to `end`. Waits while all
    /// requests of the pool are under way.
    pub fn allocate(
        &self,
        page: PageIndex,
        direction: Direction,
        buffer: PageBuffer,
        end: Arc<dyn EndIo>,
    ) -> AllocatedBio {
        let mut free = self.free.requests.lock();
        let request = loop {
            match free.pop() {
                Some(request) => break request,
                None => free = wait(&self.free.returned, free),
            }
        };
        drop(free);
        self.fill(request, page, direction, buffer, end)
    }

    /// The same without waiting.
    ///
    /// # Errors
    /// The buffer, if all requests are under way.
    pub fn try_allocate(
        &self,
        page: PageIndex,
        direction: Direction,
        buffer: PageBuffer,
        end: Arc<dyn EndIo>,
    ) -> Result<AllocatedBio, PageBuffer> {
        let request = self.free.requests.lock().pop();
        match request {
            Some(request) => Ok(self.fill(request, page, direction, buffer, end)),
            None => Err(buffer),
        }
    }

    fn fill(
        &self,
        mut request: Box<Request>,
        page: PageIndex,
        direction: Direction,
        buffer: PageBuffer,
        end: Arc<dyn EndIo>,
    ) -> AllocatedBio {
        *request = Request {
            page,
            direction,
            buffer: Some(buffer),
            end: Some(end),
        };
        AllocatedBio {
            request: Some(request),
            pool: self.clone(),
        }
    }
}

/// A request for one page, under way.
#[derive(Debug)]
#[must_use = "a request that is dropped fails"]
pub struct AllocatedBio {
    /// `None` once it is completed.
    request: Option<Box<Request>>,
    pool: BioPool,
}

impl AllocatedBio {
    /// The index of the page, counted in [`PAGE_BYTES`] from the start of the device.
    #[must_use]
    pub fn page(&self) -> PageIndex {
        self.request().page
    }

    /// The direction of the page.
    #[must_use]
    pub fn direction(&self) -> Direction {
        self.request().direction
    }

    /// The page, for the device to read or fill.
    pub fn transfer(&mut self) -> PageTransfer<'_> {
        let request = self
            .request
            .as_mut()
            .expect("a request until it is completed");
        let buffer = request
            .buffer
            .as_mut()
            .expect("a buffer until it is completed");
        match request.direction {
            Direction::Read => PageTransfer::Read(buffer),
            Direction::Write => PageTransfer::Write(buffer),
        }
    }

    /// Ends the request.
    pub fn complete(mut self, result: Result<()>) {
        self.end(result);
    }

    fn request(&self) -> &Request {
        self.request
            .as_ref()
            .expect("a request until it is completed")
    }

    fn end(&mut self, result: Result<()>) {
        let Some(mut request) = self.request.take() else {
            return;
        };
        let (buffer, end) = (request.buffer.take(), request.end.take());
        let free = &self.pool.free;
        free.requests.lock().push(request);
        free.returned.notify_one();
        if let (Some(buffer), Some(end)) = (buffer, end) {
            end.end_io(CompletedBio { buffer, result });
        }
    }
}

impl Drop for AllocatedBio {
    fn drop(&mut self) {
        let text = "the device dropped the request without an answer";
        if self.request.is_some() {
            self.end(Err(Error::new(ErrorKind::Io, text)));
        }
    }
}

/// Waits for one request at a time.
#[derive(Debug, Default)]
pub struct Waiter {
    done: Mutex<Option<CompletedBio>>,
    told: Condvar,
}

impl Waiter {
    /// Waits until the request that reports to this has ended. Must be called once per request.
    #[must_use]
    pub fn wait(&self) -> CompletedBio {
        let mut done = self.done.lock();
        loop {
            match done.take() {
                Some(done) => return done,
                None => done = wait(&self.told, done),
            }
        }
    }
}

impl EndIo for Waiter {
    fn end_io(&self, done: CompletedBio) {
        *self.done.lock() = Some(done);
        self.told.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{BlockDevice, Zram};
    use crate::store::Store;

    fn disk() -> Zram {
        Zram::new(Store::builder().size(1 << 20).build().unwrap())
    }

    fn page(byte: u8) -> PageBuffer {
        Box::new([byte; PAGE_BYTES])
    }

    #[test]
    fn a_request_is_completed_in_the_call_or_by_another_thread() {
        let pool = BioPool::new(2).unwrap();
        let disk = disk();
        let waiter = Arc::new(Waiter::default());
        let end = || Arc::clone(&waiter) as Arc<dyn EndIo>;
        disk.queue(pool.allocate(PageIndex(3), Direction::Write, page(7), end()));
        waiter.wait().result.unwrap();
        let mut bio = pool.allocate(PageIndex(3), Direction::Read, page(0), end());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let result = disk.rw_page(bio.page(), bio.transfer());
                bio.complete(result);
            });
            let done = waiter.wait();
            done.result.unwrap();
            assert_eq!(*done.buffer, [7; PAGE_BYTES]);
        });
        disk.queue(pool.allocate(PageIndex(1 << 30), Direction::Read, page(0), end()));
        let error = waiter.wait().result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange);
    }

    #[test]
    fn a_request_that_is_dropped_has_failed() {
        let pool = BioPool::new(1).unwrap();
        let waiter = Arc::new(Waiter::default());
        let end = Arc::clone(&waiter) as Arc<dyn EndIo>;
        drop(pool.allocate(PageIndex(0), Direction::Read, page(1), end));
        let done = waiter.wait();
        assert!(
            done.result
                .unwrap_err()
                .to_string()
                .contains("without an answer")
        );
        assert_eq!(*done.buffer, [1; PAGE_BYTES]);
    }

    /// Counts what it is told, and submits again from within.
    struct Chain {
        pool: BioPool,
        disk: Zram,
        left: Mutex<u32>,
        itself: Mutex<Option<Arc<Chain>>>,
    }

    impl EndIo for Chain {
        fn end_io(&self, done: CompletedBio) {
            done.result.unwrap();
            let mut left = self.left.lock();
            *left -= 1;
            let itself = self.itself.lock().clone().filter(|_| *left > 0);
            drop(left);
            if let Some(itself) = itself {
                let next = self
                    .pool
                    .allocate(PageIndex(0), Direction::Write, done.buffer, itself);
                self.disk.queue(next);
            }
        }
    }

    #[test]
    fn whoever_is_told_can_submit_the_next_even_from_a_pool_of_one() {
        let chain = Arc::new(Chain {
            pool: BioPool::new(1).unwrap(),
            disk: disk(),
            left: Mutex::new(50),
            itself: Mutex::new(None),
        });
        *chain.itself.lock() = Some(Arc::clone(&chain));
        let end = Arc::clone(&chain) as Arc<dyn EndIo>;
        let first = chain
            .pool
            .allocate(PageIndex(0), Direction::Write, page(1), end);
        chain.disk.queue(first);
        assert_eq!(*chain.left.lock(), 0);
        *chain.itself.lock() = None;
    }

    #[test]
    fn more_threads_than_requests_all_get_on() {
        let pool = BioPool::new(2).unwrap();
        let disk = disk();
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let (pool, disk) = (&pool, &disk);
                scope.spawn(move || {
                    let waiter = Arc::new(Waiter::default());
                    let mut buffer = page(thread as u8);
                    for turn in 0..500 {
                        let direction = [Direction::Write, Direction::Read][turn % 2];
                        let end = Arc::clone(&waiter) as Arc<dyn EndIo>;
                        let index = PageIndex(thread);
                        disk.queue(pool.allocate(index, direction, buffer, end));
                        let done = waiter.wait();
                        done.result.unwrap();
                        buffer = done.buffer;
                        assert_eq!(*buffer, [thread as u8; PAGE_BYTES]);
                    }
                });
            }
        });
    }

    #[test]
    fn a_pool_is_bounded() {
        let pool = BioPool::new(1).unwrap();
        let waiter = Arc::new(Waiter::default());
        let end = || Arc::clone(&waiter) as Arc<dyn EndIo>;
        let first = pool.try_allocate(PageIndex(0), Direction::Read, page(1), end());
        let refused = pool.try_allocate(PageIndex(0), Direction::Read, page(2), end());
        assert_eq!(*refused.unwrap_err(), [2; PAGE_BYTES]);
        drop(first);
        assert!(
            pool.try_allocate(PageIndex(0), Direction::Read, page(1), end())
                .is_ok()
        );
        assert!(BioPool::new(0).is_err() && BioPool::new(REQUESTS_MAX + 1).is_err());
    }
}
