//! Whether a watch may be opened, and from where.

use std::sync::Arc;

use store::{Error, Result, WatchOptions, WatchStream};

use super::stream_of;
use crate::{
    heads::Heads,
    reads::{barrier, beyond},
    shared::Shared,
};

/// Open watches on one server.
pub const WATCHES_MAX: usize = 20_000;

/// Opens a watch. What the token lacks, or a snapshot, comes first.
pub async fn open(shared: Arc<Shared>, heads: &Heads, options: WatchOptions) -> Result<WatchStream> {
    shared.ready()?;
    refuse_the_future(&shared, heads, &options).await?;
    if shared.counters.watchers.get() >= WATCHES_MAX as u64 {
        return Err(Error::TooLarge(format!("{WATCHES_MAX} watches are open on this server, which is its bound")));
    }
    Ok(stream_of(shared, options))
}

/// Nobody can have seen, or wait for, what lies beyond the store's head. A token from there proves a restore that nobody
/// announced; a bare number proves nothing. What starts with a snapshot shows every commit that was acknowledged before.
async fn refuse_the_future(shared: &Shared, heads: &Heads, options: &WatchOptions) -> Result<()> {
    let (incarnation, reached) = {
        let cache = shared.cache();
        (cache.incarnation.clone(), cache.revision)
    };
    let Some(token) = options.resume.as_ref().filter(|token| token.incarnation == incarnation) else {
        return barrier(shared, heads, options.min_revision).await;
    };
    if token.revision.max(options.min_revision) <= reached {
        return Ok(());
    }
    let head = heads.read().await?.revision;
    if token.revision > head {
        shared.rollback_proved();
        shared.ready()?;
    }
    beyond(options.min_revision, head)
}
