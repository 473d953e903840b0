//! Streams that only listen: watches and the coordination state. They break, and whoever listens opens another.

use std::sync::Arc;

use ::api::v1;
use futures::{Stream, StreamExt, stream};
use store::{CoordinationStream, Error, Result, ShardSet, WatchItem, WatchOptions, WatchStream};
use tokio::sync::watch::Receiver;
use tonic::Streaming;

use super::pool::{Pool, Server, Signature, answer};
use crate::{
    convert,
    error::{Call, from_status},
};

pub async fn watch(pool: Arc<Pool>, me: Signature, options: WatchOptions) -> Result<WatchStream> {
    let opened = pool.call(Call::Read, |server| {
        let requests = me.on(requests(&options));
        async move { Ok((answer(server.resources().watch(requests)).await?, server)) }
    });
    let (items, server) = opened.await?;
    let items = until_broken(pool.clone(), server.clone(), items).map(|item| item.map(|item| item.0));
    // A server that ends a watch itself can't serve the next one either.
    let items = items.inspect(move |item| {
        if matches!(item, Ok(WatchItem::End { .. })) {
            pool.leave(&server);
        }
    });
    Ok(until_end(items).boxed())
}

/// Nothing after `End`, nor that the stream then ended.
fn until_end(items: impl Stream<Item = Result<WatchItem>>) -> impl Stream<Item = Result<WatchItem>> {
    items.scan(false, |ended, item| {
        let over = std::mem::replace(ended, matches!(item, Ok(WatchItem::End { .. })));
        std::future::ready((!over).then_some(item))
    })
}

pub async fn coordination(pool: Arc<Pool>, me: Signature) -> Result<CoordinationStream> {
    let opened = pool.call(Call::Read, |server| {
        let request = me.on(v1::WatchCoordinationRequest {});
        async move { Ok((answer(server.coordination().watch_coordination(request)).await?, server)) }
    });
    let (states, server) = opened.await?;
    Ok(until_broken(pool, server, states).map(|state| state.map(|state| state.0)).boxed())
}

/// The request that opens a watch, then one for each change of its shards. Closing this side doesn't end a watch.
fn requests(options: &WatchOptions) -> impl Stream<Item = v1::WatchRequest> + Send + 'static {
    let opening = convert::watch_request(options);
    let filter = options.filter.clone();
    let sent: ShardSet = filter.shards.clone().map(Into::into);
    let changes = stream::unfold((options.shards.clone(), sent), next_set).map(move |shards| {
        let mut filter = filter.clone();
        filter.shards = shards.map(|shards| shards.to_vec());
        v1::WatchRequest { filter: Some((&filter).into()), ..Default::default() }
    });
    stream::once(async { opening }).chain(changes)
}

type Shards = (Option<Receiver<ShardSet>>, ShardSet);

/// The next set that differs from the one sent last.
async fn next_set((receiver, sent): Shards) -> Option<(ShardSet, Shards)> {
    let mut receiver = receiver?;
    let next = receiver.wait_for(|shards| *shards != sent).await.ok()?.clone();
    Some((next.clone(), (Some(receiver), next)))
}

/// What the stream says, then why it broke, as one last error.
fn until_broken<T: Send + 'static>(
    pool: Arc<Pool>,
    server: Server,
    items: Streaming<T>,
) -> impl Stream<Item = Result<T>> + Send {
    stream::unfold(Some((pool, server, items)), |open| async {
        let (pool, server, mut items) = open?;
        let error = match items.message().await {
            Ok(Some(item)) => return Some((Ok(item), Some((pool, server, items)))),
            Ok(None) => Error::Unavailable("the server ended the stream".into()),
            Err(status) => from_status(&status, Call::Read),
        };
        if matches!(error, Error::Unavailable(_)) {
            pool.leave(&server);
        }
        Some((Err(error), None))
    })
}
