//! Generates the gRPC services and clients: no messages (those are `api`'s), and no protoc.
//!
//! All of them speak through `crate::codec::Codec`. Three answers get a type of their own, so that resources travel as
//! the bytes that the store keeps, never decoded on the way.

use std::{env, fs, path::PathBuf};

use tonic_prost_build::manual;

/// Answers that carry stored resources, by method.
const OPAQUE: [(&str, &str); 4] = [
    ("Get", "crate::payload::One"),
    ("List", "crate::payload::Rows"),
    ("Watch", "crate::payload::Item"),
    ("WatchCoordination", "crate::payload::State"),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", root.display());
    let files: Vec<PathBuf> =
        fs::read_dir(root.join("driftless/v1"))?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    for file in protox::compile(&files, [&root])?.file {
        for service in &file.service {
            let mut builder = manual::Service::builder().name(service.name()).package(file.package());
            for method in &service.method {
                let opaque = OPAQUE.iter().find(|(name, _)| *name == method.name());
                let output = opaque.map_or_else(|| message(method.output_type()), |(_, path)| (*path).to_owned());
                let mut built = manual::Method::builder()
                    .name(snake(method.name()))
                    .route_name(method.name())
                    .input_type(message(method.input_type()))
                    .output_type(output)
                    .codec_path("crate::codec::Codec");
                if method.client_streaming() {
                    built = built.client_streaming();
                }
                if method.server_streaming() {
                    built = built.server_streaming();
                }
                builder = builder.method(built.build());
            }
            manual::Builder::new().compile(&[builder.build()]);
        }
    }
    Ok(())
}

/// `.driftless.v1.GetRequest` as the type that `api` made of it.
fn message(proto: &str) -> String {
    format!("::api{}", proto.trim_start_matches(".driftless").replace('.', "::"))
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}
