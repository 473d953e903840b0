use super::*;

#[test]
fn only_the_revision_asked_for_counts() {
    let (uids, key) = (Uids::default(), Key::new("Service", "default", "web"));
    uids.learn(&key, Revision(7), "new");
    uids.learn(&key, Revision(5), "late");
    assert_eq!(uids.of(&key, Revision(7)).as_deref(), Some("new"));
    assert_eq!(uids.of(&key, Revision(5)), None);
    uids.forget();
    assert_eq!(uids.of(&key, Revision(7)), None);
}

#[test]
fn it_is_bounded_and_keeps_what_is_young() {
    let uids = Uids::default();
    let key = |n: usize| Key::new("Service", "default", &n.to_string());
    let all = 3 * KEYS_MAX;
    (0..all).for_each(|n| uids.learn(&key(n), Revision(1), "u"));
    let known = (0..all).filter(|n| uids.of(&key(*n), Revision(1)).is_some()).count();
    assert!((KEYS_MAX..=2 * KEYS_MAX).contains(&known), "{known}");
    assert!(uids.of(&key(all - 1), Revision(1)).is_some() && uids.of(&key(0), Revision(1)).is_none());
}
