//! `CoordinationService`: sessions that live as long as their stream is served, members, claims.

use std::sync::Arc;

use api::v1;
use futures::{
    FutureExt, StreamExt,
    stream::{self, Stream},
};
use store::{Api, Error, SessionOpen};
use tonic::{Request, Response, Status, Streaming};
use v1::{session_request::Request as Ask, session_response::Response as Tell};

use super::{Service, drain::UntilDrain, draining, early_end::Attached, first, refuse, status};
use crate::{convert, identity, payload::State, rpc::coordination_service_server::CoordinationService};

#[tonic::async_trait]
impl CoordinationService for Service {
    type SessionStream = UntilDrain<v1::SessionResponse>;
    type WatchCoordinationStream = UntilDrain<State>;

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        identity::caller(request.metadata()).map_err(status)?;
        self.open_session(request.into_inner()).boxed().await.map(Response::new)
    }

    async fn watch_coordination(
        &self,
        request: Request<v1::WatchCoordinationRequest>,
    ) -> Result<Response<Self::WatchCoordinationStream>, Status> {
        identity::caller(request.metadata()).map_err(status)?;
        let states = self.api.coordination().await.map_err(status)?;
        let states = states.map(|state| state.map(State).map_err(status));
        Ok(Response::new(UntilDrain::new(states, &self.drain, Err(draining()))))
    }

    async fn change_claim(
        &self,
        request: Request<v1::ChangeClaimRequest>,
    ) -> Result<Response<v1::ChangeClaimResponse>, Status> {
        identity::caller(request.metadata()).map_err(status)?;
        let claim = self.api.change_claim(convert::claim_change(request.into_inner())).await.map_err(status)?;
        Ok(Response::new(v1::ChangeClaimResponse { claim: Some(claim) }))
    }
}

impl Service {
    async fn open_session(
        &self,
        mut requests: Streaming<v1::SessionRequest>,
    ) -> Result<UntilDrain<v1::SessionResponse>, Status> {
        let Some(Ask::Open(open)) = first(&mut requests).await?.request else {
            return Err(status(Error::invalid("open", "must be the stream's first message")));
        };
        let ttl = convert::ttl(open.ttl).map_err(status)?;
        let attach = self
            .api
            .open_session(SessionOpen {
                session: open.session.clone(),
                role: open.role,
                name: open.name,
                server: self.name.clone(),
                server_address: self.address.clone(),
                ttl,
                machine_id: open.machine_id,
            })
            .await
            .map_err(status)?;
        let attached = self.early_end.attach(open.session, attach);
        let opened = tell(Tell::Opened(v1::SessionOpened { attach, ttl: convert::duration(ttl) }));
        let served = Served { api: self.api.clone(), requests, attached: Some(attached) };
        Ok(UntilDrain::new(stream::once(async { Ok(opened) }).chain(served.answers()), &self.drain, Err(draining())))
    }
}

fn tell(response: Tell) -> v1::SessionResponse {
    v1::SessionResponse { response: Some(response) }
}

/// One session's stream after its opening. Dropped with `attached` in it, it broke.
struct Served {
    api: Arc<dyn Api>,
    requests: Streaming<v1::SessionRequest>,
    attached: Option<Attached>,
}

impl Served {
    fn answers(self) -> impl Stream<Item = Result<v1::SessionResponse, Status>> {
        stream::unfold(self, |mut served| async move { served.answer().await.map(|answer| (answer, served)) })
    }

    /// None: the stream ends. Whatever this server ends itself is no break.
    async fn answer(&mut self) -> Option<Result<v1::SessionResponse, Status>> {
        let session = self.attached.as_ref()?.session().to_owned();
        let answer = match self.requests.message().await {
            Ok(Some(v1::SessionRequest { request: Some(Ask::Beat(beat)) })) => {
                match self.api.beat(&session, beat.report).await {
                    Ok(()) => return Some(Ok(tell(Tell::Renewed(v1::SessionRenewed {})))),
                    Err(Error::SessionEnded(_)) => Ok(ended("it expired, or was ended")),
                    Err(error) => Err(status(error)),
                }
            }
            Ok(Some(v1::SessionRequest { request: Some(Ask::Close(_)) })) => {
                match self.api.end_session(&session, None).await {
                    Ok(_) => Ok(ended("closed")),
                    Err(error) => Err(status(error)),
                }
            }
            Ok(Some(_)) => Err(status(Error::invalid("request", "should be a beat or a close"))),
            Ok(None) => {
                self.attached = None;
                return None;
            }
            Err(broken) => {
                self.attached = None;
                return Some(Err(refuse::inbound(broken)));
            }
        };
        if let Some(attached) = self.attached.take() {
            attached.close();
        }
        Some(answer)
    }
}

fn ended(reason: &str) -> v1::SessionResponse {
    tell(Tell::Ended(v1::SessionEnded { reason: reason.into() }))
}
