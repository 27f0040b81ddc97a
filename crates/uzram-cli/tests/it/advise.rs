//! Advice on real files and processes; what comes out for pages whose best choice is known is in the
//! benchmarks' own tests.

use std::os::unix::process::CommandExt;

use crate::support::{Home, is_root};

const PAGE: usize = 4096;

/// Lines of text with a number each: every codec makes less of them.
fn text(pages: usize) -> Vec<u8> {
    let lines = (0..).flat_map(|n: u64| {
        let number = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        format!("line {number} of a file that compresses well enough\n").into_bytes()
    });
    lines.take(pages * PAGE).collect()
}

/// The line to type is one that the server takes.
#[test]
fn the_recommended_line_serves_a_disk() {
    let home = Home::new();
    let corpus = home.dir.path().join("text.pages");
    let html = home.dir.path().join("advice.html");
    std::fs::write(&corpus, text(64)).unwrap();
    let (corpus, page) = (corpus.to_str().unwrap(), html.to_str().unwrap());
    let ran = home.run(&[
        "advise", "--quick", "--budget", "1000ms", "--corpus", corpus, "--html", page,
    ]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(
        ran.stdout.starts_with(&format!("{corpus}: 64 of 64 pages")),
        "{ran:?}"
    );
    assert!(ran.stdout.contains("\nRecommended: "), "{ran:?}");
    assert_eq!(
        ran.stdout
            .lines()
            .filter(|line| line.starts_with("  =>"))
            .count(),
        1
    );
    let command = ran.stdout.lines().last().unwrap().trim();
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains(command) && page.contains("class=\"front\""));

    let words: Vec<&str> = command.split(' ').collect();
    assert_eq!(
        words[..5],
        ["uzram", "serve", "--size", "1G", "--algorithm"]
    );
    let _served = home.serve(&words[2..]);
    let stat = home.json(&["stat", "uzram0", "--json"]);
    assert_eq!(stat["comp_algorithm"], words[5]);
}

#[test]
fn memory_of_a_process_that_goes_on_running() {
    let home = Home::new();
    let memory = text(256);
    let pid = std::process::id().to_string();
    let advice = home.json(&["advise", "--quick", "--pid", &pid, "--json"]);
    assert_eq!(advice["schema"], 1);
    assert_eq!(advice["source"]["name"], format!("process {pid}"));
    assert!(advice["source"]["sampled_pages"].as_u64().unwrap() >= 64);
    assert!(advice["choices"].as_array().unwrap().len() >= 9);
    assert!(advice["stopped"].is_null());
    assert_eq!(memory.len(), 256 * PAGE);
    let commands = advice["recommendation"]["commands"].as_array().unwrap();
    let pages = advice["source"]["pages"].as_u64().unwrap();
    let size = format!(" --size {}M ", (pages * PAGE as u64).div_ceil(1 << 20));
    let serves = commands.last().unwrap().as_str().unwrap();
    assert!(serves.contains(&size), "{serves}: {size}");
}

#[test]
fn what_cannot_be_advised_on_is_said_in_one_line() {
    let home = Home::new();
    let file = |name: &str, content: &[u8]| {
        let path = home.dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let refused = |args: &[&str], status, said: &str| {
        let args: Vec<&str> = [&["advise"], args].concat();
        home.run(&args).refused(status, said);
    };
    refused(&[], 2, "--pid");
    refused(&["--pid", "4194305"], 1, "process 4194305: no such process");
    refused(&["--pid", "1", "--file", "x"], 2, "cannot be used with");
    refused(
        &["--file", &file("empty", b"")],
        1,
        "no pages to take; it is empty",
    );
    refused(
        &["--file", &file("small", b"abc")],
        1,
        "too little to advise on: 1 of at least 64 pages",
    );
    let uneven = file("uneven", &text(65)[..64 * PAGE + 7]);
    refused(
        &["--corpus", &uneven],
        1,
        "262151 bytes; must be a multiple of 4096; --file takes any",
    );
    refused(
        &["--corpus", &file("zero", &[0; 64 * PAGE])],
        1,
        "every page repeats one word",
    );
    refused(&["--file", &uneven, "--budget", "fast"], 2, "such as 800ns");
    refused(
        &["--file", &uneven, "--html", "/none/x.html"],
        2,
        "html /none/x.html",
    );
    refused(
        &["--file", home.dir.path().to_str().unwrap()],
        1,
        "not a regular file",
    );

    let mut ended = crate::support::zombie();
    refused(
        &["--pid", &ended.id().to_string()],
        1,
        "no memory of its own",
    );
    ended.wait().unwrap();
}

#[test]
fn a_process_of_somebody_else_is_refused() {
    if !is_root() {
        return eprintln!("left out: only root can become another user");
    }
    let home = Home::new();
    let pid = std::process::id().to_string();
    let output = home
        .command(&["advise", "--pid", &pid])
        .uid(65534)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text.contains("permission refused; run as its user"),
        "{text}"
    );
}
