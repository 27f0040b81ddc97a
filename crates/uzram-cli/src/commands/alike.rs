//! The comparison of a running disk with the options of `up`.

use std::path::PathBuf;

use uzram::Parameters;
use uzram_server::attachment::usage;
use uzram_server::control::Attributes;
use uzram_server::size::{human, parse, parse_limit, ram_bytes};
use uzram_server::zswap::Zswap;

use super::record::Use;
use super::{number, plain, with_absolute_files};
use crate::args::UpArgs;
use crate::failure::{Failure, Result};

/// The given options in which the disk differs: the disk's value, and the option. Options that are
/// not given are not compared.
pub fn differences(args: &UpArgs, device: &Attributes, noted: Option<&Use>) -> Result<Vec<String>> {
    let text = |name: &str| device.get(name).map(plain).unwrap_or_default();
    let ram = ram_bytes();
    let mut found = Vec::new();
    let mut compare = |is_alike: bool, has: String, option: String| {
        if !is_alike {
            found.push(format!("{has} (and not {option})"));
        }
    };
    let given = |name: &str| args.device.0.text(name);
    if let Some(size) = given("size") {
        let wanted = parse(size, ram).map_err(|e| Failure::from(e).about("--size"))?;
        let has = number(device, "disksize");
        let is_alike = wanted.next_multiple_of(number(device, "unit").max(1)) == has;
        compare(is_alike, human(has), format!("--size {size}"));
    }
    if let Some(limit) = given("mem-limit") {
        let wanted = parse_limit(limit, ram).map_err(|e| Failure::from(e).about("--mem-limit"))?;
        let has = number(device, "mem_limit");
        let shown = match has {
            0 => "no memory limit".to_owned(),
            bytes => format!("a memory limit of {}", human(bytes)),
        };
        compare(wanted == has, shown, format!("--mem-limit {limit}"));
    }
    let names = [("comp_algorithm", "algorithm"), ("pool", "pool")];
    for (attribute, option) in names {
        if let Some(wanted) = given(option) {
            let has = text(attribute);
            compare(wanted == has, has, format!("--{option} {wanted}"));
        }
    }
    if let Some(wanted) = given("algorithm-params") {
        let has = text("algorithm_params");
        let parsed = |text: &str| text.parse::<Parameters>().ok();
        let is_alike = parsed(&with_absolute_files(wanted)) == parsed(&has);
        let shown = match has.is_empty() {
            true => "no codec parameters".to_owned(),
            false => has,
        };
        compare(is_alike, shown, format!("--algorithm-params {wanted}"));
    }
    if given("checksum").is_some() {
        let has = number(device, "checksum") == 1;
        compare(has, "no checksums".into(), "--checksum".into());
    }
    if let (Some(wanted), Some(Use::Mount(mount))) = (args.fs, noted) {
        let wanted = wanted.name();
        compare(
            mount.fs == wanted,
            mount.fs.clone(),
            format!("--fs {wanted}"),
        );
    }
    if args.zswap {
        let is_on = Zswap::read().is_some_and(|zswap| zswap.is_on());
        compare(is_on, "zswap off".into(), "--zswap".into());
    }
    if let Some(wanted) = args.priority {
        let has = usage::swap_priority(&PathBuf::from(text("endpoint")));
        if let Some(has) = has {
            let shown = format!("priority {has}");
            compare(
                has == i32::from(wanted),
                shown,
                format!("--priority {wanted}"),
            );
        }
    }
    Ok(found)
}
