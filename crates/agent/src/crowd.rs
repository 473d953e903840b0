//! Several agents on one connection: requests for logs don't say which of their nodes is meant.

use std::sync::Arc;

use api::v1;
use async_trait::async_trait;
use model::Key;
use store::{LogSource, LogStream};

/// The logs of whichever of them has the instance.
pub struct Crowd(Vec<Arc<dyn LogSource>>);

impl FromIterator<Arc<dyn LogSource>> for Crowd {
    fn from_iter<T: IntoIterator<Item = Arc<dyn LogSource>>>(sources: T) -> Self {
        Self(sources.into_iter().collect())
    }
}

#[async_trait]
impl LogSource for Crowd {
    async fn open(&self, start: v1::LogStart) -> store::Result<LogStream> {
        for node in &self.0 {
            match node.open(start.clone()).await {
                Err(store::Error::NotFound(_)) => {}
                found => return found,
            }
        }
        Err(store::Error::NotFound(Key::new("Instance", &start.namespace, &start.instance)))
    }
}
