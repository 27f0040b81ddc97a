//! The threads that wait for the disk, where pages go to a file: one reads, one writes. The pager never does.
//!
//! Each has a table of descriptors of its own, with the file in it: the program cannot close it for them, nor put another in its place.

mod reads;
mod writes;

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use uzram::{Error, ErrorKind, Result, Store};

use crate::alone::isolate;
use crate::handler::FaultHandler;
use crate::mapping::Mapping;
use reads::Reads;
use writes::Writes;

pub(crate) use reads::Read;
pub(crate) use writes::{BATCH_PAGES, Batch};

/// The state that the pager and the two threads share.
#[derive(Debug)]
pub(crate) struct Disk {
    pub reads: Reads,
    pub writes: Writes,
    store: Arc<Store>,
    program: Arc<Mapping>,
    handler: FaultHandler,
    /// Something is done that faults may wait for.
    news: AtomicBool,
}

impl Disk {
    pub(crate) fn new(store: &Arc<Store>, program: &Arc<Mapping>, handler: FaultHandler) -> Disk {
        Disk {
            reads: Reads::new(),
            writes: Writes::new(),
            store: Arc::clone(store),
            program: Arc::clone(program),
            handler,
            news: AtomicBool::new(false),
        }
    }

    /// Whether something was done since this was asked last.
    pub fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed) && self.news.swap(false, Ordering::AcqRel)
    }

    fn read(&self) {
        while self.read_one() {
            // Threads that answer their own faults look by themselves.
            if self.handler == FaultHandler::OwnThread {
                self.program.ring_bell();
            }
        }
    }

    /// False: there is no more to read.
    pub(crate) fn read_one(&self) -> bool {
        let next = self.reads.next();
        let is_one = next.is_some();
        if let Some((page, mut bytes)) = next {
            let is_read = self.store.read(page, &mut bytes).is_ok();
            self.reads.done(page, bytes, is_read);
            self.news.store(true, Ordering::Release);
        }
        is_one
    }

    fn write(&self) {
        while self.write_one() {
            // The pager may have the next batch.
            self.program.ring_bell();
            // Room of pages that have left the file.
            while !self.writes.is_wanted() && self.store.discard_backing() {}
        }
    }

    /// False: there is no more to write.
    pub(crate) fn write_one(&self) -> bool {
        let Some(mut batch) = self.writes.next() else {
            return false;
        };
        let has_failed = !batch.is_empty() && self.store.write_back(&batch).is_err();
        if !has_failed {
            batch.clear();
        }
        self.writes.done(batch, has_failed);
        self.news.store(true, Ordering::Release);
        true
    }
}

/// The two threads. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Spill {
    disk: Arc<Disk>,
    threads: Vec<JoinHandle<()>>,
}

impl Spill {
    /// Starts the threads for the pages of `store`, whose backing file is `file`.
    ///
    /// # Errors
    /// [`ErrorKind::NoMemory`] without threads, [`ErrorKind::Unsupported`] if they cannot have descriptors of their own.
    pub fn start(
        file: &Arc<File>,
        store: &Arc<Store>,
        program: &Arc<Mapping>,
        handler: FaultHandler,
    ) -> Result<Spill> {
        let mut spill = Spill {
            disk: Arc::new(Disk::new(store, program, handler)),
            threads: Vec::with_capacity(2),
        };
        spill.begin(file, "uzram-spill-in", Disk::read)?;
        spill.begin(file, "uzram-spill-out", Disk::write)?;
        Ok(spill)
    }

    /// The pager's part of it.
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    fn begin(&mut self, file: &Arc<File>, name: &str, role: fn(&Disk)) -> Result<()> {
        let (sender, receiver) = sync_channel(1);
        let (disk, file) = (Arc::clone(&self.disk), Arc::clone(file));
        let spawned = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || run(&disk, file, role, &sender));
        let thread = spawned.map_err(|error| {
            Error::new(ErrorKind::NoMemory, "no thread for a spill file").with_source(error)
        })?;
        self.threads.push(thread);
        receiver.recv().unwrap_or_else(|_| {
            let text = "a thread of the spill file ended before it served";
            Err(Error::new(ErrorKind::Io, text))
        })
    }
}

fn run(disk: &Disk, file: Arc<File>, role: fn(&Disk), sender: &SyncSender<Result<()>>) {
    let isolated = isolate(Some(file.as_fd())).map_err(|errno| {
        let text = "the system gives a thread no descriptors of its own; use Linux 6.8 or newer";
        Error::new(ErrorKind::Unsupported, text).with_source(errno)
    });
    let is_alone = isolated.is_ok();
    if sender.send(isolated).is_ok() && is_alone {
        role(disk);
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        self.disk.reads.end();
        self.disk.writes.end();
        for thread in self.threads.drain(..) {
            // A thread that has panicked has nothing left to do.
            let _ = thread.join();
        }
    }
}
