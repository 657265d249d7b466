//! Fuzz targets for requests that users send to an agent's socket. `docs/fuzzing.md` lists all
//! targets.

use crate::spec::{binding_request, image_request, parse_image, shape_request};
use crate::{allocation, audit, operator, spec, v1};
use lattice_fuzz::{Target, numbered};
use lattice_model::{AllocationSpec, AuditAction, AuditRecord, Entrypoint, Revision, Timestamp};
use prost::Message;
use std::path::Path;
use tonic::metadata::{MetadataMap, MetadataValue};

fn specs() -> Vec<Vec<u8>> {
    let command = Entrypoint::Command { argv: vec!["true".into(), "x".into()] };
    let script = Entrypoint::Script { text: "#!/bin/sh\n".into(), args: vec!["a".into()] };
    let plain = [command, script].map(|entrypoint| spec::from_model(&AllocationSpec::new("a", entrypoint, Path::new("/tmp"))));
    let mount = v1::data::Mount { source: "/a".into(), target: "/b".into(), access: "read-only".into(), tier_hint: String::new() };
    let expose = v1::connectivity::Expose { name: "api".into(), port: 80, protocol: "tcp".into() };
    let full = v1::AllocationSpec {
        resources: Some(v1::ResourceRequest {
            nodes: 2,
            cpus: 4,
            gpus: 1,
            cpus_per_gpu: 4,
            ntasks_per_gpu: 2,
            nodelist: vec!["n1".into(), "n2".into()],
            exclude: vec!["n3".into()],
            features: "(a|b)&[c*1&(d&e)*1]".into(),
            constraints: [("gpu_type", "GH200"), ("features", "a, b"), ("memory_gb", ">=512"), ("gpu_count", "4")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..Default::default()
        }),
        data: Some(v1::Data { mounts: vec![mount], ..Default::default() }),
        connectivity: Some(v1::Connectivity { network_domain: "ml".into(), expose: vec![expose] }),
        liveness_probe: Some(v1::LivenessProbe { probe_type: "http".into(), port: 80, path: "/".into(), ..Default::default() }),
        env: [("A".to_owned(), "b".to_owned())].into(),
        on_isolation: "stop".into(),
        depends_on: vec![v1::Dependency { r#ref: "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".into(), condition: "mutex".into() }],
        ..plain[0].clone()
    };
    let run = v1::IndexRun { first: 0, last: 98, step: 2 };
    let group = v1::TaskGroup { indices: vec![run], concurrency: 20, max_failures: Some(3) };
    let grouped = v1::AllocationSpec { task_group: Some(group), ..plain[1].clone() };
    let policy = v1::ScalePolicy { metric: "q{a=\"b\"}".into(), target: "0.8".into(), ..Default::default() };
    let drain = v1::Drain { signal: "USR1".into(), grace_ms: Some(9) };
    let scaling = v1::Scaling { replicas_min: 1, replicas_max: 4, policy: Some(policy), drain: Some(drain) };
    let lifecycle = v1::Lifecycle { r#type: "reactive".into(), scaling: Some(scaling), ..Default::default() };
    let scaled = v1::AllocationSpec { lifecycle: Some(lifecycle), ..plain[0].clone() };
    plain.iter().chain([&full, &grouped, &scaled]).map(Message::encode_to_vec).collect()
}

fn record() -> Vec<u8> {
    let record = AuditRecord {
        seq: 1,
        revision: Revision(2),
        at: Timestamp(3),
        actor: "u".into(),
        token: Some("00000000000000ab".into()),
        action: AuditAction::ALL[0],
        allocation: Some("1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap()),
        owner: Some("u".into()),
        node: Some("n1".parse().unwrap()),
        detail: "d".into(),
        previous: "0".repeat(64),
        hash: "1".repeat(64),
    };
    audit::record_to_proto(&record).encode_to_vec()
}

/// An accepted specification can be encoded, and decodes to the same value.
fn submit(bytes: &[u8]) {
    let Ok(message) = v1::AllocationSpec::decode(bytes) else { return };
    drop(image_request(&message));
    if let Ok(model) = spec::to_model(&message) {
        assert_eq!(spec::to_model(&spec::from_model(&model)), Ok(model));
    }
}

#[test]
fn requests() {
    let shape = v1::LaunchShape { distribution: "plane=2".into(), ..Default::default() };
    let binding = v1::RankBinding { cpu_bind: "cores".into(), gpus_per_task: 1, ..Default::default() };
    let filter = v1::AuditFilter { types: vec![AuditAction::ALL[0].name().into()], node: "n1".into(), ..Default::default() };
    let token = v1::OperatorToken { certificate: vec![1; 40], method: "A/B".into(), signed_at_ms: 7, signature: vec![2; 30] };
    let seeds = [
        specs(),
        vec![shape.encode_to_vec()],
        vec![binding.encode_to_vec()],
        vec![filter.encode_to_vec()],
        vec![record()],
        vec![b"/images/a.sqfs@sha256:0000".to_vec(), b"a:1@view".to_vec(), b"Running".to_vec()],
        vec![token.encode_to_vec()],
    ];
    Target::new("api-requests", numbered(seeds)).fuzz(|bytes| {
        let Some((which, bytes)) = bytes.split_first() else { return };
        match which {
            0 => submit(bytes),
            1 => drop(v1::LaunchShape::decode(bytes).map(|shape| shape_request(Some(&shape)))),
            2 => drop(v1::RankBinding::decode(bytes).map(|binding| binding_request(Some(&binding)))),
            3 => drop(v1::AuditFilter::decode(bytes).map(|filter| audit::filter_to_model(Some(&filter)))),
            4 => {
                let Ok(record) = v1::AuditRecord::decode(bytes) else { return };
                if let Ok(model) = audit::record_to_model(&record) {
                    assert_eq!(audit::record_to_model(&audit::record_to_proto(&model)), Ok(model));
                }
            }
            5 => {
                let text = String::from_utf8_lossy(bytes);
                drop(parse_image(&text));
                drop(allocation::state_from_name(&text));
            }
            _ => {
                let mut metadata = MetadataMap::new();
                metadata.insert_bin(operator::METADATA, MetadataValue::from_bytes(bytes));
                drop(operator::token_of(&metadata));
            }
        }
    });
}
