//! The table of options in docs/server.md is made of the option table.

use std::fs;
use std::path::Path;

use uzram_server::options::{OptionSpec, TABLE, ValueForm};

const PAGE: &str = "../../docs/server.md";
const BEGIN: &str = "<!-- options: UPDATE_DOCS=1 cargo test -p uzram-server --test docs -->\n";
const END: &str = "<!-- end of options -->\n";

#[test]
fn the_table_of_options_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the table's begin is gone");
    let (written, after) = rest.split_once(END).expect("the table's end is gone");
    let table = table();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    }
    assert!(
        written == table,
        "docs/server.md: the table of options is stale; write it again with\n  \
         UPDATE_DOCS=1 cargo test -p uzram-server --test docs"
    );
}

fn table() -> String {
    let mut text = String::from(
        "| Option | What it does | Default | Attribute |\n\
         |---|---|---|---|\n",
    );
    text.extend(TABLE.iter().map(row));
    text
}

fn row(spec: &OptionSpec) -> String {
    let name = match spec.value.placeholder() {
        "" => format!("`{}`", spec.name),
        value => format!("`{}` {value}", spec.name),
    };
    let words = match spec.value {
        ValueForm::Word(_, words) => {
            let words = words.iter();
            let words = words.map(|(word, meaning)| format!("<br>`{word}`: {meaning}"));
            words.collect()
        }
        _ => String::new(),
    };
    let attribute = match (spec.attribute, spec.may_change) {
        (None, _) => String::new(),
        (Some(attribute), false) => format!("`{attribute}`"),
        (Some(attribute), true) => format!("`{attribute}`, may change"),
    };
    let (help, default) = (spec.help, spec.default);
    format!("| {name} | {help}{words} | {default} | {attribute} |\n")
}
