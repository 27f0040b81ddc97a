//! The output of a running guest, and the verdict on it. Bytes and time come in, a verdict comes
//! out. Nothing here does I/O, so every failure can be simulated in a test.
//!
//! The guest has two channels. Its *console* is text for people, with the kernel's own troubles.
//! The *control port* carries the lines that `guest/init` lists, and files. Every phase has a time
//! limit, so there is a verdict in bounded time whatever the guest does.

use std::fmt;
use std::time::Duration;

use crate::process::Exit;

/// Time until the guest's first process reports. Seconds are usual.
const BOOT_LIMIT: Duration = Duration::from_secs(90);
/// Time from the end of the test to the end of the guest, files included.
const LEAVE_LIMIT: Duration = Duration::from_secs(30);
/// Time to go on reading after a failure: the console then explains it.
const AFTERMATH: Duration = Duration::from_secs(2);
/// Console output at most, in bytes.
const CONSOLE_MAX_BYTES: usize = 16 << 20;
/// One line at most, in bytes; longer ones are looked at in pieces.
const LINE_MAX_BYTES: usize = 4096;
/// Files that a test may return, and their bytes in all.
const FILES_MAX: usize = 64;
const FILES_MAX_BYTES: usize = 64 << 20;

/// The reason why a guest's test did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The test's own verdict.
    Status(i32),
    /// The test, or its aftermath, ran past its limit.
    Hang(&'static str, Duration),
    /// The guest's kernel gave up.
    Panic(String),
    /// The guest's kernel found tasks that hang.
    Lockup(String),
    /// The guest ran out of memory and its kernel killed something.
    OutOfMemory(String),
    /// A module is missing, or the kernel refused it.
    Module(String),
    /// The guest went away before its test had ended.
    GoneEarly(&'static str),
    /// The guest's output is too long.
    TooMuchOutput,
    /// The control port carried a malformed line.
    Garbled(String),
    /// QEMU itself failed.
    Machine(String),
    /// A fault on this side: the guest could not be set up, or left a wrong file behind.
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Status(status) => write!(f, "the test ended with status {status}"),
            Failure::Hang(phase, limit) => {
                write!(f, "hang: {phase} ran past its {} s limit", limit.as_secs())
            }
            Failure::Panic(line) | Failure::Lockup(line) | Failure::OutOfMemory(line) => {
                write!(f, "guest kernel: {line}")
            }
            Failure::Module(text) | Failure::Other(text) => write!(f, "{text}"),
            Failure::GoneEarly(phase) => write!(f, "the guest went away during {phase}"),
            Failure::TooMuchOutput => {
                write!(f, "more than {CONSOLE_MAX_BYTES} bytes on the console")
            }
            Failure::Garbled(what) => write!(f, "control port: {what}"),
            Failure::Machine(what) => write!(f, "qemu: {what}"),
        }
    }
}

/// A file that a test returned.
#[derive(Debug, PartialEq, Eq)]
pub struct Returned {
    pub name: String,
    pub content: Vec<u8>,
}

/// The knowledge about a guest so far.
pub struct Watch {
    limit: Duration,
    phase: Phase,
    phase_began: Duration,
    up_after: Option<Duration>,
    status: Option<i32>,
    failure: Option<(Failure, Duration)>,
    console_line: Vec<u8>,
    console_bytes: usize,
    control: Vec<u8>,
    /// Bytes of the last file that are still to come.
    file_remaining: usize,
    files: Vec<Returned>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Boot,
    Test,
    Leave,
    Off,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Phase::Boot => "the boot",
            Phase::Test => "the test",
            Phase::Leave | Phase::Off => "the way out",
        }
    }
}

impl Watch {
    /// A guest that starts now, at time zero, whose test may take `limit`.
    pub fn new(limit: Duration) -> Watch {
        Watch {
            limit,
            phase: Phase::Boot,
            phase_began: Duration::ZERO,
            up_after: None,
            status: None,
            failure: None,
            console_line: Vec::new(),
            console_bytes: 0,
            control: Vec::new(),
            file_remaining: 0,
            files: Vec::new(),
        }
    }

    /// Whether to go on at time `now`. `ended` tells that the guest is gone and all of its output
    /// was read. `Some` is the verdict: the test passed, or the reason why not.
    pub fn verdict(&self, now: Duration, ended: Option<Exit>) -> Option<Result<(), Failure>> {
        if let Some((failure, since)) = &self.failure {
            let heard = ended.is_some() || now > *since + AFTERMATH;
            return heard.then(|| Err(failure.clone()));
        }
        if let Some(exit) = ended {
            return Some(self.last_words(exit));
        }
        let limit = match self.phase {
            Phase::Boot => BOOT_LIMIT,
            Phase::Test => self.limit,
            Phase::Leave | Phase::Off => LEAVE_LIMIT,
        };
        let late = now > self.phase_began + limit;
        late.then(|| Err(Failure::Hang(self.phase.name(), limit)))
    }

    fn last_words(&self, exit: Exit) -> Result<(), Failure> {
        match (self.phase, self.status) {
            _ if exit != Exit::Code(0) => Err(Failure::Machine(exit.to_string())),
            (Phase::Off, Some(0)) => Ok(()),
            (Phase::Off, Some(status)) => Err(Failure::Status(status)),
            (phase, _) => Err(Failure::GoneEarly(phase.name())),
        }
    }

    /// The time until the guest's first process ran.
    pub fn up_after(&self) -> Option<Duration> {
        self.up_after
    }

    /// The files that the test returned; the last one may be cut short after a failure.
    pub fn into_files(self) -> Vec<Returned> {
        self.files
    }

    /// Takes in text of the console.
    pub fn console(&mut self, bytes: &[u8], now: Duration) {
        self.console_bytes += bytes.len();
        if self.console_bytes > CONSOLE_MAX_BYTES {
            self.fail(Failure::TooMuchOutput, now);
            return;
        }
        for byte in bytes {
            if *byte != b'\n' && self.console_line.len() < LINE_MAX_BYTES {
                self.console_line.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut self.console_line);
            if let Some(failure) = trouble(&String::from_utf8_lossy(&line)) {
                self.fail(failure, now);
            }
        }
    }

    /// Takes in bytes of the control port.
    pub fn control(&mut self, bytes: &[u8], now: Duration) {
        let mut rest = bytes;
        while !rest.is_empty() && self.failure.is_none() {
            if self.file_remaining > 0 {
                let (content, after) = rest.split_at(self.file_remaining.min(rest.len()));
                self.file_remaining -= content.len();
                let file = self.files.last_mut().expect("the file whose bytes remain");
                file.content.extend_from_slice(content);
                rest = after;
            } else if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                self.control.extend_from_slice(&rest[..end]);
                let line = std::mem::take(&mut self.control);
                self.control_line(&String::from_utf8_lossy(&line), now);
                rest = &rest[end + 1..];
            } else {
                self.control.extend_from_slice(rest);
                rest = &[];
            }
            if self.control.len() > LINE_MAX_BYTES {
                self.fail(Failure::Garbled("an endless line".into()), now);
            }
        }
    }

    fn control_line(&mut self, line: &str, now: Duration) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (self.phase, word) {
            (Phase::Boot, "up") if self.up_after.is_none() => self.up_after = Some(now),
            (Phase::Boot, "module") => self.fail(Failure::Module(format!("module {rest}")), now),
            (Phase::Boot, "begin") => self.enter(Phase::Test, now),
            (Phase::Test, "end") => match rest.parse() {
                Ok(status) => {
                    self.status = Some(status);
                    self.enter(Phase::Leave, now);
                }
                Err(_) => self.fail(Failure::Garbled(format!("`{line}`")), now),
            },
            (Phase::Leave, "file") => {
                if let Err(why) = self.begin_file(rest) {
                    self.fail(Failure::Garbled(why), now);
                }
            }
            (Phase::Leave, "off") => self.enter(Phase::Off, now),
            (phase, _) => {
                let phase = phase.name();
                let line: String = line.chars().take(80).collect();
                self.fail(Failure::Garbled(format!("`{line}` during {phase}")), now);
            }
        }
    }

    /// Reads `SIZE NAME` and expects that many bytes.
    fn begin_file(&mut self, header: &str) -> Result<(), String> {
        let (size, name) = header.split_once(' ').unwrap_or((header, ""));
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
            return Err(format!(
                "file `{name}`: a name of letters, digits, `.`, `_`, `-`"
            ));
        }
        let before: usize = self.files.iter().map(|file| file.content.len()).sum();
        let size: usize = size.parse().map_err(|_| format!("file size `{size}`"))?;
        if self.files.len() == FILES_MAX || size > FILES_MAX_BYTES - before {
            return Err(format!("over {FILES_MAX} files or {FILES_MAX_BYTES} bytes"));
        }
        self.file_remaining = size;
        self.files.push(Returned {
            name: name.to_string(),
            content: Vec::new(),
        });
        Ok(())
    }

    fn enter(&mut self, phase: Phase, now: Duration) {
        self.phase = phase;
        self.phase_began = now;
    }

    /// The first failure counts; others follow from it.
    fn fail(&mut self, failure: Failure, now: Duration) {
        self.failure.get_or_insert((failure, now));
    }
}

/// The trouble in a line of the kernel on the console, if there is any. Lines of programs do not
/// count: only the kernel starts its lines with the time in brackets.
fn trouble(line: &str) -> Option<Failure> {
    let (stamp, text) = line.trim_end().strip_prefix('[')?.split_once("] ")?;
    if !stamp.trim_start().starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let text = text.to_string();
    if text.contains("soft lockup") || text.contains("hard LOCKUP") || is_hung_task(&text) {
        return Some(Failure::Lockup(text));
    }
    // A limit of a cgroup is the test's own affair and says `Memory cgroup out of memory`.
    if text.starts_with("Out of memory") {
        return Some(Failure::OutOfMemory(text));
    }
    let fatal = ["Kernel panic", "BUG: ", "Oops: ", "kernel BUG at "];
    let fatal = fatal.iter().any(|word| text.contains(word));
    fatal.then_some(Failure::Panic(text))
}

fn is_hung_task(text: &str) -> bool {
    text.starts_with("INFO: task ") && text.contains("blocked for more than")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);
    const GONE: Option<Exit> = Some(Exit::Code(0));

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A guest that has sent `control` one byte at a time, and is still running.
    fn after(control: &[u8]) -> Watch {
        let mut watch = Watch::new(LIMIT);
        for byte in control {
            watch.control(&[*byte], at(1));
        }
        watch
    }

    fn failed(watch: &Watch) -> Failure {
        watch.verdict(at(60), GONE).unwrap().unwrap_err()
    }

    #[test]
    fn a_test_that_ends_well_passes_and_returns_its_files() {
        let said = b"up\nbegin\nend 0\nfile 6 a.txt\nup\n\x00\xffxfile 0 b\noff\n";
        let watch = after(said);
        assert_eq!(watch.verdict(at(2), None), None);
        assert_eq!(watch.verdict(at(2), GONE), Some(Ok(())));
        assert_eq!(watch.up_after(), Some(at(1)));
        let files: Vec<_> = watch.into_files();
        assert_eq!(files[0].content, b"up\n\x00\xffx");
        assert_eq!((files[1].name.as_str(), files[1].content.len()), ("b", 0));
    }

    #[test]
    fn a_test_that_fails_fails() {
        assert_eq!(
            failed(&after(b"up\nbegin\nend 3\noff\n")),
            Failure::Status(3)
        );
    }

    #[test]
    fn a_guest_that_leaves_early_fails_in_every_phase() {
        for (said, phase) in [
            (&b""[..], "the boot"),
            (b"up\n", "the boot"),
            (b"up\nbegin\n", "the test"),
            (b"up\nbegin\nend 0\n", "the way out"),
            (b"up\nbegin\nend 0\nfile 9 a\nabc", "the way out"),
        ] {
            assert_eq!(failed(&after(said)), Failure::GoneEarly(phase));
        }
    }

    #[test]
    fn every_phase_has_a_limit() {
        for (said, limit) in [
            (&b""[..], BOOT_LIMIT),
            (b"up\n", BOOT_LIMIT),
            (b"up\nbegin\n", LIMIT),
            (b"up\nbegin\nend 0\n", LEAVE_LIMIT),
            (b"up\nbegin\nend 0\noff\n", LEAVE_LIMIT),
        ] {
            let watch = after(said);
            let began = watch.phase_began;
            assert_eq!(watch.verdict(began + limit, None), None);
            let late = watch.verdict(began + limit + at(1), None);
            assert!(matches!(late, Some(Err(Failure::Hang(_, found))) if found == limit));
        }
    }

    #[test]
    fn the_kernels_troubles_are_seen_on_the_console() {
        let seen = |line: &str| {
            let mut watch = after(b"up\nbegin\n");
            let line = format!("text\r\n[    4.266013] {line}\r\n");
            for byte in line.as_bytes() {
                watch.console(&[*byte], at(2));
            }
            watch.verdict(at(2) + AFTERMATH + at(1), None)
        };
        let panic = "Kernel panic - not syncing: sysrq triggered crash";
        assert_eq!(seen(panic), Some(Err(Failure::Panic(panic.into()))));
        let null = "BUG: kernel NULL pointer dereference, address: 00";
        assert_eq!(seen(null), Some(Err(Failure::Panic(null.into()))));
        let lockup = "watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [sh:1]";
        assert_eq!(seen(lockup), Some(Err(Failure::Lockup(lockup.into()))));
        let hung = "INFO: task sh:9 blocked for more than 30 seconds.";
        assert_eq!(seen(hung), Some(Err(Failure::Lockup(hung.into()))));
        let oom = "Out of memory: Killed process 64 (tail) total-vm:1kB";
        assert_eq!(seen(oom), Some(Err(Failure::OutOfMemory(oom.into()))));
        for harmless in [
            "Memory cgroup out of memory: Killed process 64 (tail)",
            "nbd: registered device",
            "INFO: task scheduler is fine",
        ] {
            assert_eq!(seen(harmless), None, "{harmless}");
        }
    }

    #[test]
    fn programs_cannot_cry_wolf() {
        for line in [
            "Kernel panic - not syncing",
            "[x] BUG: mine",
            "echo [1.2] x",
        ] {
            assert_eq!(trouble(line), None);
        }
    }

    #[test]
    fn the_cause_counts_and_its_aftermath_is_heard() {
        let mut watch = after(b"up\nbegin\n");
        watch.console(b"[    1.0] BUG: first\n", at(2));
        watch.console(b"[    1.1] Kernel panic - not syncing: second\n", at(3));
        assert_eq!(watch.verdict(at(3), None), None);
        assert_eq!(failed(&watch), Failure::Panic("BUG: first".into()));
    }

    #[test]
    fn a_refused_module_is_named() {
        let watch = after(b"up\nmodule /lib/a.ko insmod: Invalid parameters\noff\n");
        let expected = "module /lib/a.ko insmod: Invalid parameters";
        assert_eq!(failed(&watch), Failure::Module(expected.into()));
    }

    #[test]
    fn qemus_own_failure_is_not_the_tests() {
        let watch = after(b"");
        let verdict = watch.verdict(at(1), Some(Exit::Code(1))).unwrap();
        assert!(matches!(verdict, Err(Failure::Machine(_))));
    }

    #[test]
    fn output_without_end_is_cut() {
        let mut watch = after(b"up\nbegin\n");
        for _ in 0..=CONSOLE_MAX_BYTES >> 20 {
            watch.console(&vec![b'y'; 1 << 20], at(2));
        }
        assert_eq!(failed(&watch), Failure::TooMuchOutput);
        assert!(watch.console_line.len() <= LINE_MAX_BYTES);
    }

    #[test]
    fn a_garbled_control_port_is_an_error() {
        let long = vec![b'x'; LINE_MAX_BYTES + 1];
        let huge = format!("up\nbegin\nend 0\nfile {} a\n", FILES_MAX_BYTES + 1);
        for said in [
            &b"down\n"[..],
            b"up\nend 0\n",
            b"up\nbegin\nend zero\n",
            b"up\nbegin\nend 0\nfile 1 ../a\n",
            b"up\nbegin\nend 0\nfile 1 .a\n",
            b"up\nbegin\nend 0\nfile x a\n",
            &long,
            huge.as_bytes(),
        ] {
            let failure = failed(&after(said));
            assert!(matches!(failure, Failure::Garbled(_)), "{failure:?}");
        }
    }
}
