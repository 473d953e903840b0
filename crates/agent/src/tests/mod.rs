//! The agent's whole loop, on simulated instances and under a clock that the test turns, against a double of the server.

mod contact;
mod double;
mod loops;
mod statuses;
mod strays;
mod tables;
mod troubles;
mod views;
mod world;
