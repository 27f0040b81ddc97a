//! What goes to the terminal: aligned tables, bold where it is a terminal, no panic where a pipe
//! was closed.

use std::io::{ErrorKind, IsTerminal, Write};

use crate::failure::{Failure, Result};

/// Writes `text` to stdout and flushes it, so that a script can wait for a line.
///
/// A reader that left (`uzram list | head -1`) has what it wanted: that is no failure.
pub fn print(text: &str) -> Result {
    print_while_read(text).map(|_| ())
}

/// The same, and whether somebody still reads: who prints for ever ends when nobody does.
pub fn print_while_read(text: &str) -> Result<bool> {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Failure::Failed(format!("stdout: {e}"))),
    }
}

/// Writes `value` to stdout as indented JSON.
pub fn print_json(value: &serde_json::Value) -> Result {
    print(&format!("{value:#}\n"))
}

/// Writes one line to stderr; there is nobody to tell if that fails.
pub fn warn(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "uzram: {text}");
}

/// `text` in bold if stdout is a terminal and `NO_COLOR` is not set.
pub fn bold(text: &str) -> String {
    let has_colour = std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if has_colour {
        format!("\x1b[1m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// Which way a column leans.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Texts.
    Left,
    /// Numbers.
    Right,
}

/// `rows` in columns as wide as their widest cell, two blanks apart, a line each.
pub fn columns(rows: &[Vec<String>], align: &[Align]) -> String {
    let width_of = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..align.len()).map(width_of).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for ((cell, &width), align) in row.iter().zip(&widths).zip(align) {
            match align {
                Align::Left => line.push_str(&format!("{cell:<width$}  ")),
                Align::Right => line.push_str(&format!("{cell:>width$}  ")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align() {
        let rows = [
            vec!["NAME".into(), "SIZE".into(), "X".into()],
            vec!["a".into(), "10 GiB".into()],
        ];
        let text = columns(&rows, &[Align::Left, Align::Right, Align::Left]);
        assert_eq!(text, "NAME    SIZE  X\na     10 GiB\n");
    }
}
