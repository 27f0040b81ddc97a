//! Programs whose system calls stand in the way of whoever manages their memory, or write where pages are away.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::area::{Area, MIB, Pressure, done, expect};
use crate::pages::{PAGE, check, map};
use crate::processes::in_child;

static HANDLED: AtomicUsize = AtomicUsize::new(0);

/// Bytes of a handler's own, which it checks.
const LOCAL_BYTES: usize = 16 << 10;

extern "C" fn handle(_: libc::c_int) {
    let mut local = [0_u8; LOCAL_BYTES];
    local
        .iter_mut()
        .zip(0_u8..=255)
        .for_each(|(byte, value)| *byte = value);
    std::hint::black_box(&mut local);
    let right = local
        .iter()
        .zip(0_u8..=255)
        .all(|(byte, value)| *byte == value);
    HANDLED.fetch_add(usize::from(right), Ordering::Relaxed);
}

/// Signals are handled on a stack that is away when they come.
pub fn takes_signals() {
    const STACK_PAGES: usize = 64;
    const ROUNDS: usize = 5;
    let mut area = Area::away(16 * MIB);
    let first = area.pages() / 2;
    let stack = libc::stack_t {
        ss_sp: area.address(first),
        ss_flags: 0,
        ss_size: STACK_PAGES * PAGE,
    };
    let none = std::ptr::null_mut();
    // SAFETY: the stack is memory of this program that is used for nothing else.
    let result = unsafe { libc::sigaltstack(&raw const stack, none) };
    done("sigaltstack", result.into());
    // SAFETY: an action of zeroes is one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_ONSTACK;
    // SAFETY: the handler calls nothing.
    let result = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, none.cast()) };
    done("sigaction", result.into());
    for round in 1..=ROUNDS {
        area.push_out();
        expect(
            "absent pages of the stack",
            area.absent(first..first + STACK_PAGES) > 0,
            true,
        );
        // SAFETY: the handler is there.
        done("raise", unsafe { libc::raise(libc::SIGUSR1) }.into());
        expect("signals handled", HANDLED.load(Ordering::Relaxed), round);
    }
    area.write(first..first + STACK_PAGES, 2);
    area.check_all();
}

extern "C" fn sleeps(_: *mut libc::c_void) -> *mut libc::c_void {
    loop {
        std::thread::park();
    }
}

/// Memory right above a thread's stack leaves, and so does what is mapped where such a stack was.
pub fn has_memory_beside_a_stack() {
    const STACK_PAGES: usize = 2 * MIB;
    let pages = 16 * MIB;
    let below = map(None, STACK_PAGES + pages);
    let area = Area::at(below + STACK_PAGES * PAGE, pages);
    area.push_out();
    // Served memory above is no part of the mapping any more that this one makes.
    map(Some(below), STACK_PAGES);
    begin_on_stack(below, STACK_PAGES, sleeps);
    area.check_all();
    Pressure::new().round();
    area.push_out();
    area.check_all();
}

extern "C" fn naps(_: *mut libc::c_void) -> *mut libc::c_void {
    std::thread::sleep(std::time::Duration::from_millis(500));
    std::ptr::null_mut()
}

/// Begins a thread on so many pages at `stack`, which are its own until it ends.
fn begin_on_stack(
    stack: usize,
    pages: usize,
    body: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
) -> libc::pthread_t {
    // SAFETY: attributes of zeroes may be initialized.
    let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
    let attributes = &raw mut attributes;
    // SAFETY: the place is of attributes.
    let result = unsafe { libc::pthread_attr_init(attributes) };
    expect("attributes", result, 0);
    // SAFETY: the stack is the thread's alone, as the caller has promised.
    let result = unsafe { libc::pthread_attr_setstack(attributes, stack as *mut _, pages * PAGE) };
    expect("a stack", result, 0);
    let mut thread = 0;
    // SAFETY: the thread sleeps.
    let result =
        unsafe { libc::pthread_create(&raw mut thread, attributes, body, std::ptr::null_mut()) };
    expect("a thread", result, 0);
    thread
}

/// Memory in which a thread had its stack leaves once the thread has ended.
pub fn has_memory_of_an_ended_thread() {
    let pages = 16 * MIB;
    Area::away(pages).check_all();
    let base = map(None, pages);
    let thread = begin_on_stack(base, pages, naps);
    let begin = std::time::Instant::now();
    let mut pressure = Pressure::new();
    while begin.elapsed() < std::time::Duration::from_millis(400) {
        pressure.round();
    }
    drop(pressure);
    // SAFETY: the thread is joined once, and has no value.
    let result = unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
    expect("its end", result, 0);
    let area = Area::at(base, pages);
    area.push_out();
    area.check_all();
}

/// A program that closes all descriptors closes none that its memory needs.
pub fn closes_all_descriptors() {
    let area = Area::away(48 * MIB);
    // SAFETY: this program has no descriptor that it uses, but for the first three.
    done("close_range", unsafe {
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0)
    });
    in_child(|| area.check_all());
    area.check_all();
    area.push_out();
    area.check_all();
}

/// Other processes of the same user may not look into it.
pub fn is_not_dumpable() {
    // SAFETY: sets a property of this process.
    done(
        "prctl",
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) }.into(),
    );
    let area = Area::away(64 * MIB);
    in_child(|| area.check_all());
    area.check_all();
}

/// A filter that allows everything is a filter: whoever manages the memory cannot know.
fn filter() {
    let allow = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    };
    let filter = libc::sock_fprog {
        len: 1,
        filter: (&raw const allow).cast_mut(),
    };
    // SAFETY: sets a property of this process.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    done("PR_SET_NO_NEW_PRIVS", result.into());
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the filter is of one instruction.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter) };
    done("PR_SET_SECCOMP", result.into());
}

/// A program that has a filter before it needs much memory is left alone.
pub fn filters_itself_first() {
    filter();
    Area::stays();
}

/// A program that gets a filter when its pages are away is served on, and so are its children.
pub fn filters_itself_later() {
    let mut area = Area::away(48 * MIB);
    filter();
    let pages = area.pages();
    in_child(|| {
        let mut its = area.clone();
        its.check_all();
        its.write(0..pages, 2);
        its.check_all();
    });
    area.check_all();
    area.write(0..pages, 3);
    area.check_all();
}

/// Ends with a core, and says before where its memory is.
pub fn dumps_core() {
    let mut area = Area::away(48 * MIB);
    area.check(0..MIB);
    area.write(0..MIB, 2);
    println!("{:x} {}", area.base, area.pages());
    std::process::abort();
}

/// Checks the core of [`dumps_core`]: each page is right, or zeroes, and there are both. `arguments`: the file, and what that has said.
pub fn checks_core(arguments: &[String]) {
    let core = File::open(&arguments[0]).unwrap();
    let base = u64::from_str_radix(&arguments[1], 16).unwrap();
    let pages: usize = arguments[2].parse().unwrap();
    let mut lacking = 0;
    for at in 0..pages {
        let mut page = [0; PAGE];
        let place = place_in_core(&core, base + (at * PAGE) as u64);
        core.read_exact_at(&mut page, place).unwrap();
        if page.iter().all(|byte| *byte == 0) {
            lacking += 1;
        } else {
            check(&page, at, if at < MIB { 2 } else { 1 });
        }
    }
    expect("that most is lacking", lacking > pages / 2, true);
    expect(
        "that what was just written is there",
        lacking <= pages - MIB / 2,
        true,
    );
}

/// The place of the byte that was at `address`, by the table of segments.
fn place_in_core(core: &File, address: u64) -> u64 {
    const SEGMENT_BYTES: u64 = 56;
    let word = |at: u64| {
        let mut word = [0; 8];
        core.read_exact_at(&mut word, at).unwrap();
        u64::from_le_bytes(word)
    };
    let (table, segments) = (word(32), word(56) & 0xFFFF);
    for segment in 0..segments {
        let at = table + segment * SEGMENT_BYTES;
        let (offset, start, bytes) = (word(at + 8), word(at + 16), word(at + 32));
        if (start..start + bytes).contains(&address) {
            return offset + (address - start);
        }
    }
    println!("wrong: no segment has address {address:x}");
    std::process::exit(9)
}
