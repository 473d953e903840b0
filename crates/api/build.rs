//! Compiles the protos without protoc: messages and the descriptor set, no services.

use std::{env, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", root.display());
    let mut files: Vec<PathBuf> =
        fs::read_dir(root.join("driftless/v1"))?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    files.sort();
    let set = protox::compile(&files, [&root])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptor_set.bin"), prost::Message::encode_to_vec(&set))?;
    prost_build::Config::new().btree_map(["."]).compile_fds(set)?;
    Ok(())
}
