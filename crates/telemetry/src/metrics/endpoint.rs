//! The pages that a role serves beside its work: `/metrics`, `/healthz` and `/readyz`.
//!
//! They show how the cluster is used, and nothing that is declared in it; still they are for a network that the operator
//! trusts, since they ask nobody who he is.

use std::{io, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;

use super::Exporter;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const WORDS: &str = "text/plain; charset=utf-8";

/// Serves them until it's dropped.
pub async fn serve(listener: TcpListener, exporter: Arc<Exporter>) -> io::Result<()> {
    let pages = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { page(StatusCode::OK, WORDS, "ok\n".into()) }))
        .route("/readyz", get(readyz))
        .with_state(exporter);
    axum::serve(listener, pages).await
}

async fn metrics(State(exporter): State<Arc<Exporter>>, headers: HeaderMap) -> Response {
    let openmetrics = asks_for_openmetrics(&headers);
    // It reads files of /proc, and takes locks that work takes too.
    let written = tokio::task::spawn_blocking(move || exporter.page(openmetrics).map_err(|error| error.to_string()));
    match written.await.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(text) => page(StatusCode::OK, if openmetrics { OPENMETRICS } else { TEXT }, text),
        Err(error) => page(StatusCode::INTERNAL_SERVER_ERROR, WORDS, format!("cannot write the page: {error}\n")),
    }
}

/// Prometheus asks for it where it stores exemplars; it also takes the older text.
fn asks_for_openmetrics(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    accepts.flat_map(|value| value.split(',')).any(|one| one.trim().starts_with("application/openmetrics-text"))
}

async fn readyz(State(exporter): State<Arc<Exporter>>) -> Response {
    match exporter.not_ready().as_slice() {
        [] => page(StatusCode::OK, WORDS, "ready\n".into()),
        why => page(StatusCode::SERVICE_UNAVAILABLE, WORDS, format!("{}\n", why.join("\n"))),
    }
}

fn page(status: StatusCode, content_type: &'static str, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, content_type)], text).into_response()
}
