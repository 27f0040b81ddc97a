//! The tree beside the kernel's zram: the same reads and writes in the same order, by errno and text, on a disk
//! of the kernel's that is this test's own. Attributes that this kernel lacks are left out.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::support::{eventually, noise};
use crate::tree::Tree;

const KERNEL: &str = "/sys/class/zram-control";

/// Attributes and what is written to each.
const VALUES: [(&str, &[&[u8]]); 16] = [
    (
        "algorithm_params",
        &[
            b"",
            b"\n",
            b"level=3",
            b"algo=lz4",
            b"algo=lz4 level=3",
            b"algo=lz4 level=x",
            b"algo=nope level=1",
            b"priority=0 level=1",
            b"priority=4 level=1",
            b"priority=-1",
            b"priority=1 level=3",
            b"dict=/nowhere",
            b"deflate.winbits=-12",
            b"colour=1",
            b"level=",
            b"level",
            b"algo= level=3",
        ],
    ),
    (
        "comp_algorithm",
        &[
            b"",
            b"\n",
            b"lz4",
            b"lz4\n",
            b"lzo ",
            b" lzo",
            b"LZ4",
            b"nope",
            b"lz4\n\n",
            b"lz4\0x",
            b"lzo-rle\n",
            b"\xff\xfe",
            b"lz4 lzo",
            b"lz4x",
            &[b'l'; 70],
            &[b'l'; 200],
        ],
    ),
    ("compact", &[b"", b"1", b"x", b"\n"]),
    ("debug_stat", &[b"1"]),
    (
        "disksize",
        &[
            b"",
            b"\n",
            b"0",
            b"-1",
            b"x",
            b"1x",
            b"0x",
            b"0x10000",
            b"0x10000\n",
            b"010000",
            b"4095",
            b"18446744073709551615",
            b"18446744073709551616",
            b"99999999999999999999999",
            b"16E",
            b"1MB",
            b"1 M",
            b" 1M",
            b"+1M",
            b"1.5M",
            b"1m\n\n",
            b"1\0",
            b"1M\0G",
            b"64k",
            b"2m",
            b"1M",
        ],
    ),
    ("idle", &[b"", b"all", b"all\n", b"ALL", b"10", b"x"]),
    ("inflight", &[b"1"]),
    ("initstate", &[b"1"]),
    ("io_stat", &[b"1"]),
    (
        "mem_limit",
        &[
            b"",
            b"\n",
            b"-1",
            b"x",
            b"1x",
            b"4095",
            b"0x1000",
            b"18446744073709551615",
            b"1e3",
            b"1 M",
            b"2M\n",
            b"0\n",
            b"0",
            b"1M",
        ],
    ),
    (
        "mem_used_max",
        &[
            b"",
            b"\n",
            b"0",
            b"1",
            b"00",
            b"0x0",
            b"-0",
            b"x",
            b"0\n",
            b"0 ",
            b"+0",
            b"+",
            b"0\0x",
            b"18446744073709551616",
        ],
    ),
    ("mm_stat", &[b"1"]),
    ("ro", &[b"1"]),
    ("size", &[b"1"]),
    ("stat", &[b"1"]),
    (
        "reset",
        &[
            b"", b"\n", b"0", b"00", b"x", b"-1", b"65536", b"0x1", b"1 ", b" 1", b"1x", b"1\n\n",
            b"2", b"+1", b"65535", b"1\0x", b"01", b"1",
        ],
    ),
];

/// Values that each side takes in its own way, and why; docs/attributes.md says so to users.
const DIFFERENT: [(&str, &[&[u8]]); 5] = [
    // This kernel has no secondary codecs; a path that is not allowed is EACCES; what a codec or the attribute
    // does not know is refused; and, as in newer kernels, nothing is taken once there is a size.
    (
        "algorithm_params",
        &[
            b"priority=1 level=3",
            b"dict=/nowhere",
            b"deflate.winbits=-12",
            b"colour=1",
            b"\n",
            b"level=3",
            b"algo=lz4",
            b"algo=lz4 level=3",
            b"priority=0 level=1",
        ],
    ),
    ("comp_algorithm", &[b"lz4\n\n"]),
    // Nothing is ignored behind a size or before it, octal is not known, a part of a unit is.
    (
        "disksize",
        &[
            b"1x",
            b"010000",
            b"99999999999999999999999",
            b"1MB",
            b"1 M",
            b" 1M",
            b"1.5M",
            b"1m\n\n",
        ],
    ),
    ("mem_limit", &[b"1x", b"1e3", b"1 M"]),
    // The size is a table's, which each side has as much memory for as it has.
    ("disksize", &[b"16E"]),
];

/// One disk, and the files that make and end disks.
struct Side {
    disk: PathBuf,
    control: PathBuf,
}

impl Side {
    fn read(&self, file: &str) -> String {
        let text = match fs::read_to_string(self.disk.join(file)) {
            Ok(text) => text,
            Err(error) => return format!("errno {:?}", error.raw_os_error()),
        };
        // Newer kernels have a bare 0 for what they do not count any more.
        if ["io_stat", "debug_stat"].contains(&file) {
            return text.split_whitespace().collect::<Vec<_>>().join(" ");
        }
        // Each has codecs of its own.
        let (Some(from), Some(to)) = (text.find('['), text.find(']')) else {
            return text;
        };
        assert!(text.ends_with(" \n"), "{text:?}");
        text[from..=to].to_owned()
    }

    fn write(&self, file: &str, value: &[u8]) -> Result<(), Option<i32>> {
        write(&self.disk.join(file), value)
    }

    /// All that can be read.
    fn texts(&self, files: &[&str]) -> Vec<(String, String)> {
        let text = |file: &&str| ((*file).to_owned(), self.read(file));
        files.iter().map(text).collect()
    }

    /// The outcome of a write, and what it left.
    fn outcome(&self, file: &str, value: &[u8]) -> String {
        let done = self.write(file, value);
        // What a disk begins with is each one's own.
        let codec = if file == "reset" {
            "ro"
        } else {
            "comp_algorithm"
        };
        let left = ["disksize", "initstate", "size", "mm_stat", codec];
        format!("{done:?} {:?}", self.texts(&left))
    }

    fn start_afresh(&self) {
        eventually("nobody has it open", || self.write("reset", b"1").is_ok());
        self.write("comp_algorithm", b"lz4").unwrap();
    }
}

fn write(path: &Path, value: &[u8]) -> Result<(), Option<i32>> {
    let errno = |error: std::io::Error| error.raw_os_error();
    let mut file = File::create(path).map_err(errno)?;
    file.write(value).map(drop).map_err(errno)
}

/// A disk of the kernel's that was made for this test.
struct KernelDisk {
    number: String,
    side: Side,
}

impl KernelDisk {
    fn new() -> Option<KernelDisk> {
        let Ok(number) = fs::read_to_string(Path::new(KERNEL).join("hot_add")) else {
            eprintln!("left out: this kernel makes no zram");
            return None;
        };
        let number = number.trim().to_owned();
        let side = Side {
            disk: format!("/sys/block/zram{number}").into(),
            control: KERNEL.into(),
        };
        Some(KernelDisk { number, side })
    }
}

impl Drop for KernelDisk {
    fn drop(&mut self) {
        let _ = self.side.write("reset", b"1");
        let _ = write(
            &Path::new(KERNEL).join("hot_remove"),
            self.number.as_bytes(),
        );
    }
}

fn is_different(file: &str, value: &[u8]) -> bool {
    let mut rows = DIFFERENT.iter().filter(|(known, _)| *known == file);
    rows.any(|(_, values)| values.contains(&value))
}

/// The files that both have.
fn common(kernel: &Side) -> Vec<&'static str> {
    let names = VALUES.iter().map(|(file, _)| *file);
    names
        .filter(|file| kernel.disk.join(file).exists())
        .collect()
}

#[test]
fn each_attribute_answers_as_the_kernels_does() {
    let Some(tree) = Tree::new(&["--attach", "loop"]) else {
        return;
    };
    let Some(kernel) = KernelDisk::new() else {
        return;
    };
    tree.read("hot_add");
    let ours = Side {
        disk: tree.path("uzram0"),
        control: tree.directory.join("class/zram-control"),
    };
    let theirs = &kernel.side;
    let files = common(theirs);
    for file in &files {
        let mode = |side: &Side| {
            use std::os::unix::fs::PermissionsExt;
            fs::metadata(side.disk.join(file))
                .unwrap()
                .permissions()
                .mode()
        };
        assert_eq!(mode(&ours), mode(theirs), "{file}");
    }
    let mut compared = 0;
    for has_size in [false, true] {
        for side in [&ours, theirs] {
            side.start_afresh();
        }
        assert_eq!(ours.texts(&files), theirs.texts(&files));
        for (file, values) in VALUES {
            if !files.contains(&file) {
                continue;
            }
            for value in values.iter().filter(|value| !is_different(file, value)) {
                for side in [&ours, theirs] {
                    side.start_afresh();
                    if has_size {
                        side.write("disksize", b"4M").unwrap();
                    }
                }
                let [our, their] = [&ours, theirs].map(|side| side.outcome(file, value));
                let shown = String::from_utf8_lossy(value);
                assert_eq!(our, their, "{file} {shown:?}, has a size: {has_size}");
                compared += 1;
            }
        }
    }
    assert!(compared > 200, "{compared}");
    for (file, value) in [
        ("hot_add", "1"),
        ("hot_remove", ""),
        ("hot_remove", "x"),
        ("hot_remove", "-1"),
        ("hot_remove", "-"),
        ("hot_remove", "99999"),
        ("hot_remove", "+99999"),
        ("hot_remove", "99999\n"),
        ("hot_remove", "99999\n\n"),
        ("hot_remove", "99999 "),
        ("hot_remove", " 99999"),
        ("hot_remove", "0x3e7"),
        ("hot_remove", "2147483647"),
        ("hot_remove", "2147483648"),
        ("hot_remove", "-2147483648"),
        ("hot_remove", "99999999999999999999999"),
    ] {
        let [our, their] =
            [&ours, theirs].map(|side| write(&side.control.join(file), value.as_bytes()));
        assert_eq!(our, their, "{file} {value:?}");
    }
}

/// Zeroes, a word again and again, and noise, by the block devices.
#[test]
fn what_pages_cost_is_counted_as_the_kernel_counts() {
    const PAGE: u64 = 4096;
    let Some(tree) = Tree::new(&["--attach", "loop"]) else {
        return;
    };
    let Some(kernel) = KernelDisk::new() else {
        return;
    };
    tree.read("hot_add");
    let ours = Side {
        disk: tree.path("uzram0"),
        control: tree.directory.join("class/zram-control"),
    };
    let stat = tree.home.json(&["stat", "uzram0", "--json"]);
    let nodes = [
        stat["endpoint"].as_str().unwrap().to_owned(),
        format!("/dev/zram{}", kernel.number),
    ];
    let counted = [&ours, &kernel.side]
        .into_iter()
        .zip(nodes)
        .map(|(side, node)| {
            side.start_afresh();
            side.write("disksize", b"4M").unwrap();
            side.write("mem_limit", b"3M").unwrap();
            let file = File::options().read(true).write(true).open(node).unwrap();
            for page in 0..32 {
                let content = match page % 4 {
                    0 => vec![0; PAGE as usize],
                    1 => b"word".repeat(PAGE as usize / 4),
                    2 => noise(page, PAGE as usize),
                    _ => continue,
                };
                file.write_all_at(&content, page * PAGE).unwrap();
            }
            file.sync_all().unwrap();
            drop(file);
            let line = side.read("mm_stat");
            let columns: Vec<u64> = line
                .split_whitespace()
                .map(|c| c.parse().unwrap())
                .collect();
            // Of all but memory, which each places in its own way, and the bytes of a page that is one word.
            [0, 3, 5, 7, 8].map(|column| columns[column])
        });
    let counted: Vec<_> = counted.collect();
    assert_eq!(counted[0], counted[1]);
    assert_eq!(counted[0], [24 * PAGE, 3 << 20, 16, 8, 8]);
}
