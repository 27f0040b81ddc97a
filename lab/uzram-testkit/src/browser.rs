//! A page in a real browser, on a screen, a phone and paper, light and dark. Left out, with a line
//! on stderr, where there is none.

#![allow(clippy::unwrap_used, reason = "a failure is a failed test")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAMS: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];
/// A browser that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Width of what is printed on A4 with the page's margins, in CSS pixels.
const PAPER: u32 = 680;

/// Opens the report with the HTML `text` in all ways: its charts must have data, and nothing may
/// overflow.
///
/// # Panics
/// If the report has a fault, or the browser hangs.
pub fn assert_sound(text: &str) {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let charts = text.matches("<figure").count();
    assert!(charts >= 6, "{charts}");
    // Frames get a medium of their own only on paper: there, what is for print is for all.
    let printed = text.replace("@media print", "@media all");
    assert_ne!(text, printed);
    fs::write(folder.path().join("page.html"), text).unwrap();
    fs::write(folder.path().join("printed.html"), printed).unwrap();
    let screens = [("page", 1280), ("page", 768), ("page", 375), ("page", 320)];
    let with_paper = [screens.as_slice(), &[("printed", PAPER)]].concat();
    for (scheme, frames) in [("light", with_paper.as_slice()), ("dark", &screens)] {
        let found = inspect(&browser, folder.path(), scheme, frames);
        assert_eq!(
            found,
            format!("charts {}\n", charts * frames.len()),
            "{scheme}"
        );
    }
}

/// Prints the report with the HTML `text`: a few pages of PDF.
///
/// # Panics
/// If it does not print.
pub fn assert_prints(text: &str) {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.html");
    fs::write(&path, text).unwrap();
    let pdf = folder.path().join("page.pdf");
    let mut command = headless(&browser, folder.path());
    command
        .arg("--no-pdf-header-footer")
        .arg(format!("--print-to-pdf={}", pdf.display()));
    finish(command.arg(&path), folder.path());
    let printed = fs::read(&pdf).unwrap();
    assert!(printed.starts_with(b"%PDF"));
    let pages = printed
        .windows(11)
        .filter(|bytes| bytes == b"/Type /Page")
        .count();
    // The tree of pages has the name in it too.
    assert!((3..=12).contains(&pages), "{pages}");
}

/// The faults that a script in the browser finds in the files, each in a frame of its width.
fn inspect(browser: &Path, folder: &Path, scheme: &str, frames: &[(&str, u32)]) -> String {
    let frames = frames.iter().map(|(file, width)| {
        format!(
            "<iframe name='{scheme} {file} {width}' src='{file}.html' \
             style='width:{width}px;height:2000px;border:0'></iframe>"
        )
    });
    let frames: String = frames.collect();
    let script = include_str!("inspect.js");
    let page = format!("<!doctype html><body>{frames}<script>{script}</script>");
    let path = folder.join("inspect.html");
    fs::write(&path, page).unwrap();
    let mut command = headless(browser, folder);
    if scheme == "dark" {
        command.arg("--blink-settings=preferredColorScheme=0");
    }
    let dom = finish(command.arg("--dump-dom").arg(&path), folder);
    let found = dom.split("<pre id=\"found\">").nth(1);
    let found = found.and_then(|rest| rest.split("</pre>").next());
    found
        .unwrap_or_else(|| panic!("the script did not end: {dom}"))
        .to_owned()
}

fn headless(browser: &Path, folder: &Path) -> Command {
    let mut command = Command::new(browser);
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--allow-file-access-from-files",
        "--disable-dev-shm-usage",
        "--window-size=1400,2000",
    ]);
    command.arg(format!(
        "--user-data-dir={}",
        folder.join("profile").display()
    ));
    command
}

/// The browser's output. It is ended if it takes too long.
fn finish(command: &mut Command, folder: &Path) -> String {
    let path = folder.join("output");
    command
        .stdin(Stdio::null())
        .stdout(File::create(&path).unwrap())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let until = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{command:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    fs::read_to_string(&path).unwrap()
}

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let found = PROGRAMS.iter().find_map(|program| {
        let places = folders.iter().map(|folder| folder.join(program));
        places.into_iter().find(|place| place.is_file())
    });
    if found.is_none() {
        eprintln!("left out: reports in a browser; as root: apt-get install chromium");
    }
    found
}
