//! What the tests declare.

use std::time::Duration;

/// Longest time for anything to come about; a busy machine takes a part of it.
pub const SOON: Duration = Duration::from_secs(60);

/// A process that does nothing for long.
pub const SLEEPS: &str = "[sleep, '86400']";
/// One that can't even be started.
pub const BROKEN: &str = "[/no/such/program]";

/// Believed at once, where a test is not about how long that takes.
pub const AT_ONCE: &str = "min_ready: 0s";

/// A service called `web`. `rollout` is what stands between the braces of `spec.rollout`.
pub fn web(replicas: u32, version: &str, command: &str, rollout: &str) -> String {
    format!(
        "kind: Service
metadata: {{ name: web, labels: {{ app: web }} }}
spec:
  replicas: {replicas}
  version: {version}
  rollout: {{ {rollout} }}
  template: {{ command: {command}, stop_grace: 5s }}
"
    )
}

/// The same, but its manifest doesn't say how many.
pub fn without_replicas(version: &str) -> String {
    web(0, version, SLEEPS, AT_ONCE).replace("  replicas: 0\n", "")
}

/// The conditions of a service, by an event of a watch: type, status and reason.
pub fn condition<'e>(event: &'e serde_json::Value, condition_type: &str) -> Option<(&'e str, &'e str)> {
    let conditions = event["resource"]["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|c| c["type"] == condition_type)?;
    Some((found["status"].as_str()?, found["reason"].as_str().unwrap_or_default()))
}
