use std::sync::Arc;

use proptest::prelude::*;
use tonic::metadata::MetadataMap;

use super::*;

/// Over the wire a status is headers.
fn over_the_wire(status: &Status) -> Status {
    let mut headers = tonic::codegen::http::HeaderMap::new();
    status.add_header(&mut headers).expect("is a header");
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    assert!(bytes < 8 * 1024, "{bytes} bytes of headers are more than some clients accept");
    Status::from_header_map(&headers).expect("has a status")
}

fn round_trip(error: &Error, call: Call) -> Error {
    from_status(&over_the_wire(&to_status(error)), call)
}

fn any_error() -> impl Strategy<Value = Error> {
    let text = || ".{0,60}";
    let key = || ("[A-Z][a-z]{0,8}", "[a-z0-9-]{0,8}", "[a-z0-9-]{1,8}").prop_map(|(k, s, n)| Key::new(&k, &s, &n));
    let violation = (text(), text()).prop_map(|(field, message)| Violation { field, message });
    prop_oneof![
        (key(), text()).prop_map(|(key, message)| Error::Conflict { key, message }),
        (text(), text()).prop_map(|(claim, message)| Error::ClaimConflict { claim, message }),
        text().prop_map(Error::Fenced),
        key().prop_map(Error::NotFound),
        prop::collection::vec(violation, 0..8).prop_map(Error::Invalid),
        text().prop_map(Error::Denied),
        key().prop_map(Error::BeingDeleted),
        (key(), text()).prop_map(|(key, message)| Error::InUse { key, message }),
        text().prop_map(Error::TooLarge),
        text().prop_map(Error::WrongIncarnation),
        text().prop_map(Error::SessionEnded),
        any::<i64>().prop_map(Error::Compacted),
        text().prop_map(Error::Unavailable),
        text().prop_map(Error::OutcomeUnknown),
        text().prop_map(Error::Corrupt),
    ]
}

proptest! {
    #[test]
    fn every_error_comes_back_as_it_was(error in any_error()) {
        prop_assert_eq!(&round_trip(&error, Call::Read), &error);
        prop_assert_eq!(&round_trip(&error, Call::Write), &error);
    }
}

#[test]
fn long_texts_are_cut_to_what_headers_hold() {
    let error = round_trip(&Error::Fenced("ä".repeat(100_000)), Call::Write);
    assert!(matches!(&error, Error::Fenced(text) if text.ends_with("...") && text.starts_with("ää")), "{error}");

    let many = (0..500).map(|i| Violation::new(format!("declarations[{i}].spec"), "is wrong")).collect();
    let Error::Invalid(kept) = round_trip(&Error::Invalid(many), Call::Write) else { panic!("another error") };
    assert_eq!(kept[0], Violation::new("declarations[0].spec", "is wrong"));
    let last = kept.last().expect("some are kept");
    assert_eq!(last.message, format!("and {} more; put these right first", 500 - (kept.len() - 1)));
}

#[test]
fn a_foreign_status_never_claims_that_a_write_was_not_done() {
    let codes =
        [Code::DeadlineExceeded, Code::Cancelled, Code::Unknown, Code::Unavailable, Code::Internal, Code::Aborted];
    for code in codes {
        let status = Status::new(code, "from a proxy");
        assert_eq!(from_status(&status, Call::Write), Error::OutcomeUnknown("from a proxy".into()), "{code:?}");
        assert_eq!(from_status(&status, Call::Read), Error::Unavailable("from a proxy".into()), "{code:?}");
    }
}

#[test]
fn a_foreign_status_that_refuses_is_terminal() {
    let class = |code| from_status(&Status::new(code, "no"), Call::Write).class();
    for code in [Code::InvalidArgument, Code::Unimplemented, Code::PermissionDenied, Code::OutOfRange, Code::DataLoss] {
        assert_eq!(class(code), store::Class::Terminal, "{code:?}");
    }
}

#[test]
fn a_server_that_was_never_reached_did_nothing() {
    let mut status = Status::unavailable("transport error");
    status.set_source(Arc::new(ConnectError("connection refused".into())));
    assert!(is_unsent(&status));
    let error = from_status(&status, Call::Write);
    assert!(matches!(&error, Error::Unavailable(text) if text.starts_with(UNREACHED)), "{error}");
    assert!(error.to_string().contains("connection refused"), "{error}");
}

#[test]
fn a_reason_of_a_newer_version_is_taken_by_its_code() {
    let details = ErrorDetails::with_error_info("NOT_INVENTED_YET", DOMAIN, HashMap::new());
    let status = Status::with_error_details_and_metadata(Code::PermissionDenied, "no", details, MetadataMap::default());
    assert_eq!(from_status(&status, Call::Read), Error::Denied("no".into()));
}
