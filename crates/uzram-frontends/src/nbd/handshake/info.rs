//! The options `INFO` and `GO`.

use crate::nbd::export::Export;
use crate::nbd::wire::{self, Fields};

/// The data of `INFO` and `GO`.
pub(super) struct InfoRequest<'a> {
    pub name: &'a str,
    wants_name: bool,
    wants_description: bool,
    wants_block_size: bool,
}

impl InfoRequest<'_> {
    pub fn decode(data: &[u8]) -> Option<InfoRequest<'_>> {
        let mut fields = Fields(data);
        let name_bytes = fields.u32()? as usize;
        let name = std::str::from_utf8(fields.bytes(name_bytes)?).ok()?;
        let mut request = InfoRequest {
            name,
            wants_name: false,
            wants_description: false,
            wants_block_size: false,
        };
        for _ in 0..fields.u16()? {
            match fields.u16()? {
                wire::INFO_NAME => request.wants_name = true,
                wire::INFO_DESCRIPTION => request.wants_description = true,
                wire::INFO_BLOCK_SIZE => request.wants_block_size = true,
                // EXPORT is always answered; the protocol says to ignore what is unknown.
                _ => {}
            }
        }
        fields.0.is_empty().then_some(request)
    }

    /// Answers with the requested facts about `export`, whose transmission flags are `flags`.
    pub fn answer(&self, option: u32, export: &Export, flags: u16, out: &mut Vec<u8>) {
        let geometry = export.device.geometry();
        let mut info = |kind: u16, parts: [&[u8]; 3]| {
            let kind = kind.to_be_bytes();
            let parts = [&kind[..], parts[0], parts[1], parts[2]];
            wire::option_reply(out, option, wire::REP_INFO, &parts);
        };
        let size = geometry.size_bytes.to_be_bytes();
        let flags = flags.to_be_bytes();
        info(wire::INFO_EXPORT, [&size, &flags, &[]]);
        if self.wants_name {
            info(wire::INFO_NAME, [export.name.as_bytes(), &[], &[]]);
        }
        if self.wants_description && !export.description.is_empty() {
            info(
                wire::INFO_DESCRIPTION,
                [export.description.as_bytes(), &[], &[]],
            );
        }
        if self.wants_block_size {
            let minimum = crate::nbd::BLOCK_BYTES_MIN.to_be_bytes();
            let preferred = geometry.preferred_block_bytes.to_be_bytes();
            let maximum = crate::nbd::PAYLOAD_BYTES_MAX.to_be_bytes();
            info(wire::INFO_BLOCK_SIZE, [&minimum, &preferred, &maximum]);
        }
        wire::option_reply(out, option, wire::REP_ACK, &[]);
    }
}
