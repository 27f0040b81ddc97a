//! The sides of the suite, made.

use super::bare;
use super::contender::{Contender, Copy, Engine};
use crate::error::Result;

/// The contenders for `algorithms`: each behind the engine's interface, its library if it has one and
/// that is wanted, and first of all a copy if that is wanted.
pub(super) fn all(
    algorithms: &[String],
    with_libraries: bool,
    with_copy: bool,
) -> Result<Vec<Box<dyn Contender>>> {
    let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
    if with_copy {
        contenders.push(Box::new(Copy));
    }
    for algorithm in algorithms {
        contenders.push(Box::new(Engine::new(algorithm)?));
        if with_libraries {
            contenders.extend(bare::library(algorithm)?);
        }
    }
    Ok(contenders)
}
