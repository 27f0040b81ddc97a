//! `uzram bench`: hands over to the program `uzram-bench`, which is not part of the product.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use uzram_advise::command::beside;

use crate::args::BenchArgs;
use crate::failure::{Failure, Result};

/// The program.
const NAME: &str = "uzram-bench";

/// Becomes `uzram-bench`. Returns only if that is not possible.
pub fn run(args: &BenchArgs) -> Result {
    let error = Command::new(beside(NAME)).args(&args.arguments).exec();
    let remedy = match error.kind() {
        ErrorKind::NotFound => {
            "; neither beside uzram nor in PATH; in the project's source: \
             cargo install --locked --path lab/uzram-bench"
        }
        _ => "",
    };
    Err(Failure::Failed(format!("{NAME}: {error}{remedy}")))
}
