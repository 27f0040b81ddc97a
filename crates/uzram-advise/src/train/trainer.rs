//! zstd's trainer of dictionaries: the cover algorithm in its fast form, by libzstd.

#![allow(unsafe_code)]

use std::ffi::c_uint;

use zstd_safe::zstd_sys;

use crate::error::{Error, Result};

/// Length of the pieces whose frequency is counted, in bytes: 6 finds more in pages than the library's 8.
const PIECE_BYTES: c_uint = 6;
/// log2 of the counters.
const COUNTERS_BITS: c_uint = 20;
/// Lengths of segments that are tried; the one whose dictionary compresses the samples best wins.
const STEPS: c_uint = 8;
/// The level for which the dictionary's statistics are made.
const LEVEL: i32 = 3;

/// A dictionary of at most `size_bytes` for pages that resemble `samples`, each `sample_bytes` long.
///
/// # Errors
/// The library's error for samples that are too few or all alike.
pub(super) fn train(samples: &[u8], sample_bytes: usize, size_bytes: usize) -> Result<Vec<u8>> {
    let sizes = vec![sample_bytes; samples.len() / sample_bytes];
    let count = c_uint::try_from(sizes.len())
        .map_err(|_| Error::Usage(format!("{} samples: too many", sizes.len())))?;
    let mut dictionary = vec![0; size_bytes];
    let mut parameters = zstd_sys::ZDICT_fastCover_params_t {
        k: 0,
        d: PIECE_BYTES,
        f: COUNTERS_BITS,
        steps: STEPS,
        nbThreads: 1,
        // All samples are trained on; what the dictionary is worth is measured on other pages.
        splitPoint: 1.0,
        accel: 1,
        shrinkDict: 0,
        shrinkDictMaxRegression: 0,
        zParams: zstd_sys::ZDICT_params_t {
            compressionLevel: LEVEL,
            notificationLevel: 0,
            dictID: 0,
        },
    };
    // SAFETY: both buffers are valid for the lengths given, the sizes add up to at most the samples'
    // length, and the parameters live through the call.
    let length = unsafe {
        zstd_sys::ZDICT_optimizeTrainFromBuffer_fastCover(
            dictionary.as_mut_ptr().cast(),
            dictionary.len(),
            samples.as_ptr().cast(),
            sizes.as_ptr(),
            count,
            &raw mut parameters,
        )
    };
    // SAFETY: a function of a number.
    if unsafe { zstd_sys::ZDICT_isError(length) } != 0 {
        let why = zstd_safe::get_error_name(length);
        return Err(Error::Failed(format!(
            "training on {count} pages: {why}; take more pages, or others"
        )));
    }
    dictionary.truncate(length);
    Ok(dictionary)
}
