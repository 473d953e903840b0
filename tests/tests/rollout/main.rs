//! Rollouts that can be trusted, plans that come true, a history that can be replayed, and answers to "why?"; through
//! the built binary alone.

mod bad_versions;
mod bounds;
mod configs;
mod deadlines;
mod history;
mod manifests;
mod plans;
mod scaled;
mod why;
