//! The pages of docs/recipes, whose blocks of commands are run, here or in a guest, or say that they are not.

use std::fs;
use std::path::Path;

use crate::workspace;

/// The fence of a block, with its language and mark behind it.
const FENCE: &str = "```";

/// The place where a block's commands are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// On this machine, as root.
    Here,
    /// In a guest with systemd.
    Guest,
    /// By no test; the line below says why.
    Nowhere,
}

/// A page and its blocks of commands.
#[derive(Debug)]
pub struct Page {
    pub name: String,
    blocks: Vec<(Mark, String)>,
}

impl Page {
    /// The commands with this mark, one block after the other; `None` if there are none.
    pub fn script(&self, mark: Mark) -> Option<String> {
        let of_mark = self.blocks.iter().filter(|(its, _)| *its == mark);
        let script: String = of_mark.map(|(_, text)| text.as_str()).collect();
        (!script.is_empty()).then_some(script)
    }
}

/// All pages.
///
/// # Errors
/// A page, a line, and the mark that is unknown or the reason that is missing.
pub fn pages() -> Result<Vec<Page>, String> {
    let folder = workspace::root().join("docs/recipes");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut pages = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        pages.push(page(&entry.map_err(failed)?.path())?);
    }
    pages.sort_by(|one: &Page, other| one.name.cmp(&other.name));
    Ok(pages)
}

fn page(path: &Path) -> Result<Page, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let name = path
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let blocks = blocks(&text).map_err(|what| format!("docs/recipes/{name}.md, {what}"))?;
    Ok(Page { name, blocks })
}

fn blocks(text: &str) -> Result<Vec<(Mark, String)>, String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let Some(words) = line.strip_prefix(FENCE) else {
            continue;
        };
        let inner: String = (&mut lines)
            .map(|(_, line)| line)
            .take_while(|line| *line != FENCE)
            .map(|line| format!("{line}\n"))
            .collect();
        let mark = match words {
            "sh" => Mark::Here,
            "sh guest" => Mark::Guest,
            "sh not-run" => Mark::Nowhere,
            // No commands.
            "yaml" | "toml" | "text" => continue,
            other => return Err(format!("line {}: `{other}` is no mark", index + 1)),
        };
        let mut below = lines
            .clone()
            .map(|(_, line)| line)
            .skip_while(|line| line.is_empty());
        if mark == Mark::Nowhere && !below.next().is_some_and(|line| line.starts_with("Not run")) {
            let what = "no line below it begins with `Not run`, and says why";
            return Err(format!("line {}: {what}", index + 1));
        }
        blocks.push((mark, inner));
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_told_apart_by_their_mark() {
        let text = "a\n```sh\none\n```\n```yaml\nx: 1\n```\n```sh guest\ntwo\n```\n```sh\nthree\n\nfour\n```\n\
                    ```sh not-run\nfive\n```\n\nNot run: no machine.\n";
        let page = Page {
            name: "x".into(),
            blocks: blocks(text).unwrap(),
        };
        assert_eq!(page.script(Mark::Here).unwrap(), "one\nthree\n\nfour\n");
        assert_eq!(page.script(Mark::Guest).unwrap(), "two\n");
        assert_eq!(page.script(Mark::Nowhere).unwrap(), "five\n");
        for (text, said) in [
            ("```bash\nx\n```\n", "line 1: `bash` is no mark"),
            ("\n```\nx\n```\n", "line 2: `` is no mark"),
            ("```sh not-run\nx\n```\nHere.\n", "line 1: no line below it"),
        ] {
            let error = blocks(text).unwrap_err();
            assert!(error.starts_with(said), "{error}");
        }
    }

    #[test]
    fn every_block_of_every_page_is_marked() {
        let pages = pages().unwrap();
        assert!(pages.len() > 7);
        for mark in [Mark::Here, Mark::Guest, Mark::Nowhere] {
            let marked = pages.iter().filter(|page| page.script(mark).is_some());
            assert!(marked.count() > 1, "{mark:?}");
        }
    }
}
