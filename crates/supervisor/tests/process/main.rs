//! The process driver and its supervisor, with real processes.

mod adopt;
mod check;
mod holes;
mod killed;
mod limits;
mod logs;
mod run;
mod tree;
mod world;
