//! `uzram serve`.

use std::io::{IsTerminal, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use uzram_frontends::nbd::Endpoint;
use uzram_server::size::human;
use uzram_server::{Device, Server};

use super::StateAt;
use crate::args::{Attach, ServeArgs};
use crate::failure::{Failure, Result};
use crate::output::{Align, bold, columns, print, warn};

/// Exit status of a server that a second signal ended with requests unanswered.
const STATUS_CUT_SHORT: i32 = 1;

/// Runs the command: returns when a signal has ended the server.
pub fn run(state: StateAt<'_>, args: &ServeArgs) -> Result {
    let Attach::Nbd = args.attach;
    let config = args.device.config()?;
    let signals = Signals::catch()?;
    let server = Server::start(&state.open()?, &[config])?;
    for device in server.devices().iter() {
        if !device.endpoints().all(Endpoint::is_loopback) {
            let uri = device.uri();
            warn(&format!(
                "warning: --insecure: whoever reaches {uri} reads and writes the disk"
            ));
        }
        print(&welcome(device))?;
    }
    signals.wait();
    if std::io::stderr().is_terminal() {
        warn("ending: requests under way are answered first; once more to end at once");
    }
    drop(server);
    Ok(())
}

/// SIGINT and SIGTERM: the first one is waited for, the second one ends the process at once.
struct Signals {
    caught: UnixStream,
}

impl Signals {
    fn catch() -> Result<Signals> {
        let failed = |e: std::io::Error| Failure::Failed(format!("signals: {e}"));
        let (caught, notify) = UnixStream::pair().map_err(failed)?;
        let is_second = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag clear and sets it.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                STATUS_CUT_SHORT,
                Arc::clone(&is_second),
            )
            .map_err(failed)?;
            signal_hook::flag::register(signal, Arc::clone(&is_second)).map_err(failed)?;
            let notify = notify.try_clone().map_err(failed)?;
            signal_hook::low_level::pipe::register(signal, notify).map_err(failed)?;
        }
        Ok(Signals { caught })
    }

    fn wait(mut self) {
        let mut byte = [0];
        while let Err(e) = self.caught.read(&mut byte) {
            if e.kind() != std::io::ErrorKind::Interrupted {
                break;
            }
        }
    }
}

fn welcome(device: &Device) -> String {
    let store = device.store();
    let limit = match store.mem_limit() {
        0 => "none".to_owned(),
        bytes => format!("{} ({bytes} bytes)", human(bytes)),
    };
    let facts = [
        (
            "size",
            format!(
                "{} ({} bytes)",
                human(store.size_bytes()),
                store.size_bytes()
            ),
        ),
        ("algorithm", store.algorithm().to_owned()),
        ("pool", store.pool().to_owned()),
        ("unit", human(store.unit().bytes() as u64)),
        (
            "checksum",
            if device.has_checksums() { "on" } else { "off" }.to_owned(),
        ),
        ("memory limit", limit),
        ("URI", device.uri()),
    ];
    let facts = facts.map(|(what, value)| vec![format!("  {what}"), value]);
    let clients = clients(device).map(|(line, why)| vec![format!("  {line}"), format!("# {why}")]);
    let name = device.name();
    format!(
        "{} is a compressed RAM disk, served by process {}.\n{}\n\
         {}\n  URI='{}'\n{}\n\
         {}\n  uzram stat {name}\n\n\
         Ctrl-C or SIGTERM ends it, and what it holds is lost.\n",
        bold(name),
        std::process::id(),
        columns(&facts, &[Align::Left, Align::Left]),
        bold("To use it, in another terminal:"),
        device.uri(),
        columns(&clients, &[Align::Left, Align::Left]),
        bold("To see what it holds:"),
    )
}

/// Lines to type once `$URI` is set, and what they do. A URI needs no quoting within quotes: all
/// that could end them is percent-encoded.
fn clients(device: &Device) -> [(String, &'static str); 7] {
    let kernel = match device.endpoints().next() {
        Some(Endpoint::Unix(path)) => format!("-unix {}", quoted(&path.to_string_lossy())),
        Some(Endpoint::Tcp(address)) => format!("{} {}", address.ip(), address.port()),
        None => String::new(),
    };
    let fio =
        "fio --name=t --ioengine=nbd --uri=\"$URI\" --rw=randrw --bs=4k --iodepth=16 --size=64M";
    [
        ("nbdinfo \"$URI\"".into(), "what it offers"),
        (
            "nbdcopy disk.img \"$URI\"".into(),
            "an image in; swap the two for out",
        ),
        (
            "qemu-img convert -n -O raw disk.qcow2 \"$URI\"".into(),
            "any image format in",
        ),
        (
            "qemu-io -f raw -c 'write -P 7 0 1M' \"$URI\"".into(),
            "a write by hand",
        ),
        (fio.into(), "a load"),
        (
            "mkdir d; nbdfuse d \"$URI\" & sleep 1; mkfs.ext4 -F d/nbd".into(),
            "a file to hold a file system",
        ),
        (
            format!("nbd-client -N {} {kernel} /dev/nbd0", device.name()),
            "a block device, where the kernel has nbd",
        ),
    ]
}

/// `text` as one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~/".contains(c);
    match text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(quoted("/run/a-b.c"), "/run/a-b.c");
        assert_eq!(quoted("/a b"), "'/a b'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
