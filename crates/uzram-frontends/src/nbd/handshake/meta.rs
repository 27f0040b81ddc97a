//! The options `LIST_META_CONTEXT` and `SET_META_CONTEXT`.

use crate::nbd::context::{Context, Contexts};
use crate::nbd::wire::{self, Fields};

/// The data of both options.
pub(super) struct MetaRequest<'a> {
    pub name: &'a str,
    count: u32,
    queries: &'a [u8],
}

impl MetaRequest<'_> {
    /// `None` if names and queries do not end where the data ends.
    pub fn decode(data: &[u8]) -> Option<MetaRequest<'_>> {
        let mut fields = Fields(data);
        let name_bytes = fields.u32()? as usize;
        let name = std::str::from_utf8(fields.bytes(name_bytes)?).ok()?;
        let count = fields.u32()?;
        let queries = fields.0;
        for _ in 0..count {
            let query_bytes = fields.u32()? as usize;
            std::str::from_utf8(fields.bytes(query_bytes)?).ok()?;
        }
        fields.0.is_empty().then_some(MetaRequest {
            name,
            count,
            queries,
        })
    }

    /// The contexts of a list: those that match a query, or all without queries.
    pub fn listed(&self) -> Contexts {
        self.matching(|context, query| {
            query == context.name().as_bytes() || query == context.namespace().as_bytes()
        })
        .unwrap_or_else(|| {
            let mut all = Contexts::default();
            Context::ALL.into_iter().for_each(|c| all.insert(c));
            all
        })
    }

    /// The contexts to select: those that are named, none without queries.
    pub fn selected(&self) -> Contexts {
        self.matching(|context, query| query == context.name().as_bytes())
            .unwrap_or_default()
    }

    /// The contexts that match a query; `None` without queries. Queries of other namespaces and
    /// unknown names are ignored, as the protocol has it.
    fn matching(&self, matches: impl Fn(Context, &[u8]) -> bool) -> Option<Contexts> {
        let mut fields = Fields(self.queries);
        let mut found = Contexts::default();
        for _ in 0..self.count {
            let query_bytes = fields.u32()? as usize;
            let query = fields.bytes(query_bytes)?;
            Context::ALL
                .into_iter()
                .filter(|&context| matches(context, query))
                .for_each(|context| found.insert(context));
        }
        (self.count > 0).then_some(found)
    }
}

/// Answers with `contexts`, with their numbers if the client is to use them.
pub(super) fn answer(option: u32, contexts: Contexts, out: &mut Vec<u8>) {
    for context in contexts.iter() {
        let id = match option {
            wire::OPT_SET_META_CONTEXT => context.id(),
            _ => 0,
        };
        let parts: [&[u8]; 2] = [&id.to_be_bytes(), context.name().as_bytes()];
        wire::option_reply(out, option, wire::REP_META_CONTEXT, &parts);
    }
    wire::option_reply(out, option, wire::REP_ACK, &[]);
}

pub(super) fn refuse_malformed(option: u32, out: &mut Vec<u8>) {
    wire::refuse_option(
        out,
        option,
        wire::REP_ERR_INVALID,
        "malformed list of metadata contexts",
    );
}
