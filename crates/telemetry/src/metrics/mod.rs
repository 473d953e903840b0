//! Metrics, in the text formats of Prometheus and OpenMetrics.
