//! uzram engine.
pub mod device;
mod error;
mod page;

pub use device::{Bio, BlockDevice, Geometry, Zeroing};
pub use error::{Error, ErrorKind, Result};
pub use page::{PageIndex, Unit};
