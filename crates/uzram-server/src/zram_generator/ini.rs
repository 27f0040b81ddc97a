//! INI as zram-generator reads it: `[section]`, `key = value` or `key: value`, and lines that begin with
//! `#` or `;` as comments. What follows a value on its line belongs to it, `#` too.
//!
//! A value may stand in quotes of either kind. A backslash escapes, and at the end of a line goes on in
//! the next one. Libraries for INI do not tell in which line a key stands, and every message here does.

use crate::nearest::shown;

/// A key with its place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Line, from 1.
    pub(super) line: usize,
    /// Title of its section; none before the first one.
    pub(super) section: Option<String>,
    pub(super) key: String,
    pub(super) value: String,
}

/// A line of the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// The title of a section, and its line.
    Section(usize, String),
    Entry(Entry),
}

impl Entry {
    /// `[zram0] zram-size`
    pub(super) fn place(&self) -> String {
        let key = shown(&self.key);
        match &self.section {
            Some(title) => format!("[{}] {key}", shown(title)),
            None => key,
        }
    }
}

/// A fault, and its line; 0 for the whole file.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) line: usize,
    pub(super) why: String,
}

impl Wrong {
    pub(super) fn in_key(entry: &Entry, why: impl std::fmt::Display) -> Wrong {
        Wrong {
            line: entry.line,
            why: format!("{}: {why}", entry.place()),
        }
    }
}

/// The file's sections and keys in its order.
///
/// # Errors
/// The fault, and its line.
pub(super) fn read(text: &str) -> Result<Vec<Item>, Wrong> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut items = Vec::new();
    let mut section = None;
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let line = line.trim();
        let fault = |why: &str| Wrong {
            line: number,
            why: why.to_owned(),
        };
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let title = rest.strip_suffix(']');
            let title = title.ok_or_else(|| fault("write [SECTION], and nothing behind it"))?;
            section = Some(title.trim().to_owned());
            items.push(Item::Section(number, title.trim().to_owned()));
            continue;
        }
        let (key, value) = line
            .split_once(['=', ':'])
            .ok_or_else(|| fault("neither [SECTION] nor KEY = VALUE"))?;
        let mut value = value.to_owned();
        while goes_on(&value) {
            value.pop();
            let Some((_, more)) = lines.next() else {
                return Err(fault("a backslash at the end, and no line behind it"));
            };
            value.push_str(more.trim_end());
        }
        items.push(Item::Entry(Entry {
            line: number,
            section: section.clone(),
            key: key.trim().to_owned(),
            value: value_of(value.trim()).map_err(fault)?,
        }));
    }
    Ok(items)
}

/// Whether the last backslash escapes the end of the line, and not by another one itself.
fn goes_on(value: &str) -> bool {
    let backslashes = value.bytes().rev().take_while(|byte| *byte == b'\\');
    backslashes.count() % 2 == 1
}

/// A value without its quotes and escapes.
fn value_of(text: &str) -> Result<String, &'static str> {
    let quote = text.chars().next().filter(|c| ['"', '\''].contains(c));
    let mut rest = text.chars();
    if quote.is_some() {
        rest.next();
    }
    let mut value = String::with_capacity(text.len());
    while let Some(c) = rest.next() {
        match c {
            '\\' => value.push(escaped(&mut rest)?),
            c if Some(c) == quote => {
                return match rest.as_str().trim() {
                    "" => Ok(value),
                    _ => Err("text behind the closing quote"),
                };
            }
            c => value.push(c),
        }
    }
    match quote {
        None => Ok(value),
        Some(_) => Err("a quote that is not closed"),
    }
}

fn escaped(rest: &mut std::str::Chars<'_>) -> Result<char, &'static str> {
    match rest.next() {
        Some('n') => Ok('\n'),
        Some('r') => Ok('\r'),
        Some('t') => Ok('\t'),
        Some('x') => {
            let digits: String = rest.by_ref().take(4).collect();
            let code = u32::from_str_radix(&digits, 16).ok();
            let code = code.filter(|_| digits.len() == 4);
            code.and_then(char::from_u32)
                .filter(|c| *c != '\0')
                .ok_or("a \\x without four digits of a character behind it")
        }
        Some('0') => Err("a zero byte, which no path or program takes"),
        Some(c) => Ok(c),
        None => Err("a backslash at the end"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(text: &str) -> String {
        let items = read(&format!("k = {text}\nz=1")).unwrap();
        assert_eq!(items.len(), 2, "{text}: {items:?}");
        let Item::Entry(entry) = &items[0] else {
            panic!("{text}: {items:?}");
        };
        entry.value.clone()
    }

    #[test]
    fn values_are_bare_quoted_or_continued() {
        for (text, expected) in [
            ("min(ram / 2, 4096)", "min(ram / 2, 4096)"),
            ("", ""),
            ("a # no comment ; either", "a # no comment ; either"),
            ("\"two words \"", "two words "),
            ("'it is \"so\"'  ", "it is \"so\""),
            ("a=b:c", "a=b:c"),
            ("one \\\n two", "one  two"),
            ("a\\\\", "a\\"),
            ("/mnt/\\x00fc\\t", "/mnt/ü\t"),
            ("discard\\,x", "discard,x"),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
    }

    #[test]
    fn lines_are_those_of_the_file() {
        let text = "\u{feff}# c\n; c\n\nset!x = y\n  [zram0]  \n  a : 1\n b=2\\\n3\n[zram0]\nc=\n";
        let items = read(text).unwrap();
        let seen: Vec<_> = items
            .iter()
            .map(|item| match item {
                Item::Section(line, title) => (*line, title.as_str(), ""),
                Item::Entry(entry) => (entry.line, entry.key.as_str(), entry.value.as_str()),
            })
            .collect();
        let expected = [
            (4, "set!x", "y"),
            (5, "zram0", ""),
            (6, "a", "1"),
            (7, "b", "23"),
            (9, "zram0", ""),
            (10, "c", ""),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_is_broken_is_named_with_its_line() {
        for (text, line, said) in [
            ("[zram0\n", 1, "nothing behind it"),
            ("[zram0] x\n", 1, "nothing behind it"),
            ("[zram0]\nzram-size\n", 2, "nor KEY = VALUE"),
            ("[a]\n\nk = \"open\n", 3, "not closed"),
            ("[a]\nk = 'a' b\n", 2, "behind the closing quote"),
            ("[a]\nk = a\\", 2, "no line behind it"),
            ("[a]\nk = \\x12", 2, "four digits"),
            ("[a]\nk = \\0", 2, "zero byte"),
            ("[a]\nk = \\x0000", 2, "four digits"),
        ] {
            let Wrong { line: at, why } = read(text).unwrap_err();
            assert_eq!(at, line, "{text}: {why}");
            assert!(why.contains(said), "{text}: {why}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[\\[\\]a=:;#\\\\x0-9'\" \n\u{fc}]{0,80}") {
            let _ = read(&text);
        }
    }
}
