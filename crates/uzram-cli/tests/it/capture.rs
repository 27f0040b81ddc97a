//! Real pages out of real processes and files.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::{Home, is_root};

const PAGE: usize = 4096;

fn out(home: &Home) -> (PathBuf, String) {
    let path = home.dir.path().join("out.pages");
    let text = path.to_str().unwrap().to_owned();
    (path, text)
}

#[test]
fn the_heap_of_a_process() {
    let home = Home::new();
    let (path, out) = out(&home);
    // This process is the one that is captured; nothing else holds these pages.
    let marks: Vec<u8> = (0..64 * PAGE).map(|i| (i / PAGE) as u8 ^ 0xa5).collect();
    let pid = std::process::id().to_string();
    let ran = home.run(&[
        "capture",
        "--pid",
        &pid,
        "--out",
        &out,
        "--pages-max",
        "1000000",
    ]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.stderr.contains("warning"), "{ran:?}");
    assert!(ran.stdout.contains(&format!("of process {pid}")), "{ran:?}");
    let next = format!("Next: uzram advise --corpus {out}\n");
    assert!(ran.stdout.ends_with(&next), "{ran:?}");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let corpus = std::fs::read(&path).unwrap();
    assert_eq!(corpus.len() % PAGE, 0);
    // malloc puts the buffer anywhere in a page; at least one page in its middle is whole.
    let whole = vec![30u8 ^ 0xa5; 100];
    assert!(
        corpus.windows(100).any(|window| window == whole),
        "the heap is not in it"
    );
    assert!(marks.len() == 64 * PAGE);
    // The binary's text is file-backed: its ELF header must not be in a page of its own.
    assert!(
        corpus.chunks(PAGE).all(|page| &page[..4] != b"\x7fELF"),
        "a file was taken"
    );
}

#[test]
fn never_over_an_existing_file_or_link() {
    let home = Home::new();
    let (path, out) = out(&home);
    let target = home.dir.path().join("target");
    std::os::unix::fs::symlink(&target, &path).unwrap();
    let ran = home.run(&["capture", "--file", "/proc/self/exe", "--out", &out]);
    ran.refused(1, "choose another --out");
    assert!(!target.exists(), "written through a link");
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    home.run(&["capture", "--file", "/proc/self/exe", "--out", &out])
        .refused(1, "File exists");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    let missing = home.dir.path().join("no/x").to_str().unwrap().to_owned();
    home.run(&["capture", "--file", "/proc/self/exe", "--out", &missing])
        .refused(1, "create its directory");
}

#[test]
fn files_are_sampled_in_runs_and_padded() {
    let home = Home::new();
    let (path, out) = out(&home);
    let file = home.dir.path().join("file");
    let content: Vec<u8> = (0..100 * PAGE + 10).map(|i| (i / PAGE) as u8 + 1).collect();
    std::fs::write(&file, &content).unwrap();
    let source = file.to_str().unwrap();

    let ran = home.run(&["capture", "--file", source, "--out", &out]);
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{ran:?}");
    let corpus = std::fs::read(&path).unwrap();
    assert_eq!(corpus.len(), 101 * PAGE);
    assert_eq!(corpus[..content.len()], content);
    assert!(corpus[content.len()..].iter().all(|&b| b == 0), "padding");
    std::fs::remove_file(&path).unwrap();

    assert_eq!(
        home.run(&[
            "capture",
            "--file",
            source,
            "--out",
            &out,
            "--pages-max",
            "32"
        ])
        .status,
        0
    );
    let corpus = std::fs::read(&path).unwrap();
    let pages: Vec<u8> = corpus.chunks(PAGE).map(|page| page[0]).collect();
    let expected: Vec<u8> = (1..=16).chain(49..=64).collect();
    assert_eq!(
        pages, expected,
        "two runs of 16 of six, the first and the middle one"
    );
}

#[test]
fn what_cannot_be_captured_is_said_and_leaves_nothing() {
    let home = Home::new();
    let (path, out) = out(&home);
    let refused = |args: &[&str], status, said: &str| {
        let args: Vec<&str> = [&["capture", "--out", &out], args].concat();
        home.run(&args).refused(status, said);
        assert!(!path.exists(), "{args:?} left a file");
    };
    let file = |name: &str| home.dir.path().join(name).to_str().unwrap().to_owned();
    refused(&["--pid", "4194305"], 1, "process 4194305: no such process");
    refused(&["--pid", "x"], 2, "invalid value 'x'");
    refused(&["--pid", "1", "--file", "x"], 2, "cannot be used with");
    refused(
        &["--file", "/proc/self/exe", "--pages-max", "0"],
        2,
        "--pages-max 0: must be 1 to",
    );
    refused(&["--file", &file("none")], 1, "No such file");
    refused(
        &["--file", home.dir.path().to_str().unwrap()],
        1,
        "not a regular file",
    );
    std::fs::write(file("empty"), "").unwrap();
    refused(
        &["--file", &file("empty")],
        1,
        "no pages to take; it is empty",
    );
    assert!(
        Command::new("mkfifo")
            .arg(file("fifo"))
            .status()
            .unwrap()
            .success()
    );
    refused(&["--file", &file("fifo")], 1, "not a regular file");

    // A process that ended and is not waited for: it is there and has no memory.
    let mut ended = crate::support::zombie();
    refused(
        &["--pid", &ended.id().to_string()],
        1,
        "no memory of its own",
    );
    ended.wait().unwrap();
}

#[test]
fn a_process_of_somebody_else() {
    if !is_root() {
        return eprintln!("left out: only root can become another user");
    }
    let home = Home::new();
    let (path, out) = out(&home);
    std::os::unix::fs::chown(home.dir.path(), Some(65534), None).unwrap();
    let pid = std::process::id().to_string();
    let output = home
        .command(&["capture", "--pid", &pid, "--out", &out])
        .uid(65534)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text.contains("permission refused; run as its user"),
        "{text}"
    );
    assert!(!path.exists());
}

#[test]
fn an_interrupted_capture_leaves_nothing() {
    for signal in ["INT", "TERM", "HUP"] {
        let home = Home::new();
        let (path, out) = out(&home);
        // A hole that takes long to copy: 16 GiB.
        let file = home.dir.path().join("file");
        std::fs::File::create(&file)
            .unwrap()
            .set_len(16 << 30)
            .unwrap();
        let args = [
            "capture",
            "--file",
            file.to_str().unwrap(),
            "--out",
            &out,
            "--pages-max",
            "4194304",
        ];
        let mut command = home.command(&args);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        crate::support::eventually("it copies", || path.exists());
        let pid = child.id().to_string();
        Command::new("kill")
            .args(["-s", signal, &pid])
            .status()
            .unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1), "SIG{signal}");
        assert!(!path.exists(), "SIG{signal} left a part of it");
        let mut said = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
        assert!(said.contains("interrupted"), "{said}");
        assert!(said.contains("nothing was kept"), "{said}");
    }
}
