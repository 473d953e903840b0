//! What an operator sees of a cluster: the pages of every role, the dashboards, the alerts.

mod alerts;
mod dashboards;
mod documented;
mod pages;
mod prometheus;
mod samples;
