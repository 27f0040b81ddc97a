//! Programs that a test makes before it executes them.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Makes an executable file of these bytes.
///
/// Another process writes it. A descriptor of this one that can write would be inherited by whatever
/// another test's thread starts in the same moment, and as long as it is open anywhere the kernel
/// executes nothing of the file ("text file busy").
pub fn make_program(path: &Path, bytes: &[u8]) {
    let mut shell = Command::new("sh")
        .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut input = shell.stdin.take().expect("a pipe");
    input.write_all(bytes).expect("bytes that cat reads");
    drop(input);
    let status = shell.wait().expect("a child");
    assert!(status.success(), "{}: {status}", path.display());
}

/// Makes a copy of a program, as [`make_program`] makes one.
pub fn copy_program(from: impl AsRef<Path>, to: &Path) {
    let from = from.as_ref();
    let bytes = std::fs::read(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    make_program(to, &bytes);
}
