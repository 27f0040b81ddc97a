//! The memory that a cgroup allows this server, compared with the memory that its devices may
//! take.
//!
//! It warns and does not refuse: pages that compress well may fit after all, and a limit can be
//! raised.

use uzram::CgroupLimit;

use crate::device::{Device, DeviceKind};
use crate::size::human;

/// The warning about `device`, one of `devices`, in the groups of this process.
pub(crate) fn warning<'a>(
    device: &Device,
    devices: impl Iterator<Item = &'a Device>,
) -> Option<String> {
    let limit = uzram::cgroup_limit()?;
    let total_bytes = devices.map(|device| Demand::of(device).bytes).sum();
    exceeds(device.name(), Demand::of(device), total_bytes, &limit)
}

/// The memory that a device may take.
#[derive(Clone, Copy)]
struct Demand {
    what: &'static str,
    bytes: u64,
    kind: DeviceKind,
}

impl Demand {
    fn of(device: &Device) -> Demand {
        let (what, bytes) = match (device.kind(), device.mem_limit()) {
            (DeviceKind::Zram, limit_bytes @ 1..) => ("mem_limit", limit_bytes),
            (DeviceKind::Zram | DeviceKind::Brd, _) => ("size", device.size_bytes()),
            // The system takes a file's pages back.
            (DeviceKind::Pmem | DeviceKind::Btt, _) => ("size", 0),
        };
        Demand {
            what,
            bytes,
            kind: device.kind(),
        }
    }
}

fn exceeds(name: &str, demand: Demand, total_bytes: u64, limit: &CgroupLimit) -> Option<String> {
    let Demand { what, bytes, kind } = demand;
    let much = match (bytes > limit.bytes, total_bytes > limit.bytes) {
        _ if bytes == 0 => return None,
        (true, _) => format!("{what} {}", human(bytes)),
        (false, true) => format!("{what} {}, all disks {}", human(bytes), human(total_bytes)),
        (false, false) => return None,
    };
    let then = match kind {
        DeviceKind::Brd => "the system ends the server when it is full; make the disk smaller",
        _ => "writes fail when it is full; set a mem_limit below it",
    };
    let (allowed, path) = (human(limit.bytes), limit.path.display());
    Some(format!(
        "{name}: {much}: over the {allowed} of the server's memory cgroup ({path}): {then}, or raise it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceConfig;
    use crate::sandbox::Mode;
    use crate::server::Server;
    use crate::service::Notifier;
    use crate::state::StateDir;

    use std::fs;
    use std::path::Path;
    use std::process::Command;

    #[test]
    fn what_exceeds_the_limit_is_said_and_nothing_else() {
        let limit = CgroupLimit {
            bytes: 64 << 20,
            path: "/g/memory.max".into(),
        };
        let said = |bytes: u64, total_bytes: u64, kind| {
            let what = "size";
            exceeds("a", Demand { what, bytes, kind }, total_bytes, &limit)
        };
        assert_eq!(
            said(1 << 30, 1 << 30, DeviceKind::Zram).unwrap(),
            "a: size 1 GiB: over the 64 MiB of the server's memory cgroup (/g/memory.max): \
             writes fail when it is full; set a mem_limit below it, or raise it"
        );
        let brd = said(1 << 30, 1 << 30, DeviceKind::Brd).unwrap();
        assert!(brd.contains("the system ends the server"), "{brd}");
        let total = said(60 << 20, 90 << 20, DeviceKind::Zram).unwrap();
        assert!(
            total.starts_with("a: size 60 MiB, all disks 90 MiB: over"),
            "{total}"
        );
        assert_eq!(said(64 << 20, 64 << 20, DeviceKind::Zram), None);
        assert_eq!(said(0, 1 << 40, DeviceKind::Btt), None);
    }

    const GROUP: &str = "UZRAM_TEST_SERVER_CGROUP";
    const STATE: &str = "UZRAM_TEST_SERVER_STATE";

    /// The warnings of a server in a group of 64 MiB, which has a process of its own.
    #[test]
    fn a_server_in_a_cgroup_says_so_when_it_starts() {
        let name = format!("uzram-test-server-{}", std::process::id());
        let group = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"]
            .map(|root| Path::new(root).join(&name))
            .into_iter()
            .find(|group| fs::create_dir(group).is_ok());
        let limits = ["memory.limit_in_bytes", "memory.max"];
        let limited = group.as_ref().is_some_and(|group| {
            let mut files = limits.iter().map(|limit| group.join(limit));
            let file = files.find(|file| file.exists());
            file.is_some_and(|file| fs::write(file, (64 << 20).to_string()).is_ok())
        });
        if let (Some(group), true) = (&group, limited) {
            let folder = tempfile::tempdir().unwrap();
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "cgroup::tests::child", "--nocapture"])
                .env(GROUP, group)
                .env(STATE, folder.path().join("uzram"))
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{text}");
            let said: Vec<_> = text
                .lines()
                .filter(|line| line.contains("over the 64 MiB"))
                .collect();
            assert_eq!(said.len(), 4, "{text}");
            assert!(said[0].starts_with("confined: size 1 GiB"), "{text}");
            assert!(said[1].starts_with("big: size 1 GiB: over"), "{text}");
            assert!(
                said[2].starts_with("limited: mem_limit 128 MiB: over"),
                "{text}"
            );
            assert!(
                said[3].starts_with("small: mem_limit 32 MiB, all disks"),
                "{text}"
            );
        } else {
            println!(
                "skipped: it needs a memory cgroup with a limit, which this user may not make"
            );
        }
        if let Some(group) = group {
            let _ = fs::remove_dir(group);
        }
    }

    struct Lines;

    impl log::Log for Lines {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            if record.level() == log::Level::Warn {
                println!("{}", record.args());
            }
        }
        fn flush(&self) {}
    }

    /// The other process: does nothing unless it was started to.
    #[test]
    fn child() {
        let Ok(group) = std::env::var(GROUP) else {
            return;
        };
        let pid = std::process::id().to_string();
        fs::write(Path::new(&group).join("cgroup.procs"), pid).unwrap();
        log::set_logger(&Lines).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
        println!();
        let device = |name: &str, size_bytes, mem_limit_bytes| DeviceConfig {
            name: Some(name.into()),
            size_bytes,
            mem_limit_bytes,
            ..DeviceConfig::default()
        };
        let state = StateDir::open(std::env::var(STATE).unwrap()).unwrap();
        // First, in a thread of its own, for a sandbox is a thread's: nobody has looked for the groups yet.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let prepared = Server::prepare(&state, &[], Vec::new()).unwrap();
                prepared.confine(&[], Mode::On);
                let server = prepared.run(Notifier::default()).unwrap();
                server.apply(&[device("confined", 1 << 30, 0)]);
            });
        });
        let big = device("big", 1 << 30, 0);
        let limited = device("limited", 1 << 30, 128 << 20);
        let small = device("small", 1 << 30, 32 << 20);
        drop(Server::start(&state, &[big, limited, small.clone()]).unwrap());
        // Alone it fits.
        drop(Server::start(&state, &[small]).unwrap());
    }
}
