//! One chart, and what stands over it.

use maud::{Markup, html};

/// One chart with what stands over it.
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) subtitle: String,
    pub(super) body: Markup,
}

impl Chart {
    pub(super) fn figure(&self, class: &str) -> Markup {
        html! {
            figure class=(class) {
                figcaption {
                    b { (self.title) }
                    @if !self.subtitle.is_empty() { span { (self.subtitle) } }
                }
                (self.body)
            }
        }
    }
}
