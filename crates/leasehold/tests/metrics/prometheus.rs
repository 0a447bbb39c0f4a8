//! Debian's Prometheus scrapes a proxy, and an alarm of contrib/ fires when the origin is cut off.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::program::http::{free_port, get, wait_for};
use crate::program::{Tree, path};

/// How long the origin may be silent before the alarm of contrib/, and in this test.
const SILENCE: [&str; 2] = ["leasehold_origin_silence_seconds > 30", "leasehold_origin_silence_seconds > 3"];

fn rules() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/prometheus/leasehold.rules.yml")
}

/// Prometheus with the alarms; dropping the value kills it.
struct Prometheus {
    child: Child,
    port: String,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// Starts one that scrapes `port` each second. Its files are in `directory`.
    fn start(directory: &Path, port: &str) -> Prometheus {
        let alarms = std::fs::read_to_string(rules()).unwrap();
        assert!(alarms.contains(SILENCE[0]));
        std::fs::write(directory.join("rules.yml"), alarms.replace(SILENCE[0], SILENCE[1])).unwrap();
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
             rule_files: [rules.yml]\n\
             scrape_configs:\n  - job_name: leasehold\n    static_configs: [{{ targets: ['127.0.0.1:{port}'] }}]\n"
        );
        std::fs::write(directory.join("prometheus.yml"), config).unwrap();
        let port = free_port();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", path(&directory.join("prometheus.yml"))))
            .arg(format!("--storage.tsdb.path={}", path(&directory.join("series"))))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .args(["--log.level=warn"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Prometheus { child, port }
    }

    /// Waits until `holds` is true of what `/api/v1/PATH` says.
    #[track_caller]
    fn wait_for(&self, path: &str, what: &str, holds: impl Fn(&Value) -> bool) {
        wait_for(&self.port, &format!("/api/v1/{path}"), what, |answer| {
            serde_json::from_str(&answer.body).is_ok_and(|said: Value| holds(&said["data"]))
        });
    }
}

/// The summaries of an alarm that fires.
fn firing(alarms: &Value, name: &str) -> Vec<String> {
    let alarms = alarms["alerts"].as_array().into_iter().flatten();
    let ours = alarms.filter(|alarm| alarm["labels"]["alertname"] == name && alarm["state"] == "firing");
    ours.filter_map(|alarm| alarm["annotations"]["summary"].as_str().map(str::to_owned)).collect()
}

#[test]
fn prometheus_understands_the_alarms() {
    let output = Command::new("promtool").args(["check", "rules"]).arg(rules()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_alarm_fires_when_the_origin_is_cut_off_and_ends_with_it() {
    let tree = Tree::new();
    let port = free_port();
    let serve = tree.serve();
    let proxy = tree.proxy_with(&serve, &["--metrics", &port]);
    assert_eq!(get(&port, "/metrics").code, 200);
    let prometheus = Prometheus::start(tree.directory.path(), &port);
    prometheus.wait_for("targets", "the proxy is scraped", |said| said["activeTargets"][0]["health"] == "up");
    prometheus.wait_for("query?query=leasehold_info", "its metrics are known", |said| {
        said["result"][0]["metric"]["job"] == "leasehold"
    });
    prometheus.wait_for("alerts", "no alarm", |said| said["alerts"] == Value::Array(Vec::new()));

    lab::freeze(Pid::from_child(&serve.child));
    let client = crate::ask_once(&proxy);
    prometheus.wait_for("alerts", "the origin is silent", |said| {
        let summaries = firing(said, "LeaseholdOriginSilent");
        summaries.iter().any(|text| text.starts_with("the origin of /export at 127.0.0.1:"))
    });
    crate::signal(&serve, Signal::CONT);
    prometheus.wait_for("alerts", "the origin is back", |said| said["alerts"] == Value::Array(Vec::new()));
    client.join().unwrap();
}
