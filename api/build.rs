//! Compiles the protobuf files with a compiler written in Rust, so that no `protoc` is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let files = [
        "allocations.proto",
        "application.proto",
        "attach.proto",
        "nodes.proto",
        "admin.proto",
        "leases.proto",
        "sessions.proto",
        "vclusters.proto",
        "watch.proto",
        "quorum.proto",
    ]
    .map(|f| format!("proto/lattice/v1/{f}"));
    for file in &files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(&files, ["proto"])?;
    tonic_prost_build::configure().bytes(".lattice.v1.Packed").compile_fds(descriptors)?;
    Ok(())
}
