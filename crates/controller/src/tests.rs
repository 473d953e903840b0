//! A replica as a whole.

use tokio::{sync::mpsc, time::timeout};

use super::*;
use crate::testing::{LONG, Restarting};

/// It would go on renewing its session, own its claims, and look healthy.
#[tokio::test(start_paused = true)]
async fn a_replica_of_which_a_part_panicked_ends() {
    let store = Restarting::new();
    // Whoever opens a watch panics: nobody takes them.
    *store.watches.lock().expect("nobody panics with it") = Some(mpsc::unbounded_channel().0);
    let (_shutdown, asked) = watch::channel(false);
    let ended = timeout(LONG, Controller::new(Config::default(), store).run(asked)).await.expect("it ends");
    assert!(ended.is_err_and(|Broken(why)| why.is_panic()));
}
