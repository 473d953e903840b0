//! Watches on objects, made of etcd's watches that may lose, repeat or reorder events, break, and never say so.
//!
//! ```text
//! etcd's events -> Assembler: whole commits, in order, none missing -> View: what the reader sees of them -> groups
//! ```
//!
//! Each commit's event of `head` says how many keys it wrote, and its version counts commits. What doesn't add up, or
//! doesn't come though `head` proves it, is listed anew and goes out as one coalesced group. So is what compaction took
//! away. Nothing ever goes back to an older revision.

mod age;
mod assembler;
mod follower;
mod lag;
mod view;

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use store::{Result, WatchOptions, WatchStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::backend::Inner;

/// etcd answers the request for a watch at once, or isn't there.
pub const OPEN_MAX: Duration = Duration::from_secs(1);
/// Items made but not yet taken by the reader; then etcd has to wait.
const ITEMS_MAX: usize = 64;

pub async fn open(store: Arc<Inner>, options: WatchOptions) -> Result<WatchStream> {
    let (out, items) = mpsc::channel(ITEMS_MAX);
    let start = follower::Start::of(&store, &options).await?;
    tokio::spawn(start.run(store, options, out));
    Ok(ReceiverStream::new(items).boxed())
}

#[cfg(test)]
mod probeless_tests;
