use tonic::Status;

use super::*;

fn failure(code: Code, message: &str) -> Failure {
    Failure::from(etcd_client::Error::GRpcStatus(Status::new(code, message)))
}

#[test]
fn only_what_comes_before_the_proposal_counts_as_not_done() {
    assert!(matches!(failure(Code::Unavailable, "etcdserver: no leader"), Failure::NotDone(_)));
    assert!(matches!(failure(Code::ResourceExhausted, "etcdserver: too many requests"), Failure::NotDone(_)));
    assert!(matches!(failure(Code::Unknown, "raft proposal dropped"), Failure::NotDone(_)));
    for after in ["etcdserver: leader changed", "etcdserver: request timed out", "transport error"] {
        assert!(matches!(failure(Code::Unavailable, after), Failure::Unknown(_)), "{after}");
    }
    assert!(matches!(failure(Code::Cancelled, "operation was canceled"), Failure::Unknown(_)));
}

#[test]
fn a_full_etcd_says_what_to_do() {
    let error = Error::from(failure(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"));
    assert_eq!(error.class(), store::Class::Retry);
    for part in ["NOSPACE", "compact", "defrag", "disarm", "--quota-backend-bytes"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn what_was_said_before_a_last_try_that_took_too_long_is_not_lost() {
    let (late, why) = (|| Failure::timed_out("reading"), || "invalid peer certificate".to_owned());
    let told = Failure::Unknown("reading: no answer in time; the time before: invalid peer certificate".into());
    assert_eq!(late().after(Some(why())), told, "and it's as unknown as ever whether it was done");
    assert_eq!(late().after(None), late());
    assert_eq!(Failure::NotDone(why()).after(Some(why())), Failure::NotDone(why()), "but nothing is said twice");
}

#[test]
fn bounds_of_etcd_are_too_large() {
    for (code, message) in [
        (Code::InvalidArgument, "etcdserver: request is too large"),
        (Code::InvalidArgument, "etcdserver: too many operations in txn request"),
        (Code::ResourceExhausted, "grpc: received message larger than max (3 vs. 2)"),
    ] {
        assert!(matches!(Error::from(failure(code, message)), Error::TooLarge(_)), "{message}");
    }
}

#[test]
fn revisions_out_of_reach_are_told_apart() {
    assert_eq!(failure(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"), Failure::Compacted);
    assert_eq!(failure(Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision"), Failure::Future);
}
