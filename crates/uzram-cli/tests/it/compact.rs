//! `uzram compact`: less memory, the same pages, and a line that says how much.

use crate::nbd_client::NbdClient;
use crate::support::{Home, noise};

const PAGES: u64 = 512;

/// Half noise, so that two or so share a page of memory.
fn page(index: u64) -> Vec<u8> {
    let mut page = noise(index, 2000);
    page.resize(4096, 0);
    page
}

#[test]
fn what_was_overwritten_gives_its_memory_back() {
    let home = Home::new();
    let _served = home.serve(&["--size", "16M", "--name", "disk"]);
    let mut client = NbdClient::connect(&home.state().join("disk.nbd"), "disk").unwrap();
    for index in 0..PAGES {
        assert_eq!(client.write(index << 12, &page(index)).unwrap(), 0);
    }
    let is_left = |index: &u64| index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 0;
    for index in (0..PAGES).filter(|index| !is_left(index)) {
        assert_eq!(client.write(index << 12, &[0; 4096]).unwrap(), 0);
    }
    let before = home.json(&["stat", "disk", "--json"]);
    let ran = home.run(&["compact", "disk"]);
    let after = home.json(&["stat", "disk", "--json"]);
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
    let resident = |stat: &serde_json::Value| stat["mem_resident"].as_u64().unwrap();
    let bytes = resident(&before) - resident(&after);
    assert!(bytes > resident(&before) / 5, "{before}, {after}");
    assert!(ran.stdout.starts_with("disk: "), "{}", ran.stdout);
    let said = format!(" ({bytes} bytes) given back, ");
    assert!(ran.stdout.contains(&said), "{bytes}: {}", ran.stdout);
    assert!(after["pages_compacted"].as_u64().unwrap() > 0, "{after}");
    assert_eq!(after["compr_data_size"], before["compr_data_size"]);
    for index in (0..PAGES).filter(is_left) {
        assert!(
            client.read(index << 12, 4096).unwrap() == page(index),
            "page {index}"
        );
    }
    let again = home.run(&["compact", "disk"]).stdout;
    assert!(
        again.starts_with("disk: 0 B (0 bytes) given back"),
        "{again}"
    );
    let ran = home.run(&["compact", "nosuch"]);
    ran.refused(1, "no disk \"nosuch\"; served are: disk");
    // Any value will do, as for the kernel's.
    assert_eq!(home.run(&["set", "disk", "compact", "x"]).status, 0);
}
