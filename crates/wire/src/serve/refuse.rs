//! What tonic itself refuses, in our words: a message beyond the limit, or one that can't be decoded.

use store::Error;
use tonic::{Code, Status, body::Body, codegen::http::Response};

use crate::{REQUEST_BYTES_MAX, error::to_status};

/// Of a call that tonic refused before any of our code saw it.
pub fn clearly(response: Response<Body>) -> Response<Body> {
    match Status::from_header_map(response.headers()) {
        Some(status) if is_tonics_own(&status) => inbound(status).into_http(),
        _ => response,
    }
}

/// Of a message on a stream.
pub fn inbound(status: Status) -> Status {
    let error = match status.code() {
        Code::OutOfRange => {
            Error::TooLarge(format!("a request may have {REQUEST_BYTES_MAX} bytes; split it ({})", status.message()))
        }
        Code::Internal => Error::invalid("", status.message()),
        _ => return status,
    };
    to_status(&error)
}

/// Ours always carry details.
fn is_tonics_own(status: &Status) -> bool {
    matches!(status.code(), Code::OutOfRange | Code::Internal) && status.details().is_empty()
}
