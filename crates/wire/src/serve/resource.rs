//! `ResourceService`: each call is one call of the `Api`.

use futures::FutureExt;
use model::Revision;
use store::{Error, List, Page};
use tonic::{Request, Response, Status, Streaming};

use api::v1;

use super::{Service, drain::UntilDrain, status};
use crate::{
    PART_BYTES_MAX, convert, identity,
    payload::{Item, One, Rows},
    rpc::resource_service_server::ResourceService,
    trace::CallSpan,
};

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ResourceService for Service {
    type WatchStream = UntilDrain<Item>;

    async fn apply(&self, request: Request<v1::ApplyRequest>) -> Answer<v1::ApplyResponse> {
        let mut caller = identity::caller(request.metadata()).map_err(status)?;
        let span = CallSpan::declaring(&self.tracer, "Apply", &mut caller);
        span.end(self.api.apply(&caller, request.into_inner()).await).map(Response::new).map_err(status)
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Answer<One> {
        identity::caller(request.metadata()).map_err(status)?;
        self.one(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Answer<Rows> {
        identity::caller(request.metadata()).map_err(status)?;
        let list = convert::list(request.get_ref()).map_err(status)?;
        self.rows(list).await.map(Response::new).map_err(status)
    }

    async fn watch(&self, request: Request<Streaming<v1::WatchRequest>>) -> Answer<Self::WatchStream> {
        identity::caller(request.metadata()).map_err(status)?;
        self.open_watch(request.into_inner()).boxed().await.map(Response::new)
    }

    async fn delete(&self, request: Request<v1::DeleteRequest>) -> Answer<v1::DeleteResponse> {
        let mut caller = identity::caller(request.metadata()).map_err(status)?;
        let span = CallSpan::declaring(&self.tracer, "Delete", &mut caller);
        span.end(self.api.delete(&caller, request.into_inner()).await).map(Response::new).map_err(status)
    }

    async fn update_status(&self, request: Request<v1::UpdateStatusRequest>) -> Answer<v1::UpdateStatusResponse> {
        let mut caller = identity::caller(request.metadata()).map_err(status)?;
        let span = CallSpan::server(&self.tracer, "UpdateStatus", &mut caller);
        span.end(self.api.update_status(&caller, request.into_inner()).await).map(Response::new).map_err(status)
    }

    async fn commit(&self, request: Request<v1::CommitRequest>) -> Answer<v1::CommitResponse> {
        let mut caller = identity::caller(request.metadata()).map_err(status)?;
        let span = CallSpan::server(&self.tracer, "Commit", &mut caller);
        let transaction = convert::transaction(caller, request.into_inner()).map_err(status)?;
        let revision = span.end(self.api.commit(transaction).await).map_err(status)?;
        Ok(Response::new(v1::CommitResponse { revision: revision.0 }))
    }

    async fn plan(&self, request: Request<v1::PlanRequest>) -> Answer<v1::PlanResponse> {
        let caller = identity::caller(request.metadata()).map_err(status)?;
        self.api.plan(&caller, request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Answer<v1::ExplainResponse> {
        identity::caller(request.metadata()).map_err(status)?;
        self.api.explain(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn history(&self, request: Request<v1::HistoryRequest>) -> Answer<v1::HistoryResponse> {
        identity::caller(request.metadata()).map_err(status)?;
        self.api.entries(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn head(&self, request: Request<v1::HeadRequest>) -> Answer<v1::HeadResponse> {
        identity::caller(request.metadata()).map_err(status)?;
        let cluster = self.api.cluster().await.map_err(status)?;
        let head = self.api.head().await.map_err(status)?;
        Ok(Response::new(v1::HeadResponse {
            incarnation: cluster.incarnation,
            shards: cluster.shards,
            revision: head.revision.0,
            commits: head.commits,
        }))
    }
}

impl Service {
    async fn one(&self, request: v1::GetRequest) -> Result<One, Error> {
        let key = convert::key(request.key.as_ref(), "key")?;
        // A read is linearizable, so it has seen every revision that exists; one beyond `head` doesn't.
        if request.min_revision > 0 && self.api.head().await?.revision < Revision(request.min_revision) {
            let revision = request.min_revision;
            return Err(Error::Unavailable(format!("revision {revision} doesn't exist in this store, or not yet")));
        }
        self.api.get(&key).await?.map(One).ok_or(Error::NotFound(key))
    }

    async fn rows(&self, list: List) -> Result<Rows, Error> {
        let Page { mut objects, mut more, revision } = self.api.list(list).await?;
        let fitting = fitting(objects.iter().map(|o| o.bytes.len()));
        if fitting < objects.len() {
            objects.truncate(fitting);
            more = true;
        }
        let last = objects.last().filter(|_| more).map(|object| &object.key);
        let next_page_token = last.map_or_else(String::new, |key| convert::page_token(Some(revision), Some(key)));
        Ok(Rows { objects, next_page_token, revision })
    }
}

/// How many go into one message, at least one.
pub fn fitting(lengths: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0;
    let within = lengths.take_while(|length| {
        bytes += length;
        bytes <= PART_BYTES_MAX
    });
    within.count().max(1)
}
