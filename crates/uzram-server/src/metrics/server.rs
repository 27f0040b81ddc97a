//! The socket to fetch metrics from, by HTTP: one request for each connection, GET of /metrics.
//!
//! All input is hostile. A request has a length, and the whole exchange a time. A scraper that never
//! reads holds one of the places, and nobody else, for that time.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use uzram_frontends::nbd::{Endpoint, Listener};

use crate::acceptor::{Acceptor, Service};
use crate::error::Result;

/// Scrapers at once; further ones are told to come again.
const SCRAPERS_MAX: usize = 16;
/// Longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Time of a whole exchange.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);

/// A socket that scrapers can connect to. It does not answer yet.
pub(crate) struct BoundMetrics {
    listener: Listener,
}

/// A socket that is being served. Dropping it ends it and removes its path.
pub(crate) struct Metrics {
    _acceptor: Acceptor,
    /// Removes the path at the end.
    listener: Listener,
}

impl Metrics {
    /// The address, with the port that was chosen.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.listener.endpoint
    }
}

impl BoundMetrics {
    /// Listens at `endpoint`; a path gets mode 0600.
    ///
    /// # Errors
    /// As for a disk's socket, with the option's name.
    pub(crate) fn bind(endpoint: &Endpoint) -> Result<BoundMetrics> {
        let listener = Listener::bind(endpoint);
        let listener = listener.map_err(|error| crate::Error::from(error).in_option("metrics"))?;
        Ok(BoundMetrics { listener })
    }

    /// The directory of its path.
    pub(crate) fn directory(&self) -> Option<&Path> {
        match &self.listener.endpoint {
            Endpoint::Unix(path) => path.parent(),
            Endpoint::Tcp(_) | Endpoint::Vsock(_) => None,
        }
    }

    /// Answers with what `text` gives.
    ///
    /// # Errors
    /// [`Io`](uzram::ErrorKind::Io) if the system gives no thread.
    pub(crate) fn serve(
        self,
        text: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<Metrics> {
        self.serve_within(EXCHANGE_TIMEOUT, text)
    }

    fn serve_within(
        self,
        timeout: Duration,
        text: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<Metrics> {
        let service = Service {
            name: "metrics",
            connections_max: SCRAPERS_MAX,
            end: Shutdown::Both,
            serve: Box::new(move |stream| {
                // Whoever went away needs no answer.
                let _ = exchange(stream, &text, Instant::now() + timeout);
            }),
            refuse: |stream| {
                let _ = stream.set_nonblocking(true);
                let mut stream = stream;
                let _ =
                    stream.write_all(&response("503 Service Unavailable", "too many scrapers\n"));
            },
        };
        let socket = self.listener.socket.try_clone().map_err(|error| {
            crate::Error::new(uzram::ErrorKind::Io, "metrics socket").with_source(error)
        })?;
        Ok(Metrics {
            _acceptor: Acceptor::start(socket, service)?,
            listener: self.listener,
        })
    }
}

fn exchange(
    stream: &UnixStream,
    text: &impl Fn() -> String,
    deadline: Instant,
) -> std::io::Result<()> {
    let (status, body) = match request(stream, deadline)? {
        Asked::Metrics => ("200 OK", text()),
        Asked::Other => ("404 Not Found", HINT.into()),
        Asked::ToChange => ("405 Method Not Allowed", HINT.into()),
        Asked::Nothing => ("400 Bad Request", HINT.into()),
    };
    let response = response(status, &body);
    send(stream, &response, deadline)?;
    stream.shutdown(Shutdown::Write)
}

/// The body of an error.
const HINT: &str = "GET /metrics\n";

enum Asked {
    Metrics,
    Other,
    ToChange,
    Nothing,
}

fn request(mut stream: &UnixStream, deadline: Instant) -> std::io::Result<Asked> {
    let mut head = [0; HEAD_BYTES_MAX];
    let mut filled = 0;
    while !head[..filled]
        .windows(2)
        .any(|end| end == b"\n\n" || end == b"\n\r")
    {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut head[filled..])? {
            // The end, or a head that is too long.
            0 => return Ok(Asked::Nothing),
            count => filled += count,
        }
    }
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(u8::is_ascii_whitespace);
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next();
    Ok(match (method, path) {
        (Some(b"GET"), Some(b"/metrics" | b"/")) => Asked::Metrics,
        (Some(b"GET"), _) => Asked::Other,
        _ => Asked::ToChange,
    })
}

fn send(mut stream: &UnixStream, mut bytes: &[u8], deadline: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(bytes)? {
            0 => return Err(std::io::ErrorKind::WriteZero.into()),
            count => bytes = &bytes[count..],
        }
    }
    Ok(())
}

fn left(deadline: Instant) -> std::io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(std::io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

fn response(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any test takes.
    const PATIENCE: Duration = Duration::from_secs(300);

    /// A server of `text` at a path of its own.
    fn served(text: String) -> (tempfile::TempDir, std::path::PathBuf, Metrics) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("metrics");
        let bound = BoundMetrics::bind(&Endpoint::Unix(path.clone())).unwrap();
        assert_eq!(bound.directory(), Some(temp.path()));
        let metrics = bound.serve_within(PATIENCE, move || text.clone());
        let metrics = metrics.unwrap();
        (temp, path, metrics)
    }

    fn ask(path: &Path, request: &[u8]) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(request).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn a_scrape_is_answered_and_the_socket_private() {
        use std::os::unix::fs::PermissionsExt;
        let (_temp, path, metrics) = served("uzram 1\n".into());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for request in [
            "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /metrics?a=b HTTP/1.0\n\n",
            "GET / HTTP/1.1\r\n\r\n",
        ] {
            let answer = ask(&path, request.as_bytes());
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert!(answer.ends_with("\r\n\r\nuzram 1\n"), "{answer}");
        }
        drop(metrics);
        assert!(!path.exists());
    }

    #[test]
    fn hostile_requests_get_an_error() {
        let (_temp, path, _metrics) = served("uzram 1\n".into());
        for (request, status) in [
            (&b"GET /other HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"\n\n", "405"),
            (b"\xff\0\n\n", "405"),
            (b"GET /metrics HTTP/1.1", "400"),
            (&[b'x'; HEAD_BYTES_MAX], "400"),
            (b"", "400"),
        ] {
            let answer = ask(&path, request);
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status}")),
                "{answer}"
            );
        }
    }

    #[test]
    fn who_never_reads_holds_up_nobody_and_one_too_many_is_told() {
        // More than a socket's buffers hold.
        let (_temp, path, metrics) = served("x".repeat(16 << 20));
        let stuck = || {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            // The answer has begun, so a place is taken.
            stream.read_exact(&mut [0]).unwrap();
            stream
        };
        let mut all: Vec<UnixStream> = (1..SCRAPERS_MAX).map(|_| stuck()).collect();
        let answer = ask(&path, b"GET /other HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
        // The place may be given back a moment later than the answer came.
        while all.len() < SCRAPERS_MAX {
            let mut last = UnixStream::connect(&path).unwrap();
            let _ = last.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
            let mut first = [0; 12];
            if last.read_exact(&mut first).is_ok() && first.ends_with(b" 200") {
                all.push(last);
            }
        }
        let refused = ask_without_a_word(&path);
        assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
        let begun = Instant::now();
        drop(metrics);
        assert!(begun.elapsed() < PATIENCE, "the end waited for them");
    }

    fn ask_without_a_word(path: &Path) -> String {
        let mut answer = String::new();
        let mut stream = UnixStream::connect(path).unwrap();
        let _ = stream.read_to_string(&mut answer);
        answer
    }
}
