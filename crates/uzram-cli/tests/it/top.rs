//! `uzram top` on a pseudo-terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::support::{Home, PATIENCE};

/// A terminal, and the program in it.
struct Terminal {
    keys: File,
    output: Receiver<Vec<u8>>,
    screen: vt100::Parser,
    child: Child,
}

fn size(columns: u16, lines: u16) -> Winsize {
    Winsize {
        ws_row: lines,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl Terminal {
    fn new(mut command: Command, columns: u16, lines: u16) -> Terminal {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(&master, size(columns, lines)).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap();
        let slave = || -> OwnedFd {
            let flags =
                rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
            rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap()
        };
        command.stdin(slave()).stdout(slave()).stderr(slave());
        let child = command.spawn().unwrap();
        drop(command);
        let keys = File::from(master);
        let mut reader = keys.try_clone().unwrap();
        let (sender, output) = channel();
        // Ends with an error when the program, the last one at the other side, has ended.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                let _ = sender.send(bytes[..count].to_vec());
            }
        });
        Terminal {
            keys,
            output,
            screen: vt100::Parser::new(lines, columns, 0),
            child,
        }
    }

    /// Waits until the screen is as wanted.
    #[track_caller]
    fn shows(&mut self, what: &str, wanted: impl Fn(&str) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !wanted(&self.screen.screen().contents()) {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(bytes) = self.output.recv_timeout(left) else {
                panic!("never {what}: {:?}", self.screen.screen().contents());
            };
            self.screen.process(&bytes);
        }
    }

    fn resize(&mut self, columns: u16, lines: u16) {
        self.screen.screen_mut().set_size(lines, columns);
        tcsetwinsize(&self.keys, size(columns, lines)).unwrap();
    }

    /// Its exit status, and what it wrote last.
    #[track_caller]
    fn ends(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            while let Ok(bytes) = self.output.try_recv() {
                self.screen.process(&bytes);
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                // The reader may be behind; it ends after the last byte.
                while let Ok(bytes) = self.output.recv_timeout(PATIENCE) {
                    self.screen.process(&bytes);
                }
                return status.code();
            }
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn top(home: &Home, columns: u16, lines: u16) -> Terminal {
    let mut command = home.command(&["top", "--delay", "0.1"]);
    command.env("TERM", "xterm").env_remove("COLUMNS");
    Terminal::new(command, columns, lines)
}

#[test]
fn the_screen_follows_the_terminals_size_and_a_key_ends_it() {
    let home = Home::new();
    let _served = home.serve(&["--size", "64M"]);
    let mut terminal = top(&home, 80, 24);
    terminal.shows("all columns", |text| {
        let has_all = ["uzram: 1 disk, ", "NAME ", "FRAG", "uzram0 ", "q ends"];
        has_all.iter().all(|word| text.contains(word))
    });
    terminal.resize(20, 8);
    terminal.shows("two columns", |text| {
        let mut lines = text.lines();
        let titles = lines.nth(1).unwrap_or_default();
        titles.split_whitespace().eq(["NAME", "RATIO"]) && text.contains("uzram0")
    });
    terminal.resize(100, 30);
    terminal.shows("all columns again", |text| text.contains("FRAG"));
    terminal.keys.write_all(b"q").unwrap();
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn disks_that_come_are_seen_and_a_signal_ends_it() {
    let home = Home::new();
    let mut terminal = top(&home, 80, 24);
    terminal.shows("no disk", |text| text.contains("No disk is served."));
    let _served = home.serve(&["--size", "64M", "--name", "late"]);
    terminal.shows("the disk", |text| text.contains("late "));
    let pid = terminal.child.id().to_string();
    let sent = Command::new("kill").args(["-s", "TERM", &pid]).status();
    assert!(sent.unwrap().success());
    assert_eq!(terminal.ends(), Some(0));
    assert!(!terminal.screen.screen().alternate_screen(), "given back");
}

#[test]
fn without_a_terminal_that_moves_its_cursor_it_says_so() {
    let home = Home::new();
    home.run(&["top"]).refused(1, "top: needs a terminal");
    home.run(&["top", "--delay", "0"])
        .refused(2, "--delay 0: must be 0.1 to 3600 seconds");
    for kind in ["dumb", ""] {
        let mut command = home.command(&["top"]);
        command.env("TERM", kind);
        let mut terminal = Terminal::new(command, 80, 24);
        terminal.shows("the reason", |text| {
            text.contains(&format!("TERM={kind}: a terminal that moves no cursor"))
        });
        assert_eq!(terminal.ends(), Some(1));
    }
    // Keys come from nowhere.
    let mut command = home.command(&["top"]);
    let output = command.env("TERM", "xterm").stdin(Stdio::null()).output();
    assert_eq!(output.unwrap().status.code(), Some(1));
}
