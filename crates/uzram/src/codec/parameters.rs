//! Codec parameters under the names of zram's `algorithm_params`.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use super::dictionary::Dictionary;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Arc;

/// Parameters of a built-in codec. A parameter that is not set has the codec's default. One that
/// the codec does not take, or not in this range, is refused when the codec is made.
///
/// | Parameter | Codec | Range, default |
/// |---|---|---|
/// | `level` | lz4: acceleration, higher is faster and larger | 1 to 65537, 1 |
/// | `level` | lz4hc: higher is slower and smaller | 2 to 12, 9 |
/// | `level` | zstd: higher is slower and smaller | -131072 to 22, 3 |
/// | `level` | deflate: higher is slower and smaller | 1 to 12, 6 |
/// | `level` | words, auto: 1 is faster, 2 is smaller | 1 to 2, 1 |
/// | `deflate.winbits` | deflate: minus log2 of the window in bytes | -15 up to what covers the unit, -15 |
/// | `dict` | zstd, lz4, lz4hc: a file of bytes that pages resemble; lz4 and lz4hc use its last 64 KiB | up to 16 MiB, none |
///
/// Without C codecs lz4 takes neither acceleration nor dictionary.
///
/// ```
/// use uzram::{Compression, Parameters, Unit};
/// let parameters: Parameters = "level=1".parse()?;
/// assert_eq!(parameters, Parameters::default().level(1));
/// Compression::with_parameters("lz4", &parameters, Unit::DEFAULT)?;
/// let error = Compression::with_parameters("lz4", &"level=0".parse()?, Unit::DEFAULT);
/// assert!(error.unwrap_err().to_string().starts_with("level 0: lz4 takes"));
/// # Ok::<(), uzram::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Parameters {
    level: Option<i32>,
    deflate_winbits: Option<i32>,
    dictionary: Option<Dictionary>,
}

/// The parameters that [`Parameters::from_str`] knows.
const KNOWN: &str = "level=N, dict=FILE and deflate.winbits=N, separated by spaces or commas";

impl Parameters {
    /// Sets the level.
    #[must_use]
    pub fn level(mut self, level: i32) -> Parameters {
        self.level = Some(level);
        self
    }

    /// Sets the window of deflate: minus the log2 of its size in bytes. It is negative as in
    /// zlib's interface, which means a stream without header.
    #[must_use]
    pub fn deflate_winbits(mut self, bits: i32) -> Parameters {
        self.deflate_winbits = Some(bits);
        self
    }

    /// Sets the dictionary to these bytes: for zstd one that `uzram train` made, or any others.
    #[must_use]
    pub fn dictionary(mut self, bytes: impl Into<Arc<[u8]>>) -> Parameters {
        self.dictionary = Some(Dictionary::Loaded(bytes.into(), None));
        self
    }

    /// Sets the dictionary to a file's content, which [`Parameters::load`] reads.
    #[must_use]
    pub fn dictionary_file(mut self, path: impl Into<PathBuf>) -> Parameters {
        self.dictionary = Some(Dictionary::File(path.into()));
        self
    }

    /// Reads the dictionary's file, if it was not read yet. Loaded parameters are equal only if
    /// the contents of their dictionaries are. [`Compression`](crate::Compression) loads its
    /// parameters.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a file that cannot be read, is empty or over 16 MiB;
    /// [`ErrorKind::NoMemory`].
    pub fn load(mut self) -> Result<Parameters> {
        self.dictionary = self.dictionary.map(Dictionary::load).transpose()?;
        Ok(self)
    }

    /// Whether a dictionary was set.
    pub(super) fn has_dictionary(&self) -> bool {
        self.dictionary.is_some()
    }

    /// The dictionary's bytes, once loaded.
    #[cfg(feature = "c-codecs")]
    pub(super) fn loaded_dictionary(&self) -> Option<Arc<[u8]>> {
        match &self.dictionary {
            Some(Dictionary::Loaded(bytes, _)) => Some(Arc::clone(bytes)),
            Some(Dictionary::File(_)) | None => None,
        }
    }

    /// The dictionary's length in bytes and its FNV-1a hash, once loaded; zeroes without one.
    pub(crate) fn dictionary_mark(&self) -> (u64, u64) {
        const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
        match &self.dictionary {
            Some(Dictionary::Loaded(bytes, _)) => {
                (bytes.len() as u64, bytes.iter().fold(OFFSET, step))
            }
            Some(Dictionary::File(_)) | None => (0, 0),
        }
    }

    /// Refuses a dictionary for a codec without them, with the reason.
    pub(super) fn no_dictionary(&self, codec: &str, why: &str) -> Result<()> {
        match &self.dictionary {
            None => Ok(()),
            Some(dictionary) => Err(invalid(format!(
                "dict {dictionary}: {codec} takes none, {why}"
            ))),
        }
    }

    /// The level, if it is within the range of `codec`, or `default` if none was set.
    pub(super) fn level_within(
        &self,
        codec: &str,
        range: RangeInclusive<i32>,
        default: i32,
    ) -> Result<i32> {
        within("level", codec, self.level, range, default)
    }

    /// The bits of deflate's window, likewise.
    #[cfg(feature = "c-codecs")]
    pub(super) fn winbits_within(&self, range: RangeInclusive<i32>, default: i32) -> Result<i32> {
        within(
            "deflate.winbits",
            "deflate",
            self.deflate_winbits,
            range,
            default,
        )
    }

    /// Refuses a level for a codec without them.
    pub(super) fn no_level(&self, codec: &str) -> Result<()> {
        not_taken("level", codec, self.level)
    }

    /// Refuses a window for every codec but deflate.
    pub(super) fn no_winbits(&self, codec: &str) -> Result<()> {
        not_taken("deflate.winbits", codec, self.deflate_winbits)
    }

    fn set(&mut self, word: &str) -> Result<()> {
        let (name, value) = word.split_once('=').ok_or_else(|| unknown(word))?;
        let field = match name {
            "level" => &mut self.level,
            "deflate.winbits" => &mut self.deflate_winbits,
            "dict" => return self.set_dictionary(word, value),
            _ => return Err(unknown(word)),
        };
        let number = value.parse().map_err(|_| {
            invalid(format!(
                "parameter `{word}`: the value must be a whole number"
            ))
        })?;
        match field.replace(number) {
            Some(_) => Err(twice(word)),
            None => Ok(()),
        }
    }

    fn set_dictionary(&mut self, word: &str, path: &str) -> Result<()> {
        if path.is_empty() {
            return Err(invalid(format!(
                "parameter `{word}`: the value must be a file; uzram train makes one"
            )));
        }
        let dictionary = Dictionary::File(path.into());
        match self.dictionary.replace(dictionary) {
            Some(_) => Err(twice(word)),
            None => Ok(()),
        }
    }
}

impl FromStr for Parameters {
    type Err = Error;

    /// Parses zram's text behind the algorithm, such as `level=9`.
    fn from_str(text: &str) -> Result<Parameters> {
        let mut parameters = Parameters::default();
        text.split([' ', ','])
            .filter(|word| !word.is_empty())
            .try_for_each(|word| parameters.set(word))?;
        Ok(parameters)
    }
}

impl fmt::Display for Parameters {
    /// The parameters that [`Parameters::from_str`] takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: Option<i32>| value.map(|value| value.to_string());
        let set = [
            ("level", shown(self.level)),
            ("dict", self.dictionary.as_ref().map(ToString::to_string)),
            ("deflate.winbits", shown(self.deflate_winbits)),
        ];
        let mut separator = "";
        for (name, value) in set {
            if let Some(value) = value {
                write!(f, "{separator}{name}={value}")?;
                separator = " ";
            }
        }
        Ok(())
    }
}

fn within(
    name: &str,
    codec: &str,
    value: Option<i32>,
    range: RangeInclusive<i32>,
    default: i32,
) -> Result<i32> {
    let value = value.unwrap_or(default);
    if range.contains(&value) {
        return Ok(value);
    }
    let (least, most) = (range.start(), range.end());
    Err(invalid(if least == most {
        format!("{name} {value}: {codec} takes only {least} here")
    } else {
        format!("{name} {value}: {codec} takes {least} to {most}")
    }))
}

fn not_taken(name: &str, codec: &str, value: Option<i32>) -> Result<()> {
    match value {
        None => Ok(()),
        Some(value) => Err(invalid(format!(
            "{name} {value}: {codec} has no such parameter"
        ))),
    }
}

fn twice(word: &str) -> Error {
    invalid(format!("parameter `{word}`: given twice"))
}

fn unknown(word: &str) -> Error {
    invalid(format!("parameter `{word}`: known are {KNOWN}"))
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidInput, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_go_in_and_come_out() {
        for text in [
            "",
            "level=9",
            "level=-5",
            "deflate.winbits=-12",
            "level=1 deflate.winbits=-15",
            "level=1 dict=/tmp/a=b deflate.winbits=-15",
        ] {
            assert_eq!(text.parse::<Parameters>().unwrap().to_string(), text);
        }
        let both = " level=+2,,deflate.winbits=-13 "
            .parse::<Parameters>()
            .unwrap();
        assert_eq!(both, Parameters::default().level(2).deflate_winbits(-13));
    }

    #[test]
    fn texts_that_mean_nothing_are_refused_by_name() {
        for text in [
            "9",
            "levle=3",
            "level=",
            "level=x",
            "level=9x",
            "level=99999999999",
            "=",
            "level = 3",
            "dict=",
        ] {
            let error = text.parse::<Parameters>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
            assert!(error.to_string().starts_with("parameter `"), "{error}");
        }
        for (text, word) in [("level=1 level=2", "level=2"), ("dict=a dict=b", "dict=b")] {
            let error = text.parse::<Parameters>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("parameter `{word}`: given twice")
            );
        }
    }
}
