//! The sides of the suite, made.

use uzram::Parameters;

use super::bare;
use super::contender::{Contender, Copy, Engine};
use super::foreign::{Snappy, Wkdm};
use crate::error::Result;
use crate::peers::Peer;
use crate::suite::Options;

/// Levels beside their algorithms' own, where density can be had for time or time for density.
const OTHER_LEVELS: [(&str, &[i32]); 3] =
    [("words", &[2]), ("auto", &[2]), ("zstd", &[-5, -3, -1, 1])];

/// An algorithm of the engine, at a level of its own or at another.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) algorithm: String,
    pub(super) level: Option<i32>,
}

impl Setting {
    pub(super) fn default_of(algorithm: &str) -> Setting {
        Setting {
            algorithm: algorithm.to_owned(),
            level: None,
        }
    }

    /// As in the command's options: `ALGORITHM` or `ALGORITHM:level=N`, without the words.
    pub(super) fn name(&self) -> String {
        match self.level {
            Some(level) => format!("{}:{level}", self.algorithm),
            None => self.algorithm.clone(),
        }
    }

    pub(super) fn parameters(&self) -> Parameters {
        let parameters = Parameters::default();
        match self.level {
            Some(level) => parameters.level(level),
            None => parameters,
        }
    }
}

/// The algorithms that are wanted, each followed by its other levels if those are.
pub(super) fn settings(options: &Options) -> Vec<Setting> {
    let mut settings = Vec::new();
    for algorithm in &options.algorithms {
        let own = Setting::default_of(algorithm);
        settings.push(own.clone());
        if options.against(Peer::OtherLevels) {
            let others = OTHER_LEVELS.iter().filter(|(name, _)| name == algorithm);
            let others = others.flat_map(|(_, levels)| *levels);
            settings.extend(others.map(|level| Setting {
                level: Some(*level),
                ..own.clone()
            }));
        }
    }
    settings
}

/// The contenders: a copy, each setting behind the engine's interface with its library alone if it has one, and
/// codecs of others, as the peers say.
pub(super) fn all(settings: &[Setting], options: &Options) -> Result<Vec<Box<dyn Contender>>> {
    let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
    if options.against(Peer::Memcpy) {
        contenders.push(Box::new(Copy));
    }
    for setting in settings {
        contenders.push(Box::new(Engine::new(setting)?));
        if options.against(Peer::BareLibrary) && setting.level.is_none() {
            contenders.extend(bare::library(&setting.algorithm)?);
        }
    }
    if options.against(Peer::Snappy) {
        contenders.push(Box::new(Snappy::new()));
    }
    if options.against(Peer::Wkdm) {
        contenders.push(Box::new(Wkdm::new()));
    }
    Ok(contenders)
}
