//! A queue of the ublk frontend under a kernel that says anything: arrivals under any tag with any result,
//! requests of any operation, flags and range. Each answer is what a model of the disk says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uzram::{Store, Unit, Zram};
use uzram_frontends::ublk::hostile::{Said, Shape, serve};

uzram_fuzz::sanitizer_options!();

const SECTOR_BYTES: usize = 512;
const SIZE_BYTES: usize = 64 << 10;
const SAID_BYTES: usize = 8;
const EINVAL: i32 = -22;
const EOPNOTSUPP: i32 = -95;

fuzz_target!(|data: &[u8]| {
    let [depth, request_sectors, flags, said @ ..] = data else {
        return;
    };
    let unit = [4096, 16384][usize::from(flags & 1)];
    let shape = Shape {
        depth: u16::from(depth % 8) + 1,
        request_bytes: (usize::from(request_sectors % 64) + 1) * SECTOR_BYTES,
        is_lost: flags & 2 != 0,
    };
    let said: Vec<Said> = said
        .as_chunks()
        .0
        .iter()
        .map(|bytes| decode(*bytes))
        .collect();
    let store = Store::builder().size(SIZE_BYTES as u64).algorithm("lz4");
    let store = store.unit(Unit::new(unit as u64).unwrap()).build().unwrap();
    let device = Zram::new(store);
    let mut model = vec![0; SIZE_BYTES];
    serve(&device, shape, &said, &mut |said, buffer, result| {
        assert_eq!(buffer.len(), shape.request_bytes);
        check(&mut model, unit, said, buffer, result);
    });
    let whole = Said {
        tag: 0,
        result: 0,
        operation_and_flags: 0,
        sectors: (SIZE_BYTES / SECTOR_BYTES) as u32,
        first_sector: 0,
        fill: 0xa5,
        is_last_of_batch: false,
    };
    let shape = Shape {
        depth: 1,
        request_bytes: SIZE_BYTES,
        is_lost: false,
    };
    serve(&device, shape, &[whole], &mut |said, buffer, result| {
        check(&mut model, unit, said, buffer, result);
    });
});

/// Mostly what means something; each field can be anything all the same.
fn decode([tag, result, operation, flags, first, sectors, wide, fill]: [u8; SAID_BYTES]) -> Said {
    let spread = |value: u8, shift: u8| match shift {
        0..=8 => u64::from(value),
        15 => u64::MAX - u64::from(value),
        _ => u64::from(value) << (shift * 5 % 64),
    };
    Said {
        tag: match tag {
            0..0xf0 => u64::from(tag % 9),
            _ => spread(tag, tag & 15),
        },
        result: match result {
            0..0xe0 => 0,
            _ => [1, -19, -1, -125, i32::MAX, i32::MIN][usize::from(result % 6)],
        },
        operation_and_flags: u32::from_le_bytes([
            match operation {
                0..0xf0 => operation % 7,
                _ => operation,
            },
            flags & 0xf0,
            flags & 0xf,
            flags,
        ]),
        sectors: spread(sectors, wide >> 4) as u32,
        first_sector: spread(first, wide & 15),
        fill,
        is_last_of_batch: flags & 1 != 0,
    }
}

/// Compares the reply to the kernel with the model of the disk, and brings the model up to date.
fn check(model: &mut [u8], unit: usize, said: &Said, buffer: &[u8], result: i32) {
    let operation = said.operation_and_flags as u8;
    let start = u128::from(said.first_sector) * SECTOR_BYTES as u128;
    let length = u128::from(said.sectors) * SECTOR_BYTES as u128;
    if operation == 2 {
        return assert_eq!(result, 0);
    }
    let has_data = operation < 2;
    let is_known = has_data || matches!(operation, 3 | 5);
    if !is_known {
        return assert!(matches!(result, EINVAL | EOPNOTSUPP), "{said:?}: {result}");
    }
    let has_room = (1..=buffer.len() as u128).contains(&length);
    if start + length > model.len() as u128 || has_data && !has_room {
        return assert_eq!(result, EINVAL, "{said:?}");
    }
    let (start, end) = (start as usize, (start + length) as usize);
    let length = end - start;
    let mut filled = vec![0; buffer.len()];
    said.fill(&mut filled);
    assert_eq!(result, if has_data { length as i32 } else { 0 }, "{said:?}");
    match operation {
        0 => {
            assert!(buffer[..length] == model[start..end], "{said:?}");
            assert!(buffer[length..] == filled[length..], "{said:?}");
        }
        1 => {
            assert!(buffer == filled, "{said:?}");
            model[start..end].copy_from_slice(&filled[..length]);
        }
        3 => {
            // Whole units become holes, others stay.
            let (first, last) = (start.next_multiple_of(unit), end / unit * unit);
            if first < last {
                model[first..last].fill(0);
            }
        }
        _ => model[start..end].fill(0),
    }
}
