use super::*;

#[test]
fn keys_read_back_as_what_they_were_made_from() {
    let layout = Layout::new("a/b");
    let key = Key::new("Service", "default", "web");
    assert_eq!(layout.read_watched(layout.object(&key).as_bytes()), Some(Watched::Object(key)));
    assert_eq!(layout.read_watched(layout.head().as_bytes()), Some(Watched::Head));
    assert_eq!(layout.read_watched(b"a/b/w/o/Service/web"), None);
    assert_eq!(layout.read_watched(b"a/bc/w/head"), None);
    for (key, what) in [
        (layout.claim("shard-7"), Coordinated::Claim("shard-7".into())),
        (layout.session("s1"), Coordinated::Session("s1".into())),
        (layout.report("s1"), Coordinated::Report("s1".into())),
    ] {
        assert_eq!(layout.read_coordinated(key.as_bytes()), Some(what));
    }
}

#[test]
fn ranges_hold_their_keys_and_no_others() {
    let layout = Layout::new("p");
    let holds =
        |prefix: String, key: String| prefix.as_bytes() <= key.as_bytes() && key.into_bytes() < range_end(&prefix);
    let web = layout.object(&Key::new("Service", "default", "web"));
    assert!(holds(layout.objects("", ""), web.clone()));
    assert!(holds(layout.objects("Service", "default"), web.clone()));
    assert!(!holds(layout.objects("Serv", ""), web.clone()));
    assert!(!holds(layout.objects("", ""), layout.head()));
    assert!(holds(layout.watched(), layout.head()) && holds(layout.watched(), web));
    let entry = |root: &str| LogEntry {
        root_uid: root.into(),
        step_id: "s".into(),
        bytes: Default::default(),
        slot: String::new(),
    };
    let key = layout.entry(&entry("u/x"), Revision(255), 1);
    assert_eq!(key, "p/h/u%2fx/00000000000000ff/s/00000001");
    assert!(!holds(layout.history(Some("u")), key.clone()) && holds(layout.history(Some("u/x")), key.clone()));
    assert!(holds(layout.history(None), key.clone()) && !holds(layout.watched(), key));
}

#[test]
fn values_read_back() {
    let cluster = Cluster { incarnation: "f00".into(), shards: 128 };
    assert_eq!(read_cluster(write_cluster(&cluster).as_bytes()), Ok(cluster));
    assert_eq!(read_claim(write_claim("s1", Epoch(7)).as_bytes()), Ok(("s1".into(), Epoch(7))));
    assert_eq!(read_claim(write_claim("", Epoch(7)).as_bytes()), Ok((String::new(), Epoch(7))));
    assert!(matches!(read_claim(b"x"), Err(Error::Corrupt(_))));
    assert!(matches!(read_cluster(b"\xff"), Err(Error::Corrupt(_))));
}
