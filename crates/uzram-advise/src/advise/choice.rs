//! The choices: a codec with its level, a unit, a pool; and the options of `uzram serve` for each.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use uzram::{Compression, Parameters, Unit};

use crate::error::Result;

/// Units tried, in bytes: the kernel's, one of mTHP's, and the largest.
const UNITS: [u64; 3] = [4096, 16384, 65536];
/// Levels tried besides each codec's default.
const LEVELS: [(&str, &[i32]); 4] = [
    ("lz4", &[4]),
    ("lz4hc", &[3]),
    ("zstd", &[-1, 1, 7]),
    ("deflate", &[1]),
];

/// Codecs with their parameters by what a page costs as a rule, the cheapest first.
const CHEAPEST_FIRST: [(&str, &str); 15] = [
    ("words", ""),
    ("auto", ""),
    ("lz4", "level=4"),
    ("lz4", ""),
    ("lzo", ""),
    ("lzo-rle", ""),
    ("zstd", "level=-1"),
    ("zstd", "level=1"),
    ("zstd", ""),
    ("lz4hc", "level=3"),
    ("deflate", "level=1"),
    ("842", ""),
    ("lz4hc", ""),
    ("deflate", ""),
    ("zstd", "level=7"),
];

/// Makes a codec for a unit.
type Make = dyn Fn(Unit) -> uzram::Result<Arc<Compression>>;

/// A codec with its parameters.
#[derive(Clone)]
pub(super) struct Setting {
    pub(super) algorithm: String,
    /// The text for `--algorithm-params`; empty for the codec's defaults.
    pub(super) parameters: String,
    /// Size of its dictionary, in bytes; 0 for none.
    pub(super) dictionary_bytes: usize,
    make: Rc<Make>,
}

/// The file of the dictionary in the proposed commands.
pub const DICTIONARY: &str = "pages.dict";
/// Codecs tried with a dictionary, with the level.
const WITH_DICTIONARY: [(&str, Option<i32>); 3] =
    [("lz4", None), ("zstd", Some(1)), ("zstd", None)];
/// The largest unit, in bytes, for which a dictionary is tried: it replaces the context that a
/// small unit lacks.
const DICTIONARY_UNIT_MAX_BYTES: u64 = 16384;

/// A setting at a unit in a pool.
#[derive(Clone)]
pub(super) struct Choice {
    pub(super) setting: Setting,
    pub(super) unit: Unit,
    pub(super) pool: &'static str,
}

/// The settings to try: every codec with its defaults, and levels unless time is short.
pub(super) fn settings(quick: bool) -> Vec<Setting> {
    let mut settings = Vec::new();
    for algorithm in uzram::algorithms() {
        settings.push(Setting::built_in(algorithm, Parameters::default()));
        let levels = LEVELS.iter().find(|(name, _)| *name == algorithm);
        if let (Some((_, levels)), false) = (levels, quick) {
            let with =
                |level: &i32| Setting::built_in(algorithm, Parameters::default().level(*level));
            settings.extend(levels.iter().map(with));
        }
    }
    // A level that this build's codec does not take is no choice.
    settings.retain(|setting| setting.compression(Unit::DEFAULT).is_ok());
    settings
}

/// The settings to try with this dictionary.
pub(super) fn with_dictionary(dictionary: &Arc<[u8]>) -> Vec<Setting> {
    let known = uzram::algorithms();
    let wanted = WITH_DICTIONARY
        .iter()
        .filter(|(name, _)| known.contains(name));
    let settings = wanted.map(|(algorithm, level)| {
        let plain = level.map_or_else(Parameters::default, |level| {
            Parameters::default().level(level)
        });
        let with = plain.clone().dictionary(Arc::clone(dictionary));
        let text = format!("{plain} dict={DICTIONARY}");
        Setting {
            parameters: text.trim_start().to_owned(),
            dictionary_bytes: dictionary.len(),
            ..Setting::built_in(algorithm, with)
        }
    });
    settings.collect()
}

impl Setting {
    /// The units to try, in bytes.
    pub(super) fn units(&self) -> impl Iterator<Item = u64> {
        let most = match self.dictionary_bytes {
            0 => u64::MAX,
            _ => DICTIONARY_UNIT_MAX_BYTES,
        };
        UNITS.into_iter().filter(move |unit| *unit <= most)
    }

    /// The place among the codecs by what a page costs as a rule; the cheapest is 0, those that nobody
    /// knows come last.
    pub(super) fn rank(&self) -> usize {
        let is_dictionary = |word: &str| word.starts_with("dict=");
        let words = self.parameters.split(' ').filter(|it| !is_dictionary(it));
        let own = words.collect::<Vec<_>>().join(" ");
        let mut known = CHEAPEST_FIRST.iter();
        known
            .position(|(name, parameters)| *name == self.algorithm && *parameters == own)
            .unwrap_or(CHEAPEST_FIRST.len())
    }

    fn built_in(algorithm: &str, parameters: Parameters) -> Setting {
        let name = algorithm.to_owned();
        let text = parameters.to_string();
        let make = move |unit| Compression::with_parameters(&name, &parameters, unit);
        Setting::made_by(algorithm, text, make)
    }

    /// A codec from elsewhere.
    pub(super) fn made_by(
        algorithm: &str,
        parameters: String,
        make: impl Fn(Unit) -> uzram::Result<Arc<Compression>> + 'static,
    ) -> Setting {
        Setting {
            algorithm: algorithm.to_owned(),
            parameters,
            dictionary_bytes: 0,
            make: Rc::new(make),
        }
    }

    pub(super) fn compression(&self, unit: Unit) -> Result<Arc<Compression>> {
        Ok((self.make)(unit)?)
    }

    pub(super) fn choice(&self, unit_bytes: u64, pool: &'static str) -> Choice {
        let unit = Unit::new(unit_bytes).expect("the table of units holds valid ones");
        Choice {
            setting: self.clone(),
            unit,
            pool,
        }
    }
}

impl Choice {
    pub(super) fn in_pool(&self, pool: &'static str) -> Choice {
        Choice {
            pool,
            ..self.clone()
        }
    }

    pub(super) fn compression(&self) -> Result<Arc<Compression>> {
        self.setting.compression(self.unit)
    }

    /// The command that serves a disk of `size_bytes` with this choice. Defaults are left out.
    pub(super) fn command(&self, size_bytes: u64) -> String {
        let mut command = format!("uzram serve --size {}", suffixed(size_bytes));
        let Setting {
            algorithm,
            parameters,
            ..
        } = &self.setting;
        command.push_str(&format!(" --algorithm {algorithm}"));
        if !parameters.is_empty() {
            command.push_str(&format!(
                " --algorithm-params {}",
                parameters.replace(' ', ",")
            ));
        }
        if self.unit != Unit::DEFAULT {
            command.push_str(&format!(" --unit {}", suffixed(self.unit.bytes() as u64)));
        }
        if self.pool != uzram::pools()[0] {
            command.push_str(&format!(" --pool {}", self.pool));
        }
        command
    }
}

/// A multiple of 1024 in the notation of `uzram serve`.
fn suffixed(bytes: u64) -> String {
    let step = (bytes.trailing_zeros() / 10).min(4);
    let suffix = ["", "K", "M", "G", "T"][step as usize];
    format!("{}{suffix}", bytes >> (10 * step))
}

impl fmt::Display for Choice {
    /// `zstd level=1 dict=pages.dict, 16K, zsmalloc`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.setting.algorithm)?;
        if !self.setting.parameters.is_empty() {
            write!(f, " {}", self.setting.parameters)?;
        }
        write!(f, ", {}, {}", suffixed(self.unit.bytes() as u64), self.pool)
    }
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Longest budget: beyond it a disk is faster.
const BUDGET_MAX: Duration = Duration::from_secs(1);

/// A time as people type it: `800ns`, `25us`, `1.5ms`.
///
/// # Errors
/// One line with the value and the correct form.
pub fn parse_budget(text: &str) -> Result<Duration, String> {
    let refused =
        || format!("budget {text:?}: write a time up to 1 s such as 800ns, 25us or 1.5ms");
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .ok_or_else(refused)?;
    let (number, unit) = text.split_at(digits);
    let nanoseconds = match unit {
        "ns" => 1.0,
        "us" | "\u{b5}s" => 1e3,
        "ms" => 1e6,
        _ => return Err(refused()),
    };
    let number: f64 = number.parse().map_err(|_| refused())?;
    let budget = Duration::try_from_secs_f64(number * nanoseconds / 1e9).map_err(|_| refused())?;
    match !budget.is_zero() && budget <= BUDGET_MAX {
        true => Ok(budget),
        false => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_time() {
        let parsed = |text| parse_budget(text).map(|budget| budget.as_nanos());
        assert_eq!(parsed("25us"), Ok(25_000));
        assert_eq!(parsed("1.5ms"), Ok(1_500_000));
        assert_eq!(parsed("800ns"), Ok(800));
        for text in [
            "", "25", "us", "-1us", "0us", "2s", "1001ms", "1.2.3us", "1e9ms", "25 us",
        ] {
            let error = parse_budget(text).unwrap_err();
            assert!(error.contains("25us"), "{error}");
        }
    }

    #[test]
    fn a_command_names_what_is_not_the_default() {
        let settings = settings(false);
        let setting = settings
            .iter()
            .find(|setting| setting.algorithm == "lz4")
            .unwrap();
        let plain = setting.choice(4096, uzram::pools()[0]);
        assert_eq!(
            plain.command(1 << 30),
            "uzram serve --size 1G --algorithm lz4"
        );
        let level = Setting {
            parameters: "level=4 x=1".to_owned(),
            ..setting.clone()
        };
        let full = level.choice(65536, "zbud");
        assert_eq!(
            full.command(96 << 20),
            "uzram serve --size 96M --algorithm lz4 --algorithm-params level=4,x=1 --unit 64K --pool zbud"
        );
        assert_eq!(full.to_string(), "lz4 level=4 x=1, 64K, zbud");
    }

    #[test]
    fn a_dictionary_is_for_small_units_and_named_in_the_command() {
        let settings = with_dictionary(&vec![7; 4096].into());
        assert!(settings.iter().any(|setting| setting.algorithm == "lz4"));
        for setting in settings {
            assert_eq!(setting.units().max(), Some(16384));
            assert_eq!(setting.dictionary_bytes, 4096);
            let command = setting.choice(4096, uzram::pools()[0]).command(1 << 30);
            let parameters = command.rsplit(' ').next().unwrap();
            assert!(parameters.ends_with("dict=pages.dict"), "{command}");
            assert_eq!(setting.parameters.replace(' ', ","), parameters);
        }
    }

    #[test]
    fn every_codec_is_tried() {
        for quick in [true, false] {
            let settings = settings(quick);
            for algorithm in uzram::algorithms() {
                assert!(
                    settings
                        .iter()
                        .any(|setting| setting.algorithm == algorithm)
                );
            }
        }
    }
}
