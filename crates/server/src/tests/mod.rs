//! The server over the memory backend: what a caller sees.

mod applies;
mod commits;
mod deletes;
mod faults;
pub mod fixtures;
mod lists;
mod memory;
mod nodes;
mod parts;
mod replay;
mod restore;
mod watches;
