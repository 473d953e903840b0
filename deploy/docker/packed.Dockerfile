# Driftless from binaries that were built outside, on any base with their C library; deploy/docker/pack.sh calls it.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
# The supervisor belongs beside the binary.
COPY driftless driftless-supervisor driftless-ready /usr/local/bin/
ENTRYPOINT ["driftless"]
