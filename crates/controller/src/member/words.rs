//! What the store says of members and claims, as a stream that never ends: a broken one is opened again, and that is said
//! too. Polled inside the member's loop, which goes on with everything else while a server is looked for.

use std::{sync::Arc, time::Duration};

use api::v1;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use store::CoordinationStream;
use tokio::time::timeout;
use tracing::debug;

use crate::Shared;

/// Longest wait for one opening: one that hangs is given up and tried again.
const OPEN_MAX: Duration = Duration::from_secs(5);

pub enum Word {
    State(Arc<v1::Coordination>),
    /// Nothing is heard for now.
    Broken,
}

pub fn all(shared: Arc<Shared>) -> BoxStream<'static, Word> {
    stream::unfold((shared, None::<CoordinationStream>), async |(shared, open)| {
        let mut open = match open {
            Some(open) => open,
            None => crate::retry(&shared.config, || opened(&shared)).await,
        };
        match open.next().await {
            Some(Ok(state)) => Some((Word::State(state), (shared, Some(open)))),
            broken => {
                debug!(error = ?broken.map(|word| word.err()), "nothing is heard of members and claims");
                Some((Word::Broken, (shared, None)))
            }
        }
    })
    .boxed()
}

async fn opened(shared: &Shared) -> store::Result<CoordinationStream> {
    let opened = timeout(OPEN_MAX, shared.store.coordination()).await;
    opened.unwrap_or_else(|_| Err(store::Error::Unavailable("no server answered in time".into())))
}
