//! The gRPC check: grpc.health.v1.Health/Check answers SERVING.

use tonic::transport::Endpoint;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

pub async fn check(port: u16, service: &str) -> Result<(), String> {
    let endpoint = Endpoint::try_from(format!("http://127.0.0.1:{port}")).map_err(|e| e.to_string())?;
    let channel = endpoint.connect().await.map_err(|_| format!("port {port}: no gRPC connection"))?;
    let request = HealthCheckRequest { service: service.into() };
    let answer = HealthClient::new(channel).check(request).await;
    match answer.map(|a| a.into_inner().status()) {
        Ok(ServingStatus::Serving) => Ok(()),
        Ok(other) => Err(format!("the health service says {}", other.as_str_name())),
        Err(status) => Err(format!("the health service fails: {:?}: {}", status.code(), status.message())),
    }
}
