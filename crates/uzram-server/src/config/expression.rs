//! zram-generator's expressions for sizes: `min(ram / 2, 4096)`, in MiB.
//!
//! Numbers, `ram` (the machine's, in MiB), `+ - * / % ^`, parentheses, and the functions of
//! [`FUNCTIONS`]. Everything is a 64-bit float, as there. Source of the grammar:
//! zram-generator.conf(5).

use uzram::ErrorKind;

use crate::error::{Error, Result};
use crate::nearest::{remedy, shown};

/// Longest expression, in bytes.
const BYTES_MAX: usize = 256;
/// Deepest nesting of parentheses, functions and signs.
const DEPTH_MAX: u32 = 32;
/// Most arguments of a function.
const ARGUMENTS_MAX: usize = 16;

/// Names, fewest arguments, and functions.
type Function = (&'static str, usize, fn(&[f64]) -> f64);

const FUNCTIONS: [Function; 7] = [
    ("min", 1, |a| {
        a.iter().copied().fold(f64::INFINITY, f64::min)
    }),
    ("max", 1, |a| {
        a.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }),
    ("abs", 1, |a| a[0].abs()),
    ("int", 1, |a| a[0].trunc()),
    ("ceil", 1, |a| a[0].ceil()),
    ("floor", 1, |a| a[0].floor()),
    ("round", 1, |a| a[0].round()),
];

/// The number of bytes that `text`, in MiB, means on a machine with `ram_bytes`.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] with the fault and its place.
pub(crate) fn bytes(text: &str, ram_bytes: u64) -> Result<u64> {
    let refuse = |why: String| {
        let text = format!("expression {:?}: {why}", shown(text));
        Error::new(ErrorKind::InvalidInput, text)
    };
    let ram_mib = ram_bytes as f64 / MIB;
    let mib = evaluate(text, ram_mib).map_err(refuse)?;
    let bytes = (mib * MIB).floor();
    if !(0.0..u64::MAX as f64).contains(&bytes) {
        return Err(refuse(format!(
            "gives {mib} MiB; must be 0 or more, and below 2^64 bytes"
        )));
    }
    Ok(bytes as u64)
}

const MIB: f64 = 1_048_576.0;

fn evaluate(text: &str, ram_mib: f64) -> Result<f64, String> {
    if text.len() > BYTES_MAX {
        return Err(format!("over {BYTES_MAX} bytes"));
    }
    let mut parser = Parser {
        rest: text,
        ram_mib,
        depth: 0,
    };
    let value = parser.sum()?;
    match parser.peek() {
        None => Ok(value),
        Some(c) => Err(format!("{c:?} is not expected after a value")),
    }
}

/// Recursive descent: each level of binding is a method, the loosest first.
struct Parser<'a> {
    rest: &'a str,
    ram_mib: f64,
    depth: u32,
}

impl Parser<'_> {
    fn sum(&mut self) -> Result<f64, String> {
        let mut value = self.product()?;
        loop {
            if self.takes('+') {
                value += self.product()?;
            } else if self.takes('-') {
                value -= self.product()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<f64, String> {
        let mut value = self.power()?;
        loop {
            if self.takes('*') {
                value *= self.power()?;
            } else if self.takes('/') {
                value /= self.power()?;
            } else if self.takes('%') {
                value %= self.power()?;
            } else {
                return Ok(value);
            }
        }
    }

    /// Binds to the right: 2^3^2 is 2^9.
    fn power(&mut self) -> Result<f64, String> {
        let base = self.signed()?;
        match self.takes('^') {
            true => Ok(base.powf(self.nested(Parser::power)?)),
            false => Ok(base),
        }
    }

    fn signed(&mut self) -> Result<f64, String> {
        if self.takes('-') {
            return Ok(-self.nested(Parser::signed)?);
        }
        if self.takes('+') {
            return self.nested(Parser::signed);
        }
        self.value()
    }

    fn value(&mut self) -> Result<f64, String> {
        match self.peek() {
            None => Err("a value is missing at the end".into()),
            Some('(') => {
                self.takes('(');
                let value = self.nested(Parser::sum)?;
                self.closed(value)
            }
            Some(c) if c.is_ascii_digit() || c == '.' => self.number(),
            Some(c) if c.is_ascii_alphabetic() => self.named(),
            Some(c) => Err(format!("{c:?} is not expected; a value is")),
        }
    }

    fn number(&mut self) -> Result<f64, String> {
        let word = self.word(|c| c.is_ascii_digit() || c == '.');
        word.parse()
            .map_err(|_| format!("{word:?} is not a number"))
    }

    fn named(&mut self) -> Result<f64, String> {
        let word = self.word(|c| c.is_ascii_alphanumeric() || c == '_');
        if word == "ram" {
            return Ok(self.ram_mib);
        }
        let Some((_, arguments_min, function)) = FUNCTIONS.iter().find(|(name, ..)| *name == word)
        else {
            let known: Vec<&str> = ["ram"].into_iter().chain(FUNCTIONS.map(|f| f.0)).collect();
            return Err(format!("{word:?} is unknown{}", remedy(&word, &known)));
        };
        if !self.takes('(') {
            return Err(format!("{word} needs its arguments in parentheses"));
        }
        let mut arguments = vec![self.nested(Parser::sum)?];
        while self.takes(',') {
            if arguments.len() == ARGUMENTS_MAX {
                return Err(format!("over {ARGUMENTS_MAX} arguments"));
            }
            arguments.push(self.nested(Parser::sum)?);
        }
        if arguments.len() < *arguments_min {
            return Err(format!("{word} needs {arguments_min} arguments"));
        }
        self.closed(function(&arguments))
    }

    fn closed(&mut self, value: f64) -> Result<f64, String> {
        match self.takes(')') {
            true => Ok(value),
            false => Err("a parenthesis is not closed".into()),
        }
    }

    fn nested(&mut self, inner: fn(&mut Self) -> Result<f64, String>) -> Result<f64, String> {
        if self.depth == DEPTH_MAX {
            return Err(format!("nested deeper than {DEPTH_MAX}"));
        }
        self.depth += 1;
        let value = inner(self);
        self.depth -= 1;
        value
    }

    fn word(&mut self, belongs: fn(char) -> bool) -> String {
        let end = self.rest.find(|c| !belongs(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.to_owned()
    }

    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn takes(&mut self, wanted: char) -> bool {
        let is_there = self.peek() == Some(wanted);
        if is_there {
            self.rest = &self.rest[wanted.len_utf8()..];
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RAM: u64 = 16 << 30;

    #[test]
    fn expressions_mean_what_they_mean_to_zram_generator() {
        for (text, mib) in [
            ("min(ram / 2, 4096)", 4096.0),
            ("ram / 10", 1638.4),
            ("ram", 16384.0),
            ("2048", 2048.0),
            ("1 + 2 * 3", 7.0),
            ("(1 + 2) * 3", 9.0),
            ("2 ^ 3 ^ 2", 512.0),
            ("10 - 2 - 3", 5.0),
            ("7 % 4", 3.0),
            ("-(-5)", 5.0),
            ("max(1, 2, 3) - min(1)", 2.0),
            (
                "ceil(1.2) + floor(1.8) + round(1.5) + int(1.9) + abs(-1)",
                7.0,
            ),
            ("0.5*ram", 8192.0),
            (" 0 ", 0.0),
        ] {
            let expected = (mib * MIB).floor() as u64;
            assert_eq!(bytes(text, RAM).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, said) in [
            ("", "a value is missing"),
            ("min(ram / 2, 4096", "not closed"),
            ("min ram", "parentheses"),
            ("rma / 2", "did you mean ram?"),
            ("1 2", "'2' is not expected"),
            ("1..2", "is not a number"),
            ("ram / 0", "gives inf MiB"),
            ("0 / 0", "gives NaN MiB"),
            ("-1", "gives -1 MiB"),
            ("2 ^ 99", "below 2^64"),
            ("exec(1)", "\"exec\" is unknown"),
            ("1; 2", "';' is not expected"),
            ("ä", "is not expected"),
            (&"(".repeat(200), "nested deeper"),
            (&"-".repeat(200), "nested deeper"),
            (&"1".repeat(1000), "over 256 bytes"),
        ] {
            let error = bytes(text, RAM).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[-0-9a-z.()+*/%^, ]{0,80}") {
            let _ = bytes(&text, RAM);
        }
    }
}
