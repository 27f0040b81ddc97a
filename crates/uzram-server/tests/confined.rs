//! The sandbox of a real server, tried from inside: each call that it must refuse is made. Meanwhile
//! it serves, and does all that can be asked of it.
//!
//! A program of its own, because a sandbox cannot be left again. It starts itself once for each mode:
//! the one inside attacks, the one outside asks and looks at what has changed.

// All of it is a test, which clippy tells by attributes that a program without a harness lacks.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ffi::{CString, c_long};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use uzram::{ColdPages, PageIndex, Store};
use uzram_frontends::fuse;
use uzram_frontends::nbd::Endpoint;
use uzram_server::control::{Reply, Request, ask};
use uzram_server::sandbox::{self, Mode};
use uzram_server::service::Notifier;
use uzram_server::state::StateDir;
use uzram_server::{AllowedFiles, BackingDevice, Device, DeviceConfig, Server};

/// For the process inside: the mode, and the directory of everything.
const MODE: &str = "UZRAM_TEST_MODE";
const DIRECTORY: &str = "UZRAM_TEST_DIRECTORY";
/// The line that the process prints once all attacks have failed.
const DONE: &str = "attacked";
const LEFT_OUT: &str = "left out: no filter of system calls";
/// The mode of the file that is attacked.
const FILE_MODE: u32 = 0o640;

fn main() {
    let directory = std::env::var_os(DIRECTORY).map(PathBuf::from);
    match (std::env::var(MODE).as_deref(), directory) {
        (Ok("on"), Some(directory)) => inside(&directory, Mode::On, false),
        (Ok("tree"), Some(directory)) => inside(&directory, Mode::On, true),
        (Ok("log"), Some(directory)) => inside(&directory, Mode::LogCalls, false),
        (Ok("keeper"), Some(directory)) => fuse::keep(&directory.join("tree"), || ()).unwrap(),
        _ => {
            for mode in ["on", "log", "tree"] {
                if mode == "tree" && !can_mount() {
                    println!("left out: mounting a tree takes root and /dev/fuse");
                    continue;
                }
                outside(mode);
                println!("test a_server_in_its_sandbox::{mode} ... ok");
            }
        }
    }
}

fn can_mount() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists()
}

/// Starts a server, asks all that can be asked of it, and looks at what it could not change.
fn outside(mode: &str) {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    let mut options = File::options();
    let file = options.write(true).create(true).mode(FILE_MODE);
    file.open(at("file")).unwrap().write_all(b"text").unwrap();
    for directory in ["sockets", "named", "tree"] {
        fs::create_dir(at(directory)).unwrap();
    }
    fs::write(at("named/in"), "").unwrap();
    symlink(at("file"), at("named/out")).unwrap();
    let _listening = UnixListener::bind(at("listening")).unwrap();
    let looked_at = || {
        let found = fs::metadata(at("file")).unwrap();
        (found.mode(), found.mtime(), found.uid(), found.len())
    };
    let before = looked_at();
    let mut inside = Command::new(std::env::current_exe().unwrap())
        .envs([(MODE, mode.as_ref()), (DIRECTORY, temp.path().as_os_str())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut out = BufReader::new(inside.stdout.take().unwrap());
    out.read_line(&mut said).unwrap();
    if said.starts_with(LEFT_OUT) {
        inside.wait().unwrap();
        return println!("{said}");
    }
    assert_eq!(said.trim_end(), DONE, "the process inside failed");
    ask_everything(mode, &temp.path().join("uzram"), temp.path());
    if mode == "tree" {
        ask_by_files(temp.path());
    }
    // The end of its input ends it.
    drop(inside.stdin.take());
    assert!(inside.wait().unwrap().success());
    assert_eq!(looked_at(), before);
    assert_eq!(fs::read_dir(at("sockets")).unwrap().count(), 0);
    assert_eq!(
        fs::read_dir(at("tree")).unwrap().count(),
        0,
        "it is unmounted"
    );
    assert_eq!(fs::read_dir(at("named")).unwrap().count(), 2);
    let left = fs::read_dir(at("uzram")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["words.dict"]);
}

fn ask_everything(mode: &str, state: &Path, directory: &Path) {
    let control = state.join("0.control");
    let asked = |request: &Request| -> Reply { ask(&control, request).unwrap() };
    let done = |request: &Request| {
        let reply = asked(request);
        assert!(reply.ok, "{request:?}: {reply:?}");
    };
    let dictionary = state.join("words.dict");
    fs::write(&dictionary, "pages look like this ".repeat(100)).unwrap();
    let parameters = format!("dict={}", dictionary.display());
    let socket = |name: &str| directory.join("sockets").join(name).display().to_string();
    let add = |name: &str, more: &[(&str, &str)]| {
        let options = [("name", name), ("size", "1M")];
        let options = options.iter().chain(more);
        let owned = options.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Request::Add {
            options: owned.collect(),
        }
    };
    done(&add("own", &[]));
    done(&add("elsewhere", &[("socket", &socket("b"))]));
    done(&add(
        "guest",
        &[("attach", "vhost-user"), ("socket", &socket("c"))],
    ));
    done(&add("tcp", &[("listen", "127.0.0.1:0")]));
    done(&add(
        "words",
        &[("algorithm", "zstd"), ("algorithm-params", &parameters)],
    ));
    // What may be somebody's it can neither look at nor remove.
    drop(UnixListener::bind(socket("stale")).unwrap());
    let reply = asked(&add("stale", &[("socket", &socket("stale"))]));
    let why = reply.error.unwrap_or_default();
    let is_refused = why.contains("choose another path, or remove it");
    assert_eq!(is_refused, mode != "log", "{why}");
    if is_refused {
        fs::remove_file(socket("stale")).unwrap();
    }
    for socket in [
        socket("a"),
        socket("b"),
        state.join("own.nbd").display().to_string(),
    ] {
        assert_eq!(
            fs::metadata(&socket).unwrap().mode() & 0o777,
            0o600,
            "{socket}"
        );
        let mut greeting = [0; 18];
        let mut client = UnixStream::connect(&socket).unwrap();
        client.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..8], b"NBDMAGIC");
    }
    done(&Request::List {});
    let (attribute, value) = ("log_level".to_owned(), "error".to_owned());
    done(&Request::Set {
        name: None,
        attribute,
        value,
    });
    for name in ["own", "elsewhere", "guest"] {
        let name = name.to_owned();
        done(&Request::Remove { name, force: true });
    }
    for socket in [socket("b"), socket("c")] {
        assert!(
            !Path::new(&socket).exists(),
            "its own sockets it can remove"
        );
    }
}

/// Makes a disk by the tree, which writes back to a file that a value names.
fn ask_by_files(directory: &Path) {
    let tree = directory.join("tree");
    let number = fs::read_to_string(tree.join("class/zram-control/hot_add")).unwrap();
    let disk = tree.join(format!("block/uzram{}", number.trim()));
    let backing = |name: &str| {
        let path = directory.join(name);
        let written = fs::write(disk.join("backing_dev"), path.to_str().unwrap());
        written.map_err(|error| error.raw_os_error().unwrap())
    };
    for outside in ["file", "named/out", "named/../file", "uzram/words.dict"] {
        assert_eq!(backing(outside), Err(libc::EACCES), "{outside}");
    }
    assert_eq!(backing("named/new"), Err(libc::ENOENT));
    assert_eq!(backing("named/in"), Ok(()));
    for (attribute, value) in [("disksize", "1M"), ("reset", "1")] {
        fs::write(disk.join(attribute), value).unwrap();
    }
    assert!(fs::metadata(directory.join("named/in")).unwrap().len() > 0);
    fs::write(tree.join("class/zram-control/hot_remove"), number).unwrap();
    assert!(!disk.exists());
}

/// Serves, attacks, and serves on until its input ends.
fn inside(directory: &Path, mode: Mode, has_tree: bool) {
    let state = StateDir::open(directory.join("uzram")).unwrap();
    let device = DeviceConfig {
        name: Some("a".into()),
        size_bytes: 1 << 20,
        endpoint: Some(Endpoint::Unix(directory.join("sockets/a"))),
        ..DeviceConfig::default()
    };
    let backed = DeviceConfig {
        name: Some("backed".into()),
        size_bytes: 1 << 20,
        backing: Some(backing(&directory.join("backing"))),
        ..DeviceConfig::default()
    };
    let is_getcpu_fatal = mode == Mode::On && forbid_getcpu();
    let mut prepared = Server::prepare(&state, &[device, backed], Vec::new()).unwrap();
    let ring = ring();
    if has_tree {
        let mut keeper = Command::new(std::env::current_exe().unwrap());
        keeper.env(MODE, "keeper");
        let named = AllowedFiles::below(&[directory.join("named")]).unwrap();
        let (tree, template) = (directory.join("tree"), DeviceConfig::default());
        prepared.mount_tree(&tree, template, named, keeper).unwrap();
    }
    prepared.confine(&[], mode);
    let server = prepared.run(Notifier::default()).unwrap();
    let said = sandbox::description();
    if !said.contains("seccomp") {
        return println!("{LEFT_OUT}: {said}");
    }
    assert_eq!(
        said.contains("seccomp (logs only)"),
        mode == Mode::LogCalls,
        "{said}"
    );
    match mode {
        Mode::On => attack(directory, said.contains("landlock"), has_tree),
        Mode::LogCalls | Mode::Off => look(directory),
    }
    if is_getcpu_fatal {
        write_a_page();
    }
    write_back(&server.devices()[1], ring);
    println!("{DONE}");
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
    drop(server);
}

/// Makes the system call getcpu end this process, where the vDSO has it; else false. Each write and read
/// of a page asks for the CPU, and in a sandbox nothing says where the vDSO is.
fn forbid_getcpu() -> bool {
    if !vdso().is_some_and(|vdso| vdso.windows(13).any(|name| name == b"__vdso_getcpu")) {
        return false;
    }
    let rules = BTreeMap::from([(libc::SYS_getcpu, Vec::new())]);
    let (allow, kill) = (SeccompAction::Allow, SeccompAction::KillProcess);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, allow, kill, arch).unwrap();
    let filter: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&filter).is_ok()
}

/// The code that the kernel maps into each process.
fn vdso() -> Option<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let [start, end] = [start, end].map(|place| u64::from_str_radix(place, 16).unwrap());
    let mut code = vec![0; usize::try_from(end - start).unwrap()];
    let memory = File::open("/proc/self/mem").ok()?;
    memory.read_exact_at(&mut code, start).ok()?;
    Some(code)
}

/// As each request does, in a store of this process.
fn write_a_page() {
    let store = Store::builder().size(1 << 20).build().unwrap();
    let mut page = b"page".repeat(1024);
    page[0] = 1;
    store.write(PageIndex(0), &page).unwrap();
    store.read(PageIndex(0), &mut page).unwrap();
}

fn backing(path: &Path) -> BackingDevice {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).open(path);
    BackingDevice {
        path: path.to_owned(),
        file: file.unwrap().into(),
    }
}

/// The kernel's words about this process's io_uring, which it still gives in the sandbox. None where there is none.
fn ring() -> Option<File> {
    let rings = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mut rings = rings.filter(|entry| {
        let target = fs::read_link(entry.path());
        target.is_ok_and(|target| target.ends_with("anon_inode:[io_uring]"))
    });
    let Some(ring) = rings.next() else {
        // Room for the kernel's answer.
        let mut parameters = [0_u64; 15];
        let arguments = [1, parameters.as_mut_ptr() as usize, 0, 0, 0, 0];
        let refused = errno_of(libc::SYS_io_uring_setup, arguments);
        assert!(refused.is_some(), "there is io_uring, and no ring");
        eprintln!("left out: no io_uring here");
        return None;
    };
    File::open(Path::new("/proc/self/fdinfo").join(ring.file_name())).ok()
}

/// Pages go to the file and come back, by the ring that was made before.
fn write_back(device: &Device, ring: Option<File>) {
    const PAGES: u64 = 64;
    let live = device.live().unwrap();
    let store = live.store().unwrap();
    let content = |page| uzram_testkit::noise(page, 4096);
    for page in 0..PAGES {
        store.write(PageIndex(page), &content(page)).unwrap();
    }
    let written = store.write_back_cold(ColdPages::Huge, &mut || true);
    written.unwrap();
    assert_eq!(store.stats().bd_count, PAGES);
    let mut page = vec![0; 4096];
    for index in 0..PAGES {
        store.read(PageIndex(index), &mut page).unwrap();
        assert!(page == content(index), "{index}");
    }
    let Some(mut ring) = ring else {
        return;
    };
    let mut told = String::new();
    ring.read_to_string(&mut told).unwrap();
    let mut lines = told.lines();
    let completed = lines.find_map(|line| line.strip_prefix("CqTail:")).unwrap();
    assert!(completed.trim().parse::<u32>().unwrap() > 0, "{told}");
}

/// In the log mode what the filter would refuse is done.
fn look(directory: &Path) {
    assert_eq!(fs::metadata(directory.join("file")).unwrap().len(), 4);
}

/// A call that must be refused: its name, its number, its arguments.
type Call = (&'static str, c_long, [usize; 6]);

fn attack(directory: &Path, has_landlock: bool, has_tree: bool) {
    let path = |name: &str| CString::new(directory.join(name).as_os_str().as_bytes()).unwrap();
    let (file, new, listening) = (path("file"), path("new"), path("listening"));
    let own = directory.join("uzram/a.lock");
    let open = File::open(&own).unwrap();
    let (by_path, on_open) = (by_path(&file, &new), on_open(open.as_raw_fd()));
    let rest = [processes(), sockets(&listening), rights()].concat();
    for (name, number, arguments) in [by_path, on_open, rest].concat() {
        // With a tree it opens what values name; Landlock has a say in that.
        if has_tree && number == libc::SYS_openat2 {
            continue;
        }
        let errno = errno_of(number, arguments);
        assert_eq!(errno, Some(libc::EPERM), "{name} was not refused");
    }
    // The C libraries take another call where this one is missing.
    assert_eq!(errno_of(libc::SYS_clone3, [0; 6]), Some(libc::ENOSYS));
    // What Landlock refuses has another error.
    if has_landlock {
        let kind = |done: io::Result<()>| done.unwrap_err().kind();
        let denied = io::ErrorKind::PermissionDenied;
        assert_eq!(kind(File::open(directory.join("file")).map(drop)), denied);
        assert_eq!(kind(fs::remove_file(directory.join("file"))), denied);
        assert_eq!(
            kind(UnixListener::bind(directory.join("s")).map(drop)),
            denied
        );
    }
    if has_tree {
        open_named(directory, has_landlock);
    }
    // And what serving needs goes on, beside what the other process asks for.
    let mode = libc::c_long::from(0o600_u32) as usize;
    let fd = open.as_raw_fd() as usize;
    assert_eq!(errno_of(libc::SYS_fchmod, [fd, mode, 0, 0, 0, 0]), None);
    let (stream, _other) = UnixStream::pair().unwrap();
    let stall = Some(std::time::Duration::from_secs(1));
    rustix::net::sockopt::set_socket_timeout(&stream, Timeout::Send, stall).unwrap();
    stream.set_write_timeout(stall).unwrap();
    assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
    assert!(!fs::read(&own).unwrap().is_empty());
    let big = vec![1_u8; 64 << 20];
    assert_eq!(
        big.iter().map(|byte| usize::from(*byte)).sum::<usize>(),
        64 << 20
    );
}

/// Of the files outside of its state directory it opens those that a value may name, and makes none, with the
/// rules of `openat2` and without.
fn open_named(directory: &Path, has_landlock: bool) {
    let open = |name: &str, flags: OFlags| {
        // `openat2` wants one only with a new file.
        let bits = if flags.contains(OFlags::CREATE) {
            0o600
        } else {
            0
        };
        let (path, mode) = (directory.join(name), rustix::fs::Mode::from_raw_mode(bits));
        let one = rustix::fs::open(&path, flags, mode).err();
        let other = rustix::fs::openat2(CWD, &path, flags, mode, ResolveFlags::empty()).err();
        assert_eq!(one, other, "{name}");
        one
    };
    assert_eq!(open("named/in", OFlags::RDWR), None);
    if !has_landlock {
        return;
    }
    for name in ["file", "named/out", "named/../file"] {
        for flags in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR | OFlags::TRUNC] {
            assert_eq!(open(name, flags), Some(Errno::ACCESS), "{name} {flags:?}");
        }
    }
    let made = OFlags::WRONLY.union(OFlags::CREATE);
    assert_eq!(open("named/new", made), Some(Errno::ACCESS));
    assert_eq!(open("/etc/passwd", OFlags::RDONLY), Some(Errno::ACCESS));
}

/// The error of a call; `None` if it was carried out.
fn errno_of(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<i32> {
    // SAFETY: every pointer among the arguments is to memory that lives for the call, or is null; a
    // call that is carried out although it must not be ends the test.
    let done = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    match done {
        -1 => io::Error::last_os_error().raw_os_error(),
        _ => None,
    }
}

/// A number as an argument.
fn n(number: i32) -> usize {
    number as isize as usize
}

fn call(name: &'static str, number: c_long, arguments: &[usize]) -> Call {
    let mut six = [0; 6];
    six[..arguments.len()].copy_from_slice(arguments);
    (name, number, six)
}

/// Calls that change or tell something of a file by its path.
fn by_path(file: &CString, new: &CString) -> Vec<Call> {
    let (file, new) = (file.as_ptr() as usize, new.as_ptr() as usize);
    let here = n(libc::AT_FDCWD);
    let (name, empty) = (c"user.x".as_ptr() as usize, c"".as_ptr() as usize);
    let calls = vec![
        call("fchmodat", libc::SYS_fchmodat, &[here, file, 0o666]),
        call("fchmodat2", 452, &[here, file, 0o666]),
        call("fchownat", libc::SYS_fchownat, &[here, file, 1, 1]),
        call("utimensat", libc::SYS_utimensat, &[here, file, 0]),
        call("setxattr", libc::SYS_setxattr, &[file, name, name, 1]),
        call("lsetxattr", libc::SYS_lsetxattr, &[file, name, name, 1]),
        call("removexattr", libc::SYS_removexattr, &[file, name]),
        call("getxattr", libc::SYS_getxattr, &[file, name]),
        call("listxattr", libc::SYS_listxattr, &[file]),
        call("newfstatat", libc::SYS_newfstatat, &[here, file, 0]),
        call(
            "newfstatat, empty",
            libc::SYS_newfstatat,
            &[here, file, 0, n(libc::AT_EMPTY_PATH)],
        ),
        call("statx", libc::SYS_statx, &[here, file, 0, 0, 0]),
        call(
            "statx, empty",
            libc::SYS_statx,
            &[here, empty, n(libc::AT_EMPTY_PATH)],
        ),
        call("statfs", libc::SYS_statfs, &[file]),
        call("faccessat", libc::SYS_faccessat, &[here, file]),
        call("faccessat2", libc::SYS_faccessat2, &[here, file]),
        call("readlinkat", libc::SYS_readlinkat, &[here, file, file, 0]),
        call(
            "openat, O_PATH",
            libc::SYS_openat,
            &[here, file, n(libc::O_PATH)],
        ),
        call("openat2", libc::SYS_openat2, &[here, file]),
        call(
            "name_to_handle_at",
            libc::SYS_name_to_handle_at,
            &[here, file],
        ),
        call("open_by_handle_at", libc::SYS_open_by_handle_at, &[here]),
        call("truncate", libc::SYS_truncate, &[file, 0]),
        call("renameat2", libc::SYS_renameat2, &[here, file, here, new]),
        call("linkat", libc::SYS_linkat, &[here, file, here, new]),
        call("symlinkat", libc::SYS_symlinkat, &[file, here, new]),
        call("mknodat", libc::SYS_mknodat, &[here, new, 0o600]),
        call("mkdirat", libc::SYS_mkdirat, &[here, new, 0o700]),
        call("chdir", libc::SYS_chdir, &[file]),
        call("chroot", libc::SYS_chroot, &[file]),
        call("inotify_init1", libc::SYS_inotify_init1, &[0]),
        call("fanotify_init", libc::SYS_fanotify_init, &[0]),
        call("mount", libc::SYS_mount, &[file, file, file, 0, 0]),
        call("umount2", libc::SYS_umount2, &[file, 0]),
        call("fsopen", libc::SYS_fsopen, &[file, 0]),
        call("open_tree", libc::SYS_open_tree, &[here, file, 0]),
        call("swapon", libc::SYS_swapon, &[file, 0]),
    ];
    #[cfg(target_arch = "x86_64")]
    let calls = [
        calls,
        vec![
            call("chmod", libc::SYS_chmod, &[file, 0o666]),
            call("chown", libc::SYS_chown, &[file, 1, 1]),
            call("utime", libc::SYS_utime, &[file, 0]),
            call("utimes", libc::SYS_utimes, &[file, 0]),
            call("stat", libc::SYS_stat, &[file, 0]),
            call("lstat", libc::SYS_lstat, &[file, 0]),
            call("access", libc::SYS_access, &[file, 0]),
            call("readlink", libc::SYS_readlink, &[file, file, 0]),
            call("open, O_PATH", libc::SYS_open, &[file, n(libc::O_PATH)]),
            call("creat", libc::SYS_creat, &[new, 0o600]),
            call("rename", libc::SYS_rename, &[file, new]),
            call("mkdir", libc::SYS_mkdir, &[new, 0o700]),
        ],
    ]
    .concat();
    calls
}

/// Calls that change an open file and not its content.
fn on_open(fd: i32) -> Vec<Call> {
    let name = c"user.x".as_ptr() as usize;
    let fd = n(fd);
    vec![
        call("fchmod to others", libc::SYS_fchmod, &[fd, 0o666]),
        call("fchmod, set-uid", libc::SYS_fchmod, &[fd, 0o4600]),
        call("fchown", libc::SYS_fchown, &[fd, 1, 1]),
        call("futimens", libc::SYS_utimensat, &[fd, 0, 0]),
        call("fsetxattr", libc::SYS_fsetxattr, &[fd, name, name, 1]),
        call(
            "fcntl, F_SETOWN",
            libc::SYS_fcntl,
            &[fd, n(libc::F_SETOWN), 1],
        ),
        call(
            "fcntl, F_SETLEASE",
            libc::SYS_fcntl,
            &[fd, n(libc::F_SETLEASE), 0],
        ),
        call(
            "ioctl, TIOCSTI",
            libc::SYS_ioctl,
            &[fd, libc::TIOCSTI as usize],
        ),
    ]
}

/// Programs, processes, and the memory of this one as a program.
fn processes() -> Vec<Call> {
    // SAFETY: only asks.
    let parent = n(unsafe { libc::getppid() });
    let program = c"/bin/true".as_ptr() as usize;
    let new_user = libc::CLONE_NEWUSER | libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND;
    let code = n(libc::PROT_READ | libc::PROT_EXEC);
    let private = n(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let calls = vec![
        call("execve", libc::SYS_execve, &[program, 0, 0]),
        call(
            "execveat",
            libc::SYS_execveat,
            &[n(libc::AT_FDCWD), program],
        ),
        call("clone of a process", libc::SYS_clone, &[n(libc::SIGCHLD)]),
        call("clone, CLONE_NEWUSER", libc::SYS_clone, &[n(new_user)]),
        call("unshare", libc::SYS_unshare, &[n(libc::CLONE_NEWUSER)]),
        call("setns", libc::SYS_setns, &[0, 0]),
        call(
            "ptrace",
            libc::SYS_ptrace,
            &[libc::PTRACE_ATTACH as usize, parent],
        ),
        call("process_vm_readv", libc::SYS_process_vm_readv, &[parent]),
        call("process_vm_writev", libc::SYS_process_vm_writev, &[parent]),
        call("pidfd_open", libc::SYS_pidfd_open, &[parent]),
        call("pidfd_getfd", libc::SYS_pidfd_getfd, &[0, 0]),
        call("pidfd_send_signal", libc::SYS_pidfd_send_signal, &[0, 0]),
        call("kill", libc::SYS_kill, &[parent, 0]),
        call("tkill", libc::SYS_tkill, &[parent, 0]),
        call("tgkill of another", libc::SYS_tgkill, &[parent, parent, 0]),
        call("prlimit64 of another", libc::SYS_prlimit64, &[parent, 7]),
        call("setpriority", libc::SYS_setpriority, &[0, 0, 19]),
        call("sched_setscheduler", libc::SYS_sched_setscheduler, &[0, 0]),
        call(
            "mmap of code",
            libc::SYS_mmap,
            &[0, 4096, code, private, usize::MAX],
        ),
        call("mprotect of code", libc::SYS_mprotect, &[0, 0, code]),
        call(
            "prctl, dumpable",
            libc::SYS_prctl,
            &[n(libc::PR_SET_DUMPABLE), 1],
        ),
    ];
    #[cfg(target_arch = "x86_64")]
    let calls = [
        calls,
        vec![
            call("fork", libc::SYS_fork, &[]),
            call("vfork", libc::SYS_vfork, &[]),
            // The numbers of another interface, which do the same.
            call("x32 getpid", 0x4000_0000 | libc::SYS_getpid, &[]),
            call(
                "x32 chmod",
                0x4000_0000 | libc::SYS_chmod,
                &[program, 0o666],
            ),
        ],
    ]
    .concat();
    calls
}

/// Sockets but for those that listen for clients.
fn sockets(listening: &CString) -> Vec<Call> {
    let socket =
        |family: i32, kind: i32, protocol: i32| -> [usize; 3] { [n(family), n(kind), n(protocol)] };
    let (unix, inet) = (libc::AF_UNIX, libc::AF_INET);
    let (stream, datagram) = (libc::SOCK_STREAM, libc::SOCK_DGRAM);
    let client = UnixStream::pair().unwrap().0;
    // Leaked, as the call is made later; the process ends soon.
    let client = n(std::os::fd::IntoRawFd::into_raw_fd(client));
    let mut address = Box::new([0_u8; 110]);
    address[..2].copy_from_slice(&(unix as u16).to_ne_bytes());
    let bytes = listening.as_bytes();
    address[2..2 + bytes.len()].copy_from_slice(bytes);
    let address = Box::leak(address).as_ptr() as usize;
    let option = [client, n(libc::SOL_SOCKET), n(libc::SO_ATTACH_FILTER)];
    vec![
        call(
            "socket, Unix datagram",
            libc::SYS_socket,
            &socket(unix, datagram, 0),
        ),
        call("socket, UDP", libc::SYS_socket, &socket(inet, datagram, 0)),
        call(
            "socket, raw",
            libc::SYS_socket,
            &socket(inet, libc::SOCK_RAW, 1),
        ),
        call(
            "socket, MPTCP",
            libc::SYS_socket,
            &socket(inet, stream, 262),
        ),
        call(
            "socket, netlink",
            libc::SYS_socket,
            &socket(libc::AF_NETLINK, libc::SOCK_RAW, 0),
        ),
        call(
            "socket, packet",
            libc::SYS_socket,
            &socket(libc::AF_PACKET, libc::SOCK_RAW, 0),
        ),
        call(
            "socket, vsock datagram",
            libc::SYS_socket,
            &socket(libc::AF_VSOCK, datagram, 0),
        ),
        call(
            "socket, crypto",
            libc::SYS_socket,
            &socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0),
        ),
        call(
            "socketpair, datagram",
            libc::SYS_socketpair,
            &socket(unix, datagram, 0),
        ),
        call("connect", libc::SYS_connect, &[client, address, 110]),
        call(
            "sendto somebody",
            libc::SYS_sendto,
            &[client, address, 1, 0, address, 110],
        ),
        call(
            "sendto, fast open",
            libc::SYS_sendto,
            &[client, address, 1, n(libc::MSG_FASTOPEN)],
        ),
        call(
            "sendmsg, fast open",
            libc::SYS_sendmsg,
            &[client, 0, n(libc::MSG_FASTOPEN)],
        ),
        call("setsockopt, filter", libc::SYS_setsockopt, &option),
    ]
}

/// Calls that take a right or change the machine's own settings.
fn rights() -> Vec<Call> {
    vec![
        call("setuid", libc::SYS_setuid, &[1]),
        call("setgid", libc::SYS_setgid, &[1]),
        call("capset", libc::SYS_capset, &[]),
        call("personality", libc::SYS_personality, &[0xffff_ffff]),
        call("bpf", libc::SYS_bpf, &[]),
        call("perf_event_open", libc::SYS_perf_event_open, &[]),
        call("userfaultfd", libc::SYS_userfaultfd, &[1]),
        call("io_uring_setup", libc::SYS_io_uring_setup, &[1]),
        call("io_uring_register", libc::SYS_io_uring_register, &[0]),
        call("keyctl", libc::SYS_keyctl, &[]),
        call("add_key", libc::SYS_add_key, &[]),
        call("request_key", libc::SYS_request_key, &[]),
        call("init_module", libc::SYS_init_module, &[]),
        call("kexec_load", libc::SYS_kexec_load, &[]),
        call("reboot", libc::SYS_reboot, &[]),
        call("sethostname", libc::SYS_sethostname, &[]),
        call("clock_settime", libc::SYS_clock_settime, &[]),
        call("adjtimex", libc::SYS_adjtimex, &[]),
        call("shmget", libc::SYS_shmget, &[0, 4096]),
        call("seccomp", libc::SYS_seccomp, &[]),
        call(
            "landlock_create_ruleset",
            libc::SYS_landlock_create_ruleset,
            &[],
        ),
    ]
}
