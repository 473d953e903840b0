//! One trace shows all that a declaration led to, span by span, whoever did it; what isn't sampled leaves no span; and no
//! receiver of traces can do harm.

mod endpoints;
mod links;
mod one_trace;
mod quiet;
mod receivers;
mod roles;
mod sampled;
mod spans;
