//! Shared by command lines: quoting, files that must be writable, a pipe that was closed, and the
//! programs that belong together.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The program `name` beside the running one, else `name` itself, to be looked for in `PATH`.
#[must_use]
pub fn beside(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.with_file_name(name);
    match beside.is_file() {
        true => beside,
        false => name.into(),
    }
}

/// Opens the file of option `option` for writing, without changing what is there.
///
/// # Errors
/// [`Error::Usage`] if it cannot be opened, or is a FIFO with a name; nothing for no file.
pub fn check_writable(option: &str, path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let refused = |why: &str| Error::Usage(format!("{option} {}: {why}", path.display()));
    if std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        // To open a FIFO would wait for a reader, and no signal would end that. A pipe that is open
        // already, as /dev/stdout may be, has a reader, and its link leads to no path.
        return match std::fs::canonicalize(path) {
            Ok(_) => Err(refused("a FIFO; name a file")),
            Err(_) => Ok(()),
        };
    }
    let opened = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path);
    opened
        .map(drop)
        .map_err(|error| refused(&error.to_string()))
}

/// A reader that left (`uzram advise … | head`) has enough: that is no failure.
///
/// # Errors
/// Every other one.
pub fn ignore_closed_pipe(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        Ok(())
    } else {
        Err(error)
    }
}

/// The command line as typed, with `program` for its first word, quoted where a shell would need it.
#[must_use]
pub fn line(program: &str) -> String {
    let arguments = std::env::args_os().skip(1);
    let words = std::iter::once(program.into())
        .chain(arguments)
        .map(|word| quoted(&word.to_string_lossy()));
    words.collect::<Vec<_>>().join(" ")
}

/// The error of a refused command line, without the usage and pointers that follow, in one line.
#[must_use]
pub fn refusal(error: &str) -> String {
    let message = error.split("\n\nUsage:").next().unwrap_or(error);
    let message = message.split("\n\nFor more information").next();
    let words: Vec<&str> = message.unwrap_or(error).split_whitespace().collect();
    let line = words.join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

/// A word of a command line, quoted where a shell would need it.
#[must_use]
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_report_that_could_not_be_written_is_refused_before_measuring() {
        let path = Path::new("/none/report.json");
        let error = check_writable("json", Some(path)).unwrap_err();
        assert_eq!(error.exit_status(), 2);
        assert!(error.to_string().starts_with("json /none/report.json: "));
    }

    #[test]
    fn a_fifo_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let error = check_writable("html", Some(&path)).unwrap_err();
        assert!(error.to_string().ends_with("a FIFO; name a file"));
    }

    #[test]
    fn an_open_pipe_such_as_standard_output_may_be_is_writable() {
        let (_reader, writer) = std::io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
        check_writable("html", Some(Path::new(&path))).unwrap();
    }

    #[test]
    fn a_program_is_looked_for_beside_this_one_first() {
        let own = std::env::current_exe().unwrap();
        let name = own.file_name().unwrap().to_str().unwrap();
        assert_eq!(beside(name), own);
        assert_eq!(beside("no-such-program"), Path::new("no-such-program"));
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_need_it() {
        assert_eq!(quoted("--json=a/b.c"), "--json=a/b.c");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_refusal_keeps_its_hint_and_loses_the_usage() {
        let error = "error: unrecognized subcommand 'stor'\n\n  tip: a similar one exists: 'store'\n\n\
                     Usage: uzram-bench <COMMAND>\n\nFor more information, try '--help'.\n";
        let line = "unrecognized subcommand 'stor' tip: a similar one exists: 'store'";
        assert_eq!(refusal(error), line);
    }
}
