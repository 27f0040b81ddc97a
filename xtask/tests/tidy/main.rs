//! The written rules of this repository, executed. Each rule is a function from files to
//! violations; beside it a test plants a violation and sees it caught.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod commands;
mod direction;
mod fences;
mod shape;
mod text;
mod tree;

use tree::Tree;

/// Fails with every violation, one a line.
#[track_caller]
fn assert_none(violations: &[String]) {
    assert!(
        violations.is_empty(),
        "{} violations:\n{}",
        violations.len(),
        violations.join("\n")
    );
}

#[test]
fn crates_depend_downwards_only() {
    assert_none(&direction::crates(&direction::workspace_dependencies()));
}

#[test]
fn modules_of_the_engine_depend_downwards_only() {
    assert_none(&direction::modules(&Tree::load()));
}

#[test]
fn layers_speak_their_own_language_only() {
    assert_none(&direction::vocabulary(&Tree::load()));
}

#[test]
fn unsafe_code_is_where_the_list_says() {
    assert_none(&fences::unsafe_modules(&Tree::load()));
}

#[test]
fn only_the_sync_module_imports_std_sync() {
    assert_none(&fences::std_sync(&Tree::load()));
}

#[test]
fn source_files_have_heads_and_end_in_sight() {
    assert_none(&shape::heads(&Tree::load()));
    assert_none(&shape::ceilings(&Tree::load()));
}

#[test]
fn nothing_is_left_unfinished() {
    assert_none(&shape::unfinished(&Tree::load()));
}

#[test]
fn every_crate_inherits_the_lints() {
    assert_none(&shape::lints(&Tree::load()));
}

#[test]
fn texts_speak_of_the_project_alone() {
    assert_none(&text::banned_words(&Tree::load()));
}

#[test]
fn relative_links_lead_somewhere() {
    assert_none(&text::links(&Tree::load()));
}

#[test]
fn commands_in_the_readme_exist() {
    assert_none(&commands::unknown(
        &Tree::load(),
        &commands::help_of_the_binary,
    ));
}
