//! Admission: what may be written, by whom, and what the server itself says about it. Pure: values in, values out.
//!
//! `syntax` knows how names look, `message` looks into specs by their descriptors, `rights` merges a writer's fields
//! into what is stored, `declare` does so for a declaration, and `entry` tells the history.

pub mod declare;
pub mod entry;
pub mod message;
pub mod rights;
pub mod syntax;

#[cfg(test)]
mod tests;
