//! Ctrl-C: benchmarks look at one flag between chunks and leave in order, undoing their set-up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// Raised by SIGINT, SIGTERM and SIGHUP.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    raised: Arc<AtomicBool>,
}

impl Stop {
    /// Takes the three signals over.
    pub fn on_signals() -> Result<Stop> {
        let stop = Stop::default();
        for signal in [
            signal_hook::consts::SIGINT,
            signal_hook::consts::SIGTERM,
            signal_hook::consts::SIGHUP,
        ] {
            signal_hook::flag::register(signal, Arc::clone(&stop.raised))
                .map_err(|error| Error::io("signal handlers", error))?;
        }
        Ok(stop)
    }

    /// As a signal does.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }

    /// [`Error::Interrupted`] once a signal came.
    pub fn check(&self) -> Result<()> {
        if self.raised.load(Ordering::Relaxed) {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_stops_the_next_check() {
        let stop = Stop::on_signals().unwrap();
        assert!(stop.check().is_ok());
        signal_hook::low_level::raise(signal_hook::consts::SIGHUP).unwrap();
        assert!(matches!(stop.check(), Err(Error::Interrupted)));
    }
}
