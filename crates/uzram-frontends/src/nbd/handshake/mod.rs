//! The handshake as a state machine: bytes in, bytes out, no I/O.
//!
//! The client's bytes are hostile. Some faults have no reply within the protocol: a wrong magic,
//! unknown client flags, an unknown name in `EXPORT_NAME`, more options or longer option data than
//! the limits. They end the connection. Everything else gets an error reply and the handshake goes
//! on.
//!
//! TLS begins with [`Step::StartTls`]. Everything that the client sent in the clear behind that
//! option, and everything negotiated before it, is forgotten: nobody on the way can put words into
//! the client's mouth.

mod info;
mod meta;

use std::sync::Arc;

use super::context::Contexts;
use super::export::{Export, Exports, Lease};
use super::transmission::Rules;
use super::wire::{self, Fields, Framing, refuse_option as refuse};
use info::InfoRequest;
use meta::MetaRequest;

/// Options that a client may send in one handshake.
pub const OPTIONS_MAX: usize = 1024;
/// Longest option data that is decoded, in bytes: a name, and information requests.
pub const OPTION_DATA_BYTES_MAX: usize = 8192;
/// Longest option data that is skipped to answer `TOO_BIG`; beyond it the connection is dropped.
pub const OPTION_SKIP_BYTES_MAX: usize = 64 << 10;

/// Reserved bytes after the reply to `EXPORT_NAME`, unless the client negotiated them away.
const EXPORT_NAME_ZEROES: usize = 124;

/// The state of the handshake after a step.
#[derive(Debug)]
pub(crate) enum Step {
    /// Go on with the bytes that follow.
    Continue,
    /// Nothing was consumed: more bytes are needed.
    NeedBytes,
    /// TLS starts once the pending replies are sent. Bytes that are here already were sent in the
    /// clear and end the connection. Then comes [`Handshake::secured`], and the handshake goes on
    /// with the decrypted bytes.
    StartTls,
    /// The transmission phase starts with the bytes that follow.
    Transmit(Agreement),
    /// The connection ends: send what is pending, then close.
    Close,
}

/// The result of a handshake.
#[derive(Debug)]
pub(crate) struct Agreement {
    pub lease: Lease,
    pub rules: Rules,
}

/// The state of TLS on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "tls"),
    allow(dead_code, reason = "a build without TLS is plain")
)]
pub(crate) enum Security {
    /// The server has no TLS.
    #[default]
    Plain,
    /// The client may start it.
    Offered,
    /// The client must start it before anything else.
    Required,
    Established,
}

#[derive(Debug)]
pub(crate) struct Handshake {
    exports: Arc<Exports>,
    security: Security,
    /// If set, every request to use or see an export is refused with this text.
    refusal: Option<String>,
    phase: Phase,
    no_zeroes: bool,
    options: usize,
    framing: Framing,
    /// If set, these contexts, for the export of this name.
    contexts: Option<(String, Contexts)>,
}

#[derive(Debug)]
enum Phase {
    ClientFlags,
    Options,
    /// Data of an option that is too long to decode.
    Skip {
        option: u32,
        remaining: usize,
    },
}

#[cfg(feature = "tls")]
impl Security {
    /// The security of a server that has TLS.
    pub fn of(is_required: bool) -> Security {
        match is_required {
            true => Security::Required,
            false => Security::Offered,
        }
    }
}

impl Handshake {
    pub fn new(exports: Arc<Exports>, security: Security) -> Handshake {
        Handshake {
            exports,
            security,
            refusal: None,
            phase: Phase::ClientFlags,
            no_zeroes: false,
            options: 0,
            framing: Framing::Simple,
            contexts: None,
        }
    }

    /// A handshake that refuses the client and tells it why.
    pub fn refusing(reason: String) -> Handshake {
        Handshake {
            refusal: Some(reason),
            ..Handshake::new(Arc::default(), Security::Plain)
        }
    }

    /// TLS is established. Everything said before is forgotten.
    pub fn secured(&mut self) {
        self.security = Security::Established;
        self.framing = Framing::Simple;
        self.contexts = None;
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
        // TLS is for fixed newstyle clients; others cannot even be told that it is required.
        if flags & wire::FLAG_C_FIXED_NEWSTYLE == 0 {
            match self.security {
                Security::Required => return (4, Step::Close),
                _ => self.security = Security::Plain,
            }
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
            wire::OPT_STARTTLS => return self.start_tls(data, out),
            wire::OPT_EXPORT_NAME => return self.export_name(data, out),
            _ if self.security == Security::Required => {
                let reason = "this server wants TLS first";
                refuse(out, option, wire::REP_ERR_TLS_REQD, reason);
            }
            wire::OPT_STRUCTURED_REPLY => self.frame(option, Framing::Structured, data, out),
            wire::OPT_EXTENDED_HEADERS => self.frame(option, Framing::Extended, data, out),
            wire::OPT_LIST
            | wire::OPT_INFO
            | wire::OPT_GO
            | wire::OPT_LIST_META_CONTEXT
            | wire::OPT_SET_META_CONTEXT
                if self.refusal.is_some() =>
            {
                let reason = self.refusal.as_deref().unwrap_or_default();
                refuse(out, option, wire::REP_ERR_POLICY, reason);
            }
            wire::OPT_LIST => self.list(data, out),
            wire::OPT_INFO | wire::OPT_GO => return self.info(option, data, out),
            wire::OPT_LIST_META_CONTEXT => self.list_contexts(data, out),
            wire::OPT_SET_META_CONTEXT => self.set_contexts(data, out),
            _ => refuse(out, option, wire::REP_ERR_UNSUP, "option is not supported"),
        }
        Step::Continue
    }

    fn start_tls(&self, data: &[u8], out: &mut Vec<u8>) -> Step {
        let option = wire::OPT_STARTTLS;
        let refused = match (&self.refusal, self.security) {
            (Some(reason), _) => Some((wire::REP_ERR_POLICY, reason.as_str())),
            (None, Security::Plain) => Some((wire::REP_ERR_UNSUP, "this server has no TLS")),
            (None, Security::Established) => {
                Some((wire::REP_ERR_INVALID, "TLS is established already"))
            }
            _ if !data.is_empty() => Some((wire::REP_ERR_INVALID, "STARTTLS takes no data")),
            _ => None,
        };
        if let Some((kind, reason)) = refused {
            refuse(out, option, kind, reason);
            return Step::Continue;
        }
        wire::option_reply(out, option, wire::REP_ACK, &[]);
        Step::StartTls
    }

    fn frame(&mut self, option: u32, framing: Framing, data: &[u8], out: &mut Vec<u8>) {
        if !data.is_empty() {
            return refuse(out, option, wire::REP_ERR_INVALID, "option takes no data");
        }
        if self.framing > framing {
            let reason = "extended headers are agreed on, which include structured replies";
            return refuse(out, option, wire::REP_ERR_EXT_HEADER_REQD, reason);
        }
        self.framing = framing;
        wire::option_reply(out, option, wire::REP_ACK, &[]);
    }

    /// The one option whose failure has no reply: the protocol says to hang up.
    fn export_name(&mut self, data: &[u8], out: &mut Vec<u8>) -> Step {
        // A client with extended headers may not use it, and TLS cannot be asked for by it.
        let is_open = self.refusal.is_none()
            && self.security != Security::Required
            && self.framing != Framing::Extended;
        let name = std::str::from_utf8(data).ok().filter(|_| is_open);
        let Some(lease) = name.and_then(|name| self.exports.lease(name)) else {
            return Step::Close;
        };
        let agreement = self.agreement(lease);
        let flags = agreement.rules.transmission_flags();
        out.extend_from_slice(&agreement.rules.size_bytes.to_be_bytes());
        out.extend_from_slice(&flags.to_be_bytes());
        if !self.no_zeroes {
            out.resize(out.len() + EXPORT_NAME_ZEROES, 0);
        }
        Step::Transmit(agreement)
    }

    fn agreement(&self, lease: Lease) -> Agreement {
        let rules = self.rules(&lease.export);
        Agreement { lease, rules }
    }

    /// The agreement that would hold for `export` now.
    fn rules(&self, export: &Export) -> Rules {
        let contexts = match &self.contexts {
            Some((name, contexts)) if *name == export.name => *contexts,
            _ => Contexts::default(),
        };
        Rules::of(export, self.framing, contexts)
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
                Some(export) => {
                    let flags = self.rules(&export).transmission_flags();
                    request.answer(option, &export, flags, out);
                }
                None => refuse_unknown(out, option, request.name),
            }
            return Step::Continue;
        }
        match self.exports.lease(request.name) {
            Some(lease) => {
                let agreement = self.agreement(lease);
                let export = &agreement.lease.export;
                let flags = agreement.rules.transmission_flags();
                request.answer(option, export, flags, out);
                Step::Transmit(agreement)
            }
            None => {
                refuse_unknown(out, option, request.name);
                Step::Continue
            }
        }
    }

    fn list_contexts(&self, data: &[u8], out: &mut Vec<u8>) {
        let option = wire::OPT_LIST_META_CONTEXT;
        if let Some((request, _)) = self.meta_request(option, data, out) {
            meta::answer(option, request.listed(), out);
        }
    }

    fn set_contexts(&mut self, data: &[u8], out: &mut Vec<u8>) {
        let option = wire::OPT_SET_META_CONTEXT;
        // What was set is replaced, by nothing if this fails.
        self.contexts = None;
        if let Some((request, name)) = self.meta_request(option, data, out) {
            let selected = request.selected();
            self.contexts = Some((name, selected));
            meta::answer(option, selected, out);
        }
    }

    /// The request and its export's own name; `None` if it was refused, with a reply.
    fn meta_request<'a>(
        &self,
        option: u32,
        data: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Option<(MetaRequest<'a>, String)> {
        if self.framing == Framing::Simple {
            let reason = "metadata contexts need structured replies first";
            refuse(out, option, wire::REP_ERR_INVALID, reason);
            return None;
        }
        let Some(request) = MetaRequest::decode(data) else {
            meta::refuse_malformed(option, out);
            return None;
        };
        let Some(export) = self.exports.find(request.name) else {
            refuse_unknown(out, option, request.name);
            return None;
        };
        Some((request, export.name.clone()))
    }
}

fn refuse_unknown(out: &mut Vec<u8>, option: u32, name: &str) {
    // The name is the client's own and may be long: shown in part.
    let shown: String = name.chars().take(64).collect();
    let reason = format!("export '{shown}' does not exist");
    refuse(out, option, wire::REP_ERR_UNKNOWN, &reason);
}
