//! The memory cgroups that bound this process, and the memory that each of them leaves.
//!
//! A limit of any group above counts as much as the process's own. So all groups that this process
//! can see are read, from its own up to the mount of the hierarchy. Version 1, version 2 and both
//! at once are supported. A group whose files cannot be read has no known limit.
//!
//! Reading takes no memory, because writes do it. Finding the groups does.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

/// The file that names the groups of this process.
const OWN: &str = "/proc/self/cgroup";
const MOUNTS: &str = "/proc/self/mountinfo";

/// The longest file that is read without an allocation, in bytes: `memory.stat` has some 2 KiB.
const FILE_BYTES_MAX: usize = 8 << 10;

/// Most groups above each other that are read.
const LEVELS_MAX: usize = 32;

/// A limit from this value on is none: version 1 has no other word for that.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// One version's names of its files, and of the lines of `memory.stat`.
#[derive(Debug, PartialEq, Eq)]
struct Words {
    limit: &'static str,
    usage: &'static str,
    /// Memory and swap together, for which a group may have a limit too.
    with_swap: Option<(&'static str, &'static str)>,
    inactive: &'static str,
    active: &'static str,
    dirty: &'static str,
    writeback: &'static str,
}

static VERSION_1: Words = Words {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    with_swap: Some(("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes")),
    inactive: "total_inactive_file",
    active: "total_active_file",
    dirty: "total_dirty",
    writeback: "total_writeback",
};

static VERSION_2: Words = Words {
    limit: "memory.max",
    usage: "memory.current",
    with_swap: None,
    inactive: "inactive_file",
    active: "active_file",
    dirty: "file_dirty",
    writeback: "file_writeback",
};

/// The smallest limit on this process, and its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimit {
    /// In bytes.
    pub bytes: u64,
    /// The file of the limit.
    pub path: PathBuf,
}

/// The groups of this process.
#[derive(Debug)]
pub(crate) struct Cgroups {
    own_path: PathBuf,
    /// Kept open, because a sandbox may forbid opening it again.
    own: Option<File>,
    /// Its content when it was read last.
    membership: String,
    mounts: String,
    levels: Vec<Level>,
}

/// One limit of one group.
#[derive(Debug, PartialEq, Eq)]
struct Level {
    words: &'static Words,
    limit: PathBuf,
    usage: PathBuf,
    stat: PathBuf,
}

/// The memory that a limit leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupRoom {
    /// In bytes.
    pub limit_bytes: u64,
    /// Bytes that can be taken before the system has to kill a process.
    pub free_bytes: u64,
}

impl Cgroups {
    /// The groups of this process now; none where the system does not tell.
    pub(crate) fn find() -> Cgroups {
        let mut cgroups = Cgroups {
            own_path: OWN.into(),
            own: File::open(OWN).ok(),
            membership: String::new(),
            mounts: std::fs::read_to_string(MOUNTS).unwrap_or_default(),
            levels: Vec::new(),
        };
        cgroups.follow();
        cgroups
    }

    /// The groups that the file `own` and the text `mounts` name.
    #[cfg(test)]
    pub(crate) fn of(own: &Path, mounts: String) -> Cgroups {
        Cgroups {
            own_path: own.into(),
            own: File::open(own).ok(),
            membership: String::new(),
            mounts,
            levels: Vec::new(),
        }
    }

    /// Finds the groups again if the process was moved.
    pub(crate) fn follow(&mut self) {
        let mut buffer = [0; FILE_BYTES_MAX];
        // Opened again where that is allowed: a thread may have a table of descriptors of its own, in which the number
        // of the one that is kept stands for something else.
        let opened = File::open(&self.own_path).ok();
        let own = opened.as_ref().or(self.own.as_ref());
        let membership = own.and_then(|own| read(own, &mut buffer));
        let membership = membership.unwrap_or_default();
        if membership != self.membership {
            membership.clone_into(&mut self.membership);
            self.levels = levels(membership, &self.mounts);
        }
    }

    /// The memory that each limit leaves. Memory that the system can reclaim without killing is
    /// read only where less than `enough_bytes` are free without it, because the system adds it up
    /// at each read.
    pub(crate) fn rooms(&self, enough_bytes: u64) -> impl Iterator<Item = CgroupRoom> {
        let room = move |level: &Level| level.room(enough_bytes);
        self.levels.iter().filter_map(room)
    }

    /// The smallest limit.
    pub(crate) fn limit(&self) -> Option<CgroupLimit> {
        let limit = |level: &Level| {
            Some(CgroupLimit {
                bytes: bytes_in(&level.limit).filter(|bytes| *bytes < UNLIMITED_BYTES)?,
                path: level.limit.clone(),
            })
        };
        let limits = self.levels.iter().filter_map(limit);
        limits.min_by_key(|limit| limit.bytes)
    }
}

impl Level {
    fn all_of(directory: &Path, words: &'static Words) -> impl Iterator<Item = Level> {
        let pairs = [Some((words.limit, words.usage)), words.with_swap];
        pairs
            .into_iter()
            .flatten()
            .map(move |(limit, usage)| Level {
                words,
                limit: directory.join(limit),
                usage: directory.join(usage),
                stat: directory.join("memory.stat"),
            })
    }

    fn room(&self, enough_bytes: u64) -> Option<CgroupRoom> {
        let limit_bytes = bytes_in(&self.limit).filter(|bytes| *bytes < UNLIMITED_BYTES)?;
        let mut free_bytes = limit_bytes.saturating_sub(bytes_in(&self.usage)?);
        if free_bytes < enough_bytes {
            free_bytes += self.reclaimable_bytes().unwrap_or(0);
        }
        Some(CgroupRoom {
            limit_bytes,
            free_bytes,
        })
    }

    /// Pages of files that the system can drop without waiting for a disk: all that were not used
    /// lately, and half of the others, because their users want some of them back at once.
    fn reclaimable_bytes(&self) -> Option<u64> {
        let mut buffer = [0; FILE_BYTES_MAX];
        let text = read(&File::open(&self.stat).ok()?, &mut buffer)?;
        let count = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            let (_, value) = lines.find(|(known, _)| *known == name)?;
            value.trim().parse::<u64>().ok()
        };
        let words = self.words;
        let clean = count(words.inactive)?.saturating_add(count(words.active)? / 2);
        let busy = count(words.dirty)?.saturating_add(count(words.writeback)?);
        Some(clean.saturating_sub(busy))
    }
}

/// The limits of `membership` (the content of [`OWN`]), found by way of `mounts` (the content of
/// [`MOUNTS`]).
fn levels(membership: &str, mounts: &str) -> Vec<Level> {
    let mut found = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let words = match controllers {
            "" => &VERSION_2,
            _ if controllers.split(',').any(|name| name == "memory") => &VERSION_1,
            _ => continue,
        };
        for directory in directories(Path::new(path), mounts, words) {
            let limits = Level::all_of(&directory, words);
            // Opened, as a sandbox lets nobody look at a path.
            found.extend(limits.filter(|level| File::open(&level.limit).is_ok()));
        }
    }
    found
}

/// The folders of the group `path` and of those above it, as far up as any mount shows them.
fn directories(path: &Path, mounts: &str, words: &'static Words) -> Vec<PathBuf> {
    let mut best: Vec<PathBuf> = Vec::new();
    // What was mounted last hides what was there before.
    let mut hidden: Vec<PathBuf> = Vec::new();
    for mount in mounts.lines().rev().filter_map(Mount::parse) {
        if hidden.contains(&mount.point) {
            continue;
        }
        hidden.push(mount.point.clone());
        let Some(below) = mount.below(path).filter(|_| mount.has(words)) else {
            continue;
        };
        // Without the slash at the end that joining nothing leaves.
        let own: PathBuf = mount.point.join(below).components().collect();
        let up = own.ancestors().take(LEVELS_MAX);
        let up = up.take_while(|directory| directory.starts_with(&mount.point));
        let up: Vec<PathBuf> = up.map(Path::to_path_buf).collect();
        if up.len() > best.len() {
            best = up;
        }
    }
    best
}

/// A line of [`MOUNTS`].
struct Mount<'a> {
    /// The part of the hierarchy that is mounted, as seen from the process's own root of it.
    root: PathBuf,
    point: PathBuf,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Mount<'a>> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let mut right = right.split(' ');
        Some(Mount {
            root: unescaped(left.next()?),
            point: unescaped(left.next()?),
            kind: right.next()?,
            options: right.nth(1).unwrap_or_default(),
        })
    }

    fn has(&self, words: &'static Words) -> bool {
        match words == &VERSION_2 {
            true => self.kind == "cgroup2",
            false => self.kind == "cgroup" && self.options.split(',').any(|name| name == "memory"),
        }
    }

    /// The path from the mount down to the group `path`, as far as it is known.
    fn below<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        if let Ok(below) = path.strip_prefix(&self.root) {
            let goes_up = below.components().any(|c| c == Component::ParentDir);
            return (!goes_up).then_some(below);
        }
        // A mount from outside the process's namespace shows a group above it. What is between has no name here.
        let is_above = self
            .root
            .components()
            .all(|c| matches!(c, Component::RootDir | Component::ParentDir));
        let is_inside = !path.starts_with("/..");
        (is_above && is_inside).then_some(Path::new(""))
    }
}

/// A path in the system's notation: blanks, tabs, line ends and backslashes are in octal.
fn unescaped(text: &str) -> PathBuf {
    let mut path = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        path.push_str(before);
        let code = after
            .get(..3)
            .and_then(|code| u8::from_str_radix(code, 8).ok());
        match code {
            Some(code) => {
                path.push(char::from(code));
                rest = &after[3..];
            }
            None => {
                path.push('\\');
                rest = after;
            }
        }
    }
    path.push_str(rest);
    path.into()
}

/// The number in the file at `path`.
fn bytes_in(path: &Path) -> Option<u64> {
    let mut buffer = [0; 64];
    let mut file = File::open(path).ok()?;
    let length = file.read(&mut buffer).ok()?;
    std::str::from_utf8(&buffer[..length])
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// The file from its start; empty if it is longer than `buffer`.
fn read<'b>(file: &File, buffer: &'b mut [u8]) -> Option<&'b str> {
    let mut length = 0;
    loop {
        match file.read_at(&mut buffer[length..], length as u64).ok()? {
            0 if length < buffer.len() => return std::str::from_utf8(&buffer[..length]).ok(),
            0 => return None,
            more => length += more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(membership: &str, mounts: &str, words: &'static Words) -> Vec<String> {
        let path = membership.splitn(3, ':').nth(2).unwrap();
        let found = directories(Path::new(path), mounts, words);
        let shown = found.iter().map(|path| path.display().to_string());
        shown.collect()
    }

    const HOST_2: &str =
        "25 30 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";

    #[test]
    fn a_process_finds_its_group_and_those_above() {
        let both = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                    35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                    41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
        let docker_1 =
            "40 39 0:33 /docker/ab /sys/fs/cgroup/memory ro master:15 - cgroup cgroup rw,memory";
        let outside = "40 39 0:33 /../.. /sys/fs/cgroup ro - cgroup2 cgroup rw";
        let blank = "40 39 0:33 / /mnt/a\\040b rw - cgroup2 none rw";
        let twice = format!("{HOST_2}\n99 25 0:23 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw");
        let (v1, v2) = (&VERSION_1, &VERSION_2);
        let cases: &[(&str, &str, &'static Words, &[&str])] = &[
            (
                "0::/a/b",
                HOST_2,
                v2,
                &["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"],
            ),
            ("0::/", HOST_2, v2, &["/sys/fs/cgroup"]),
            // A hierarchy of each version: each is found where it is mounted.
            (
                "4:memory:/x",
                both,
                v1,
                &["/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/memory"],
            ),
            ("0::/", both, v2, &["/sys/fs/cgroup/unified"]),
            // A container that sees the host's names and only its own part of the tree.
            (
                "4:cpu,memory:/docker/ab/in",
                docker_1,
                v1,
                &["/sys/fs/cgroup/memory/in", "/sys/fs/cgroup/memory"],
            ),
            ("4:memory:/docker/other", docker_1, v1, &[]),
            // A namespace's mount that shows what is above it.
            ("0::/", outside, v2, &["/sys/fs/cgroup"]),
            ("0::/../other", HOST_2, v2, &[]),
            ("0::/a", blank, v2, &["/mnt/a b/a", "/mnt/a b"]),
            // The second one hides the first.
            (
                "0::/a/b",
                &twice,
                v2,
                &["/sys/fs/cgroup/b", "/sys/fs/cgroup"],
            ),
            ("0::/a", "", v2, &[]),
            ("0::/a", "nonsense - \n - cgroup2\n1 2 3 4", v2, &[]),
        ];
        for (membership, mounts, words, expected) in cases {
            assert_eq!(found(membership, mounts, words), *expected, "{membership}");
        }
    }

    /// A tree of files in place of the system's.
    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let point = folder.path().display();
        let mounts = format!(
            "1 2 0:3 / {point} rw - cgroup2 none rw\n1 2 0:4 / {point}/old rw - cgroup none rw,memory"
        );
        (folder, mounts)
    }

    fn rooms(membership: &str, mounts: &str) -> Vec<(u64, u64)> {
        let levels = levels(membership, mounts);
        let rooms = levels.iter().filter_map(|level| level.room(u64::MAX));
        rooms
            .map(|room| (room.limit_bytes, room.free_bytes))
            .collect()
    }

    #[test]
    fn every_limit_above_counts_and_only_clean_pages_of_files_do_not() {
        let stat = "anon 1\ninactive_file 100\nactive_file 60\nfile_dirty 20\nfile_writeback 3\n";
        let (_folder, mounts) = tree(&[
            ("a/memory.max", "1000\n"),
            ("a/memory.current", "900\n"),
            ("a/memory.stat", stat),
            ("a/b/memory.max", "max\n"),
            ("a/b/memory.current", "900\n"),
            ("a/b/c/memory.max", "800\n"),
            ("a/b/c/memory.current", "900\n"),
            ("old/x/memory.limit_in_bytes", "9223372036854771712\n"),
            ("old/x/memory.usage_in_bytes", "5\n"),
            ("old/x/y/memory.limit_in_bytes", "70\n"),
            ("old/x/y/memory.usage_in_bytes", "50\n"),
            ("old/x/y/memory.memsw.limit_in_bytes", "90\n"),
            ("old/x/y/memory.memsw.usage_in_bytes", "85\n"),
        ]);
        let both = "4:memory:/x/y\n0::/a/b/c\n";
        assert_eq!(
            rooms(both, &mounts),
            [(70, 20), (90, 5), (800, 0), (1000, 207)]
        );
        assert_eq!(rooms("0::/a/b", &mounts), [(1000, 207)]);
        assert_eq!(rooms("3:cpu:/x/y\n1:name=systemd:/", &mounts), []);
        assert_eq!(rooms("0::/nowhere", &mounts), []);
    }

    #[test]
    fn the_smallest_limit_is_named_with_its_file() {
        let (folder, mounts) = tree(&[
            ("a/memory.max", "1000"),
            ("a/b/memory.max", "2000"),
            ("a/b/c/memory.max", "max"),
        ]);
        let own = folder.path().join("own");
        std::fs::write(&own, "0::/a/b/c\n").unwrap();
        let mut cgroups = Cgroups::of(&own, mounts);
        cgroups.follow();
        let limit = cgroups.limit().unwrap();
        assert_eq!(limit.bytes, 1000);
        assert_eq!(limit.path, folder.path().join("a/memory.max"));
    }

    #[test]
    #[allow(unsafe_code)]
    fn a_thread_with_descriptors_of_its_own_finds_the_same_groups() {
        use rustix::fd::AsRawFd;
        use rustix::thread::UnshareFlags;
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        std::fs::write(&own, "0::/\n").unwrap();
        std::fs::write(folder.path().join("memory.max"), "4096").unwrap();
        let mounts = format!("1 2 0:3 / {} rw - cgroup2 none rw", folder.path().display());
        let mut cgroups = Cgroups::of(&own, mounts);
        cgroups.follow();
        let limit = cgroups.limit();
        assert!(limit.is_some());
        let number = cgroups.own.as_ref().unwrap().as_raw_fd();
        let found = std::thread::spawn(move || {
            // SAFETY: this thread uses no descriptor that another opened, but the one that the test is about.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES) }.unwrap();
            // SAFETY: closed in this thread's table, where nobody else uses it.
            unsafe { rustix::io::close(number) };
            cgroups.follow();
            let found = cgroups.limit();
            // Its number is not this thread's to close.
            std::mem::forget(cgroups);
            found
        });
        assert_eq!(found.join().unwrap(), limit);
    }

    #[test]
    fn a_process_that_is_moved_is_followed() {
        let (folder, mounts) = tree(&[("a/memory.max", "1000"), ("b/memory.max", "2000")]);
        let own = folder.path().join("own");
        std::fs::write(&own, "0::/a\n").unwrap();
        let mut cgroups = Cgroups::of(&own, mounts);
        cgroups.follow();
        assert_eq!(cgroups.limit().unwrap().bytes, 1000);
        std::fs::write(&own, "0::/b\n").unwrap();
        cgroups.follow();
        assert_eq!(cgroups.limit().unwrap().bytes, 2000);
        std::fs::write(&own, "").unwrap();
        cgroups.follow();
        assert_eq!(cgroups.limit(), None);
    }
}
