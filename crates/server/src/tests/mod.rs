//! The server over the memory backend: what a caller sees.

mod applies;
mod commits;
mod fixtures;
mod watches;
