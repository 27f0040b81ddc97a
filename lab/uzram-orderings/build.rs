//! The engine's files shrink under this flag: one turn of spinning, one place to sleep.

fn main() {
    println!("cargo:rustc-cfg=uzram_shuttle");
}
