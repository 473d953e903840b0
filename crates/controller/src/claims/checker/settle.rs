//! What becomes of a state once faults end and everybody does what is due: every claim must be owned, and rest.

use std::collections::HashSet;

use super::world::{Event, Life, Scope, Violation, World, hash};

/// More rounds than any state needs: in each, everybody sees, says and does everything once.
const ROUNDS_MAX: usize = 40;

/// Remembers which states came to rest.
#[derive(Default)]
pub struct Settling {
    good: HashSet<u64>,
}

impl Settling {
    pub fn run(&mut self, scope: &Scope, from: &World) -> Result<(), Violation> {
        let mut world = from.clone();
        calm(scope, &mut world)?;
        let mut path = vec![hash(&world)];
        for _ in 0..ROUNDS_MAX {
            let now = path[path.len() - 1];
            if self.good.contains(&now) {
                self.good.extend(path);
                return Ok(());
            }
            round(scope, &mut world)?;
            let next = hash(&world);
            if next == now {
                every_claim_is_owned(scope, &world)?;
                self.good.extend(path);
                return Ok(());
            }
            path.push(next);
        }
        Err(format!("without faults it still moves after {ROUNDS_MAX} rounds"))
    }
}

/// Where a scope begins.
pub fn beginning(scope: &Scope) -> Result<World, Violation> {
    let mut world = World::new(scope);
    for r in 0..scope.started {
        world.apply(scope, &Event::Start(r))?;
    }
    for _ in 0..ROUNDS_MAX {
        round(scope, &mut world)?;
    }
    Ok(world)
}

/// The last fault is over: the paused go on, the dead are known to be dead, somebody is there.
fn calm(scope: &Scope, world: &mut World) -> Result<(), Violation> {
    (world.left.leaves, world.left.faults, world.left.writes) = (0, 0, 0);
    world.store.log.clear();
    // What arrives later than everything else is a state that is explored by itself.
    world.messages.retain(|message| message.awaited);
    for r in 0..world.replicas.len() {
        if world.replicas[r].life == Life::Paused {
            world.apply(scope, &Event::Resume(r))?;
        }
    }
    let gone: Vec<String> = world.seen().controllers.keys().filter(|s| !world.is_up(s)).cloned().collect();
    for session in gone {
        world.apply(scope, &Event::Expire(session))?;
    }
    let stays = |world: &World| world.replicas.iter().any(|replica| replica.life == Life::Up && !replica.leaving);
    if !stays(world) {
        let off = world.replicas.iter().position(|replica| replica.life == Life::Off);
        match off {
            Some(r) => world.apply(scope, &Event::Start(r))?,
            // All are leaving: nobody takes anything, and one of them comes back after it has left.
            None => world.replicas[0].leaving = false,
        }
    }
    Ok(())
}

fn round(scope: &Scope, world: &mut World) -> Result<(), Violation> {
    world.apply(scope, &Event::Sync)?;
    for r in 0..world.replicas.len() {
        if world.replicas[r].life == Life::Up {
            if !world.is_alive(&world.replicas[r].session) {
                world.apply(scope, &Event::Reopen(r))?;
            }
            world.apply(scope, &Event::See(r))?;
            world.apply(scope, &Event::CatchUp(r, world.store.revision))?;
            world.apply(scope, &Event::Tick(r))?;
            if world.may_end(r) {
                world.apply(scope, &Event::End(r))?;
            }
        }
    }
    while let Some(m) = world.messages.iter().position(|message| message.answer.is_none()) {
        world.apply(scope, &Event::Arrive(m))?;
    }
    while let Some(m) = world.messages.iter().position(|message| message.answer.is_some()) {
        world.apply(scope, &Event::Hear(m))?;
        while let Some(m) = world.messages.iter().position(|message| message.answer.is_none()) {
            world.apply(scope, &Event::Arrive(m))?;
        }
    }
    Ok(())
}

fn every_claim_is_owned(scope: &Scope, world: &World) -> Result<(), Violation> {
    let lost = scope.claims.iter().find(|claim| {
        let owner = (0..world.replicas.len()).find(|r| world.is_effective(*r, claim));
        !owner.is_some_and(|r| {
            let replica = &world.replicas[r];
            replica.life == Life::Up && !replica.leaving && world.is_alive(&replica.session)
        })
    });
    lost.map_or(Ok(()), |claim| Err(format!("everything rests, and nobody acts for {claim}")))
}
