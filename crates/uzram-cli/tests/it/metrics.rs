//! `uzram metrics` and `serve --metrics`, read by hand and by Prometheus's own programs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::nbd_client::NbdClient;
use crate::support::{Home, eventually};

/// A program of Debian's package prometheus; says so where it is missing.
fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|dir| dir.join(program));
    let found = found.into_iter().find(|path| path.is_file());
    if found.is_none() {
        eprintln!("left out: {program} is not installed; apt install prometheus");
    }
    found
}

/// The body of a scrape.
fn scrape(mut stream: impl Read + Write) -> String {
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: uzram\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{answer}");
    body.to_owned()
}

fn address_of(said: &str) -> &str {
    let (_, rest) = said.split_once("curl http://").expect(said);
    rest.split_once("/metrics").unwrap().0
}

#[test]
fn requests_and_times_are_counted_and_promtool_finds_no_fault() {
    let home = Home::new();
    let served = home.serve(&["--size", "64M", "--metrics", "127.0.0.1:0"]);
    let socket = home.state().join("uzram0.nbd");
    let mut client = NbdClient::connect(&socket, "uzram0").unwrap();
    assert_eq!(client.write(0, &[7; 8192]).unwrap(), 0);
    client.read(0, 4096).unwrap();
    let printed = home.run(&["metrics"]).stdout;
    let address = address_of(&served.said);
    for text in [&printed, &scrape(TcpStream::connect(address).unwrap())] {
        for line in [
            "uzram_disk_info{disk=\"uzram0\",device=\"zram\",algorithm=\"auto\",",
            "\nuzram_disksize_bytes{disk=\"uzram0\"} 67108864\n",
            "\nuzram_write_requests_total{disk=\"uzram0\"} 1\n",
            "\nuzram_write_bytes_total{disk=\"uzram0\"} 8192\n",
            "\nuzram_read_latency_seconds_count{disk=\"uzram0\"} 1\n",
            "\nuzram_write_latency_seconds_bucket{disk=\"uzram0\",le=\"+Inf\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
    let one = home.run(&["metrics", "uzram0"]).stdout;
    assert_eq!(one.lines().count(), printed.lines().count());
    home.run(&["metrics", "other"])
        .refused(1, "no disk \"other\"");
    let Some(promtool) = installed("promtool") else {
        return;
    };
    let mut check = Command::new(promtool);
    check.args(["check", "metrics"]).stdin(Stdio::piped());
    check.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = check.spawn().unwrap();
    let mut stdin = check.stdin.take().unwrap();
    stdin.write_all(printed.as_bytes()).unwrap();
    drop(stdin);
    let found = check.wait_with_output().unwrap();
    assert!(found.status.success(), "{found:?}");
    assert!(found.stdout.is_empty(), "{found:?}");
}

/// The file that Grafana imports. It is not part of the crate's package.
fn dashboard() -> Option<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/grafana/uzram.json");
    let text = std::fs::read_to_string(path).ok()?;
    Some(serde_json::from_str(&text).unwrap())
}

/// All texts under `key`, at any depth.
fn texts_of(value: &Value, key: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            found.extend(object.get(key).and_then(Value::as_str).map(str::to_owned));
            object
                .values()
                .for_each(|value| texts_of(value, key, found));
        }
        Value::Array(values) => values.iter().for_each(|value| texts_of(value, key, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_asks_for_metrics_that_exist() {
    let Some(dashboard) = dashboard() else {
        return;
    };
    let home = Home::new();
    let _served = home.serve(&["--size", "1M"]);
    let printed = home.run(&["metrics"]).stdout;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let series = |line: &str| line.split('{').next().unwrap().to_owned();
    let known: Vec<String> = printed.lines().map(series).collect();
    let (mut asked, mut queries) = (Vec::new(), Vec::new());
    texts_of(&dashboard, "expr", &mut asked);
    texts_of(&dashboard, "query", &mut queries);
    assert!(asked.len() > 10, "{asked:?}");
    for text in asked.iter().chain(&queries) {
        for name in text
            .split(|c| !is_word(c))
            .filter(|word| word.starts_with("uzram_"))
        {
            assert!(known.iter().any(|known| known == name), "{name} in {text}");
        }
    }
    let Some(promtool) = installed("promtool") else {
        return;
    };
    let rules = asked.iter().enumerate().map(|(index, text)| {
        // As Grafana fills them in.
        let text = text
            .replace("$disk", ".*")
            .replace("$__rate_interval", "1m");
        json!({"record": format!("dashboard:panel{index}"), "expr": text})
    });
    let rules = json!({"groups": [{"name": "dashboard", "rules": rules.collect::<Vec<_>>()}]});
    let file = home.dir.path().join("rules.yml");
    std::fs::write(&file, rules.to_string()).unwrap();
    let checked = Command::new(promtool)
        .args(["check", "rules"])
        .arg(file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(
        said.contains(&format!("SUCCESS: {} rules found", asked.len())),
        "{checked:?}"
    );
}

#[test]
fn a_unix_socket_is_private_and_goes_with_the_server() {
    let home = Home::new();
    let directory = home.dir.path().join("elsewhere");
    std::fs::create_dir(&directory).unwrap();
    let path = directory.join("metrics");
    let arguments = ["--size", "1M", "--metrics", path.to_str().unwrap()];
    let mut served = home.serve(&arguments);
    assert!(
        served.said.contains("curl --unix-socket "),
        "{}",
        served.said
    );
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(scrape(UnixStream::connect(&path).unwrap()).contains("uzram_disk_info"));
    home.run(&[&["serve"], &arguments[..]].concat())
        .refused(1, "metrics: socket ");
    // One that never reads does not keep it from ending, nor others from reading.
    let mut silent = UnixStream::connect(&path).unwrap();
    silent.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    assert!(scrape(UnixStream::connect(&path).unwrap()).contains("uzram_disk_info"));
    served.ends();
    assert!(!path.exists());
    // What a killed server left is no obstacle.
    let mut killed = home.serve(&arguments);
    killed.signal("KILL");
    killed.wait();
    assert!(path.exists());
    home.serve(&arguments).ends();
}

#[test]
fn addresses_that_cannot_be_are_refused_by_name() {
    let home = Home::new();
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    for (metrics, status, said) in [
        ("here", 2, "--metrics: \"here\": neither an address"),
        (
            "0.0.0.0:0",
            2,
            "--metrics: 0.0.0.0:0: other machines could read",
        ),
        ("[::]:0", 2, "or add insecure on a network you trust"),
        (&taken, 1, "choose another port, or 0 for a free one"),
        ("/nowhere/at/all", 1, "/nowhere/at/all"),
    ] {
        let ran = home.run(&["serve", "--size", "1M", "--name", "b", "--metrics", metrics]);
        ran.refused(status, said);
        assert!(ran.stderr.contains("metrics"), "{ran:?}");
    }
    drop(holder);
    let open = ["--size", "1M", "--metrics", "0.0.0.0:0", "--insecure"];
    let served = home.serve(&open);
    let port = address_of(&served.said).rsplit(':').next().unwrap();
    let stream = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    assert!(scrape(stream).contains("uzram_disk_info"));
}

#[test]
fn the_configuration_file_has_an_address_too() {
    let home = Home::new();
    let path = home.dir.path().join("uzram.toml");
    let path = path.to_str().unwrap();
    let file = |server: &str| {
        let text = format!("[server]\n{server}\n[a]\nsize = \"1M\"\n[b]\nsize = \"1M\"\n");
        std::fs::write(path, text).unwrap();
    };
    file("metrics = \"0.0.0.0:0\"");
    home.run(&["serve", "--config", path])
        .refused(2, "other machines could read");
    file("metrics = \"127.0.0.1:0\"");
    let served = home.serve(&["--config", path]);
    let text = scrape(TcpStream::connect(address_of(&served.said)).unwrap());
    for disk in ["a", "b"] {
        let line = format!("uzram_disksize_bytes{{disk=\"{disk}\"}} 1048576\n");
        assert!(text.contains(&line), "{text}");
    }
}

/// A Prometheus, killed at the latest with the test.
struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn query(port: u16, query: &str) -> Option<serde_json::Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let request = format!("GET /api/v1/query?query={query} HTTP/1.0\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let found: serde_json::Value = serde_json::from_str(body).ok()?;
    Some(found["data"]["result"][0]["value"][1].clone())
}

#[test]
fn a_prometheus_scrapes_it() {
    let Some(program) = installed("prometheus") else {
        return;
    };
    let home = Home::new();
    let served = home.serve(&["--size", "64M", "--metrics", "127.0.0.1:0"]);
    let config = home.dir.path().join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n\
         - {{job_name: uzram, static_configs: [{{targets: ['{}']}}]}}\n",
        address_of(&served.said)
    );
    std::fs::write(&config, text).unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let _prometheus = Prometheus(prometheus(&program, &config, port));
    let disksize = Some("67108864".into());
    eventually("the disk's size is there", || {
        query(port, "uzram_disksize_bytes") == disksize
    });
    assert_eq!(query(port, "up"), Some("1".into()));
}

fn prometheus(program: &Path, config: &Path, port: u16) -> Child {
    Command::new(program)
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .arg("--storage.tsdb.path=data")
        .current_dir(config.parent().unwrap())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
