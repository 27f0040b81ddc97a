//! The text that `uzram serve` prints once clients can connect.

use std::path::Path;
use std::sync::Arc;

use uzram::Store;
use uzram_frontends::nbd::Endpoint;
use uzram_server::size::human;
use uzram_server::{Device, Live};

use crate::commands::{attached, quoted};
use crate::output::{Align, bold, columns};

/// The lines for `devices`: for a single one all facts and commands, for several a table.
pub fn welcome(devices: &[Arc<Device>], metrics: Option<&Endpoint>, tree: Option<&Path>) -> String {
    let text = match devices {
        [] if tree.is_some() => "No disk yet.\n".to_owned(),
        [] => "No disk yet. To make one: uzram add --size 1G\n".to_owned(),
        [device] => one(device),
        devices => several(devices),
    };
    let in_memory = devices
        .iter()
        .filter(|device| device.file().is_none())
        .count();
    let end = match in_memory {
        0 if !devices.is_empty() => ", and what it holds stays in its file",
        count if count == devices.len() => ", and what it holds is lost",
        _ => ", and what it holds in memory is lost",
    };
    let metrics = metrics.map_or_else(String::new, scrape);
    let tree = tree.map_or_else(String::new, files);
    format!("{text}{metrics}{tree}\nCtrl-C or SIGTERM ends it{end}.\n")
}

/// The lines to use zram's files with.
fn files(tree: &Path) -> String {
    let tree = quoted(&tree.to_string_lossy());
    format!(
        "{}\n  cat {tree}/class/zram-control/hot_add    # another disk; says its number\n  \
         echo 1G > {tree}/block/uzram0/disksize\n",
        bold("zram's files:")
    )
}

/// The lines to fetch metrics with.
fn scrape(metrics: &Endpoint) -> String {
    let curl = match metrics {
        Endpoint::Tcp(address) => format!("curl http://{address}/metrics"),
        Endpoint::Unix(path) => format!(
            "curl --unix-socket {} http://uzram/metrics",
            quoted(&path.to_string_lossy())
        ),
        Endpoint::Vsock(port) => {
            format!("printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' | socat - VSOCK-CONNECT:1:{port}")
        }
    };
    format!("{}\n  {curl}\n", bold("For Prometheus:"))
}

fn several(devices: &[Arc<Device>]) -> String {
    let row = |device: &Arc<Device>| {
        let size = human(device.size_bytes());
        vec![
            format!("  {}", device.name()),
            size,
            store_of(&device.live())
                .map_or(device.kind().name(), Store::algorithm)
                .to_owned(),
            device.uri(),
        ]
    };
    let rows: Vec<_> = devices.iter().map(row).collect();
    let align = [Align::Left, Align::Right, Align::Left, Align::Left];
    let process = std::process::id();
    format!(
        "{} disks, served by process {process}.\n{}\n{}\n  uzram list\n",
        devices.len(),
        columns(&rows, &align),
        bold("To see what they hold:"),
    )
}

fn store_of(live: &Option<Arc<Live>>) -> Option<&Store> {
    live.as_deref().and_then(Live::store)
}

fn one(device: &Device) -> String {
    let facts = facts(device).map(|(what, value)| vec![format!("  {what}"), value]);
    let facts: Vec<_> = facts.collect();
    let name = device.name();
    let (setting, clients) = match (device.path(), device.guest_socket()) {
        (Some(path), _) => (String::new(), attached::lines(&path, name)),
        (_, Some(socket)) => (String::new(), attached::guest_lines(socket)),
        _ => (setting(device), clients(device)),
    };
    let clients = clients.into_iter();
    let clients = clients.map(|(line, why)| vec![format!("  {line}"), format!("# {why}")]);
    let clients: Vec<_> = clients.collect();
    format!(
        "{} is {}, served by process {}.\n{}\n\
         {}\n{setting}{}\n\
         {}\n  uzram stat {name}\n",
        bold(name),
        device.kind().description(),
        std::process::id(),
        columns(&facts, &[Align::Left, Align::Left]),
        bold("To use it, in another terminal:"),
        columns(&clients, &[Align::Left, Align::Left]),
        bold("To see what it holds:"),
    )
}

/// The facts about a disk, in the order in which they are printed.
fn facts(device: &Device) -> impl Iterator<Item = (&'static str, String)> {
    let bytes = device.size_bytes();
    let mut facts = vec![("size", format!("{} ({bytes} bytes)", human(bytes)))];
    let live = device.live();
    if let Some(store) = store_of(&live) {
        let limit = match store.mem_limit() {
            0 => "none".to_owned(),
            bytes => format!("{} ({bytes} bytes)", human(bytes)),
        };
        let checksum = if device.has_checksums() { "on" } else { "off" };
        facts.extend([
            ("algorithm", store.algorithm().to_owned()),
            ("pool", store.pool().to_owned()),
            ("unit", human(store.unit().bytes() as u64)),
            ("checksum", checksum.to_owned()),
            ("memory limit", limit),
        ]);
    }
    if let Some(path) = device.file() {
        facts.push(("file", path.display().to_string()));
    }
    facts.push(match device.guest_socket() {
        Some(socket) => ("socket", socket.display().to_string()),
        None if device.path().is_some() => ("path", device.uri()),
        None => ("URI", device.uri()),
    });
    facts.into_iter()
}

/// The line that sets `$URI`. A URI needs no escaping within quotes, because all characters that could end
/// them are percent-encoded.
fn setting(device: &Device) -> String {
    let note = match device.endpoints().next() {
        Some(Endpoint::Vsock(_)) => {
            "    # on this machine; for 1 put 2 in a guest of it, and a guest's number on its host"
        }
        _ => "",
    };
    format!("  URI='{}'{note}\n", device.uri())
}

/// Commands to type once `$URI` is set, with their purpose.
fn clients(device: &Device) -> Vec<(String, &'static str)> {
    let fio =
        "fio --name=t --ioengine=nbd --uri=\"$URI\" --rw=randrw --bs=4k --iodepth=16 --size=64M";
    let mut lines = vec![
        ("nbdinfo \"$URI\"".into(), "what it offers"),
        (
            "nbdcopy disk.img \"$URI\"".into(),
            "an image in; swap the two for out",
        ),
        (fio.into(), "a load"),
        (
            "mkdir d; nbdfuse d \"$URI\" & sleep 1; mkfs.ext4 -F d/nbd".into(),
            "a file to hold a file system",
        ),
    ];
    let place = match device.endpoints().next() {
        Some(Endpoint::Unix(path)) => format!("-unix {}", quoted(&path.to_string_lossy())),
        Some(Endpoint::Tcp(address)) => format!("{} {}", address.ip(), address.port()),
        // QEMU's programs know no URI of vsock, and the kernel's client no vsock.
        Some(Endpoint::Vsock(_)) => return lines,
        None => String::new(),
    };
    let tls = if device.uri().starts_with("nbds") {
        "-enable-tls "
    } else {
        ""
    };
    lines.extend([
        (
            "qemu-img convert -n -O raw disk.qcow2 \"$URI\"".into(),
            "any image format in",
        ),
        (
            "qemu-io -f raw -c 'write -P 7 0 1M' \"$URI\"".into(),
            "a write by hand",
        ),
        (
            format!("nbd-client {tls}-N {} {place} /dev/nbd0", device.name()),
            "a block device, where the kernel has nbd",
        ),
    ]);
    lines
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
