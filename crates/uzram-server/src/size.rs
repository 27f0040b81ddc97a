//! Sizes as people type them. Suffixes are binary, as in zram: `1G` is 2^30 bytes.
//!
//! `4096`, `64K`, `64KiB`, `1.5G` and `50%` (of the machine's RAM) are sizes. `1GB` is refused:
//! half of its users mean 10^9. A fraction needs a suffix or `%` and is rounded down to a byte.

use uzram::ErrorKind;

use crate::error::{Error, Result};

/// Digits accepted after the decimal point; more could not change a byte of a 64-bit size.
const FRACTION_DIGITS_MAX: usize = 18;
/// The end of every error about a malformed size.
const REMEDY: &str = "write bytes, a binary suffix (64K, 512M, 1.5G, 2T) or a share of RAM (50%)";

/// RAM of the machine in bytes, from the kernel and not from `/proc`, which may be missing.
#[must_use]
pub fn ram_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit.max(1)))
}

/// The size that `text` means, in bytes, on a machine with `ram_bytes` of RAM. Never 0.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] with the value and the remedy.
///
/// ```
/// use uzram_server::size::parse;
/// assert_eq!(parse("1.5G", 0)?, 3 << 29);
/// assert_eq!(parse("50%", 8 << 30)?, 4 << 30);
/// assert!(parse("1.5X", 0).is_err());
/// # Ok::<(), uzram_server::Error>(())
/// ```
pub fn parse(text: &str, ram_bytes: u64) -> Result<u64> {
    let refuse = |why: &str| {
        let shown: String = text.chars().take(40).collect();
        Error::new(ErrorKind::InvalidInput, format!("size {shown:?}: {why}"))
    };
    let malformed = |what: &str| refuse(&format!("{what}; {REMEDY}"));
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(malformed("empty"));
    }
    if trimmed.starts_with('-') {
        return Err(malformed("negative"));
    }
    let number_end = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_malformed = whole.is_empty() || fraction.contains('.') || number.ends_with('.');
    if is_malformed || fraction.len() > FRACTION_DIGITS_MAX {
        return Err(malformed("not a number"));
    }
    let (multiplier, divisor) = match suffix {
        "%" => (u128::from(ram_bytes), 100),
        _ => (
            scale(suffix).ok_or_else(|| malformed(&unknown_suffix(suffix)))?,
            1,
        ),
    };
    if multiplier == 1 && !fraction.is_empty() {
        return Err(malformed("a fraction of a byte"));
    }
    let too_large = || refuse("over 2^64 bytes; make it smaller");
    let digits: u128 = format!("{whole}{fraction}")
        .parse()
        .map_err(|_| too_large())?;
    let unscaled = digits.checked_mul(multiplier).ok_or_else(too_large)?;
    let bytes = unscaled / (divisor * 10u128.pow(fraction.len() as u32));
    match u64::try_from(bytes) {
        Ok(0) => Err(refuse("nothing; the smallest device is one page, 4K")),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(too_large()),
    }
}

/// As [`parse`], but `0` and `none` mean no limit and give 0.
///
/// # Errors
/// As [`parse`].
pub fn parse_limit(text: &str, ram_bytes: u64) -> Result<u64> {
    match text.trim() {
        "0" | "none" => Ok(0),
        _ => parse(text, ram_bytes),
    }
}

/// `bytes` for people: binary, three significant digits or all of them below 1024 (`1.50 GiB`).
/// A multiple of the suffix is shown without a fraction (`1 GiB`).
#[must_use]
pub fn human(bytes: u64) -> String {
    const SUFFIXES: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // 1023.9995 KiB would be shown as "1024.0 KiB"; the next suffix takes over half a digit before.
    let mut step = ((63 - bytes.leading_zeros()) / 10) as usize;
    let mut value = bytes as f64 / (1u64 << (10 * step)) as f64;
    if value >= 999.5 && step < SUFFIXES.len() {
        value /= 1024.0;
        step += 1;
    }
    let suffix = SUFFIXES[step - 1];
    match value {
        _ if value.fract() == 0.0 => format!("{value} {suffix}"),
        _ if value < 10.0 => format!("{value:.2} {suffix}"),
        _ if value < 100.0 => format!("{value:.1} {suffix}"),
        _ => format!("{value:.0} {suffix}"),
    }
}

fn scale(suffix: &str) -> Option<u128> {
    let letter = suffix.strip_suffix("iB").unwrap_or(suffix);
    let power = match letter {
        "" | "B" if letter.len() == suffix.len() => 0,
        "k" | "K" => 1,
        "m" | "M" => 2,
        "g" | "G" => 3,
        "t" | "T" => 4,
        "p" | "P" => 5,
        "e" | "E" => 6,
        _ => return None,
    };
    Some(1 << (10 * power))
}

fn unknown_suffix(suffix: &str) -> String {
    let shown: String = suffix.chars().take(16).collect();
    if matches!(
        suffix.as_bytes(),
        [b'k' | b'K' | b'M' | b'G' | b'T' | b'P' | b'E', b'B']
    ) {
        return format!("the suffix {shown:?} may mean powers of 10 or of 2");
    }
    format!("unknown suffix {shown:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RAM: u64 = 8 << 30;

    #[test]
    fn accepts_what_the_documentation_says() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4096B", 4096),
            ("64K", 65536),
            ("64k", 65536),
            ("64KiB", 65536),
            (" 1G ", 1 << 30),
            ("1.5G", 3 << 29),
            ("0.5GiB", 1 << 29),
            ("1.0001K", 1024),
            ("2T", 2 << 40),
            ("15E", 15 << 60),
            ("50%", 4 << 30),
            ("12.5%", 1 << 30),
            ("200%", 16 << 30),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text, RAM).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn refuses_with_the_value_and_a_remedy() {
        for (text, said) in [
            ("", "empty"),
            ("   ", "empty"),
            ("-1G", "negative"),
            ("G", "not a number"),
            (".5G", "not a number"),
            ("1.G", "not a number"),
            ("1.2.3G", "not a number"),
            ("1.0000000000000000001G", "not a number"),
            ("1.5", "a fraction of a byte"),
            ("1.5B", "a fraction of a byte"),
            ("1.5X", "unknown suffix \"X\""),
            ("1GB", "powers of 10 or of 2"),
            ("1iB", "unknown suffix"),
            ("1 G", "unknown suffix"),
            ("0x10", "unknown suffix"),
            ("1G%", "unknown suffix"),
            ("١G", "not a number"),
            ("16E", "over 2^64"),
            ("18446744073709551616", "over 2^64"),
            ("99999999999999999999999999999999999999999999T", "over 2^64"),
            ("340282366920938463463374607431768211455E", "over 2^64"),
            ("0", "smallest device is one page"),
            ("0%", "smallest device is one page"),
            ("0.0001K", "smallest device is one page"),
        ] {
            let error = parse(text, RAM).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let line = error.to_string();
            assert!(line.contains(said), "{text:?} -> {line}");
            assert!(!line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn a_limit_may_be_none() {
        assert_eq!(parse_limit("0", RAM).unwrap(), 0);
        assert_eq!(parse_limit("none", RAM).unwrap(), 0);
        assert_eq!(parse_limit("1M", RAM).unwrap(), 1 << 20);
        assert!(parse_limit("-1", RAM).is_err());
    }

    #[test]
    fn people_read_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.50 KiB"),
            (1 << 30, "1 GiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (123 << 20, "123 MiB"),
            (1023 << 10, "1.00 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,80}", ram in any::<u64>()) {
            let _ = parse(&text, ram);
        }

        #[test]
        fn numbers_and_suffixes_never_panic(text in "[0-9.]{0,45}[KMGTPE%iB]{0,3}", ram in any::<u64>()) {
            let _ = parse(&text, ram);
        }

        #[test]
        fn every_number_of_bytes_is_itself(bytes in 1..=u64::MAX) {
            prop_assert_eq!(parse(&bytes.to_string(), RAM).unwrap(), bytes);
            prop_assert!(!human(bytes).is_empty());
        }
    }
}
