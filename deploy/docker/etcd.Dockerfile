# etcd as Debian packs it. A base that has it already is taken as it is, and nothing is fetched.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN command -v etcd etcdctl > /dev/null || { apt-get update \
    && apt-get install -y --no-install-recommends etcd-server etcd-client && rm -rf /var/lib/apt/lists/*; }
ENTRYPOINT ["etcd"]
