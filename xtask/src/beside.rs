//! Steps of the suite that run beside those of this process: one after the other, each in a process of its own.
//!
//! Their output goes to files, `target/steps/STEP.log`, and is shown when they have ended, so that lines of two
//! steps never mix. Their findings come back in files too.

use std::fs::{self, File};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::process::{Exit, Running};
use crate::report::Report;
use crate::workspace;

/// The option that names the file for the findings.
pub const REPORT: &str = "--report";
/// Of one step. What a step runs has limits of its own.
const STEP_LIMIT: Duration = Duration::from_secs(3 * 3600);

/// A step that has ended.
pub struct Done {
    pub name: &'static str,
    pub elapsed: Duration,
    pub log: String,
    pub report: Report,
}

/// Runs `steps` with `flags`. They come as they end, and the receiver ends after the last.
pub fn start(steps: Vec<&'static str>, flags: Vec<&'static str>) -> mpsc::Receiver<Done> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for name in steps {
            let _ = sender.send(run(name, &flags));
        }
    });
    receiver
}

fn run(name: &'static str, flags: &[&str]) -> Done {
    let started = Instant::now();
    let folder = workspace::target_dir().join("steps");
    let log = folder.join(format!("{name}.log"));
    let report = attempt(name, flags, &folder, &log).unwrap_or_else(|message| {
        let mut report = Report::default();
        report.fail(name, message);
        report
    });
    Done {
        name,
        elapsed: started.elapsed(),
        log: String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned(),
        report,
    }
}

fn attempt(name: &str, flags: &[&str], folder: &Path, log: &Path) -> Result<Report, String> {
    let said = |error: std::io::Error| format!("{}: {error}", log.display());
    fs::create_dir_all(folder).map_err(said)?;
    let findings = folder.join(format!("{name}.json"));
    // What was there is of another run.
    let _ = fs::remove_file(&findings);
    let file = File::create(log).map_err(said)?;
    // By this name, because a build may have put another program in this one's place.
    let mut command = workspace::command("/proc/self/exe");
    command.args(["test", REPORT]).arg(&findings);
    command.args(flags).arg(name);
    command.stdout(file.try_clone().map_err(said)?).stderr(file);
    let exit = Running::start_again(&mut command)?.wait(STEP_LIMIT);
    let exit = exit.map_or(Exit::TimedOut(STEP_LIMIT), Exit::from);
    let text = fs::read_to_string(&findings).map_err(|_| exit.to_string())?;
    Report::from_json(&text).ok_or_else(|| format!("{exit}, with findings that are none: {text}"))
}
