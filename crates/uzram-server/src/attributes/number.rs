//! Numbers and words as the kernel reads them from an attribute: digits and nothing else, a size with a suffix,
//! `name=value`.

use std::ops::RangeInclusive;

use rustix::io::Errno;
use uzram::ErrorKind;

use crate::error::{Error, Result};
use crate::nearest::shown;
use crate::size::{parse_limit, ram_bytes};

/// The number in `text`, up to `most`.
///
/// # Errors
/// EINVAL for anything but digits, ERANGE for a larger number.
pub(crate) fn whole(name: &str, text: &str, most: u64) -> Result<u64> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number {
        return Err(invalid(name, text, "write a whole number"));
    }
    match digits.parse::<u64>() {
        Ok(number) if number <= most => Ok(number),
        _ => Err(invalid(name, text, &format!("at most {most}")).with_errno(Errno::RANGE)),
    }
}

/// The number of bytes in `text`: digits with a suffix, or hexadecimal; 0 and `none` are 0.
///
/// # Errors
/// EINVAL.
pub(super) fn bytes(name: &str, text: &str) -> Result<u64> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let parsed = match hexadecimal {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16).map_err(|_| invalid(name, text, "write a size"))
        }
        _ => parse_limit(text, ram_bytes()),
    };
    parsed.map_err(|error| error.in_option(name))
}

/// `name=value` words.
pub(super) fn pairs<'a>(attribute: &str, value: &'a str) -> Result<Vec<(&'a str, &'a str)>> {
    let words = value
        .split_ascii_whitespace()
        .map(|word| match word.split_once('=') {
            Some((name, value)) if !value.is_empty() => Ok((name, value)),
            _ => Err(invalid(attribute, word, "write NAME=VALUE")),
        });
    words.collect()
}

/// A codec's priority.
pub(super) fn priority_in(
    attribute: &str,
    text: &str,
    range: RangeInclusive<usize>,
) -> Result<usize> {
    let priority = whole("priority", text, u64::MAX)? as usize;
    match range.contains(&priority) {
        true => Ok(priority),
        false => {
            let remedy = format!("priority: {} to {}", range.start(), range.end());
            Err(invalid(attribute, text, &remedy))
        }
    }
}

/// A refusal of a value.
pub(super) fn invalid(name: &str, value: &str, remedy: &str) -> Error {
    let text = format!("{name} {:?}: {remedy}", shown(value));
    Error::new(ErrorKind::InvalidInput, text)
}
