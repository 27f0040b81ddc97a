//! The handshake as a state machine: bytes in, bytes out, no I/O.
//!
//! The client's bytes are hostile. What cannot be answered within the protocol (a wrong magic,
//! unknown client flags, an unknown name in `EXPORT_NAME`, more options or longer option data than
//! the limits) ends the connection; everything else gets an error reply and the handshake goes on.

use std::sync::Arc;

use super::export::{Export, Exports, Lease};
use super::wire::{self, Fields};

/// Options that a client may send in one handshake.
pub const OPTIONS_MAX: usize = 1024;
/// Longest option data that is looked at, in bytes: a name, and information requests.
pub const OPTION_DATA_BYTES_MAX: usize = 8192;
/// Longest option data that is skipped to answer `TOO_BIG`; beyond it the connection is dropped.
pub const OPTION_SKIP_BYTES_MAX: usize = 64 << 10;

/// Reserved bytes after the reply to `EXPORT_NAME`, unless the client negotiated them away.
const EXPORT_NAME_ZEROES: usize = 124;

/// How the handshake stands after a step.
#[derive(Debug)]
pub(crate) enum Step {
    /// Go on with the bytes that follow.
    Continue,
    /// Nothing was consumed: more bytes are needed.
    NeedBytes,
    /// The transmission phase starts with the bytes that follow.
    Transmit(Lease),
    /// The connection ends: send what is pending, then close.
    Close,
}

#[derive(Debug)]
pub(crate) struct Handshake {
    exports: Arc<Exports>,
    /// Set: every request to use or see an export is refused with this text.
    refusal: Option<String>,
    phase: Phase,
    no_zeroes: bool,
    options: usize,
}

#[derive(Debug)]
enum Phase {
    ClientFlags,
    Options,
    /// Data of an option that is too big to look at.
    Skip {
        option: u32,
        remaining: usize,
    },
}

impl Handshake {
    pub fn new(exports: Arc<Exports>) -> Handshake {
        Handshake {
            exports,
            refusal: None,
            phase: Phase::ClientFlags,
            no_zeroes: false,
            options: 0,
        }
    }

    /// A handshake that tells the client why it is not served.
    pub fn refusing(reason: String) -> Handshake {
        Handshake {
            refusal: Some(reason),
            ..Handshake::new(Arc::default())
        }
    }

    /// Takes at most one message off the front of `input` and appends its replies to `out`.
    /// Returns the number of bytes consumed.
    pub fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        match self.phase {
            Phase::ClientFlags => self.client_flags(input),
            Phase::Options => self.option(input, out),
            Phase::Skip { option, remaining } => self.skip(input, option, remaining, out),
        }
    }

    fn client_flags(&mut self, input: &[u8]) -> (usize, Step) {
        let Some(flags) = Fields(input).u32() else {
            return (0, Step::NeedBytes);
        };
        if flags & !(wire::FLAG_C_FIXED_NEWSTYLE | wire::FLAG_C_NO_ZEROES) != 0 {
            return (4, Step::Close);
        }
        self.no_zeroes = flags & wire::FLAG_C_NO_ZEROES != 0;
        self.phase = Phase::Options;
        (4, Step::Continue)
    }

    fn option(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        let mut fields = Fields(input);
        // A wrong magic is seen before the rest arrives, so that a stray client is not waited for.
        match fields.u64() {
            Some(wire::IHAVEOPT) => {}
            Some(_) => return (8, Step::Close),
            None => return (0, Step::NeedBytes),
        }
        let (Some(option), Some(length)) = (fields.u32(), fields.u32()) else {
            return (0, Step::NeedBytes);
        };
        let length = length as usize;
        if length > OPTION_SKIP_BYTES_MAX || self.options >= OPTIONS_MAX {
            return (wire::OPTION_BYTES, Step::Close);
        }
        if length > OPTION_DATA_BYTES_MAX {
            self.options += 1;
            self.phase = Phase::Skip {
                option,
                remaining: length,
            };
            return (wire::OPTION_BYTES, Step::Continue);
        }
        let Some(data) = fields.bytes(length) else {
            return (0, Step::NeedBytes);
        };
        self.options += 1;
        (wire::OPTION_BYTES + length, self.answer(option, data, out))
    }

    fn skip(
        &mut self,
        input: &[u8],
        option: u32,
        remaining: usize,
        out: &mut Vec<u8>,
    ) -> (usize, Step) {
        if input.is_empty() {
            return (0, Step::NeedBytes);
        }
        let skipped = remaining.min(input.len());
        if skipped < remaining {
            self.phase = Phase::Skip {
                option,
                remaining: remaining - skipped,
            };
            return (skipped, Step::Continue);
        }
        self.phase = Phase::Options;
        if option == wire::OPT_EXPORT_NAME {
            return (skipped, Step::Close);
        }
        refuse(
            out,
            option,
            wire::REP_ERR_TOO_BIG,
            "option data is too long",
        );
        (skipped, Step::Continue)
    }

    fn answer(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Step {
        match option {
            wire::OPT_ABORT => {
                wire::option_reply(out, option, wire::REP_ACK, &[]);
                return Step::Close;
            }
            wire::OPT_EXPORT_NAME => return self.export_name(data, out),
            wire::OPT_LIST | wire::OPT_INFO | wire::OPT_GO if self.refusal.is_some() => {
                let reason = self.refusal.as_deref().unwrap_or_default();
                refuse(out, option, wire::REP_ERR_POLICY, reason);
            }
            wire::OPT_LIST => self.list(data, out),
            wire::OPT_INFO | wire::OPT_GO => return self.info(option, data, out),
            _ => refuse(out, option, wire::REP_ERR_UNSUP, "option is not supported"),
        }
        Step::Continue
    }

    /// The one option whose failure has no reply: the protocol says to hang up.
    fn export_name(&mut self, data: &[u8], out: &mut Vec<u8>) -> Step {
        let lease = match (&self.refusal, std::str::from_utf8(data)) {
            (None, Ok(name)) => self.exports.lease(name),
            _ => None,
        };
        let Some(lease) = lease else {
            return Step::Close;
        };
        out.extend_from_slice(&lease.export.device.geometry().size_bytes.to_be_bytes());
        out.extend_from_slice(&lease.export.transmission_flags().to_be_bytes());
        if !self.no_zeroes {
            out.resize(out.len() + EXPORT_NAME_ZEROES, 0);
        }
        Step::Transmit(lease)
    }

    fn list(&self, data: &[u8], out: &mut Vec<u8>) {
        let option = wire::OPT_LIST;
        if !data.is_empty() {
            return refuse(out, option, wire::REP_ERR_INVALID, "LIST takes no data");
        }
        for export in self.exports.list() {
            let name_bytes = (export.name.len() as u32).to_be_bytes();
            wire::option_reply(
                out,
                option,
                wire::REP_SERVER,
                &[
                    &name_bytes,
                    export.name.as_bytes(),
                    export.description.as_bytes(),
                ],
            );
        }
        wire::option_reply(out, option, wire::REP_ACK, &[]);
    }

    fn info(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Step {
        let Some(request) = InfoRequest::decode(data) else {
            refuse(
                out,
                option,
                wire::REP_ERR_INVALID,
                "malformed information request",
            );
            return Step::Continue;
        };
        if option == wire::OPT_INFO {
            match self.exports.find(request.name) {
                Some(export) => request.answer(option, &export, out),
                None => refuse_unknown(out, option, request.name),
            }
            return Step::Continue;
        }
        match self.exports.lease(request.name) {
            Some(lease) => {
                request.answer(option, &lease.export, out);
                Step::Transmit(lease)
            }
            None => {
                refuse_unknown(out, option, request.name);
                Step::Continue
            }
        }
    }
}

fn refuse(out: &mut Vec<u8>, option: u32, kind: u32, reason: &str) {
    wire::option_reply(out, option, kind, &[reason.as_bytes()]);
}

fn refuse_unknown(out: &mut Vec<u8>, option: u32, name: &str) {
    // The name is the client's own and may be long: shown in part.
    let shown: String = name.chars().take(64).collect();
    let reason = format!("export '{shown}' does not exist");
    refuse(out, option, wire::REP_ERR_UNKNOWN, &reason);
}

/// The data of `INFO` and `GO`.
struct InfoRequest<'a> {
    name: &'a str,
    wants_name: bool,
    wants_description: bool,
    wants_block_size: bool,
}

impl InfoRequest<'_> {
    fn decode(data: &[u8]) -> Option<InfoRequest<'_>> {
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

    fn answer(&self, option: u32, export: &Export, out: &mut Vec<u8>) {
        let geometry = export.device.geometry();
        let mut info = |kind: u16, parts: [&[u8]; 3]| {
            let kind = kind.to_be_bytes();
            let parts = [&kind[..], parts[0], parts[1], parts[2]];
            wire::option_reply(out, option, wire::REP_INFO, &parts);
        };
        let size = geometry.size_bytes.to_be_bytes();
        let flags = export.transmission_flags().to_be_bytes();
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
            let minimum = super::BLOCK_BYTES_MIN.to_be_bytes();
            let preferred = geometry.preferred_block_bytes.to_be_bytes();
            let maximum = super::PAYLOAD_BYTES_MAX.to_be_bytes();
            info(wire::INFO_BLOCK_SIZE, [&minimum, &preferred, &maximum]);
        }
        wire::option_reply(out, option, wire::REP_ACK, &[]);
    }
}
