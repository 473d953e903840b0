//! What must be seen of a cluster, through the built binary alone.

mod adopt;
mod bad_input;
mod broken;
mod delete;
mod exit_codes;
mod input_on_the_wire;
mod manifests;
mod python_client;
mod recover;
mod roles;
mod rollout;
mod storeless;
mod torture;
