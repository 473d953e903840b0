use std::{
    sync::atomic::AtomicUsize,
    task::{Wake, Waker},
};

use super::*;

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Woken {
    fn times(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn hung(wakes: &Wakes, node: &str) -> (Arc<Bell>, Arc<Woken>, Place) {
    let (bell, woken) = (Arc::new(Bell::default()), Arc::new(Woken::default()));
    bell.wakes(&Waker::from(woken.clone()));
    assert!(bell.heard(), "the first look is due at once");
    let place = wakes.hang(node, &bell);
    (bell, woken, place)
}

#[test]
fn a_bell_wakes_once_until_it_was_heard() {
    let wakes = Wakes::new();
    let (bell, woken, _place) = hung(&wakes, "");
    for revision in 1..=3 {
        wakes.moved(Revision(revision), std::iter::empty());
    }
    assert_eq!(woken.times(), 1);
    assert!(bell.heard());
    assert!(!bell.heard());
    wakes.moved(Revision(4), std::iter::empty());
    assert_eq!(woken.times(), 2);
}

#[test]
fn a_nodes_bell_rings_for_its_own_and_for_what_concerns_everybody() {
    let wakes = Wakes::new();
    let (bell, woken, _place) = hung(&wakes, "n1");
    wakes.moved(Revision(1), std::iter::empty());
    assert!(!bell.heard());
    wakes.all(Revision(1));
    assert!(bell.heard());
    assert_eq!(woken.times(), 1);
}

/// By whoever notices that the store is away, while another one moves the cache.
#[test]
fn what_is_no_progress_wakes_everybody_and_takes_none_back() {
    let wakes = Wakes::new();
    let (everything, _woken, _place) = hung(&wakes, "");
    let (own, _own_woken, _own_place) = hung(&wakes, "n1");
    wakes.moved(Revision(7), std::iter::empty());
    assert!(everything.heard());
    wakes.everybody();
    assert!(everything.heard() && own.heard());
    assert_eq!(*wakes.progress().borrow(), Revision(7));
}

#[test]
fn nothing_is_left_of_a_place_that_was_given_up() {
    let wakes = Wakes::new();
    let (everything, _woken, place) = hung(&wakes, "");
    let (own, _own_woken, own_place) = hung(&wakes, "n1");
    drop((place, own_place));
    wakes.all(Revision(1));
    assert!(!everything.heard() && !own.heard());
    let left = wakes.hung();
    assert!(left.all.is_empty() && left.nodes.is_empty());
}
