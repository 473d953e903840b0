#!/usr/bin/env python3
"""Rolls 100 replicas over to a new version, kills the controller that does it in the middle, and prints what the
dashboards and the trace show of that, as Markdown. Wants the binaries (make build) and Prometheus (Debian: prometheus).
Everything runs on loopback and in a temporary directory, and is gone afterwards, also where this is told to end."""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATIENCE = 300  # s: until anything that is waited for
NODES, CONTROLLERS = 3, 3
LOG_SHOWN = 2000  # characters: of the log of what ended by itself
AROUND = 8  # lines of the trace's timeline: shown before and after what is of interest

MANIFEST = """kind: Service
metadata: {{ name: web }}
spec:
  replicas: {replicas}
  version: {version}
  rollout: {{ max_surge: 10, max_unavailable: 0 }}
  template: {{ command: [sleep, '86400'], env: {{ VERSION: {version} }}, stop_grace: 1s }}
"""


class Cluster:
    def __init__(self, binary, directory):
        self.binary, self.directory, self.parts, self.pages = binary, directory, {}, {}

    def begin(self):
        directory, store = self.directory, f"embedded:{self.directory}/store"
        self.start("server", ["server", "--listen", "127.0.0.1:0", "--store", store], server="")
        log = until("the server is ready", lambda: re.search(r"ready: .* on (\S+)", self.read("server.out")), self.check)
        self.server = log[1]
        for n in range(1, CONTROLLERS + 1):
            self.start(f"c{n}", ["controller", "--name", f"c{n}"], self.server)
        for n in range(1, NODES + 1):
            self.start(f"n{n}", ["agent", "--node", f"n{n}", "--data-dir", f"{directory}/n{n}"], self.server)

    def read(self, name):
        return (self.directory / name).read_text()

    def environment(self, server):
        return {**os.environ, "DRIFTLESS_METRICS": "127.0.0.1:0", "DRIFTLESS_SERVER": server, "NO_COLOR": "1"}

    def start(self, name, arguments, server):
        with open(self.directory / f"{name}.out", "w") as out, open(self.directory / f"{name}.log", "w") as log:
            self.parts[name] = subprocess.Popen(
                [self.binary, *arguments], stdout=out, stderr=log, env=self.environment(server), cwd=self.directory
            )
        look = lambda: re.search(r"metrics are served.*address=(\S+)", self.read(f"{name}.log"))
        self.pages[name] = until(f"{name} serves metrics", look, self.check)[1]

    def check(self):
        """Nothing is waited for where a part has ended by itself."""
        for name, part in self.parts.items():
            check(name, part, self.directory / f"{name}.log")

    def kill(self, name):
        part = self.parts.pop(name)
        part.kill()
        part.wait()

    def run(self, *arguments, text=None):
        done = subprocess.run(
            [self.binary, *arguments], input=text, capture_output=True, text=True, env=self.environment(self.server)
        )
        if done.returncode != 0:
            sys.exit(f"driftless {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def status(self):
        return json.loads(self.run("get", "service", "web", "-o", "json")).get("status", {})

    def end(self):
        for name in list(self.parts):
            self.kill(name)
        # What agents started outlives them; all of it works below the directory. A look may miss what is just starting.
        while self.kill_started():
            time.sleep(0.05)

    def kill_started(self):
        """Whether there was anything."""
        killed = 0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{pid}/cwd").startswith(str(self.directory)):
                    os.kill(int(pid), signal.SIGKILL)
                    killed += 1
            except OSError:
                pass  # It's gone, or another user's.
        return killed


class Prometheus:
    def __init__(self, directory, pages):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = "127.0.0.1:%d" % free.getsockname()[1]
        targets = [{"targets": [page], "labels": {"instance": name}} for name, page in pages.items()]
        job = {"job_name": "driftless", "static_configs": targets}
        config = directory / "prometheus.yml"
        config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
        self.log = directory / "prometheus.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory}/prometheus",
                 f"--web.listen-address={self.address}", "--enable-feature=exemplar-storage"],
                stdout=log, stderr=log,
            )

    def ask(self, path, **query):
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]["result"]

    def check(self):
        check("prometheus", self.process, self.log)

    def up(self, count):
        try:
            found = self.ask("query", query="count(count_over_time(driftless_build_info[5m]) > 1)")
            return found and int(found[0]["value"][1]) == count
        except OSError:
            return False


def check(name, process, log):
    if process.poll() is not None:
        said = log.read_text()[-LOG_SHOWN:]
        sys.exit(f"{name} ended with {process.returncode}:\n{said}")


def until(what, look, *checks):
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        for still in checks:
            still()
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not within {PATIENCE} s")
        time.sleep(0.05)
    return found


def label(metric):
    names = [value for name, value in sorted(metric.items()) if name not in ("__name__", "job")]
    return " ".join(names)


def number(text, unit):
    value = float(text)
    if unit == "s":
        return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"
    if unit == "bytes":
        return f"{value / 2**20:.1f} MiB"
    return f"{value:.2f}".rstrip("0").rstrip(".")


def panels(prometheus, window):
    """Each dashboard's panels as a table: the queries as Grafana would ask them, over the whole run."""
    for name in ("convergence", "shards", "nodes", "api"):
        dashboard = json.loads((ROOT / f"deploy/observability/grafana/dashboards/{name}.json").read_text())
        print(f"\n### {dashboard['title']}\n\n| panel | what it showed |\n|---|---|")
        for panel in dashboard["panels"]:
            unit, shown = panel["fieldConfig"]["defaults"]["unit"], []
            for target in panel["targets"]:
                legend = re.sub(r"\{\{.*?\}\}", "", target["legendFormat"]).strip()
                for series in prometheus.ask("query", query=target["expr"].replace("$__rate_interval", window)):
                    value = series["value"][1]
                    if value != "NaN" and float(value) != 0:
                        shown.append(f"{label(series['metric'])} {legend}".strip() + f": {number(value, unit)}")
            print(f"| {panel['title']} | {'; '.join(shown) or 'nothing but 0'} |")


def course(prometheus, start, end):
    """Second by second."""
    columns = {
        "running": 'max(driftless_instances{phase="Running"})',
        "stopping": 'max(driftless_instances{phase="Stopping"})',
        "other phases": 'sum(max by (phase) (driftless_instances{phase!~"Running|Stopping"}))',
        **{f"shards of c{n}": f'driftless_shards_owned{{instance="c{n}"}}' for n in range(1, CONTROLLERS + 1)},
        "shards of nobody": 'max(driftless_shards{owner="none"})',
        "nobody's for (s)": 'max(driftless_shard_unowned_seconds{claim="shard"})',
        "commits": "sum(driftless_commits_total{outcome=\"committed\"})",
    }
    rows = {}
    for title, query in columns.items():
        found = prometheus.ask("query_range", query=query, start=start, end=end, step=1)
        for at, value in found[0]["values"] if found else []:
            rows.setdefault(at, {})[title] = value
    print(f"\n| s | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    for at in sorted(rows):
        cells = [number(rows[at][title], "short") if title in rows[at] else "" for title in columns]
        print(f"| {round(at - start)} | {' | '.join(cells)} |")


def timeline(cluster, victim):
    """What `driftless trace` prints of it, with what repeats itself left out: how it began, where another controller went
    on, and how it ended."""
    lines = cluster.run("trace", "service", "web").splitlines()
    by = [found[1] if (found := re.search(r"controller/(\S+)", line)) else None for line in lines]
    last = max((n for n, controller in enumerate(by) if controller == victim), default=0)
    shown = {n for place in (0, last, len(lines) - 1) for n in range(place - AROUND, place + AROUND + 1)}
    print("\n### The trace: `driftless trace service web`\n\n```text")
    left_out = 0
    for n, line in enumerate(lines):
        if n not in shown:
            left_out += 1
            continue
        if left_out:
            print(f"  ... {left_out} lines ...")
        left_out = 0
        print(line.rstrip())
    print("```")


def observe(cluster, prometheus, replicas):
    until("everybody was scraped", lambda: prometheus.up(len(cluster.pages)), cluster.check, prometheus.check)
    cluster.run("apply", "-f", "-", "--wait", "--timeout", "300s", text=MANIFEST.format(replicas=replicas, version="v1"))
    start = time.time()
    cluster.run("apply", "-f", "-", "--trace", text=MANIFEST.format(replicas=replicas, version="v2"))
    replaced = lambda: int(cluster.status().get("updatedReplicas", 0))
    until("a third is replaced", lambda: replaced() >= replicas // 3, cluster.check)
    stepped = prometheus.ask("query", query='topk(1, sum by (instance) (driftless_reconciles_total{reconciler="service",outcome="stepped"}))')
    victim = stepped[0]["metric"]["instance"]
    killed = time.time()
    cluster.kill(victim)
    cluster.run("wait", "service", "web", "--for", "ready", "--timeout", "300s")
    done = time.time()
    print(f"{replicas} replicas on {NODES} nodes were replaced in {done - start:.1f} s. {killed - start:.1f} s after the "
          f"declaration {victim}, which was at it, got SIGKILL; the other {CONTROLLERS - 1} controllers went on.")
    # The last scrape's figures.
    time.sleep(2.5)
    course(prometheus, start, done + 2)
    panels(prometheus, f"{int(time.time() - start + 30)}s")
    timeline(cluster, victim)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--binary", default=str(ROOT / "target/release/driftless"))
    arguments = parser.parse_args()
    if not os.access(arguments.binary, os.X_OK):
        sys.exit(f"{arguments.binary} is missing: make build")
    if not shutil.which("prometheus"):
        sys.exit("prometheus is missing: apt-get install prometheus")
    endings = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for ending in endings:
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="driftless-observe-") as directory:
        prometheus = None
        cluster = Cluster(pathlib.Path(arguments.binary).resolve(), pathlib.Path(directory))
        try:
            cluster.begin()
            prometheus = Prometheus(pathlib.Path(directory), cluster.pages)
            observe(cluster, prometheus, arguments.replicas)
        finally:
            # Cleaning up takes a moment, and whoever ends us may say so twice.
            for ending in endings:
                signal.signal(ending, signal.SIG_IGN)
            if prometheus:
                prometheus.process.kill()
                prometheus.process.wait()
            cluster.end()


main()
