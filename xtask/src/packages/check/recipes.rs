//! The commands of docs/recipes that are run on this machine, with what was packed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::super::image;
use super::super::parts::{Parts, VERSION};
use crate::install;
use crate::process;
use crate::recipes::{self, Mark};
use crate::workspace;

/// Of one page.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs each page's commands in a folder of its own.
pub fn run(parts: &Parts) -> Result<String, String> {
    let mut run = Vec::new();
    for page in recipes::pages()? {
        if let Some(script) = page.script(Mark::Here) {
            let failed = |message| format!("docs/recipes/{}.md: {message}", page.name);
            run_page(parts, &script.replace("VERSION", VERSION)).map_err(failed)?;
            run.push(page.name);
        }
    }
    Ok(run.join(", "))
}

fn run_page(parts: &Parts, script: &str) -> Result<(), String> {
    let work = tempfile::tempdir().map_err(|error| error.to_string())?;
    let failed = |error: std::io::Error| format!("{}: {error}", work.path().display());
    fs::copy(image::file(parts), work.path().join("uzram-image.tar")).map_err(failed)?;
    let mut command = alone(work.path(), script).map_err(failed)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = [parts.folder.clone()]
        .into_iter()
        .chain(std::env::split_paths(&path));
    command.env(
        "PATH",
        std::env::join_paths(path).map_err(|error| error.to_string())?,
    );
    process::succeed(&mut command, LIMIT).map(drop)
}

/// The shell with `script`, in `work`. All that it starts ends with it, and its mounts, its disks and its containers
/// are nobody else's.
fn alone(work: &Path, script: &str) -> std::io::Result<Command> {
    use std::os::unix::fs::PermissionsExt;
    // Other users' programs go through it.
    fs::set_permissions(work, fs::Permissions::from_mode(0o755))?;
    let state = work.join("state");
    fs::create_dir(&state)?;
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700))?;
    let shown = state.display();
    let storage = format!(
        "[storage]\ndriver = \"vfs\"\ngraphroot = \"{shown}/store\"\nrunroot = \"{shown}/run\"\n"
    );
    fs::write(state.join("storage.conf"), storage)?;
    // No more than this process may give.
    let containers = "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1000:1000\"]\n\
                      [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n";
    fs::write(state.join("containers.conf"), containers)?;
    let mut command = workspace::command(install::UNSHARE.program);
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["sh", "-eux", "-c", script]).current_dir(work);
    command.env("XDG_RUNTIME_DIR", &state);
    command.env("CONTAINERS_STORAGE_CONF", state.join("storage.conf"));
    command.env("CONTAINERS_CONF", state.join("containers.conf"));
    Ok(command)
}
