//! The client's verbs, one file each: what it takes, examples, what it does.

pub mod apply;
pub mod cluster;
pub mod delete;
pub mod describe;
pub mod diff;
pub mod get;
pub mod history;
pub mod logs;
pub mod node;
pub mod plan;
pub mod replay;
pub mod rollout;
pub mod scale;
pub mod trace;
pub mod users;
pub mod wait;
pub mod why;
