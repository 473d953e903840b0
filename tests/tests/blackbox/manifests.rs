//! What the tests declare.

/// A web server with a readiness check; the same program as in `examples/web.yaml`.
pub fn web(name: &str, replicas: u32) -> String {
    format!(
        "kind: Service
metadata: {{ name: {name}, labels: {{ app: {name} }} }}
spec:
  replicas: {replicas}
  version: v1
  template:
    command: [python3, -u, -m, http.server, $(PORT), --bind, 127.0.0.1]
    ports: [{{ name: http }}]
    health: {{ readiness: {{ http: {{ path: / }}, interval: 0.05s, timeout: 5s }} }}
    stop_grace: 1s
"
    )
}

/// A process that does nothing for long.
pub fn sleeper(name: &str, replicas: u32, version: &str) -> String {
    command(name, replicas, version, "[sleep, '86400']")
}

/// Any command, as a YAML list.
pub fn command(name: &str, replicas: u32, version: &str, command: &str) -> String {
    format!(
        "kind: Service
metadata: {{ name: {name}, labels: {{ app: {name} }} }}
spec:
  replicas: {replicas}
  version: {version}
  template: {{ command: {command}, stop_grace: 1s }}
"
    )
}
