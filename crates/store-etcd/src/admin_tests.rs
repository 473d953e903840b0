use super::*;

#[test]
fn known_faults_are_told_by_version() {
    assert_eq!(warnings("3.4.23").len(), FAULTS.len());
    assert_eq!(warnings("3.4.38").len(), 1);
    assert_eq!(warnings("3.4.45"), [""; 0]);
    assert_eq!(warnings("3.7.0"), [""; 0]);
    let last = "etcd 3.6.8: a member that was paused may answer stale reads (issue 20418); fixed in 3.6.9";
    assert_eq!(warnings("3.6.8"), [last]);
    assert!(warnings("3.3.27")[0].contains("older than 3.4"));
    assert!(warnings("3.5.0-rc.1").iter().all(|w| w.starts_with("etcd 3.5.0-rc.1: ")));
    assert!(warnings("new")[0].contains("can't be read"));
}
