//! The peers that uzram is measured against, one file per peer. This is the one list of their names.

pub(crate) mod kernel_zram;
pub(crate) mod memcpy;
pub(crate) mod nbdkit;
pub(crate) mod raw_codec;
pub(crate) mod wkdm;

use crate::error::{Error, Result};

/// A peer of some suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    RawCodec,
    BareLibrary,
    OtherLevels,
    Snappy,
    Wkdm,
    Memcpy,
    KernelZram,
    NbdkitMemory,
    NbdkitZstd,
    FuseNull,
    Nbdfuse,
    TmpfsLoop,
    KernelBrd,
    KernelZramSwap,
    LoopSwap,
    SmallPages,
    HugePages,
    Malloc,
    Mimalloc,
}

impl Peer {
    pub(crate) const STORE: [Peer; 3] = [Peer::RawCodec, Peer::Memcpy, Peer::KernelZram];
    pub(crate) const POOLS: [Peer; 2] = [Peer::Malloc, Peer::Mimalloc];
    pub(crate) const CODECS: [Peer; 5] = [
        Peer::BareLibrary,
        Peer::OtherLevels,
        Peer::Snappy,
        Peer::Wkdm,
        Peer::Memcpy,
    ];
    pub(crate) const NBD: [Peer; 2] = [Peer::NbdkitMemory, Peer::NbdkitZstd];

    pub(crate) const JOBS: [Peer; 1] = [Peer::KernelZram];
    pub(crate) const CONTENTION: [Peer; 1] = [Peer::KernelZram];

    pub(crate) const PAGER: [Peer; 4] = [
        Peer::KernelZramSwap,
        Peer::LoopSwap,
        Peer::SmallPages,
        Peer::HugePages,
    ];

    pub(crate) const DEVICES: [Peer; 5] = [
        Peer::FuseNull,
        Peer::Nbdfuse,
        Peer::TmpfsLoop,
        Peer::KernelZram,
        Peer::KernelBrd,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::RawCodec => "raw-codec",
            Peer::BareLibrary => "bare-library",
            Peer::OtherLevels => "other-levels",
            Peer::Snappy => "snappy",
            Peer::Wkdm => "wkdm",
            Peer::Memcpy => "memcpy",
            Peer::KernelZram => "kernel-zram",
            Peer::NbdkitMemory => "nbdkit-memory",
            Peer::NbdkitZstd => "nbdkit-zstd",
            Peer::FuseNull => "fuse-null",
            Peer::Nbdfuse => "nbdfuse",
            Peer::TmpfsLoop => "tmpfs-loop",
            Peer::KernelBrd => "kernel-brd",
            Peer::KernelZramSwap => "kernel-zram-swap",
            Peer::LoopSwap => "loop-swap",
            Peer::SmallPages => "small-pages",
            Peer::HugePages => "huge-pages",
            Peer::Malloc => "malloc",
            Peer::Mimalloc => "mimalloc",
        }
    }

    /// The peers of `names`, all of `known` for no names.
    pub(crate) fn parse(names: &[String], known: &[Peer]) -> Result<Vec<Peer>> {
        if names.is_empty() {
            return Ok(known.to_vec());
        }
        let mut peers = Vec::new();
        for name in names {
            let Some(&peer) = known.iter().find(|peer| peer.name() == name) else {
                let list: Vec<&str> = known.iter().map(|peer| peer.name()).collect();
                let list = list.join(", ");
                return Err(Error::Usage(format!(
                    "peer {name:?}: unknown to this suite; one of {list}"
                )));
            };
            if !peers.contains(&peer) {
                peers.push(peer);
            }
        }
        Ok(peers)
    }
}

pub(crate) use crate::report::Missing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_peer_is_refused_with_the_list() {
        let error = Peer::parse(&["ramdisk".to_owned()], &Peer::STORE).unwrap_err();
        assert_eq!(error.exit_status(), 2);
        assert_eq!(
            error.to_string(),
            "peer \"ramdisk\": unknown to this suite; one of raw-codec, memcpy, kernel-zram"
        );
        let twice = vec!["memcpy".to_owned(), "memcpy".to_owned()];
        assert_eq!(Peer::parse(&twice, &Peer::STORE).unwrap(), [Peer::Memcpy]);
        assert_eq!(Peer::parse(&[], &Peer::NBD).unwrap(), Peer::NBD);
    }
}
