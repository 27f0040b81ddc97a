//! `/proc/N/maps` and `/proc/N/pagemap`: the ranges of a process's own memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::plan::Segment;

/// Entries of the page map read at once.
const PAGEMAP_BATCH: usize = 4096;
/// Either the page is in memory or it was swapped out: the process has touched it.
const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;

/// The readable private anonymous mappings (heap and stacks included) in a text of `/proc/N/maps`.
///
/// Not files, not shared memory, not devices, not what the kernel maps (`[vdso]`, `[vvar]`,
/// `[vsyscall]`). Lines that are not understood are passed over.
pub fn anonymous(maps: &str) -> Vec<Segment> {
    maps.lines().filter_map(mapping).collect()
}

fn mapping(line: &str) -> Option<Segment> {
    // 55d0a000-55d2b000 rw-p 00000000 00:00 0      [heap]
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?.as_bytes();
    let (_offset, _device, _inode) = (fields.next()?, fields.next()?, fields.next()?);
    let path = fields.next().unwrap_or("").trim_start();
    let is_private = permissions.first() == Some(&b'r') && permissions.get(3) == Some(&b'p');
    if !is_private || !is_memory_of_its_own(path) {
        return None;
    }
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    Some(Segment {
        start,
        bytes: end.checked_sub(start)?,
    })
}

fn is_memory_of_its_own(path: &str) -> bool {
    path.is_empty() || path == "[heap]" || path.starts_with("[stack") || path.starts_with("[anon:")
}

/// The parts of `segment` that the process has touched; `page_bytes` is the system's page size.
///
/// # Errors
/// The system's error; a process that ended reads as an empty map.
pub fn touched(pagemap: &File, segment: Segment, page_bytes: u64) -> io::Result<Vec<Segment>> {
    let mut parts: Vec<Segment> = Vec::new();
    let mut batch = vec![0; PAGEMAP_BATCH * 8];
    let first = segment.start / page_bytes;
    let end = (segment.start + segment.bytes) / page_bytes;
    let mut page = first;
    while page < end {
        let wanted = ((end - page) as usize).min(PAGEMAP_BATCH) * 8;
        let got = pagemap.read_at(&mut batch[..wanted], page * 8)?;
        if got < 8 {
            break;
        }
        for entry in batch[..got].as_chunks::<8>().0 {
            if u64::from_ne_bytes(*entry) & PRESENT_OR_SWAPPED != 0 {
                append(&mut parts, page * page_bytes, page_bytes);
            }
            page += 1;
        }
    }
    Ok(parts)
}

fn append(parts: &mut Vec<Segment>, start: u64, bytes: u64) {
    match parts.last_mut() {
        Some(last) if last.start + last.bytes == start => last.bytes += bytes,
        _ => parts.push(Segment { start, bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_of_its_own_is_taken() {
        let maps = "\
55d0a000-55d2b000 r--p 00000000 08:01 131 /usr/bin/cat
55d2b000-55d2c000 rw-p 00000000 08:01 131 /usr/bin/cat
55d30000-55d51000 rw-p 00000000 00:00 0                          [heap]
7f000000-7f001000 rw-p 00000000 00:00 0 
7f001000-7f002000 ---p 00000000 00:00 0 
7f002000-7f003000 rw-s 00000000 00:00 0 
7f003000-7f004000 rw-s 00000000 00:05 99 /dev/zero (deleted)
7f004000-7f006000 rw-p 00000000 00:00 0                          [anon:arena of mine]
7ffc0000-7ffe0000 rw-p 00000000 00:00 0                          [stack]
7ffe0000-7ffe4000 r--p 00000000 00:00 0                          [vvar]
7ffe4000-7ffe6000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";
        let starts: Vec<u64> = anonymous(maps).iter().map(|s| s.start).collect();
        assert_eq!(starts, [0x55d3_0000, 0x7f00_0000, 0x7f00_4000, 0x7ffc_0000]);
        assert_eq!(anonymous(maps)[0].bytes, 0x21000);
    }

    #[test]
    fn nonsense_is_passed_over() {
        for line in [
            "",
            "-",
            "x-y rw-p 0 0 0",
            "2-1 rw-p 0 00:00 0",
            "1-2",
            "1-2 r 0 00:00 0",
        ] {
            assert!(anonymous(line).is_empty(), "{line:?}");
        }
    }
}
