//! Allocation that reports failure as an error.

use uzram::{Error, ErrorKind, Result};

/// A boxed slice of `length` copies of `value`.
///
/// # Errors
/// [`ErrorKind::NoMemory`].
pub(crate) fn boxed_slice<T: Clone>(length: usize, value: T) -> Result<Box<[T]>> {
    let mut items = Vec::new();
    items.try_reserve_exact(length).map_err(no_memory)?;
    items.resize(length, value);
    Ok(items.into_boxed_slice())
}

/// Appends `item`.
///
/// # Errors
/// [`ErrorKind::NoMemory`]; `items` is unchanged.
pub(crate) fn push<T>(items: &mut Vec<T>, item: T) -> Result<()> {
    items.try_reserve(1).map_err(no_memory)?;
    items.push(item);
    Ok(())
}

fn no_memory(_: std::collections::TryReserveError) -> Error {
    Error::new(
        ErrorKind::NoMemory,
        "the system gave no memory for the device's tables; free some or choose a smaller device",
    )
}
