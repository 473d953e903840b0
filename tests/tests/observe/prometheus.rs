//! A real Prometheus that scrapes a test's cluster.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use driftless_tests::{http, port::Port, processes::look_until};
use serde_json::Value;

const START_MAX: Duration = Duration::from_secs(60);

pub struct Prometheus {
    child: Child,
    port: Port,
}

impl Prometheus {
    /// Scrapes these every second, and keeps exemplars. Its data is below that directory.
    pub fn start(dir: &Path, targets: &[(String, String)]) -> Self {
        let config = dir.join("prometheus.yml");
        let targets: Vec<String> = targets.iter().map(|(_, address)| format!("\"{address}\"")).collect();
        let text = format!(
            "global: {{ scrape_interval: 1s }}
scrape_configs:
  - job_name: driftless
    static_configs: [{{ targets: [{}] }}]
",
            targets.join(", ")
        );
        fs::write(&config, text).expect("a file in the temporary directory");
        // It can't be told to take any free one itself.
        let port = Port::reserve();
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("prometheus").display()))
            .arg(format!("--web.listen-address={}", port.address()))
            .arg("--enable-feature=exemplar-storage")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().expect("prometheus is installed: make setup-test");
        let prometheus = Self { child, port };
        look_until("Prometheus is ready", START_MAX, || {
            http::fetch(&prometheus.port.address(), "/-/ready", "*/*").ok().filter(|page| page.code == 200).map(drop)
        });
        prometheus
    }

    /// The result of an instant query.
    #[track_caller]
    pub fn query(&self, query: &str) -> Vec<Value> {
        self.ask("query", query)
    }

    #[track_caller]
    fn ask(&self, what: &str, query: &str) -> Vec<Value> {
        let path = format!("/api/v1/{what}?query={}", encoded(query));
        let page = http::fetch(&self.port.address(), &path, "*/*").expect("it answers");
        let answer: Value = serde_json::from_str(&page.body).unwrap_or_else(|e| panic!("{e} in {page:?}"));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended by itself, which the test will have noticed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// For the query of a URL.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
