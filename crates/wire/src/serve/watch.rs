//! A watch: the first request opens it, later ones change its shards, and it outlives its request side.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll},
};

use api::v1;
use futures::{Stream, StreamExt};
use store::{Error, ShardSet, WatchItem, WatchStream};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    task::AbortHandle,
};
use tonic::{Status, Streaming};

use super::{Service, WATCHES_MAX, drain::UntilDrain, first, resource::fitting, status};
use crate::{convert, payload::Item};

impl Service {
    pub(super) async fn open_watch(
        &self,
        mut requests: Streaming<v1::WatchRequest>,
    ) -> Result<UntilDrain<Item>, Status> {
        let permit = self.watches.clone().try_acquire_owned().map_err(|_| {
            status(Error::TooLarge(format!("this server already serves {WATCHES_MAX} watches; go on with another")))
        })?;
        let mut options = first(&mut requests).await.and_then(|r| convert::watch_options(&r).map_err(status))?;
        let (shards, changed) = watch::channel(options.filter.shards.clone().map(Into::into));
        options.shards = Some(changed);
        let items = self.api.watch(options).await.map_err(status)?;
        let changes = tokio::spawn(follow(requests, shards)).abort_handle();
        let outgoing = Outgoing { items, parts: VecDeque::new(), changes, _permit: permit };
        let last = WatchItem::End { reason: "DRAINING".into(), message: "go on with another server".into() };
        Ok(UntilDrain::new(outgoing, &self.drain, Ok(Item(last))))
    }
}

/// Hands the shards of later requests on, until the request side closes.
async fn follow(mut requests: Streaming<v1::WatchRequest>, shards: watch::Sender<ShardSet>) {
    while let Ok(Some(request)) = requests.message().await {
        shards.send_replace(convert::shard_set(request.filter.as_ref()));
    }
    // Half-closed: the set stays as it is. Dropping the sender would look like a change to nobody in particular.
    shards.closed().await;
}

/// The items, snapshots cut into parts that any client accepts.
struct Outgoing {
    items: WatchStream,
    parts: VecDeque<Item>,
    changes: AbortHandle,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // It holds the request side, and with it the connection.
        self.changes.abort();
    }
}

impl Stream for Outgoing {
    type Item = Result<Item, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(part) = self.parts.pop_front() {
            return Poll::Ready(Some(Ok(part)));
        }
        self.items.poll_next_unpin(cx).map(|item| match item? {
            Ok(WatchItem::Snapshot(objects)) => {
                self.parts = parts(objects).collect();
                self.parts.pop_front().map(Ok)
            }
            Ok(item) => Some(Ok(Item(item))),
            Err(error) => Some(Err(status(error))),
        })
    }
}

fn parts(mut objects: Vec<model::Object>) -> impl Iterator<Item = Item> {
    let mut first = true;
    std::iter::from_fn(move || {
        let more = std::mem::take(&mut first) || !objects.is_empty();
        more.then(|| {
            let count = fitting(objects.iter().map(|o| o.bytes.len())).min(objects.len());
            let rest = objects.split_off(count);
            Item(WatchItem::Snapshot(std::mem::replace(&mut objects, rest)))
        })
    })
}
