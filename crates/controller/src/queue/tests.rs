use super::*;

fn work(name: &str) -> Work {
    Work { reconciler: 0, key: Key::new("Service", "default", name) }
}

fn queue() -> Queue {
    Queue::new(Duration::from_millis(10), Duration::from_secs(1))
}

#[tokio::test(start_paused = true)]
async fn a_key_is_there_once_and_never_twice_in_work() {
    let queue = queue();
    queue.add(work("a"), Lane::Change);
    queue.add(work("a"), Lane::Change);
    assert_eq!(queue.depths(), (1, 0));
    let (first, _) = queue.pop().await;
    queue.add(work("a"), Lane::Change);
    assert_eq!(queue.depths(), (0, 0), "it waits for the look in work to end");
    queue.done(&first, Done::Forget);
    assert_eq!(queue.pop().await.0, work("a"));
}

#[tokio::test(start_paused = true)]
async fn sweeps_are_not_starved() {
    let queue = queue();
    queue.add(work("swept"), Lane::Sweep);
    for n in 0..100 {
        queue.add(work(&format!("c{n}")), Lane::Change);
    }
    let mut looks = 0;
    while queue.pop().await.0 != work("swept") {
        looks += 1;
    }
    assert_eq!(looks, CHANGES_IN_A_ROW_MAX);
}

#[tokio::test(start_paused = true)]
async fn failures_pause_longer_and_longer_and_a_success_resets() {
    let queue = queue();
    let start = Instant::now();
    queue.add(work("a"), Lane::Change);
    for _ in 0..12 {
        let (popped, _) = queue.pop().await;
        queue.done(&popped, Done::Backoff);
    }
    let waited = start.elapsed();
    assert!(waited > Duration::from_millis(500), "{waited:?}");
    let (popped, _) = queue.pop().await;
    queue.done(&popped, Done::Forget);
    let again = Instant::now();
    queue.add(work("a"), Lane::Change);
    queue.pop().await;
    assert!(again.elapsed() < Duration::from_millis(1));
}

#[tokio::test(start_paused = true)]
async fn a_change_comes_before_a_planned_look() {
    let queue = queue();
    queue.add(work("a"), Lane::Change);
    let (popped, _) = queue.pop().await;
    queue.done(&popped, Done::After(Duration::from_secs(60)));
    let start = Instant::now();
    queue.add(work("a"), Lane::Change);
    let (popped, _) = queue.pop().await;
    assert!(start.elapsed() < Duration::from_secs(1));
    queue.done(&popped, Done::After(Duration::from_secs(60)));
    queue.pop().await;
    assert!(start.elapsed() >= Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_kept_is_forgotten() {
    let queue = queue();
    queue.add(work("a"), Lane::Change);
    queue.add(work("b"), Lane::Sweep);
    queue.retain(|w| w.key.name() == "b");
    assert_eq!(queue.pop().await.0, work("b"));
    assert_eq!(queue.depths(), (0, 0));
}
