//! The choice of the version of the code that runs: the best that the CPU has and the environment
//! does not mask.

#[cfg(all(target_arch = "aarch64", feature = "std"))]
use crate::neon;
#[cfg(all(target_arch = "x86_64", feature = "std"))]
use crate::{avx2, avx512};

/// The code that is used. All versions write and read the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Scalar,
    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    Avx2(avx2::Present),
    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    Avx512(avx512::Present),
    #[cfg(all(target_arch = "aarch64", feature = "std"))]
    Neon(neon::Present),
}

/// The variable in the environment that names the best version to use.
#[cfg(feature = "std")]
const MASK: &str = "UZRAM_WORDS_CPU";

impl Version {
    /// Portable code without any unsafe.
    pub const SCALAR: Version = Version(Kind::Scalar);

    /// The best version that this CPU has and that `UZRAM_WORDS_CPU` in the environment does not
    /// mask. The CPU is looked at in the first call; later ones are cheap.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn best() -> Version {
        static BEST: std::sync::OnceLock<Version> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| {
            let most = std::env::var(MASK).ok();
            let rank = |name: &str| NAMES.iter().position(|known| *known == name);
            let most = most.and_then(|name| rank(&name)).unwrap_or(NAMES.len());
            let allowed = Version::all().filter(|version| rank(version.name()) <= Some(most));
            allowed.last().unwrap_or(Version::SCALAR)
        })
    }

    /// The versions that this CPU has, the slowest first.
    #[cfg(feature = "std")]
    pub fn all() -> impl Iterator<Item = Version> {
        let kinds = [
            Some(Kind::Scalar),
            #[cfg(all(target_arch = "x86_64", feature = "std"))]
            avx2::Present::detect().map(Kind::Avx2),
            #[cfg(all(target_arch = "x86_64", feature = "std"))]
            avx512::Present::detect().map(Kind::Avx512),
            #[cfg(all(target_arch = "aarch64", feature = "std"))]
            neon::Present::detect().map(Kind::Neon),
        ];
        kinds.into_iter().flatten().map(Version)
    }

    /// The name that `UZRAM_WORDS_CPU` takes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => NAMES[0],
            #[cfg(all(target_arch = "x86_64", feature = "std"))]
            Kind::Avx2(_) => NAMES[1],
            #[cfg(all(target_arch = "x86_64", feature = "std"))]
            Kind::Avx512(_) => NAMES[2],
            #[cfg(all(target_arch = "aarch64", feature = "std"))]
            Kind::Neon(_) => NAMES[1],
        }
    }

    pub(crate) const fn kind(self) -> Kind {
        self.0
    }
}

/// The names of all versions for this kind of CPU, the slowest first.
const NAMES: &[&str] = if cfg!(target_arch = "aarch64") {
    &["scalar", "neon"]
} else {
    &["scalar", "avx2", "avx512"]
};
