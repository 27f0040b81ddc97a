//! Output on the terminal: aligned tables, bold text on a terminal, no panic when a pipe is
//! closed.

use std::io::{ErrorKind, IsTerminal, Write};

use crate::failure::{Failure, Result};

/// Writes `text` to stdout and flushes it, so that a script can wait for a line.
///
/// A reader that left (`uzram list | head -1`) has enough: that is no failure.
pub fn print(text: &str) -> Result {
    print_while_read(text).map(|_| ())
}

/// The same, and returns whether there is still a reader. A command that prints for ever ends
/// without one.
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

/// Writes one line to stderr. A failure of that cannot be reported.
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

/// Characters per line: the terminal's, else the value of `COLUMNS`, else no limit.
pub fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok();
    let columns = columns.and_then(|columns| columns.parse().ok());
    let terminal = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let terminal = terminal.map(|size| usize::from(size.ws_col));
    terminal
        .filter(|width| *width > 0)
        .or(columns)
        .unwrap_or(usize::MAX)
}

/// `text`, or its start and a mark, in `width` characters at most.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let start = text.chars().take(width.saturating_sub(1));
    start.chain(['…']).collect()
}

/// `text` in lines of at most `width` characters, where its words allow that.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Columns of words that are still easy to read beside something.
const HANGING_COLUMNS_MIN: usize = 32;
/// Columns by which words below something are moved in.
const INDENT_COLUMNS: usize = 2;

/// `head` with `words` beside it, in as many lines as they take; below it, where too little room
/// is beside it.
pub fn hanging(head: &str, words: &str, width: usize) -> String {
    let beside = head.chars().count();
    let room = width.saturating_sub(beside);
    if words.chars().count() <= room || room >= HANGING_COLUMNS_MIN {
        let between = format!("\n{:beside$}", "");
        let text = format!("{head}{}", wrapped(words, room).join(&between));
        return format!("{}\n", text.trim_end());
    }
    let below = head.chars().take_while(|c| *c == ' ').count() + INDENT_COLUMNS;
    let between = format!("\n{:below$}", "");
    let lines = wrapped(words, width.saturating_sub(below));
    format!("{}{between}{}\n", head.trim_end(), lines.join(&between))
}

/// The alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Texts.
    Left,
    /// Numbers.
    Right,
}

/// `rows` in columns as wide as their widest cell, two blanks apart, one line per row.
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
    fn texts_are_cut_and_wrapped_between_words() {
        assert_eq!((cut("ab", 2), cut("äbc", 2)), ("ab".into(), "ä…".into()));
        assert_eq!(wrapped("a bc def g", 4), ["a bc", "def", "g"]);
        assert_eq!(wrapped("longer a", 3), ["longer", "a"]);
    }

    #[test]
    fn words_hang_beside_their_head_or_below_it() {
        let words = "some words that take more than a line of forty columns";
        let of = |head, width| hanging(head, words, width);
        assert_eq!(of("head  ", usize::MAX), format!("head  {words}\n"));
        assert_eq!(
            of("head  ", 40),
            "head  some words that take more than a\n      line of forty columns\n"
        );
        assert_eq!(
            of("  a head  ", 40),
            "  a head\n    some words that take more than a\n    line of forty columns\n"
        );
        assert_eq!(
            hanging("  long head  ", "word", 10),
            "  long head\n    word\n"
        );
        assert_eq!(hanging("  head  ", "", 40), "  head\n");
    }

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
