//! Admission: what may be written, by whom, and what the server itself says about it. Pure: values in, values out.
//!
//! `syntax` knows how names look, `message` looks into specs by their descriptors, `rights` merges a writer's fields
//! into what is stored, `declare` does so for a declaration, in which `owners` knows what a command has set beside manifests,
//! and `entry` tells the history.

pub mod declare;
pub mod entry;
pub mod message;
mod owners;
pub mod rights;
pub mod syntax;

/// What is wrong with a resource's or namespace's name.
pub fn name_violation(name: &str) -> Option<String> {
    syntax::name("", name, syntax::NAME_MAX).map(|violation| violation.message)
}

#[cfg(test)]
mod tests;
