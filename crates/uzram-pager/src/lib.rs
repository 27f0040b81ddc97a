//! Pages that do not fit into memory, kept on a block device: the layer that a pager stands on.
//!
//! [`swap`] has slots of one page on any [`BlockDevice`](uzram::BlockDevice), moves pages to and from them in
//! one of three ways, and records how long each took.

#![forbid(unsafe_code)]

pub mod swap;
