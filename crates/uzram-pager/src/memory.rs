//! The program's side: a range of bytes, its budget and its end.

use std::fmt;
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use uzram::{Error, ErrorKind, Result, Store, StoreBuilder, Unit};

use crate::alone::isolate;
use crate::auto::Auto;
use crate::handler::FaultHandler;
use crate::mapping::{Mapping, PAGE_BYTES, Program};
use crate::pager::{BUDGET_PAGES_MIN, Pager, Shared};
use crate::signal::Registration;
use crate::spill::{Disk, Spill};
use crate::statistics::{Counters, Statistics};
use crate::turns::Turns;
use crate::uffd::Uffd;

/// Most pages of a range: their indexes have 32 bits.
const PAGES_MAX: usize = 1 << 31;

/// Bytes of which a budget's worth is in memory as it is, and the rest compressed.
///
/// It is used as a slice. Pages that were not touched for long are compressed and their memory goes back to the system.
/// A touch brings them back; it takes some microseconds. New memory is zero, and takes no memory until it is touched.
///
/// ```
/// use uzram_pager::CompressedMemory;
///
/// let mut memory = match CompressedMemory::new(64 << 20, 4 << 20) {
///     Ok(memory) => memory,
///     Err(error) => return println!("{error}"), // It names what the system lacks, and the remedy.
/// };
/// for (at, byte) in memory.iter_mut().enumerate() {
///     *byte = (at / 1000) as u8;
/// }
/// assert_eq!(memory[50_000_000], (50_000_000 / 1000 % 256) as u8);
/// assert!(memory.statistics().pages_out > 10_000);
/// ```
///
/// # Failure
///
/// A page is never shown as zeroes, or with old content, because something failed. Where it cannot be brought back (its
/// compressed form is damaged, or the system has had no memory for it for ten seconds), the touch is a SIGBUS at its
/// address, which ends the program unless it handles that. The same holds for all pages that were evicted if the pager itself fails. If memory
/// runs out while pages are evicted, they stay as they are, beyond the budget.
///
/// # Threads, system calls and children
///
/// Any thread may touch the bytes, as with any slice, and so may system calls: reads and writes of files, direct I/O,
/// io_uring. Pinned memory stays where it is. A child after a fork does not have the range: touching it there is a
/// SIGSEGV, and dropping it there does nothing. Signal handlers may touch the bytes. With
/// [`FaultHandler::FaultingThread`], which is faster, system calls fail.
///
/// `madvise(MADV_DONTNEED)` on whole pages makes them zero and frees what they took, compressed or not. Code that
/// unmaps or moves a part of the range breaks the rules of a slice; the part's evicted pages are a SIGBUS then.
/// Guard pages (`MADV_GUARD_INSTALL`) and `MADV_DOFORK` must not be used on the range: the system tells the pager
/// nothing about them. Pages under `MADV_FREE` do not count in the budget until the system has taken them, and do not leave before.
///
/// # Memory
///
/// The budget bounds the pages that are not compressed. What the compressed pages take comes on top:
/// [`Statistics::compressed_memory_bytes`]. So do 8 bytes per page for tables here, and 8 in the store.
pub struct CompressedMemory {
    program: Program,
    store: Arc<Store>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Sets the budget, unless the program does.
    auto: Mutex<Option<Auto>>,
    /// Where threads answer their own faults.
    registration: Option<Registration>,
    /// Writes to the file and reads from it.
    spill: Option<Spill>,
    /// The process that made it. A child has neither the thread nor the range.
    process: u32,
}

impl CompressedMemory {
    /// `length_bytes` zero bytes, of which at most `budget_bytes` stay uncompressed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for length 0, and for a budget below 256 KiB or above this machine's or cgroup's
    /// memory; [`ErrorKind::Unsupported`] where the system does not offer or permit userfaultfd with moving pages (Linux
    /// 6.8), with the remedy; [`ErrorKind::NoMemory`] if the address space does not suffice.
    pub fn new(length_bytes: usize, budget_bytes: usize) -> Result<CompressedMemory> {
        CompressedMemory::with_store(length_bytes, budget_bytes, Store::builder())
    }

    /// The same with the codec, pool and other options of `store`, but its size, which is set here. With a `mem_limit`
    /// pages that do not fit into the store stay uncompressed, beyond the budget.
    ///
    /// ```
    /// use uzram::Store;
    /// use uzram_pager::CompressedMemory;
    ///
    /// let store = Store::builder().algorithm("zstd").checksum(true);
    /// match CompressedMemory::with_store(64 << 20, 8 << 20, store) {
    ///     Ok(memory) => assert_eq!(memory[12345], 0),
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    ///
    /// Do not share a [`Compression`](uzram::Compression) with stores that read or write these bytes: the pager would
    /// wait for a thread that waits for the pager.
    ///
    /// # Errors
    /// Those of [`CompressedMemory::new`]; [`ErrorKind::InvalidInput`] for a unit other than 4096; those of
    /// [`StoreBuilder::build`].
    pub fn with_store(
        length_bytes: usize,
        budget_bytes: usize,
        store: StoreBuilder,
    ) -> Result<CompressedMemory> {
        let builder = CompressedMemory::builder(length_bytes, budget_bytes);
        builder.store(store).build()
    }

    /// Begins to make memory with other options, too.
    ///
    /// ```
    /// use uzram_pager::{CompressedMemory, FaultHandler};
    ///
    /// // Read its documentation before: system calls on the bytes fail.
    /// let builder = CompressedMemory::builder(64 << 20, 8 << 20);
    /// match builder.fault_handler(FaultHandler::FaultingThread).build() {
    ///     Ok(memory) => assert_eq!(memory[12345], 0),
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    pub fn builder(length_bytes: usize, budget_bytes: usize) -> CompressedMemoryBuilder {
        CompressedMemoryBuilder {
            length_bytes,
            budget_bytes,
            store: Store::builder(),
            handler: FaultHandler::default(),
            spill_file: None,
        }
    }

    /// Changes the budget, in bytes. It returns at once. Pages that are too many leave soon. It ends
    /// [`set_auto_budget`](CompressedMemory::set_auto_budget).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a budget below 256 KiB or above this machine's or cgroup's memory.
    pub fn set_budget(&self, budget_bytes: usize) -> Result<()> {
        let pages = budget_of(budget_bytes)?;
        self.put_auto(None);
        put_budget(&self.shared, self.mapping(), pages);
        Ok(())
    }

    /// Lets the budget follow the memory that the tightest memory cgroup, or the machine, leaves: an eighth stays free. Where
    /// threads wait for memory (pressure stall information) the budget does not grow, and shrinks if that takes a tenth
    /// of the time. It never falls below `least_bytes`, and grows with what is touched.
    ///
    /// A thread looks five times a second. Programs that take more than the eighth between two looks can still meet the limit.
    ///
    /// # Errors
    /// Those of [`CompressedMemory::set_budget`]; [`ErrorKind::Unsupported`] where the system does not tell what is left.
    pub fn set_auto_budget(&self, least_bytes: usize) -> Result<()> {
        budget_of(least_bytes)?;
        let (shared, mapping) = (Arc::clone(&self.shared), Arc::clone(self.mapping()));
        let counters = Arc::clone(&shared);
        let resident = move || counters.counters.resident() * PAGE_BYTES as u64;
        let set = move |bytes| put_budget(&shared, &mapping, bytes as usize / PAGE_BYTES);
        self.put_auto(Some(Auto::start(least_bytes as u64, resident, set)?));
        Ok(())
    }

    fn put_auto(&self, auto: Option<Auto>) {
        let mut place = self.auto.lock().unwrap_or_else(PoisonError::into_inner);
        *place = None;
        *place = auto;
    }

    /// The counters of faults, evictions and memory so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let counters = &self.shared.counters;
        let staged = counters.staged.load(Ordering::Relaxed);
        let store = self.store.stats();
        Statistics {
            faults_fresh: counters.faults_fresh.load(Ordering::Relaxed),
            faults_staged: counters.faults_staged.load(Ordering::Relaxed),
            faults_stored: counters.faults_stored.load(Ordering::Relaxed),
            faults_spilled: counters.faults_spilled.load(Ordering::Relaxed),
            faults_repeated: counters.faults_repeated.load(Ordering::Relaxed),
            faults_ns: counters.faults_ns.load(Ordering::Relaxed),
            pages_in: counters.pages_in.load(Ordering::Relaxed),
            pages_out: counters.pages_out.load(Ordering::Relaxed),
            pages_unchanged: counters.pages_unchanged.load(Ordering::Relaxed),
            pages_kept: counters.pages_kept.load(Ordering::Relaxed),
            pages_over_budget: counters.pages_over_budget.load(Ordering::Relaxed),
            pages_poisoned: counters.pages_poisoned.load(Ordering::Relaxed),
            resident_bytes: counters.resident() * PAGE_BYTES as u64,
            staged_bytes: staged * PAGE_BYTES as u64,
            stored_bytes: store.orig_data_size_bytes,
            compressed_bytes: store.compr_data_size_bytes,
            compressed_memory_bytes: store.mem_used_total_bytes,
            spilled_bytes: store.bd_count * PAGE_BYTES as u64,
            pages_spilled: store.bd_writes,
            spill_failures: store.bd_failed_writes,
            has_failed: counters.has_failed.load(Ordering::Acquire),
        }
    }

    /// The range, for a heap that hands out parts of it and never uses the slice.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        self.program.mapping()
    }

    /// Drops the content. Nobody may use the memory meanwhile.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn empty(&mut self) -> Result<(), rustix::io::Errno> {
        let mapping = self.mapping();
        mapping.discard(0, self.pages())?;
        // From here on a page that is gone was not dropped by this.
        self.shared.is_settled.store(true, Ordering::Release);
        mapping.ring_bell();
        Ok(())
    }

    /// Pages of the range, without the bell.
    pub(crate) fn pages(&self) -> usize {
        self.mapping().pages() - 1
    }

    /// The handler of its faults.
    pub(crate) fn fault_handler(&self) -> FaultHandler {
        match self.registration {
            Some(_) => FaultHandler::FaultingThread,
            None => FaultHandler::OwnThread,
        }
    }
}

impl Deref for CompressedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.program
    }
}

impl DerefMut for CompressedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.program
    }
}

impl fmt::Debug for CompressedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the bytes: showing them would bring them all in.
        f.debug_struct("CompressedMemory")
            .field("length_bytes", &self.len())
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

impl Drop for CompressedMemory {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if std::process::id() != self.process {
            // A child: the range may be anybody's there, and there is no thread to wait for.
            std::mem::forget(thread);
            let auto = self.auto.get_mut().unwrap_or_else(PoisonError::into_inner);
            if let Some(auto) = auto.take() {
                auto.forget();
            }
            std::mem::forget(self.registration.take());
            std::mem::forget(self.spill.take());
            self.program.leak();
            return;
        }
        self.put_auto(None);
        // Its threads ring the bell, which the pager's thread must hear.
        self.spill = None;
        end_service(&self.shared, self.mapping());
        if let Some(thread) = thread {
            // The thread catches its own panics.
            let _ = thread.join();
        }
        // The range is registered no more, so unmapping it, which follows, tells nobody and does not wait.
    }
}

/// Tells the pager's thread to end. It may see that before it reads the bell's message, which it reads all the same.
fn end_service(shared: &Shared, mapping: &Mapping) {
    shared.is_ending.store(true, Ordering::Release);
    mapping.ring_bell();
    shared.is_quiet.store(true, Ordering::Release);
}

fn put_budget(shared: &Shared, mapping: &Mapping, pages: usize) {
    shared.budget.store(pages, Ordering::Relaxed);
    mapping.ring_bell();
}

/// Options of a [`CompressedMemory`] that is about to be made.
#[derive(Debug)]
#[must_use]
pub struct CompressedMemoryBuilder {
    length_bytes: usize,
    budget_bytes: usize,
    store: StoreBuilder,
    handler: FaultHandler,
    spill_file: Option<Arc<File>>,
}

impl CompressedMemoryBuilder {
    /// The codec, pool and other options of the compressed pages, as in [`CompressedMemory::with_store`].
    pub fn store(self, store: StoreBuilder) -> CompressedMemoryBuilder {
        CompressedMemoryBuilder { store, ..self }
    }

    /// The thread that answers a touch of a page that is not there: the memory's own, unless this says otherwise.
    pub fn fault_handler(self, handler: FaultHandler) -> CompressedMemoryBuilder {
        CompressedMemoryBuilder { handler, ..self }
    }

    /// A file or block device for pages that do not shrink, and, where the store has a
    /// [`mem_limit`](StoreBuilder::mem_limit), for those that were compressed first when seven eighths of it are used. What it must
    /// be is at [`StoreBuilder::backing_file`].
    ///
    /// Two threads wait for the disk. A touch of a page in the file waits for one of them; other touches do not. What is
    /// damaged there is a SIGBUS for who touches it. Pages that the file does not take, because it is full or fails, stay in
    /// memory. It takes 8 bytes more for each page of the memory.
    ///
    /// ```
    /// use uzram::Store;
    /// use uzram_pager::CompressedMemory;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Store::builder().mem_limit(16 << 20);
    /// let builder = CompressedMemory::builder(256 << 20, 8 << 20).store(store);
    /// match builder.spill(tempfile::tempfile()?).build() {
    ///     Ok(memory) => assert_eq!(memory[12345], 0),
    ///     Err(error) => println!("{error}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn spill(self, file: File) -> CompressedMemoryBuilder {
        let spill_file = Some(Arc::new(file));
        CompressedMemoryBuilder { spill_file, ..self }
    }

    /// Makes the memory.
    ///
    /// # Errors
    /// Those of [`CompressedMemory::with_store`] and of [`StoreBuilder::backing_file`]; with [`FaultHandler::FaultingThread`] also [`ErrorKind::Unsupported`] for
    /// the 65th such memory of the process, and [`ErrorKind::Io`] if the system takes no handler of SIGBUS.
    pub fn build(self) -> Result<CompressedMemory> {
        let pages = pages_of(self.length_bytes)?;
        let budget = budget_of(self.budget_bytes)?;
        let mut store = self.store.size((pages * PAGE_BYTES) as u64);
        if let Some(file) = &self.spill_file {
            store = store.backing_file(Arc::clone(file));
        }
        let store = store.build()?;
        if store.unit() != Unit::DEFAULT {
            let unit = store.unit().bytes();
            let text = format!("unit {unit}: must be 4096 bytes, the size of the system's pages");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let store = Arc::new(store);
        let shared = Arc::new(Shared {
            counters: Counters::default(),
            budget: AtomicUsize::new(budget),
            is_settled: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            is_quiet: AtomicBool::new(false),
        });
        // The last page is the bell.
        let mapping = Arc::new(Mapping::reserve(pages + 1)?);
        let start = |file| Spill::start(file, &store, &mapping, self.handler);
        let spill = self.spill_file.as_ref().map(start).transpose()?;
        let service = Service {
            disk: spill.as_ref().map(|spill| Arc::clone(spill.disk())),
            handler: self.handler,
            program: Arc::clone(&mapping),
            store: Arc::clone(&store),
            shared: Arc::clone(&shared),
        };
        let (thread, registration) = service.start()?;
        Ok(CompressedMemory {
            program: Program::new(mapping, self.length_bytes),
            store,
            shared,
            thread: Some(thread),
            registration,
            spill,
            auto: Mutex::new(None),
            process: std::process::id(),
        })
    }
}

/// The range to be served, and the means.
#[derive(Clone)]
struct Service {
    disk: Option<Arc<Disk>>,
    handler: FaultHandler,
    program: Arc<Mapping>,
    store: Arc<Store>,
    shared: Arc<Shared>,
}

impl Service {
    /// Starts the pager's thread and waits until faults are answered.
    fn start(self) -> Result<(JoinHandle<()>, Option<Registration>)> {
        // The threads that use a descriptor must have it: the program's, or the pager's alone.
        let uffd = match self.handler {
            FaultHandler::OwnThread => None,
            FaultHandler::FaultingThread => Some(Arc::new(Uffd::open(self.handler)?)),
        };
        let (sender, receiver) = sync_channel(1);
        let (service, of_thread) = (self.clone(), uffd.clone());
        let thread = std::thread::Builder::new()
            .name("uzram-pager".into())
            .spawn(move || service.run(of_thread, sender))
            .map_err(|error| {
                Error::new(ErrorKind::NoMemory, "no thread for the pager").with_source(error)
            })?;
        let ended = "the pager's thread ended before it served";
        let turns = receiver
            .recv()
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, ended)));
        let registered = turns.and_then(|turns| {
            let of = |turns| Registration::new(&self.program, turns);
            turns.map(of).transpose()
        });
        match registered {
            Ok(registration) => Ok((thread, registration)),
            Err(error) => {
                end_service(&self.shared, &self.program);
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// Is the pager's thread. It sends what threads that answer their own faults need.
    fn run(self, uffd: Option<Arc<Uffd>>, sender: SyncSender<Result<Option<Arc<Turns>>>>) {
        match self.turns(uffd.clone()) {
            Ok(turns) => {
                let turns = Arc::new(turns);
                let sent = uffd.map(|_| Arc::clone(&turns));
                let told = sender.send(Ok(sent));
                drop(sender);
                if told.is_ok() {
                    turns.run();
                }
            }
            Err(error) => drop(sender.send(Err(error))),
        }
    }

    fn turns(self, uffd: Option<Arc<Uffd>>) -> Result<Turns> {
        isolate(uffd.as_deref().map(AsFd::as_fd)).map_err(|errno| {
            let text =
                "the system gives a thread no descriptors of its own; use Linux 6.8 or newer";
            Error::new(ErrorKind::Unsupported, text).with_source(errno)
        })?;
        let uffd = match uffd {
            Some(uffd) => uffd,
            None => Arc::new(Uffd::open(self.handler)?),
        };
        let Service {
            disk,
            handler,
            program,
            store,
            shared,
        } = self;
        let pager = Pager::new(
            Arc::clone(&uffd),
            handler,
            Arc::clone(&program),
            Arc::clone(&store),
            shared,
            disk,
        )?;
        Ok(Turns::new(pager, handler, uffd, store, program))
    }
}

fn pages_of(length_bytes: usize) -> Result<usize> {
    let pages = length_bytes.div_ceil(PAGE_BYTES);
    if uzram::system_page::size_bytes() != PAGE_BYTES {
        let size = uzram::system_page::size_bytes();
        let text = format!("pages of {size} bytes: only systems with pages of 4096 are supported");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    if !(1..=PAGES_MAX).contains(&pages) {
        let most = PAGES_MAX * PAGE_BYTES;
        let text = format!("length {length_bytes}: must be 1 to {most} bytes");
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    Ok(pages)
}

/// A budget in pages.
fn budget_of(budget_bytes: usize) -> Result<usize> {
    let least = BUDGET_PAGES_MIN * PAGE_BYTES;
    let system = rustix::system::sysinfo();
    let memory = system.totalram.saturating_mul(u64::from(system.mem_unit));
    let most = uzram::cgroup_limit().map_or(memory, |limit| limit.bytes.min(memory));
    if budget_bytes < least || budget_bytes as u64 > most {
        let text = format!(
            "budget {budget_bytes}: must be {least} to {most} bytes, the memory that this process may have"
        );
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    Ok(budget_bytes / PAGE_BYTES)
}
