//! A watch through a faulty connection.

use std::collections::VecDeque;

use futures::{StreamExt, stream};

use super::Faults;
use crate::{Result, WatchItem, WatchStream};

pub(super) fn pass(inner: WatchStream, faults: Faults) -> WatchStream {
    let passing = Passing { inner, faults, ready: VecDeque::new() };
    stream::unfold(Some(passing), async |passing| {
        let mut passing = passing?;
        match passing.next().await? {
            Ok(item) => Some((Ok(item), Some(passing))),
            Err(error) => Some((Err(error), None)),
        }
    })
    .boxed()
}

struct Passing {
    inner: WatchStream,
    faults: Faults,
    ready: VecDeque<WatchItem>,
}

impl Passing {
    async fn next(&mut self) -> Option<Result<WatchItem>> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Some(Ok(item));
            }
            let faults = self.faults.clone();
            let held = async {
                let item = self.inner.next().await;
                faults.hold().await;
                item
            };
            match self.faults.unless_cut(held).await {
                Ok(Some(Ok(item))) => self.ready.extend(self.faults.passed(item)),
                Ok(ended) => return ended,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
