//! The sides of the suite, made.

use super::bare;
use super::contender::{Contender, Copy, Engine, Setting};
use super::foreign::{Snappy, Wkdm};
use super::heaps::Looked;
use crate::error::Result;
use crate::peers::Peer;
use crate::suite::Options;

/// Levels beside their algorithms' own, where density can be had for time or time for density.
const OTHER_LEVELS: [(&str, &[i32]); 3] =
    [("words", &[2]), ("auto", &[2]), ("zstd", &[-5, -3, -1, 1])];

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

/// The contenders: a copy, each setting behind the engine's interface with its library alone if it has one,
/// codecs of others, as the peers say, and lz4 after the look of `auto`.
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
    let has = |name: &str| settings.iter().any(|setting| setting.name() == name);
    if has("lz4") && has("auto") {
        contenders.push(Box::new(Looked::new()?));
    }
    Ok(contenders)
}
