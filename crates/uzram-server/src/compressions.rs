//! Codecs with their streams, shared by the devices with the same algorithm, parameters and unit for as
//! long as there are any. The lock is the last of all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use uzram::{Compression, Parameters, Unit};

use crate::error::Result;

/// The codecs of a server.
#[derive(Default)]
pub(crate) struct Compressions(Mutex<HashMap<(String, Parameters, Unit), Weak<Compression>>>);

impl Compressions {
    /// The codec of this name.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownName`](uzram::ErrorKind::UnknownName), and
    /// [`ErrorKind::InvalidInput`](uzram::ErrorKind::InvalidInput) for parameters that it does not take.
    pub(crate) fn shared(
        &self,
        algorithm: &str,
        parameters: &Parameters,
        unit: Unit,
    ) -> Result<Arc<Compression>> {
        // Loaded: of a dictionary its bytes count, and not the name of its file.
        let key = (algorithm.to_owned(), parameters.clone().load()?, unit);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compression) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(compression);
        }
        known.retain(|_, compression| compression.strong_count() > 0);
        let compression = Compression::with_parameters(&key.0, &key.1, key.2)?;
        known.insert(key, Arc::downgrade(&compression));
        Ok(compression)
    }
}
