//! The committed code in `api/src/generated` is what the protobuf files make, so that nobody who
//! builds Lattice compiles a compiler for them. The test is here and not in `api`, because `api` does not
//! compile while that code is damaged.

use std::path::Path;

/// Set to write the code anew: `LATTICE_GENERATE=1 cargo test -p lattice-model --test protobuf`.
const GENERATE_VARIABLE: &str = "LATTICE_GENERATE";

#[test]
fn the_generated_code_is_that_of_the_protobuf_files() {
    let package = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../api"));
    let mut files: Vec<_> = package.join("proto/lattice/v1").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let descriptors = protox::compile(&files, [package.join("proto")]).unwrap();
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tonic_prost_build::configure().bytes(".lattice.v1.Packed").out_dir(out).compile_fds(descriptors).unwrap();
    let made = std::fs::read_to_string(out.join("lattice.v1.rs")).unwrap();
    let committed = package.join("src/generated/lattice.v1.rs");
    if std::env::var_os(GENERATE_VARIABLE).is_some() {
        std::fs::write(&committed, &made).unwrap();
    }
    let same = std::fs::read_to_string(&committed).unwrap() == made;
    assert!(
        same,
        "{} is not what proto/ makes: {GENERATE_VARIABLE}=1 cargo test -p lattice-model --test protobuf writes it",
        committed.display()
    );
}
