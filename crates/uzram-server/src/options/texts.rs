//! The options that describe a device that is there.

use std::collections::BTreeMap;
use std::path::Path;

use uzram::ErrorKind;
use uzram_frontends::nbd::Endpoint;

use super::Draft;
use crate::device::DeviceConfig;
use crate::error::{Error, Result};

/// The options by which `config` is made again, but for those that have their default.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a path that is no text.
pub(crate) fn texts(config: &DeviceConfig) -> Result<BTreeMap<String, String>> {
    let number = |bytes: u64| (bytes > 0).then(|| bytes.to_string());
    let yes = |is_set: bool| is_set.then(|| "yes".to_owned());
    let path = |path: &Option<std::path::PathBuf>| path.as_deref().map(text_of).transpose();
    let parameters = config.parameters.to_string();
    let (socket, listen) = match &config.endpoint {
        Some(Endpoint::Unix(path)) => (Some(text_of(path)?), None),
        Some(Endpoint::Tcp(address)) => (None, Some(address.to_string())),
        Some(Endpoint::Vsock(port)) => (None, Some(format!("vsock:{port}"))),
        None => (None, None),
    };
    let all = [
        ("size", number(config.size_bytes)),
        ("device", Some(config.kind.name().to_owned())),
        ("path", path(&config.path)?),
        ("name", config.name.clone()),
        ("algorithm", config.algorithm.clone()),
        (
            "algorithm-params",
            (!parameters.is_empty()).then_some(parameters),
        ),
        ("pool", config.pool.clone()),
        ("checksum", yes(config.checksum)),
        ("ages", yes(config.ages)),
        ("mem-limit", number(config.mem_limit_bytes)),
        ("unit", config.unit.map(|unit| unit.bytes().to_string())),
        ("socket", socket),
        ("listen", listen),
        ("insecure", yes(config.insecure)),
        ("tls-cert", path(&config.tls.certificate)?),
        ("tls-key", path(&config.tls.key)?),
        ("tls-client-ca", path(&config.tls.client_ca)?),
        ("tls-required", yes(config.tls.required)),
        ("attach", Some(config.attach.name().to_owned())),
        ("for-swap", yes(config.for_swap)),
    ];
    let given = all.into_iter();
    let given = given.filter_map(|(name, text)| Some((name.to_owned(), text?)));
    Ok(given.collect())
}

/// The device that [`texts`] told of. It may have no size.
///
/// # Errors
/// The option that is unknown or malformed.
pub(crate) fn described<'a>(
    texts: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<DeviceConfig> {
    let mut draft = Draft::default();
    for (name, text) in texts {
        draft.set(name, text)?;
    }
    Ok(draft.config)
}

pub(crate) fn text_of(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        let text = format!("{}: a path that is no text cannot be kept", path.display());
        Error::new(ErrorKind::InvalidInput, text)
    })
}

#[cfg(test)]
mod tests {
    /// An option that is forgotten here would be lost with the first server.
    #[test]
    fn every_option_is_told() {
        let source = include_str!("texts.rs");
        for name in super::super::names() {
            assert!(source.contains(&format!("\"{name}\",")), "{name}");
        }
    }
}
