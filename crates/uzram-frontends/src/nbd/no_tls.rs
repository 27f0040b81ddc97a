//! TLS in a build without it: types that have no value.

use std::io;

use super::received::Received;

#[derive(Clone, Debug)]
pub(crate) enum Tls {}

impl Tls {
    pub fn stream(&self) -> Option<Stream> {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum Stream {}

impl Stream {
    pub fn is_handshaking(&self) -> bool {
        match *self {}
    }

    pub fn receive(
        &mut self,
        _buffer: &mut [u8],
        _source: &mut dyn FnMut(&mut [u8]) -> Received,
    ) -> Received {
        match *self {}
    }

    pub fn advance(&mut self, _source: &mut dyn FnMut(&mut [u8]) -> Received) -> Received {
        match *self {}
    }

    pub fn seal(&mut self, _plaintext: &[u8], _out: &mut Vec<u8>) -> io::Result<usize> {
        match *self {}
    }

    pub fn outgoing(&mut self, _out: &mut Vec<u8>) -> io::Result<()> {
        match *self {}
    }

    pub fn close(&mut self, _out: &mut Vec<u8>) -> io::Result<()> {
        match *self {}
    }
}
