//! Files beside a device's lock that outlive its server.

use std::path::PathBuf;

use super::StateDir;

impl StateDir {
    /// The log of a server that runs in the background for the device `name`.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.file(name, "log")
    }

    /// The note of the kernel's setting that swapping to the device `name` changed.
    #[must_use]
    pub fn watermark(&self, name: &str) -> PathBuf {
        self.file(name, "watermark")
    }

    /// The names of devices with such a note.
    #[must_use]
    pub fn watermark_names(&self) -> Vec<String> {
        self.names_with(&[".watermark"])
    }

    /// The note of the settings of zswap that swapping to the device `name` changed.
    #[must_use]
    pub fn zswap(&self, name: &str) -> PathBuf {
        self.file(name, "zswap")
    }

    /// The names of devices with such a note.
    #[must_use]
    pub fn zswap_names(&self) -> Vec<String> {
        self.names_with(&[".zswap"])
    }

    /// The note of the use of the device `name`.
    #[must_use]
    pub fn use_note(&self, name: &str) -> PathBuf {
        self.file(name, "up")
    }

    /// The names of devices with such a note.
    #[must_use]
    pub fn use_notes(&self) -> Vec<String> {
        self.names_with(&[".up"])
    }
}
