//! `uzram add`.

use uzram_server::DeviceKind;
use uzram_server::control::{Attributes, Request};
use uzram_server::size::human;

use super::{StateAt, attached, done, number, plain, server};
use crate::args::AddArgs;
use crate::failure::{Failure, Result};
use crate::output::{bold, print};

/// Runs the command.
pub fn run(state: StateAt<'_>, args: &AddArgs) -> Result {
    // What can be wrong by itself is said here, with exit status 2, before a server is asked.
    let device = &args.device.0;
    device.config()?;
    let options = device.options()?.into_iter();
    let options = options
        .map(|(spec, value)| (spec.name.to_owned(), value))
        .collect();
    let state = state.open_to_ask()?;
    let server = server(&state, args.server.as_deref())?;
    let reply = done(&state, &server, &Request::Add { options })?;
    let device = reply.devices.first();
    let device =
        device.ok_or_else(|| Failure::Failed("the server did not say what it made".into()))?;
    print(&welcome(device))
}

fn welcome(device: &Attributes) -> String {
    let text = |name: &str| device.get(name).map(plain).unwrap_or_default();
    let (name, uri) = (text("name"), text("endpoint"));
    let first = match uri.strip_prefix("vhost-user:") {
        Some(socket) => {
            let lines = attached::guest_lines(socket.as_ref()).into_iter();
            let lines: Vec<String> = lines.map(|(line, _)| line).collect();
            lines.join("\n  ")
        }
        None if uri.starts_with('/') => attached::lines(uri.as_ref(), &name)[0].0.clone(),
        None => format!("URI='{uri}'\n  nbdinfo \"$URI\""),
    };
    format!(
        "{} is {} of {}, served by process {}.\n  {first}\n  \
         uzram stat {name}\n  uzram remove {name}\n",
        bold(&name),
        DeviceKind::parse(&text("device")).map_or("a disk", DeviceKind::description),
        human(number(device, "disksize")),
        text("pid"),
    )
}
