//! What runs here and isn't in the store's list: by whose word it's stopped, and by whose not.

use std::time::Duration;

use super::world::*;
use crate::driver::Driver;

#[tokio::test(start_paused = true)]
async fn another_store_that_knows_nothing_stops_nothing() {
    let world = World::new();
    let keys = world.run(&["web-0", "web-1", "web-2"]).await;
    world.server.lose_everything("store-b");
    world.after(600).await;
    assert_eq!(world.sim.running(), keys);
    let node = world.server.node().unwrap();
    let said: Vec<_> = node.conditions.iter().map(|c| (c.r#type.as_str(), c.status.as_str())).collect();
    assert_eq!(said, [("Confirmed", "False")]);
}

#[tokio::test(start_paused = true)]
async fn a_known_store_that_lists_nothing_stops_nothing_until_somebody_vouches_for_it() {
    let world = World::of_slow_ends();
    let keys = world.run(&["a", "b", "c", "d", "e", "f"]).await;
    // Let it record whose word counts.
    world.after(1).await;
    world.server.lose_everything("store-a");
    world.after(600).await;
    assert_eq!(world.sim.running(), keys);
    assert_eq!(node_says(&world), [("Confirmed".into(), "MostMissing".into())]);
    world.server.assign(confirmation("store-a", 1));
    assert_eq!(rounds(&world).await, [6, 3, 2, 1, 0], "half at each complete list, and one at least");
    assert_eq!(node_says(&world), []);
}

/// How many run, each time that changes, until the node has nothing to say of them any more. It says so as long as one is
/// left.
async fn rounds(world: &World) -> Vec<usize> {
    let mut left = vec![world.sim.running().len()];
    while left.len() < 100 {
        let now = world.sim.running().len();
        if left.last() != Some(&now) {
            left.push(now);
        }
        if node_says(world).is_empty() {
            assert_eq!(now, 0, "it's silent too early: {left:?}");
            return left;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_lacks_something_for_a_moment_costs_nothing() {
    let world = World::new();
    let keys = world.run(&["a", "b", "c"]).await;
    world.after(1).await;
    let records = world.server.lose_everything("store-a");
    world.after(120).await;
    assert_eq!(node_says(&world), [("Confirmed".into(), "MostMissing".into())]);
    records.into_iter().for_each(|record| world.server.assign(record));
    world.after(120).await;
    assert_eq!(world.sim.running(), keys);
    assert_eq!(node_says(&world), []);
    assert_eq!(world.sim.observe().await.unwrap().iter().map(|found| found.memory.run).max(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn lists_that_break_off_say_nothing() {
    let world = World::new();
    let keys = world.run(&["a", "b", "c", "d"]).await;
    world.after(1).await;
    world.server.lose_everything("store-a");
    world.server.set_cut_short(true);
    let told = world.server.snapshots();
    world.after(600).await;
    assert!(world.server.snapshots() > told + 10, "it asks again and again");
    assert_eq!(world.sim.running(), keys);
    assert_eq!(node_says(&world), [], "there is nothing to say about a list that isn't whole");
}

#[tokio::test(start_paused = true)]
async fn a_confirmed_store_ends_all_that_it_does_not_know_by_halves_without_being_asked_again() {
    let world = World::of_slow_ends();
    world.run(&["a", "b", "c", "d", "e", "f", "g"]).await;
    world.after(1).await;
    world.server.lose_everything("store-b");
    world.after(120).await;
    assert_eq!(world.sim.running().len(), 7);
    let began = tokio::time::Instant::now();
    world.server.assign(confirmation("store-b", 1));
    assert_eq!(rounds(&world).await, [7, 4, 2, 1, 0]);
    // Four rounds of a second each, one after the other; a sweep comes after 15 s at the soonest.
    assert_eq!(began.elapsed().as_secs(), 4);
}

/// The agent is killed after each of the rounds; nobody confirms anything again.
#[tokio::test(start_paused = true)]
async fn a_confirmation_outlives_the_agent() {
    let mut world = World::of_slow_ends();
    world.run(&["a", "b", "c", "d", "e", "f", "g", "h"]).await;
    world.after(1).await;
    world.server.lose_everything("store-b");
    world.after(120).await;
    world.server.assign(confirmation("store-b", 1));
    for left in [8, 4, 2, 1] {
        while world.sim.running().len() > left {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        world.kill_agent().await;
        let hellos = world.server.hellos().len();
        world.start_agent();
        world.server.until(|server| server.hellos().len() > hellos).await;
        assert_eq!(node_says(&world).len(), 1, "with {left} left");
    }
    assert_eq!(rounds(&world).await.last(), Some(&0));
    assert_eq!(world.server.node().unwrap().conditions, []);
}

/// The first one to go by its name is in nobody's hands: it holds the others back until it couldn't be killed.
#[tokio::test(start_paused = true)]
async fn what_does_not_end_does_not_keep_the_other_strays() {
    let world = World::of_slow_ends();
    let keys = world.run(&["a", "b", "c", "d"]).await;
    world.after(1).await;
    world.sim.hang(&keys[0]);
    world.server.lose_everything("store-b");
    world.server.assign(confirmation("store-b", 1));
    while world.sim.running().len() > 1 {
        world.after(1).await;
    }
    world.after(120).await;
    assert_eq!(world.sim.running(), keys[..1]);
    assert_eq!(node_says(&world), [("Confirmed".into(), "StoppingStrays".into())]);
}

/// The same store misses everything once more, or another one does: what was said of the time before isn't good for it.
#[tokio::test(start_paused = true)]
async fn a_confirmation_is_good_for_one_store_and_once() {
    let world = World::of_slow_ends();
    world.run(&["a", "b"]).await;
    world.after(1).await;
    world.server.lose_everything("store-b");
    world.server.assign(confirmation("store-b", 1));
    world.server.assign(confirmation("store-b", 1));
    while !world.sim.running().is_empty() {
        world.after(1).await;
    }
    for (incarnation, doubt) in [("store-b", "MostMissing"), ("store-c", "OtherIncarnation")] {
        let keys = world.run(&["c", "d", "e"]).await;
        world.after(120).await;
        world.server.lose_everything(incarnation);
        world.server.assign(confirmation("store-b", 1));
        world.after(600).await;
        assert_eq!(world.sim.running(), keys);
        assert_eq!(node_says(&world), [("Confirmed".into(), doubt.into())]);
        world.server.assign(confirmation(incarnation, 2));
        assert_eq!(rounds(&world).await, [3, 2, 1, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_released_while_the_node_was_away_is_stopped_and_cleared() {
    let mut world = World::new();
    let keys = world.run(&["web-0", "web-1"]).await;
    world.kill_agent().await;
    world.server.vanish(&keys[0]);
    world.server.assign(release("web-0"));
    world.server.assign(release("never-here"));
    world.start_agent();
    let names = [release_key("web-0"), release_key("never-here")];
    world.server.until(|server| names.iter().all(|name| !server.exists(name))).await;
    assert_eq!(world.sim.running(), [keys[1].clone()]);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_speaks_of_another_machine_is_not_cleared_by_the_one_that_has_its_name_now() {
    let mut world = World::new();
    let keys = world.run(&["web-0"]).await;
    world.kill_agent().await;
    let machine = world.server.hellos()[0].status.clone().unwrap_or_default().machine_id;
    world.server.assign(release_of("other", "another machine"));
    world.server.assign(release_of("mine", &machine));
    world.start_agent();
    world.server.until(|server| !server.exists(&release_key("mine"))).await;
    world.after(60).await;
    assert!(world.server.exists(&release_key("other")), "nothing is known here of what ran there");
    assert_eq!(world.sim.running(), keys);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_vanishes_without_a_word_is_stopped_after_a_complete_list() {
    let world = World::new();
    let keys = world.run(&["web-0", "web-1", "web-2"]).await;
    world.after(1).await;
    world.server.vanish(&keys[0]);
    world.after(1).await;
    assert_eq!(world.sim.running(), keys[1..]);
}
