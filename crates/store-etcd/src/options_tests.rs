use expect_test::{Expect, expect};

use super::*;

fn check(url: &str, expected: Expect) {
    let said = match Options::parse(url) {
        Ok(options) => format!("{} under {}", options.endpoints.join(" "), options.prefix),
        Err(error) => error.to_string(),
    };
    expected.assert_eq(&said);
}

#[test]
fn urls_that_can_be_used() {
    check("etcd://127.0.0.1:2379", expect!["127.0.0.1:2379 under driftless"]);
    check("etcd://a:1,b.example:2,[::1]:3/prod/eu/", expect!["a:1 b.example:2 [::1]:3 under prod/eu"]);
}

#[test]
fn urls_that_can_not_say_what_and_where() {
    let hint = "; write it like etcd://10.0.0.1:2379,10.0.0.2:2379/driftless";
    for (url, why) in [
        ("http://a:1", "it doesn't start with etcd://"),
        ("etcd://", "endpoint 1 (\"\") has no port"),
        ("etcd://a:1,b", "endpoint 2 (\"b\") has no port"),
        ("etcd://a:1,:2", "endpoint 2 (\":2\") has no host"),
        ("etcd://a:99999", "endpoint 1 (\"a:99999\") has a port that isn't a number from 1 to 65535"),
        ("etcd://::1:2379", "endpoint 1 (\"::1:2379\") has an IPv6 address without brackets, or no port"),
        ("etcd://[::g]:2379", "endpoint 1 (\"[::g]:2379\") is no IPv6 address in brackets"),
        ("etcd://a b:1", "endpoint 1 (\"a b:1\") has a host with characters that no host name has"),
        ("etcd://a:1/x//y", "prefix \"x//y\" must be printable ASCII without empty parts"),
    ] {
        let said = Options::parse(url).expect_err(url).to_string();
        assert_eq!(said, format!("etcd URL {url:?}: {why}{hint}"));
    }
}

#[test]
fn a_missing_file_is_named() {
    let tls = Tls { ca: "/nonexistent/ca.pem".into(), identity: None, domain: None };
    let said = tls.config().expect_err("there is no such file").to_string();
    assert_eq!(said, "can't read the CA certificate of etcd \"/nonexistent/ca.pem\"");
}

#[test]
fn a_password_is_not_printed() {
    let user = User { name: "root".into(), password: "secret".into() };
    assert!(!format!("{user:?}").contains("secret"));
}
