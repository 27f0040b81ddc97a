//! The written rules of this repository, executed. Each rule is a function from files to
//! violations; beside it a test plants a violation and sees it caught.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod circles;
mod commands;
mod dependencies;
mod direction;
mod fences;
mod links;
mod profiles;
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
fn the_product_links_nothing_of_the_laboratory() {
    assert_none(&links::unwanted(&links::cargo_tree));
    assert_none(&links::laboratory(&links::cargo_tree_of_features));
}

#[test]
fn dependencies_are_permissive_and_from_one_registry() {
    let (tree, packages) = (Tree::load(), dependencies::packages());
    assert_none(&dependencies::licences(&tree, &packages));
    assert_none(&dependencies::wildcards(&packages));
    assert_none(&dependencies::sources(&tree));
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
fn no_files_need_each_other() {
    assert_none(&circles::circles(&Tree::load(), circles::KNOWN));
}

#[test]
fn every_build_contains_panics() {
    assert_none(&profiles::aborting(&Tree::load()));
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
fn no_file_is_too_large_to_read() {
    assert_none(&shape::blobs(&Tree::load()));
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
fn relative_links_lead_somewhere() {
    assert_none(&text::links(&Tree::load()));
}

#[test]
fn docs_begin_with_their_subject() {
    assert_none(&text::subjects(&Tree::load()));
}

#[test]
fn commands_in_the_readme_exist() {
    assert_none(&commands::unknown(
        &Tree::load(),
        &commands::help_of_the_binary,
    ));
}
