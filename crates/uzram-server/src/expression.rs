//! zram-generator's expressions for sizes: `min(ram / 2, 4096)`, in MiB.
//!
//! The language is fasteval's, as there: `+ - * / % ^`, parentheses, comparisons, suffixes (`2k`), and
//! functions. A name is `ram`, the machine's whole MiB, or one that the file has set. Everything is a
//! 64-bit float.

use std::collections::BTreeMap;

use fasteval::{EvalNamespace, Evaler, Parser, Slab};
use uzram::ErrorKind;

use crate::error::{Error, Result};
use crate::nearest::{remedy, shown};

/// Longest expression, in bytes.
const BYTES_MAX: usize = 256;

/// Functions that fasteval has. Its `print` writes to the terminal and is refused.
const FUNCTIONS: [&str; 23] = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "e", "floor",
    "int", "log", "max", "min", "pi", "round", "sign", "sin", "sinh", "tan", "tanh",
];

const MIB: f64 = 1_048_576.0;

/// The names that an expression may use.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    values: BTreeMap<String, f64>,
}

impl Names {
    /// `ram` alone.
    pub(crate) fn new(ram_bytes: u64) -> Names {
        let ram = ("ram".to_owned(), (ram_bytes >> 20) as f64);
        Names {
            values: BTreeMap::from([ram]),
        }
    }

    /// Gives `name` a value. `ram` keeps its own.
    pub(crate) fn set(&mut self, name: &str, value: f64) {
        if name != "ram" {
            self.values.insert(name.to_owned(), value);
        }
    }

    /// The number that `text` means.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] with the expression and its fault.
    pub(crate) fn evaluate(&self, text: &str) -> Result<f64> {
        let refuse = |why: String| {
            let text = format!("expression {:?}: {why}", shown(text));
            Error::new(ErrorKind::InvalidInput, text)
        };
        if text.len() > BYTES_MAX {
            return Err(refuse(format!("over {BYTES_MAX} bytes")));
        }
        if text.contains("print") {
            return Err(refuse("print gives no size; take it out".into()));
        }
        let mut slab = Slab::new();
        let mut names = self;
        let parsed = Parser::new().parse(text, &mut slab.ps);
        let value = parsed.and_then(|root| root.from(&slab.ps).eval(&slab, &mut names));
        value.map_err(|error| refuse(self.fault(&error)))
    }

    /// The number of bytes that `text`, in MiB, means.
    ///
    /// # Errors
    /// As [`Names::evaluate`], and for a number that is no size.
    pub(crate) fn bytes(&self, text: &str) -> Result<u64> {
        let mib = self.evaluate(text)?;
        let bytes = (mib * MIB).floor();
        if (0.0..u64::MAX as f64).contains(&bytes) {
            return Ok(bytes as u64);
        }
        let text = format!(
            "expression {:?}: gives {mib} MiB; must be 0 or more, and below 2^64 bytes",
            shown(text)
        );
        Err(Error::new(ErrorKind::InvalidInput, text))
    }

    fn fault(&self, error: &fasteval::Error) -> String {
        use fasteval::Error as Fault;
        match error {
            Fault::EOF | Fault::EofWhileParsing(_) => "ends where more is needed".into(),
            Fault::Undefined(name) => {
                let own = self.values.keys().map(String::as_str);
                let known: Vec<&str> = own.chain(FUNCTIONS).collect();
                format!("{:?} is unknown{}", shown(name), remedy(name, &known))
            }
            Fault::UnparsedTokensRemaining(rest) => {
                format!("{:?} is not expected behind a value", shown(rest))
            }
            Fault::ParseF64(number) => format!("{:?} is not a number", shown(number)),
            Fault::Expected(what) => format!("{what} is missing"),
            Fault::WrongArgs(what) => what.clone(),
            Fault::TooLong | Fault::TooDeep | Fault::SlabOverflow => {
                "too large; make it simpler".into()
            }
            _ => "a number, a name or a parenthesis is missing".into(),
        }
    }
}

impl EvalNamespace for &Names {
    fn lookup(&mut self, name: &str, arguments: Vec<f64>, _: &mut String) -> Option<f64> {
        match arguments.is_empty() {
            true => self.values.get(name).copied(),
            false => None,
        }
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
            ("2k", 2000.0),
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
            ("log(100) + cos(0)", 3.0),
            ("0.5*ram", 8192.0),
            (" 0 ", 0.0),
        ] {
            let expected = (mib * MIB).floor() as u64;
            assert_eq!(Names::new(RAM).bytes(text).unwrap(), expected, "{text}");
        }
        assert_eq!(Names::new((5 << 20) + 4096).bytes("ram").unwrap(), 5 << 20);
    }

    #[test]
    fn names_are_set_and_ram_is_not() {
        let mut names = Names::new(RAM);
        names.set("half", 0.5);
        names.set("ram", 1.0);
        assert_eq!(names.bytes("ram * half").unwrap(), 8 << 30);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, said) in [
            ("", "ends where more is needed"),
            ("min(ram / 2, 4096", "ends where more is needed"),
            ("rma / 2", "\"rma\" is unknown; did you mean ram?"),
            ("1 2", "\"2\" is not expected"),
            ("1..2", "is not a number"),
            ("ram / 0", "gives inf MiB"),
            ("0 / 0", "gives NaN MiB"),
            ("-1", "gives -1 MiB"),
            ("2 ^ 99", "below 2^64"),
            ("exec(1)", "\"exec\" is unknown"),
            ("int(1, 2)", "int: expected one arg"),
            ("print(1)", "print gives no size"),
            ("1; 2", "is not expected"),
            ("ä", "is missing"),
            (&"(".repeat(200), "make it simpler"),
            (&"-".repeat(200), "make it simpler"),
            (&"1".repeat(1000), "over 256 bytes"),
        ] {
            let error = Names::new(RAM).bytes(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[-0-9a-z.()+*/%^,<>=!|&; ]{0,80}") {
            let _ = Names::new(RAM).bytes(&text);
        }
    }
}
