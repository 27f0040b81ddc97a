//! The name that was probably meant.

/// How alike two names must be, from 0 to 1, to be taken for a slip of the pen.
const SIMILARITY_MIN: f64 = 0.6;
/// Characters of a wrong name that are compared and shown.
const SHOWN_CHARS_MAX: usize = 40;

/// The one of `known` that is most like `wrong`, if any is.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = plain(&shown(wrong));
    let scored = known.into_iter().map(|name| {
        (
            strsim::normalized_damerau_levenshtein(&wrong, &plain(name)),
            name,
        )
    });
    let alike = scored.filter(|(score, _)| *score >= SIMILARITY_MIN);
    alike
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// `; did you mean NAME?`, or else `; known are: …`, to put behind an unknown name.
#[must_use]
pub fn remedy(wrong: &str, known: &[&str]) -> String {
    match nearest(wrong, known.iter().copied()) {
        Some(name) => format!("; did you mean {name}?"),
        None => format!("; known are: {}", known.join(", ")),
    }
}

/// The part of a text from outside that an error shows.
#[must_use]
pub fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

/// Ignores case and the kind of dash.
fn plain(name: &str) -> String {
    name.to_lowercase().replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 4] = ["mem_limit", "mem_used_max", "reset", "read_only"];

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        for (wrong, meant) in [
            ("memlimit", Some("mem_limit")),
            ("mem-limit", Some("mem_limit")),
            ("MEM_LIMT", Some("mem_limit")),
            ("rest", Some("reset")),
            ("readonly", Some("read_only")),
            ("mem_used_mxa", Some("mem_used_max")),
            ("colour", None),
            ("size", None),
            ("", None),
        ] {
            assert_eq!(nearest(wrong, KNOWN), meant, "{wrong}");
        }
    }

    #[test]
    fn a_name_that_is_like_no_other_gets_the_list() {
        assert_eq!(remedy("rset", &KNOWN), "; did you mean reset?");
        assert!(remedy("colour", &KNOWN).ends_with("mem_used_max, reset, read_only"));
        assert!(remedy(&"x".repeat(1 << 20), &KNOWN).len() < 100);
    }
}
