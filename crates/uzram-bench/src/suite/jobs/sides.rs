//! Where jobs run: ours, the kernel's zram, and what `--on` names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Plan;
use super::grid::{Grid, Shape};
use crate::error::{Error, Result};
use crate::job::guard::{self, Claim, System};
use crate::job::target::{Disk, Engine, Export, File, ServedEngine, Target};
use crate::job::{Sharing, fio_program};
use crate::peers::kernel_zram::{Device, Kernel};
use crate::peers::{Missing, Peer};
use crate::report::Findings;
use crate::suite::{Options, SUBJECT};

/// A place of `--on`.
pub(super) enum Place {
    Engine,
    Served,
    Export(String),
    Path(Arc<Claim>),
}

/// A target under a name.
pub(super) struct Side {
    pub(super) variant: String,
    pub(super) target: Box<dyn Target>,
    /// Where fio itself can reach it.
    path: Option<PathBuf>,
    /// Whether fio itself does the jobs.
    pub(super) is_fio: bool,
}

impl Place {
    /// The places of `--on`, the engine for none; devices are claimed.
    ///
    /// # Errors
    /// [`Error::Usage`] for what cannot be used, or must not be.
    pub(super) fn parse_all(on: &[String], destroy: &[PathBuf]) -> Result<Vec<Place>> {
        let named = |path: &PathBuf| on.iter().any(|place| Path::new(place) == path);
        if let Some(other) = destroy.iter().find(|path| !named(path)) {
            let shown = other.display();
            let remedy =
                format!("--on {shown} is missing: only what is written on can be destroyed");
            return Err(Error::Usage(format!("destroy {shown}: {remedy}")));
        }
        if on.is_empty() {
            return Ok(vec![Place::Engine]);
        }
        let mut distinct: Vec<&String> = Vec::new();
        for place in on {
            if !distinct.contains(&place) {
                distinct.push(place);
            }
        }
        let places = distinct
            .into_iter()
            .map(|place| Place::parse(place, destroy));
        places.collect()
    }

    fn parse(place: &str, destroy: &[PathBuf]) -> Result<Place> {
        match place {
            "engine" => return Ok(Place::Engine),
            "nbd" => return Ok(Place::Served),
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
            return Ok(Place::Export(place.to_owned()));
        }
        // A word that is no path is more likely a mistake than a file in this folder.
        if !place.contains('/') {
            let kinds = "engine, nbd, nbd+unix:///EXPORT?socket=PATH, or a path with a slash";
            return Err(Error::Usage(format!(
                "on {place:?}: unknown; one of {kinds}"
            )));
        }
        let claim = guard::claim(Path::new(place), destroy, &System::default())?;
        Ok(Place::Path(Arc::new(claim)))
    }

    /// Whether the grid fits.
    ///
    /// # Errors
    /// [`Error::Usage`] with both sizes.
    pub(super) fn check_size(&self, grid: &Grid) -> Result<()> {
        let (name, has_bytes) = match self {
            Place::Path(claim) if claim.disk() == Disk::Block => {
                (claim.path().display().to_string(), claim.size_bytes())
            }
            Place::Export(uri) => match Export::at(uri) {
                Some(export) => (uri.clone(), export?.size_bytes()),
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        let wanted = grid.device_bytes();
        if wanted <= has_bytes {
            return Ok(());
        }
        let remedy = "a larger --scale, smaller jobs, or a larger device";
        Err(Error::Usage(format!(
            "on {name}: {has_bytes} bytes; the jobs need {wanted}: {remedy}"
        )))
    }

    fn open(&self, algorithm: &str, size_bytes: u64) -> Result<Side> {
        let ours = format!("{SUBJECT}-{algorithm}");
        Ok(match self {
            Place::Engine => Side::of(Engine::new(&ours, algorithm, size_bytes)?, None),
            Place::Served => {
                let name = format!("{ours}-nbd");
                Side::of(ServedEngine::start(&name, algorithm, size_bytes)?, None)
            }
            Place::Export(uri) => {
                let export = Export::at(uri);
                let gone = || Error::Failed(format!("{uri}: no NBD export"));
                Side::of(export.ok_or_else(gone)??, None)
            }
            Place::Path(claim) => {
                let file = File::claimed(Arc::clone(claim), size_bytes)?;
                let path = file.path().to_owned();
                Side::of(file, Some(path))
            }
        })
    }
}

impl Side {
    fn of(target: impl Target + 'static, path: Option<PathBuf>) -> Side {
        Side {
            variant: target.name().to_owned(),
            target: Box::new(target),
            path,
            is_fio: false,
        }
    }

    /// Where fio itself reaches it, if fio is the driver.
    pub(super) fn fio_path(&self) -> Option<&Path> {
        self.path.as_deref().filter(|_| self.is_fio)
    }
}

/// The sides of a grid, ours first; what is missing is told to the findings once.
pub(super) fn open(
    options: &Options,
    plan: &Plan,
    grid: &Grid,
    findings: &mut Findings,
) -> Result<Vec<Side>> {
    let (algorithm, size_bytes) = (grid.algorithm.as_str(), grid.device_bytes());
    let mut sides = Vec::new();
    for place in &plan.places {
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
                sides.push(Side::of(target, Some(path)));
                kernel = Some(device);
            }
            Err(reason) => tell_missing(findings, name, reason),
        }
    }
    if grid.shape == Shape::Own {
        add_fio(plan, grid, kernel, &mut sides, findings)?;
    }
    Ok(sides)
}

/// fio beside ours on every path, for jobs that are fio's.
fn add_fio(
    plan: &Plan,
    grid: &Grid,
    kernel: Option<Arc<Device>>,
    sides: &mut Vec<Side>,
    findings: &mut Findings,
) -> Result<()> {
    let jobs = || grid.rows.iter().flat_map(|row| &row.jobs);
    if !jobs().all(|job| job.sharing == Sharing::Together) {
        return Ok(());
    }
    if let Some(reason) = fio_program::missing() {
        if sides.iter().any(|side| side.path.is_some()) {
            tell_missing(findings, "fio", reason);
        }
        return Ok(());
    }
    for place in &plan.places {
        if let Place::Path(claim) = place {
            let file = File::claimed(Arc::clone(claim), grid.device_bytes())?;
            let path = file.path().to_owned();
            sides.push(Side::by_fio(file, path));
        }
    }
    if let Some(device) = kernel {
        let path = device.path();
        let file = File::kernel_zram(Peer::KernelZram.name(), device, grid.device_bytes());
        sides.push(Side::by_fio(file, path));
    }
    Ok(())
}

impl Side {
    fn by_fio(file: File, path: PathBuf) -> Side {
        let mut side = Side::of(file, Some(path));
        side.variant.push_str(BY_FIO);
        side.is_fio = true;
        side
    }

    /// The side of ours on the same place as one of fio's.
    pub(super) fn driven_by_us(&self) -> Option<&str> {
        self.variant.strip_suffix(BY_FIO)
    }
}

/// Ends the names of sides that fio drives.
const BY_FIO: &str = "-by-fio";

fn tell_missing(findings: &mut Findings, peer: &str, reason: String) {
    if findings.missing.iter().all(|missing| missing.peer != peer) {
        findings.missing.push(Missing {
            peer: peer.to_owned(),
            reason,
        });
    }
}
