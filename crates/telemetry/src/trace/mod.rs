//! Spans: one trace leads from a declaring call to the running process.
