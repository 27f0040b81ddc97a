//! The guest's root filesystem: a cpio archive in the "newc" format, uncompressed, because making
//! and unpacking a compressed one takes longer than reading it.
//!
//! Format: a header of `070701` and 13 numbers of 8 hexadecimal digits, the name with a NUL, the
//! content; header with name, and content, are padded to 4 bytes. An entry `TRAILER!!!` ends it.

use std::collections::BTreeSet;

const TRAILER: &str = "TRAILER!!!";
const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_000;

/// A root filesystem in the making. Paths are absolute; folders are made as needed.
#[derive(Default)]
pub struct Initramfs {
    archive: Vec<u8>,
    names: BTreeSet<String>,
}

impl Initramfs {
    /// An empty folder.
    pub fn folder(&mut self, path: &str) {
        self.parents(&format!("{path}/."));
    }

    /// A readable file; of several with the same path the first counts.
    pub fn file(&mut self, path: &str, executable: bool, content: &[u8]) {
        self.parents(path);
        let permissions = if executable { 0o755 } else { 0o644 };
        self.entry(path, FILE | permissions, content);
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.append(0, TRAILER, 0, &[]);
        self.archive
    }

    fn parents(&mut self, path: &str) {
        let slashes = path.match_indices('/').map(|(at, _)| at);
        for at in slashes.filter(|at| *at > 0) {
            self.entry(&path[..at], FOLDER, &[]);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        let name = path.trim_start_matches('/');
        if self.names.insert(name.to_string()) {
            let inode = u32::try_from(self.names.len()).expect("fewer entries than inodes");
            self.append(inode, name, mode, content);
        }
    }

    fn append(&mut self, inode: u32, name: &str, mode: u32, content: &[u8]) {
        let size = u32::try_from(content.len()).expect("programs are smaller than 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("names are short");
        let numbers = [inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.archive.extend_from_slice(b"070701");
        for number in numbers {
            self.archive
                .extend_from_slice(format!("{number:08x}").as_bytes());
        }
        self.archive.extend_from_slice(name.as_bytes());
        self.archive.push(0);
        self.pad();
        self.archive.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        let padded = self.archive.len().next_multiple_of(4);
        self.archive.resize(padded, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, mode and content of each entry, read back by the format's rules.
    fn entries(archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut found = Vec::new();
        let mut at = 0;
        loop {
            assert_eq!(&archive[at..at + 6], b"070701");
            let number = |index: usize| {
                let start = at + 6 + index * 8;
                let digits = std::str::from_utf8(&archive[start..start + 8]).unwrap();
                u32::from_str_radix(digits, 16).unwrap()
            };
            let (size, name_size) = (number(6) as usize, number(11) as usize);
            let name_start = at + 110;
            let name = &archive[name_start..name_start + name_size - 1];
            assert_eq!(archive[name_start + name_size - 1], 0);
            let name = String::from_utf8(name.to_vec()).unwrap();
            let start = (name_start + name_size).next_multiple_of(4);
            if name == TRAILER {
                assert_eq!(start, archive.len());
                return found;
            }
            let content = archive[start..start + size].to_vec();
            found.push((name, number(1), content));
            at = (start + size).next_multiple_of(4);
        }
    }

    #[test]
    fn an_archive_reads_back_as_it_was_written() {
        let mut root = Initramfs::default();
        root.file("/init", true, b"12345");
        root.file("/etc/a/b", false, b"");
        root.folder("/proc");
        let entry = |name: &str, mode, content: &[u8]| (name.to_string(), mode, content.to_vec());
        let expected = [
            entry("init", 0o100_755, b"12345"),
            entry("etc", 0o040_755, b""),
            entry("etc/a", 0o040_755, b""),
            entry("etc/a/b", 0o100_644, b""),
            entry("proc", 0o040_755, b""),
        ];
        assert_eq!(entries(&root.finish()), expected);
    }

    #[test]
    fn a_path_appears_once() {
        let mut root = Initramfs::default();
        root.file("/lib/a", false, b"first");
        root.file("/lib/a", false, b"second");
        root.folder("/lib");
        let names: Vec<_> = entries(&root.finish())
            .into_iter()
            .map(|(name, _, content)| (name, content))
            .collect();
        assert_eq!(
            names,
            [("lib".into(), vec![]), ("lib/a".into(), b"first".to_vec())]
        );
    }
}
