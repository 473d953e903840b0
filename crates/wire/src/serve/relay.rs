//! A log that another server has: asked for there as its caller, and handed on as it comes.
//!
//! The one that is asked so asks nobody else, so a log takes one hop between servers at most. Each has a connection of its own:
//! what isn't read stays where it's made, and a server that is gone breaks off only what it relayed.

use std::time::Duration;

use api::v1;
use futures::{StreamExt, stream::BoxStream};
use store::{Caller, Error, Result};
use tonic::{
    Request, Status,
    metadata::{MetadataMap, MetadataValue},
    transport::Endpoint,
};

use super::status;
use crate::{
    RESPONSE_BYTES_MAX,
    error::{Call, from_status},
    identity,
    rpc::agent_service_client::AgentServiceClient,
};

/// Says that a server asks for a client.
const RELAYED: &str = "driftless-relayed";
/// A server that isn't connected by then can't be reached. Leaves time to say so, within a client's usual 5 s.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// And in all, until the log begins.
const OPEN_MAX: Duration = Duration::from_secs(4);
/// Two unanswered pings' time until a silent server's log breaks off.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

pub type Log = BoxStream<'static, Result<v1::LogsResponse, Status>>;

/// As the agent's session names it.
pub struct Server {
    pub name: String,
    /// `host:port`; empty: it tells none.
    pub address: String,
}

pub fn is_relayed(metadata: &MetadataMap) -> bool {
    metadata.contains_key(RELAYED)
}

/// The error says, as the end of a sentence about that server, what is wrong and what helps.
pub async fn open(caller: &Caller, request: v1::LogsRequest, there: &Server) -> Result<Log, String> {
    let Server { name, address } = there;
    if address.is_empty() {
        return Err(format!("which doesn't say where others reach it; ask {name} itself (--server)"));
    }
    let unreachable = |why: String| {
        format!(
            "which can't be reached at {address} from here ({why}); make it reachable, or tell it a better address \
             (server --advertise), or ask {name} itself (--server)"
        )
    };
    let opened = tokio::time::timeout(OPEN_MAX, ask(caller, request, address)).await;
    let log = opened.map_err(|_| unreachable(format!("no answer within {} s", OPEN_MAX.as_secs())))?;
    log.map_err(|problem| match problem {
        Problem::Unreachable(why) => unreachable(why),
        Problem::Refused(error) => format!("which answers: {error}"),
    })
}

enum Problem {
    Unreachable(String),
    Refused(Error),
}

async fn ask(caller: &Caller, request: v1::LogsRequest, address: &str) -> Result<Log, Problem> {
    let transport = |error: tonic::transport::Error| {
        Problem::Unreachable(std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string))
    };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(transport)?;
    let endpoint = endpoint
        .connect_timeout(CONNECT_MAX)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    let channel = endpoint.connect().await.map_err(transport)?;
    let mut request = Request::new(request);
    identity::sign(request.metadata_mut(), caller).map_err(Problem::Refused)?;
    request.metadata_mut().insert(RELAYED, MetadataValue::from_static("1"));
    let mut client = AgentServiceClient::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
    let answered = client.logs(request).await.map_err(|refused| Problem::Refused(from_status(&refused, Call::Read)))?;
    let as_ours = |broken: Status| status(from_status(&broken, Call::Read));
    Ok(answered.into_inner().map(move |response| response.map_err(as_ours)).boxed())
}
