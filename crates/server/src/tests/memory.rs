//! What the cache takes of the heap, as the allocator is asked for it: the stored bytes once, and a bounded index.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::HashMap,
};

use api::v1;
use bytes::Bytes;
use kinds::{any, instance};
use model::{Key, Object, Revision};
use prost::Message;

use crate::cache::Cache;

const RESOURCES: usize = 10_000;
/// Beside its bytes, of one resource: its key, where the facts stand in its bytes, its node, its place in the tree.
const INDEX_BYTES_MAX: f64 = 512.0;

thread_local! {
    /// What this thread asked for and hasn't given back.
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

struct Counted;

#[global_allocator]
static ALLOCATOR: Counted = Counted;

fn count(bytes: isize) {
    // Nothing is counted of a thread that is ending.
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
}

fn signed(size: usize) -> isize {
    isize::try_from(size).expect("no allocation is larger")
}

// SAFETY: passes everything on as it is.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The bytes that are kept of what is made.
fn live<T>(make: impl FnOnce() -> T) -> (T, f64) {
    let before = LIVE.get();
    let made = make();
    (made, (LIVE.get() - before) as f64)
}

/// As a backend hands it out: in bytes of its own.
fn object(n: usize) -> Object {
    let key = Key::new(instance::KIND, "default", &format!("many-{}-8173a927f0-{}", n / 9, n % 9));
    let template = v1::InstanceTemplate {
        command: vec!["sleep".into(), "1000".into()],
        env: HashMap::from([("GREETING".to_owned(), "hello, whoever asks".to_owned())]).into_iter().collect(),
        ..Default::default()
    };
    let spec = v1::InstanceSpec { node: format!("n{}", n % 7), template: Some(template), ..Default::default() };
    let metadata = v1::Metadata {
        kind: instance::KIND.into(),
        namespace: "default".into(),
        name: key.name().into(),
        uid: format!("00000000-0000-7000-8000-{n:012}"),
        root_uid: format!("00000000-0000-7000-8000-{:012}", n / 9),
        labels: [("app".to_owned(), format!("many-{}", n / 9))].into(),
        ..Default::default()
    };
    let resource = v1::Resource { metadata: Some(metadata), spec: Some(any(instance::SPEC, &spec)), status: None };
    Object { key, revision: Revision(1), bytes: resource.encode_to_vec().into() }
}

#[test]
fn the_cache_keeps_the_bytes_once_and_little_beside_them() {
    let stored: usize = (0..RESOURCES).map(|n| object(n).bytes.len()).sum();
    // A clone, as the cache keeps them: shared bytes are a little larger.
    let (_bytes, bytes) = live(|| (0..RESOURCES).map(|n| object(n).bytes.clone()).collect::<Vec<Bytes>>());
    let (cache, whole) = live(|| {
        let mut cache = Cache::new(64);
        let objects: Vec<Object> = (0..RESOURCES).map(object).collect();
        cache.install("i", Revision(1), &objects);
        cache
    });
    assert_eq!(cache.bytes(), stored);
    let (each, n) = (stored as f64 / RESOURCES as f64, RESOURCES as f64);
    let index = (whole - bytes) / n;
    println!("{each:.0} B stored; heap: {:.2} B/B for them, {index:.0} B of index", bytes / stored as f64);
    assert!(bytes <= 1.5 * stored as f64, "{bytes} B for {stored} B");
    assert!(index <= INDEX_BYTES_MAX, "{index} B of index for a resource of {each} B");
}
