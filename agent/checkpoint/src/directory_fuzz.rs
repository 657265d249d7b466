//! Fuzz target for applications' answers about their checkpoints, in files and in calls, and for
//! manifests in a store that others can write to. `docs/fuzzing.md` lists all targets.

use super::super::app_message;
use super::super::store::{Manifest, NodeManifest};
use super::*;
use lattice_api::v1;
use lattice_fuzz::{Input, Target, numbered, piece};

/// An answer in a call. If it is accepted, it can be written to a file, and reading the file gives
/// the same answer.
fn called(mut input: Input<'_>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let (step, time_seconds) = (number(input.piece()), number(input.piece()).map(f64::from_bits));
    let mut message = v1::SaveDone { step, time_seconds, ..Default::default() };
    while !input.is_empty() {
        let (path, bytes, blake3) = (text(input.piece()), number(input.piece()), text(input.piece()));
        message.list.push(v1::SavedFile { path, bytes, blake3 });
    }
    let Ok(answer) = app_message::done(message) else { return };
    let Answer::Done(claims) = &answer else { panic!("a done message became another answer: {answer:?}") };
    assert_eq!(done(&claims.to_text()), Ok(answer));
}

#[test]
fn checkpoints() {
    let answer =
        [&5u64.to_le_bytes()[..], &0.5f64.to_le_bytes(), b"a/b", &3u64.to_le_bytes(), "0f".repeat(32).as_bytes()].map(piece).concat();
    let id = "\"2f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88\"";
    let whose = format!("\"version\":1,\"id\":{id},\"allocation\":{id},\"epoch\":3");
    let node = "{\"node\":\"n1\",\"files\":1,\"bytes\":2,\"manifest\":\"0f\"}";
    let of_owner = "\"created_at_ms\":5,\"owner\":\"u\",\"owner_uid\":1000";
    let manifest = format!("{{{whose},\"parent\":null,\"round\":1,\"step\":7,{of_owner},\"nodes\":[{node}]}}");
    let file = "{\"path\":\"a\",\"mode\":384,\"size\":1,\"blake3\":\"0f\",\"object\":\"1.zst\"}";
    let node_manifest = format!("{{{whose},\"node\":\"n1\",\"step\":7,\"time_seconds\":0.5,\"files\":[{file}]}}");
    assert!(serde_json::from_str::<Manifest>(&manifest).is_ok() && serde_json::from_str::<NodeManifest>(&node_manifest).is_ok());
    let texts = [
        format!("step=5\nfiles = 2\n\nbytes=9\ntime=1e-3\nfile=3 {} a/b\nfile=- - c", "0f".repeat(32)),
        "no space\n".to_owned(),
        "1.5\n".to_owned(),
        manifest,
        node_manifest,
    ];
    let seeds = texts.map(|text| vec![text.into_bytes()]).into_iter().chain([vec![answer]]);
    Target::new("agent-checkpoints", numbered(seeds)).fuzz(|bytes| {
        let Some((which, bytes)) = bytes.split_first() else { return };
        let text = String::from_utf8_lossy(bytes);
        match which {
            0 => drop(done(&text)),
            1 => drop(not_done(&text)),
            2 => drop(deferred(&text)),
            3 => drop(serde_json::from_slice::<Manifest>(bytes).map(|manifest| manifest.size())),
            4 => drop(serde_json::from_slice::<NodeManifest>(bytes)),
            _ => called(Input(bytes)),
        }
    });
}
