//! A compressed RAM disk of 1 GiB over NBD, in a few lines.
//!
//! ```text
//! cargo run --release -p uzram-frontends --example nbd_ram_disk -- /tmp/disk.sock lz4
//! nbdinfo 'nbd+unix:///disk?socket=/tmp/disk.sock'
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use uzram::{Store, Zram};
use uzram_frontends::nbd::{Endpoint, Export, Exports, Limits, Server};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .ok_or("usage: nbd_ram_disk SOCKET [ALGORITHM]")?;
    let algorithm = arguments.next().unwrap_or_else(|| "lz4".to_owned());

    let store = Store::builder()
        .size(1 << 30)
        .algorithm(&algorithm)
        .build()?;
    let exports = Arc::new(Exports::new());
    exports.add(Export {
        name: "disk".to_owned(),
        description: format!("1 GiB, {algorithm}"),
        device: Arc::new(Zram::new(store)),
        read_only: false,
    })?;
    let server = Server::bind(&Endpoint::Unix(path.into()), exports, Limits::default())?;
    let server = server.spawn()?;
    println!(
        "serving {}; press Enter to stop",
        server.endpoint().uri("disk")
    );
    std::io::stdin().read_line(&mut String::new())?;
    server.shutdown(Duration::from_secs(5));
    Ok(())
}
