//! Arbitrary bytes into each codec's decoder: an error or a page, never a write outside the page and
//! never what the page's memory held before. The same bytes, made a page, must survive compression;
//! damaged afterwards, must not harm.

#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use uzram::{Compression, Compressor, Decompressor, Malformed, Parameters, Unit};

const UNITS_BYTES: [u64; 3] = [4096, 16384, 65536];
const CANARY_BYTES: usize = 64;
/// Around the page, and in it before.
const CANARIES: [u8; 2] = [0xa5, 0x5a];

struct Subject {
    unit: Unit,
    compressor: Box<dyn Compressor>,
    decompressor: Decompressor,
}

impl Subject {
    /// Every codec in every unit, and again with a dictionary where it takes one.
    fn all() -> Vec<Subject> {
        let names = uzram::algorithms().into_iter();
        let pairs = names.flat_map(|name| UNITS_BYTES.map(|unit| (name, Unit::new(unit).unwrap())));
        let subjects = pairs.flat_map(|(name, unit)| {
            let plain = Subject::new(&Compression::new(name, unit).unwrap());
            let parameters = Parameters::default().dictionary(dictionary());
            let with = Compression::with_parameters(name, &parameters, unit).ok();
            [Some(plain), with.as_deref().map(Subject::new)]
        });
        subjects.flatten().collect()
    }

    /// The contexts outlive what made them.
    fn new(compression: &Compression) -> Subject {
        let (codec, unit) = (compression.codec(), compression.unit());
        Subject {
            unit,
            compressor: codec.compressor(unit).unwrap(),
            decompressor: codec.decompressor(unit).unwrap(),
        }
    }

    /// Decodes twice, over different old bytes.
    fn decode(&mut self, source: &[u8]) -> Result<Vec<u8>, Malformed> {
        let [once, again] = CANARIES.map(|canary| self.decode_over(canary, source));
        assert!(once == again, "the page depends on its old bytes");
        once
    }

    /// Decodes between canaries.
    fn decode_over(&mut self, canary: u8, source: &[u8]) -> Result<Vec<u8>, Malformed> {
        let unit = self.unit.bytes();
        let mut bytes = vec![canary; unit + 2 * CANARY_BYTES];
        let page = &mut bytes[CANARY_BYTES..][..unit];
        let decoded = match &mut self.decompressor {
            Decompressor::Shared(shared) => shared.decompress(source, page),
            Decompressor::Stateful(state) => state.decompress(source, page),
        };
        let outside = bytes[..CANARY_BYTES]
            .iter()
            .chain(&bytes[CANARY_BYTES + unit..]);
        assert!(
            outside.into_iter().all(|byte| *byte == canary),
            "wrote outside the page"
        );
        decoded.map(|()| bytes[CANARY_BYTES..][..unit].to_vec())
    }

    fn round_trip(&mut self, data: &[u8], at: usize, mask: u8) {
        let unit = self.unit.bytes();
        let pattern = [data, &[0]].concat();
        let page = pattern.repeat(unit.div_ceil(pattern.len()))[..unit].to_vec();
        let mut packed = vec![0; 2 * unit];
        let length = self
            .compressor
            .compress(&page, &mut packed)
            .expect("two units suffice");
        packed.truncate(length);
        // An exact copy, so that the sanitizer sees a read past its end.
        let mut packed = packed.into_boxed_slice();
        assert!(self.decode(&packed).expect("own output") == page);
        packed[at % length] ^= mask;
        let _ = self.decode(&packed);
        let _ = self.decode(&packed[..at % length]);
        packed[at % length] ^= mask;
        assert!(self.decode(&packed).expect("no state is left behind") == page);
    }
}

/// Bytes that pages made of the fuzzer's input can match, shorter than what lz4 reaches.
fn dictionary() -> Vec<u8> {
    let word = |n: u32| (n * n / 7).to_le_bytes();
    (0..3000).flat_map(word).collect()
}

thread_local! {
    static SUBJECTS: RefCell<Vec<Subject>> = RefCell::new(Subject::all());
}

uzram_fuzz::sanitizer_options!();

fuzz_target!(|data: &[u8]| {
    let [which, mask, low, high, bytes @ ..] = data else {
        return;
    };
    SUBJECTS.with_borrow_mut(|subjects| {
        let which = usize::from(*which);
        let index = which % subjects.len();
        let subject = &mut subjects[index];
        if which < 128 {
            let _ = subject.decode(bytes);
        } else {
            subject.round_trip(bytes, usize::from(u16::from_le_bytes([*low, *high])), *mask);
        }
    });
});
