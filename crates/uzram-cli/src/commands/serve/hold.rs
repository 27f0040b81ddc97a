//! `uzram serve --survive`: this process holds what the server has, and another one serves.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;

use uzram_server::service::inherited_sockets;
use uzram_server::survive::{END, Holder, Joined, Keeper, RELOAD};
use uzram_server::swap;

use super::for_swap;
use crate::args::ServeArgs;
use crate::commands::StateAt;
use crate::failure::{Failure, Result};
use crate::logger;
use crate::signals::{Asked, Signals};

/// Tells a server that a holder is at the other end of its standard input.
const HELD: &str = "--held";

/// Starts servers until one ends because it was asked to, and ends with its status.
/// With `for_swap` a successor waits beside the server, and this process never waits for memory either.
pub fn run(state: StateAt<'_>, args: &ServeArgs, for_swap: bool) -> Result {
    if args.tree.is_some() {
        let text = "--survive: not together with --tree, whose files go with their server; leave one of them out";
        return Err(Failure::Usage(text.into()));
    }
    if for_swap {
        for_swap::prepare(false);
        logger::write_aside();
        swap::be_urgent();
    }
    let signals = stream(Signals::catch(args.config.is_some())?)?;
    let inherited = inherited_sockets()?.into_iter();
    let inherited = inherited
        .map(|socket| (socket.name, socket.socket))
        .collect();
    let lines = (for_swap && !logger::is_journal())
        .then(lines)
        .transpose()?;
    let holder = Holder::new(state.open()?, arguments(), inherited, for_swap, lines)?;
    let status = holder.run(&signals)?;
    log::logger().flush();
    std::process::exit(status)
}

/// Those of a server that this process starts.
fn arguments() -> Vec<OsString> {
    let given = std::env::args_os().skip(1);
    let mut arguments: Vec<OsString> = given
        .filter(|word| word != "--end-with-parent" && word != "--own-session")
        .collect();
    // A terminal's signals come to this process, which passes them on.
    arguments.extend([HELD.into(), "--own-session".into()]);
    arguments
}

/// A pipe whose lines this process writes to its own standard error. The log may lie in memory of files that was swapped out to
/// the disk of those who write there: they would wait for themselves, and not even end by a signal. A pipe's memory stays.
fn lines() -> Result<OwnedFd> {
    let failed = |error: std::io::Error| Failure::Failed(format!("a pipe for lines: {error}"));
    let (mut lines, theirs) = std::io::pipe().map_err(failed)?;
    let pass_on = move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = lines.read(&mut bytes) {
            let _ = std::io::stderr().write_all(&bytes[..count]);
        }
    };
    let thread = thread::Builder::new().name("uzram-lines".into());
    thread.spawn(pass_on).map_err(failed)?;
    Ok(theirs.into())
}

/// A stream with a byte for each signal.
fn stream(mut signals: Signals) -> Result<UnixStream> {
    let failed = |error: std::io::Error| Failure::Failed(format!("signals: {error}"));
    let (stream, mut writer) = UnixStream::pair().map_err(failed)?;
    let pass_on = move || {
        loop {
            let byte = match signals.wait() {
                Asked::End => END,
                Asked::Reload => RELOAD,
            };
            if writer.write_all(&[byte]).is_err() {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("uzram-signals".into());
    thread.spawn(pass_on).map_err(failed)?;
    Ok(stream)
}

/// All that the holder at the other end of standard input kept, for a server that it has started.
pub fn join() -> Result<Joined> {
    let failed =
        |error: std::io::Error| Failure::Failed(format!("{HELD}: standard input: {error}"));
    let holder = rustix::stdio::stdin();
    let socket: OwnedFd =
        rustix::io::fcntl_dupfd_cloexec(holder, 3).map_err(|e| failed(e.into()))?;
    let nothing = std::fs::File::open("/dev/null").map_err(failed)?;
    // Nobody else gets it: programs that a server starts have its standard input.
    rustix::stdio::dup2_stdin(&nothing).map_err(|error| failed(error.into()))?;
    Ok(Keeper::join(socket)?)
}
