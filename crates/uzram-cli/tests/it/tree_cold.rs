//! Pages that nobody uses, by zram's files: marked, packed again, written back.

use std::fs;

use crate::nbd_client::NbdClient;
use crate::support::noise;
use crate::tree::{EBUSY, EINVAL, ENODEV, ERANGE, Tree};

const ENOTBLK: i32 = 15;
const EIO: i32 = 5;
const EISDIR: i32 = 21;
/// Pages of text, then of noise.
const PAGES: u64 = 64;

fn text(page: u64) -> Vec<u8> {
    let words = format!("page {page} of words that pack well, and better by zstd than by lz4; ");
    words.bytes().cycle().take(4096).collect()
}

#[test]
fn pages_that_nobody_uses_are_packed_again_and_written_back() {
    let folder = tempfile::tempdir().unwrap();
    let backing = folder.path().join("backing");
    fs::write(&backing, "").unwrap();
    let allowed = folder.path().to_str().unwrap();
    let Some(tree) = Tree::new(&["--ages", "--tree-files", allowed]) else {
        return;
    };
    tree.read("hot_add");
    let file = |name: &str| format!("uzram0/{name}");
    let write = |name: &str, value: &str| tree.write(&file(name), value.as_bytes());
    assert_eq!(tree.read(&file("recomp_algorithm")), "");
    assert_eq!(tree.read(&file("backing_dev")), "none\n");
    assert_eq!(tree.read(&file("writeback_batch_size")), "32\n");
    for (name, value) in [
        ("comp_algorithm", "lz4"),
        ("recomp_algorithm", "algo=zstd priority=1"),
        ("recomp_algorithm", "algo=deflate priority=2"),
        ("algorithm_params", "algo=zstd priority=1 level=9"),
        ("algorithm_params", "algo=deflate level=6"),
        ("writeback_limit", "1000"),
        ("writeback_batch_size", "16"),
        ("compressed_writeback", "1"),
    ] {
        assert_eq!(write(name, value), Ok(()), "{name} {value}");
    }
    assert_eq!(write("backing_dev", allowed), Err(EISDIR));
    assert_eq!(write("backing_dev", backing.to_str().unwrap()), Ok(()));
    let chosen = tree.read(&file("recomp_algorithm"));
    assert!(
        chosen.starts_with("#1: ") && chosen.contains("[zstd] "),
        "{chosen}"
    );
    assert_eq!(chosen.lines().count(), 2);
    assert_eq!(write("idle", "all"), Err(EINVAL), "no size yet");
    assert_eq!(write("disksize", "4M"), Ok(()));
    for (name, value) in [
        ("recomp_algorithm", "algo=zstd"),
        ("backing_dev", backing.to_str().unwrap()),
        ("compressed_writeback", "0"),
    ] {
        assert_eq!(write(name, value), Err(EBUSY), "{name}");
    }

    let mut client = NbdClient::connect(&tree.home.state().join("uzram0.nbd"), "uzram0").unwrap();
    for page in 0..PAGES {
        client.write(page * 4096, &text(page)).unwrap();
        client
            .write((PAGES + page) * 4096, &noise(page, 4096))
            .unwrap();
    }
    let states =
        || fs::read_to_string(tree.directory.join("debug/zram/uzram0/block_state")).unwrap();
    assert_eq!(states().lines().count() as u64, 2 * PAGES);
    assert!(!states().contains('i'), "nothing is idle yet");
    assert_eq!(write("idle", "3600"), Ok(()));
    assert!(!states().contains('i'), "nothing is that old");
    assert_eq!(write("idle", "all"), Ok(()));
    assert!(states().lines().all(|line| line.contains('i')));
    client.read(0, 4096).unwrap();
    assert!(
        !states().lines().next().unwrap().contains('i'),
        "it was used"
    );

    let before = tree.column("uzram0/mm_stat", 1);
    assert_eq!(write("recompress", "type=idle"), Ok(()));
    assert!(
        tree.column("uzram0/mm_stat", 1) < before,
        "zstd packs better"
    );
    assert!(states().contains('r'));
    for (value, errno) in [
        ("", None),
        ("type=cold", Some(EINVAL)),
        ("priority=3", Some(EINVAL)),
        ("algo=lzo", Some(EINVAL)),
        ("algo=zstd priority=2", Some(EINVAL)),
        ("threshold=4096", Some(EINVAL)),
        ("threshold=x", Some(EINVAL)),
        ("type", Some(EINVAL)),
        ("max_pages=1 colour=red", Some(EINVAL)),
    ] {
        assert_eq!(
            write("recompress", value).err(),
            errno,
            "recompress {value}"
        );
    }

    for (value, errno) in [
        ("x", EINVAL),
        ("type=all", EINVAL),
        ("page_index=1024", ERANGE),
        ("page_indexes=5-1024", ERANGE),
        ("page_indexes=5-4", ERANGE),
        ("page_indexes=5", EINVAL),
        ("page_index=-1", EINVAL),
        ("page_index=1 page_index=x", EINVAL),
    ] {
        assert_eq!(write("writeback", value), Err(errno), "writeback {value}");
    }
    assert_eq!(
        tree.column("uzram0/bd_stat", 0),
        0,
        "a refusal writes nothing"
    );
    assert_eq!(
        write("writeback", "page_index=0 page_indexes=2-5\n"),
        Ok(())
    );
    assert_eq!(tree.column("uzram0/bd_stat", 0), 5);
    assert_eq!(write("writeback", "huge"), Ok(()));
    assert_eq!(tree.column("uzram0/bd_stat", 0), 5 + PAGES);
    assert_eq!(states().matches('w').count() as u64, 5 + PAGES);
    // The limit, once it holds.
    assert_eq!(write("writeback_limit", "0"), Ok(()));
    assert_eq!(write("writeback_limit_enable", "1"), Ok(()));
    assert_eq!(write("idle", "all"), Ok(()));
    assert_eq!(write("writeback", "type=idle"), Err(EIO));
    assert_eq!(write("writeback_limit_enable", "0"), Ok(()));
    assert_eq!(write("writeback", "type=idle"), Ok(()));
    for page in 0..PAGES {
        assert!(client.read(page * 4096, 4096).unwrap() == text(page));
        assert!(client.read((PAGES + page) * 4096, 4096).unwrap() == noise(page, 4096));
    }
    assert!(tree.column("uzram0/bd_stat", 1) > 0 && tree.column("uzram0/bd_stat", 2) > PAGES);
    drop(client);
    crate::support::eventually("the reset", || write("reset", "1").is_ok());
    assert_eq!(tree.read(&file("backing_dev")), "none\n");
    assert_eq!(write("disksize", "1M"), Ok(()));
    assert_eq!(write("writeback", "huge"), Err(ENODEV));
    assert_eq!(write("recompress", "type=idle"), Err(EINVAL));
    // What is neither a disk nor a file.
    assert_eq!(write("reset", "1"), Ok(()));
    let fifo = folder.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    assert_eq!(write("backing_dev", fifo.to_str().unwrap()), Err(ENOTBLK));
}
