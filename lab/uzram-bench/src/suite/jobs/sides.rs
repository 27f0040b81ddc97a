//! Where jobs run: ours, the kernel's zram, and what `--on` names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::plan::Plan;
use crate::error::{Error, Result};
use crate::job::disk::Disk;
use crate::job::guard::{self, Claim, System};
use crate::job::target::{Engine, Export, File, ServedEngine, Target};
use crate::job::{Sharing, fio_program};
use crate::peers::kernel_zram::{Device, Kernel};
use crate::peers::{Missing, Peer};
use crate::report::Findings;
use crate::side::Side;
use crate::suite::rows::Place;
use crate::suite::{Options, SUBJECT};

/// A place of `--on`.
pub(super) enum On {
    Engine,
    Served,
    Export(String),
    Path(Arc<Claim>),
}

impl On {
    /// The places of `--on`, the engine for none; devices are claimed.
    ///
    /// # Errors
    /// [`Error::Usage`] for what cannot be used, or must not be.
    pub(super) fn parse_all(on: &[String], destroy: &[PathBuf]) -> Result<Vec<On>> {
        let named = |path: &PathBuf| on.iter().any(|place| Path::new(place) == path);
        if let Some(other) = destroy.iter().find(|path| !named(path)) {
            let shown = other.display();
            let remedy =
                format!("--on {shown} is missing: only what is written on can be destroyed");
            return Err(Error::Usage(format!("destroy {shown}: {remedy}")));
        }
        if on.is_empty() {
            return Ok(vec![On::Engine]);
        }
        let mut distinct: Vec<&String> = Vec::new();
        for place in on {
            if !distinct.contains(&place) {
                distinct.push(place);
            }
        }
        let places = distinct.into_iter().map(|place| On::parse(place, destroy));
        places.collect()
    }

    fn parse(place: &str, destroy: &[PathBuf]) -> Result<On> {
        match place {
            "engine" => return Ok(On::Engine),
            "nbd" => return Ok(On::Served),
            _ => {}
        }
        if let Some(export) = Export::at(place) {
            let export = export?;
            let look = |offset: u64, buffer: &mut [u8]| export.peek(offset, buffer);
            let data = guard::first_data(export.size_bytes(), look)?;
            let may_go = destroy.iter().any(|path| path == Path::new(place));
            if let (Some(what), false) = (data, may_go) {
                let text =
                    format!("on {place}: holds data ({what}); if it may be lost, add --destroy");
                return Err(Error::Usage(format!("{text} '{place}'")));
            }
            return Ok(On::Export(place.to_owned()));
        }
        // A word that is no path is more likely a mistake than a file in this folder.
        if !place.contains('/') {
            let kinds = "engine, nbd, nbd+unix:///EXPORT?socket=PATH, or a path with a slash";
            return Err(Error::Usage(format!(
                "on {place:?}: unknown; one of {kinds}"
            )));
        }
        let claim = guard::claim(Path::new(place), destroy, &System::default())?;
        Ok(On::Path(Arc::new(claim)))
    }

    /// Whether jobs fit that take so much.
    ///
    /// # Errors
    /// [`Error::Usage`] with both sizes.
    pub(super) fn check_size(&self, wanted: u64) -> Result<()> {
        let (name, has_bytes) = match self {
            On::Path(claim) if claim.disk() == Disk::Block => {
                (claim.path().display().to_string(), claim.size_bytes())
            }
            On::Export(uri) => match Export::at(uri) {
                Some(export) => (uri.clone(), export?.size_bytes()),
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        if wanted <= has_bytes {
            return Ok(());
        }
        let remedy = "a larger --scale, smaller jobs, or a larger device";
        Err(Error::Usage(format!(
            "on {name}: {has_bytes} bytes; the jobs need {wanted}: {remedy}"
        )))
    }

    fn open(&self, algorithm: &str, size_bytes: u64) -> Result<Side<Place>> {
        let ours = format!("{SUBJECT}-{algorithm}");
        Ok(match self {
            On::Engine => Side::on(Engine::new(&ours, algorithm, size_bytes)?, None),
            On::Served => {
                let name = format!("{ours}-nbd");
                Side::on(ServedEngine::start(&name, algorithm, size_bytes)?, None)
            }
            On::Export(uri) => {
                let export = Export::at(uri);
                let gone = || Error::Failed(format!("{uri}: no NBD export"));
                Side::on(export.ok_or_else(gone)??, None)
            }
            On::Path(claim) => {
                let file = File::claimed(Arc::clone(claim), size_bytes)?;
                let path = file.path().to_owned();
                Side::on(file, Some(path))
            }
        })
    }
}

/// The sides of a plan, ours first; what is missing is told to the findings once.
pub(super) fn open(
    options: &Options,
    places: &[On],
    plan: &Plan,
    findings: &mut Findings,
) -> Result<Vec<Side<Place>>> {
    let (algorithm, size_bytes) = (plan.algorithm.as_str(), plan.device_bytes());
    let mut sides = Vec::new();
    for place in places {
        options.stop.check()?;
        sides.push(place.open(algorithm, size_bytes)?);
    }
    let mut kernel = None;
    if options.against(Peer::KernelZram) {
        let name = Peer::KernelZram.name();
        match Kernel::default().acquire(algorithm, size_bytes) {
            Ok(device) => {
                let device = Arc::new(device);
                let path = device.path();
                let target = File::kernel_zram(name, Arc::clone(&device), size_bytes);
                sides.push(Side::on(target, Some(path)));
                kernel = Some(device);
            }
            Err(reason) => tell_missing(findings, name, reason),
        }
    }
    if plan.grid.is_none() {
        add_fio(places, plan, kernel, &mut sides, findings)?;
    }
    Ok(sides)
}

/// fio beside ours on every path, for jobs that are fio's.
fn add_fio(
    places: &[On],
    plan: &Plan,
    kernel: Option<Arc<Device>>,
    sides: &mut Vec<Side<Place>>,
    findings: &mut Findings,
) -> Result<()> {
    let mut jobs = plan.rows.iter().flat_map(|row| &row.jobs);
    if !jobs.all(|(_, job)| job.sharing == Sharing::Together) {
        return Ok(());
    }
    if let Some(reason) = fio_program::missing() {
        if sides.iter().any(|side| side.driven.path.is_some()) {
            tell_missing(findings, "fio", reason);
        }
        return Ok(());
    }
    for place in places {
        if let On::Path(claim) = place {
            let file = File::claimed(Arc::clone(claim), plan.device_bytes())?;
            let path = file.path().to_owned();
            sides.push(by_fio(file, path));
        }
    }
    if let Some(device) = kernel {
        let path = device.path();
        let file = File::kernel_zram(Peer::KernelZram.name(), device, plan.device_bytes());
        sides.push(by_fio(file, path));
    }
    Ok(())
}

fn by_fio(file: File, path: PathBuf) -> Side<Place> {
    let mut side = Side::on(file, Some(path));
    side.name.push_str(BY_FIO);
    side.driven.is_fio = true;
    side
}

/// The side of ours on the same place as one of fio's.
pub(super) fn driven_by_us(variant: &str) -> Option<&str> {
    variant.strip_suffix(BY_FIO)
}

/// Ends the names of sides that fio drives.
const BY_FIO: &str = "-by-fio";

fn tell_missing(findings: &mut Findings, peer: &str, reason: String) {
    if findings.missing.iter().all(|missing| missing.peer != peer) {
        findings.missing.push(Missing::new(peer, reason));
    }
}
