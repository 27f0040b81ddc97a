//! The control protocol: one line of JSON to a server, one line of JSON back, then the end.
//!
//! ```text
//! {"op":"list"}                                                     every device, all attributes
//! {"op":"stat","name":"uzram0"}                                     one device
//! {"op":"set","name":"uzram0","attribute":"reset","value":"1"}      write an attribute
//! {"op":"set","attribute":"log_level","value":"debug"}              one of the server
//! {"op":"add","options":{"size":"1G","name":"b"}}                   serve another device
//! {"op":"remove","name":"b"}                                        and end it
//! {"op":"set","name":"run0","attribute":"memory","value":"1G"}      the budget of a program of `uzram run`
//! {"ok":true,"devices":[{"name":"uzram0","disksize":1073741824,…}]}
//! {"ok":false,"errno":16,"error":"uzram0: 2 clients are connected; …"}
//! ```
//!
//! A `set` may hand over a descriptor (SCM_RIGHTS) with its first bytes: of the file that its value names.
//!
//! The socket has mode 0600 and lies in a directory of mode 0700. In addition the server answers
//! only processes of its own user and of root. All input is hostile: lines, connections and
//! waiting times have the limits below, and anything malformed gets an error line.

mod client;
mod server;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::Error;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use client::{ask, ask_with};
pub(crate) use server::refuse_next;
pub use server::{BoundControl, Control, Handler};

/// Longest request, in bytes, with its end of line.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// Longest reply, in bytes, with its end of line: some 4 KiB for each disk.
pub const REPLY_BYTES_MAX: usize = 8 << 20;
/// Connections served at once; further ones get an error line.
pub const CONNECTIONS_MAX: usize = 16;
/// A client must have sent its request this long after it connected.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// All devices of the server.
    List {},
    /// One device.
    Stat {
        /// Its name.
        name: String,
    },
    /// Write an attribute. The reply to one of the server has its new value.
    Set {
        /// The device's name; none for an attribute of the server.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// The attribute's name in the attribute table.
        attribute: String,
        /// The new value, as text.
        value: String,
    },
    /// Make a device and serve it; the reply has its attributes.
    Add {
        /// Options by name, as [`device_config`](crate::options::device_config) takes them.
        options: BTreeMap<String, String>,
    },
    /// Stop serving a device, whose content is lost.
    Remove {
        /// Its name.
        name: String,
        /// Whether to hang up on clients first.
        #[serde(default)]
        force: bool,
    },
}

/// The attributes of one device by name, in the order of the attribute table.
pub type Attributes = Map<String, Value>;

/// A reply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Whether the request was carried out.
    pub ok: bool,
    /// If not: the Linux errno.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// If not: the reason, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The devices asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Attributes>,
}

impl Reply {
    /// Success, with the devices asked for.
    #[must_use]
    pub fn done(devices: Vec<Attributes>) -> Reply {
        Reply {
            ok: true,
            devices,
            ..Reply::default()
        }
    }

    /// A refusal.
    #[must_use]
    pub fn refused(error: &Error) -> Reply {
        let text = error.to_string();
        Reply {
            ok: false,
            errno: Some(error.errno()),
            error: Some(text),
            devices: Vec::new(),
        }
    }
}
