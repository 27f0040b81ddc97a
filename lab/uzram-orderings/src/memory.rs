//! The engine's allocations, which never fail here.

use crate::error::Result;

pub(crate) fn push<T>(items: &mut Vec<T>, item: T) -> Result<()> {
    items.push(item);
    Ok(())
}
