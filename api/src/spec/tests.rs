use super::*;
use lattice_model::binding::{CpuBind, GpuBind, MemoryPolicy, RankBinding};
use lattice_model::launch::TerminalSize;
use lattice_model::layout::Program;
use lattice_model::spec::{Entrypoint, NODES_MAX, OnIsolation, RequeuePolicy};
use lattice_model::{
    Amount, Automatic, CheckpointMethod, CheckpointPolicy, CheckpointSignal, Connectivity, Constraints, Data, DataMount, Dependency,
    DependencyCondition, Distribution, Drain, EntryLaunch, Exposed, IndexRun, LaunchShape, LivenessProbe, Mail, MailEvent, ProbeCheck,
    ScalePolicy, Scaling, SignalTo, TaskGroup, TaskIndices, Timestamp, Timing,
};
use lattice_model::{EndWarning, MemoryUnit, OutputFiles, Resources};
use proptest::prelude::*;

/// All valid checkpoint signals.
fn signals() -> Vec<CheckpointSignal> {
    (0..=u8::MAX).filter_map(CheckpointSignal::of_number).collect()
}

fn minimal() -> v1::AllocationSpec {
    v1::AllocationSpec {
        name: "a".into(),
        resources: Some(v1::ResourceRequest { nodes: 2, ..Default::default() }),
        lifecycle: Some(v1::Lifecycle { walltime_seconds: 60, ..Default::default() }),
        entrypoint: Some(v1::Entrypoint {
            what: Some(v1::entrypoint::What::Command(v1::entrypoint::Command { argv: vec!["true".into()] })),
        }),
        working_dir: "/tmp".into(),
        ..Default::default()
    }
}

fn constrain(spec: &mut v1::AllocationSpec, key: &str, value: &str) {
    spec.resources.as_mut().unwrap().constraints.insert(key.into(), value.into());
}

#[test]
fn documented_constraints_are_read() {
    let mut message = minimal();
    for (key, value) in [
        ("gpu_type", "GH200"),
        ("features", "nvme_scratch, fast"),
        ("gpu_count", "4"),
        ("memory_gb", ">=512"),
        ("memory_policy", "interleave"),
        ("require_unified_memory", "true"),
        ("rack", "7"),
        ("gpu", ""),
        ("prefer_same_numa", ""),
        ("prefer_local_memory", "false"),
        ("allow_cxl_memory", "true"),
    ] {
        constrain(&mut message, key, value);
    }
    let model = to_model(&message).unwrap();
    let features: Vec<&str> = model.constraints.features.iter().map(String::as_str).collect();
    assert_eq!(features, ["fast", "gpu", "gpu_type=GH200", "nvme_scratch", "rack=7", "unified_memory"]);
    assert_eq!((model.constraints.gpus, model.constraints.memory_bytes), (4, 512 << 30));
    assert_eq!(model.binding.memory_policy, MemoryPolicy::Interleave);
    assert!(model.constraints.same_numa && model.constraints.cxl_memory);
    assert_eq!(to_model(&from_model(&model)), Ok(model));
}

#[test]
fn constraints_that_are_on_or_off_are_read() {
    let read = |key: &str, value: &str| {
        let mut message = minimal();
        constrain(&mut message, key, value);
        to_model(&message).map(|model| (model.constraints.same_numa, model.constraints.cxl_memory))
    };
    assert_eq!(read("prefer_same_numa", "true"), Ok((true, false)));
    assert_eq!(read("allow_cxl_memory", ""), Ok((false, true)));
    for key in ["prefer_same_numa", "prefer_local_memory", "allow_cxl_memory", "require_conformance", "require_unified_memory"] {
        assert_eq!(read(key, "false"), Ok((false, false)), "{key}");
        let Err(SpecError::Invalid { field: "constraint", why }) = read(key, "1") else { panic!("{key}=1 is accepted") };
        assert_eq!(why, format!("{key} must be true or false"));
    }
}

#[test]
fn topology_groups_are_asked_for_with_their_own_field() {
    let mut message = minimal();
    message.resources.as_mut().unwrap().topology = "tight".into();
    assert_eq!(to_model(&message).map(|model| model.constraints.topology), Ok(Topology::Tight));
    constrain(&mut message, "topology", "tight");
    let why = "topology is asked for with --topology any or --topology tight or --topology contiguous (in a request: \
               resources.topology)"
        .into();
    assert_eq!(to_model(&message), Err(SpecError::Invalid { field: "constraint", why }));
}

#[test]
fn local_memory_is_a_memory_policy() {
    let policy = |option: &str, constraints: &[(&str, &str)]| {
        let mut message = minimal();
        message.binding = Some(v1::RankBinding { memory_policy: option.into(), ..Default::default() });
        constraints.iter().for_each(|(key, value)| constrain(&mut message, key, value));
        to_model(&message).map(|model| model.binding.memory_policy)
    };
    let local = ("prefer_local_memory", "");
    assert_eq!(policy("", &[local]), Ok(MemoryPolicy::Local));
    assert_eq!(policy("local", &[local, ("memory_policy", "local")]), Ok(MemoryPolicy::Local));
    assert_eq!(policy("", &[("prefer_local_memory", "false"), ("memory_policy", "bind")]), Ok(MemoryPolicy::Bind));
    for (option, other, why) in [
        ("", Some(("memory_policy", "interleave")), "prefer_local_memory contradicts memory_policy=interleave: give one of them"),
        ("bind", None, "prefer_local_memory contradicts --memory-policy=bind: give one of them"),
    ] {
        let constraints: Vec<_> = std::iter::once(local).chain(other).collect();
        assert_eq!(policy(option, &constraints), Err(SpecError::Invalid { field: "constraint", why: why.into() }));
    }
}

/// Found by `fuzz::requests`: after encoding, a specification requested a different feature.
#[test]
fn spaces_around_a_constraints_value_are_not_part_of_it() {
    let mut message = minimal();
    constrain(&mut message, "cabinet", " x1000 ");
    constrain(&mut message, "rack", " ");
    let model = to_model(&message).unwrap();
    assert_eq!(model.constraints.features.iter().map(String::as_str).collect::<Vec<_>>(), ["cabinet=x1000", "rack"]);
    assert_eq!(to_model(&from_model(&model)), Ok(model));
    constrain(&mut message, "gpu_type", " ");
    assert!(matches!(to_model(&message), Err(SpecError::Invalid { field: "constraint", .. })));
}

fn mounted(source: &str, access: &str, tier_hint: &str) -> v1::Data {
    let (source, target) = (source.to_owned(), "/data/a".to_owned());
    let mount = v1::data::Mount { source, target, access: access.into(), tier_hint: tier_hint.into() };
    v1::Data { mounts: vec![mount], ..Default::default() }
}

fn exposed(name: &str, port: u32, protocol: &str) -> Option<v1::Connectivity> {
    let expose = v1::connectivity::Expose { name: name.into(), port, protocol: protocol.into() };
    Some(v1::Connectivity { network_domain: String::new(), expose: vec![expose] })
}

fn probed(probe_type: &str, port: u32, path: &str) -> Option<v1::LivenessProbe> {
    Some(v1::LivenessProbe { probe_type: probe_type.into(), port, path: path.into(), ..Default::default() })
}

#[test]
fn defaults_are_applied() {
    let model = to_model(&minimal()).unwrap();
    assert_eq!((model.nodes, model.tasks_per_node, model.preemption_class), (2, 1, 5));
    assert_eq!((model.requeue, model.requeues_max), (RequeuePolicy::OnNodeFailure, 3));
    assert_eq!((model.data, model.liveness_probe), (lattice_model::Data::default(), None));
    let mut message = minimal();
    message.requeue = Some(v1::Requeue { policy: "on_node_failure".into(), max: 0 });
    message.lifecycle =
        Some(v1::Lifecycle { r#type: "bounded".into(), walltime_seconds: 9, preemption_class_set: true, ..Default::default() });
    message.liveness_probe = probed("http", 80, "");
    message.data = Some(v1::Data { scratch_per_node: "500GB".into(), ..Default::default() });
    message.telemetry_mode = "prod".into();
    message.on_isolation = "continue".into();
    message.connectivity = exposed("", 8080, "");
    let model = to_model(&message).unwrap();
    assert_eq!((model.requeue, model.requeues_max, model.preemption_class), (RequeuePolicy::OnNodeFailure, 3, 0));
    assert_eq!(model.connectivity.expose, [Exposed { name: "a".into(), port: 8080, protocol: "tcp".into() }]);
    let probe = model.liveness_probe.unwrap();
    let seconds = [probe.initial_delay, probe.period, probe.timeout].map(|d| d.as_secs());
    assert_eq!((probe.check, seconds, probe.failures_max), (ProbeCheck::Http { path: "/".into() }, [10, 30, 5], 3));
    assert_eq!((model.data.defaults, model.data.scratch_bytes), (true, Some(500_000_000_000)));
    message.lifecycle = Some(v1::Lifecycle { r#type: "unbounded".into(), ..Default::default() });
    assert_eq!(to_model(&message).map(|model| (model.walltime, model.requeue)), Ok((None, RequeuePolicy::OnNodeFailure)));
    message.requeue = None;
    let service = to_model(&message).unwrap();
    assert_eq!((service.requeue, service.requeues_max), (RequeuePolicy::Always, 3), "a service is always requeued");
    let mut held = v1::AllocationSpec { session: true, entrypoint: None, ..minimal() };
    assert_eq!(to_model(&held).map(|model| model.requeue), Ok(RequeuePolicy::Never), "a session is not requeued");
    held.requeue = Some(v1::Requeue { policy: "on_node_failure".into(), max: 1 });
    assert_eq!(to_model(&held).map(|model| model.requeue), Ok(RequeuePolicy::OnNodeFailure));
    held.requeue = Some(v1::Requeue { policy: "always".into(), max: 1 });
    assert!(matches!(to_model(&held), Err(SpecError::Invalid { field: "requeue", .. })), "nobody would be at its terminal");
}

#[test]
fn options_that_are_not_built_are_refused_by_name() {
    type Change = fn(&mut v1::AllocationSpec);
    let cases: [(&str, Change); 11] = [
        ("--intent", |s| s.intent = "train".into()),
        ("--view", |s| s.environment = Some(v1::Environment { view: "default".into(), ..Default::default() })),
        ("--image", |s| s.environment = Some(v1::Environment { image: "a/b:c".into(), ..Default::default() })),
        ("--data-mount s3://", |s| s.data = Some(mounted("s3://a/b", "", ""))),
        ("--data-mount nfs://", |s| s.data = Some(mounted("nfs://home/x", "", ""))),
        ("--data-mount tier_hint", |s| s.data = Some(mounted("/a", "", "hot"))),
        ("data.output", |s| s.data = Some(v1::Data { output: "s3://a".into(), ..Default::default() })),
        ("--checkpoint=manual", |s| s.checkpoint = Some(v1::Checkpoint { strategy: "manual".into(), ..Default::default() })),
        ("--telemetry", |s| s.telemetry_mode = "debug".into()),
        ("--sensitive", |s| s.sensitive = true),
        // Refused before anything else is checked, so that the user sees this message first.
        ("--sensitive", |s| (s.sensitive, s.name) = (true, String::new())),
    ];
    for (field, change) in cases {
        let mut spec = minimal();
        change(&mut spec);
        assert_eq!(to_model(&spec), Err(SpecError::NotBuilt { field }));
        assert_eq!(status(&SpecError::NotBuilt { field }).code(), tonic::Code::Unimplemented);
    }
}

#[test]
fn dependencies_are_read_and_their_condition_is_success_unless_another_one_is_named() {
    const ID: &str = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88";
    let read = |on: &str, condition: &str| {
        let depends_on = vec![v1::Dependency { r#ref: on.into(), condition: condition.into() }];
        to_model(&v1::AllocationSpec { depends_on, ..minimal() }).map(|model| model.depends_on)
    };
    for (written, condition) in [
        ("", DependencyCondition::Success),
        ("success", DependencyCondition::Success),
        ("failure", DependencyCondition::Failure),
        ("any", DependencyCondition::Any),
        ("mutex", DependencyCondition::Mutex),
        ("after", DependencyCondition::After),
        ("after+5", DependencyCondition::AfterDelay { seconds: 300 }),
        ("after+90s", DependencyCondition::AfterDelay { seconds: 90 }),
        ("corresponding", DependencyCondition::Corresponding),
    ] {
        assert_eq!(read(ID, written), Ok(vec![Dependency { on: ID.parse().unwrap(), condition }]));
    }
    for (on, condition, piece) in [
        ("1f0c9a4e", "", "is not an id"),
        (ID, "ok", "\"ok\" is no condition"),
        (ID, "after+soon", "has no valid delay"),
        (ID, "after+366d", "365 days at most"),
        (ID, "singleton", "write singleton alone"),
        ("", "any", "is not an id"),
    ] {
        let Err(SpecError::Invalid { field: "depends-on", why }) = read(on, condition) else { panic!("{on}:{condition} is accepted") };
        assert!(why.contains(piece), "{why}");
    }
    let both = vec![singleton(), v1::Dependency { r#ref: ID.into(), condition: String::new() }];
    let model = to_model(&v1::AllocationSpec { depends_on: both, ..minimal() }).unwrap();
    assert_eq!((model.singleton, model.depends_on.len()), (true, 1));
}

/// A group of tasks with these indices: first, last, step.
fn grouped(runs: &[(u32, u32, u32)]) -> v1::AllocationSpec {
    let indices = runs.iter().map(|(first, last, step)| v1::IndexRun { first: *first, last: *last, step: *step }).collect();
    let mut spec = minimal();
    spec.resources.as_mut().unwrap().nodes = 1;
    spec.task_group = Some(v1::TaskGroup { indices, ..Default::default() });
    spec
}

#[test]
fn task_groups_are_read_and_written() {
    let read = |spec: &v1::AllocationSpec| to_model(spec).map(|model| model.tasks.unwrap());
    let plain = read(&grouped(&[(0, 98, 2)])).unwrap();
    assert_eq!((plain.to_string().as_str(), plain.concurrent_max, plain.failures_max), ("0-98:2", None, None));
    let mut spec = grouped(&[(5, 9, 0), (0, 0, 7), (1, 1, 1)]);
    let group = spec.task_group.as_mut().unwrap();
    (group.concurrency, group.max_failures) = (20, Some(0));
    let model = to_model(&spec).unwrap();
    let group = model.tasks.as_ref().unwrap();
    assert_eq!((group.to_string().as_str(), group.failures_max), ("0-1,5-9%20", Some(0)));
    let written = from_model(&model).task_group.unwrap();
    let runs = [(0, 1, 1), (5, 9, 1)].map(|(first, last, step)| v1::IndexRun { first, last, step });
    assert_eq!(written, v1::TaskGroup { indices: runs.to_vec(), concurrency: 20, max_failures: Some(0) });
}

#[test]
fn what_is_no_task_group_is_refused_with_a_remedy() {
    let refused = |spec: &v1::AllocationSpec, field: &str, piece: &str| match to_model(spec) {
        Err(SpecError::Invalid { field: named, why }) => assert!(named == field && why.contains(piece), "{named}: {why}"),
        other => panic!("{piece}: {other:?}"),
    };
    for (runs, piece) in [
        (&[][..], "is no index"),
        (&[(5, 0, 1)], "\"5-0:1\" is no index"),
        (&[(0, 5, 2)], "\"0-5:2\" is no index"),
        (&[(0, u32::MAX, 1)], "larger than the largest index"),
        (&[(0, 1_000_000, 1)], "more than 1000000 tasks"),
        (&[(0, 999_999, 1), (0, 999_999, 1), (0, 2_147_483_647, 1)], "more than 1000000 tasks"),
    ] {
        refused(&grouped(runs), "task-group", piece);
    }
    let squares: Vec<_> = (0..40_000).map(|number| (number * number, number * number, 1)).collect();
    refused(&grouped(&squares), "task-group", "separate ranges");
    let with = |change: &dyn Fn(&mut v1::AllocationSpec)| {
        let mut spec = grouped(&[(0, 9, 1)]);
        change(&mut spec);
        spec
    };
    refused(&with(&|s| s.resources.as_mut().unwrap().nodes = 2), "task-group", "write a script");
    refused(&with(&|s| s.lifecycle = Some(v1::Lifecycle { r#type: "unbounded".into(), ..Default::default() })), "task-group", "--walltime");
    refused(&with(&|s| (s.session, s.entrypoint) = (true, None)), "task-group", "a session has no tasks");
    refused(&with(&|s| s.liveness_probe = probed("tcp", 80, "")), "task-group", "--liveness-probe");
    refused(&with(&|s| s.connectivity = exposed("a", 80, "")), "task-group", "--expose");
    let checkpoint = || v1::Checkpoint { strategy: "signal".into(), ..Default::default() };
    refused(&with(&|s| s.checkpoint = Some(checkpoint())), "task-group", "--checkpoint");
    refused(&with(&|s| s.pty = Some(v1::TerminalSize::default())), "task-group", "--pty");
    refused(&with(&|s| drop(s.env.insert(STDIN_VARIABLE.into(), "all".into()))), "stdin", "a task has no standard input");
    refused(&with(&|s| s.requeue = Some(v1::Requeue { policy: "always".into(), max: 0 })), "requeue", "`lattice retry`");
    refused(&with(&|s| drop(s.env.insert("LATTICE_TASK_INDEX".into(), "7".into()))), "env", "leave it out");
    refused(&with(&|s| s.lifecycle.as_mut().unwrap().walltime_seconds = 183 * 86_400), "walltime", "at most 182 days");
}

fn scaled() -> v1::AllocationSpec {
    let policy = v1::ScalePolicy { metric: "cpu_utilization".into(), target: "0.8".into(), ..Default::default() };
    let scaling = v1::Scaling { replicas_min: 2, replicas_max: 6, policy: Some(policy), drain: None };
    let lifecycle = v1::Lifecycle { r#type: "reactive".into(), scaling: Some(scaling), ..Default::default() };
    let resources = Some(v1::ResourceRequest { nodes: 1, ..Default::default() });
    v1::AllocationSpec { lifecycle: Some(lifecycle), resources, ..minimal() }
}

#[test]
fn a_service_that_scales_has_no_walltime_and_begins_again_after_any_failure() {
    let model = to_model(&scaled()).unwrap();
    assert_eq!((model.walltime, model.requeue), (None, RequeuePolicy::Always));
    let scaling = model.scaling.as_ref().unwrap();
    assert_eq!((scaling.replicas_min, scaling.replicas_max, scaling.policy.as_ref().unwrap().target), (2, 6, Amount(800_000)));
    assert_eq!(from_model(&model).lifecycle.unwrap().r#type, "reactive");
}

#[test]
fn what_is_no_service_that_scales_is_refused_with_a_remedy() {
    let refused = |change: &dyn Fn(&mut v1::AllocationSpec), field: &str, piece: &str| {
        let mut spec = scaled();
        change(&mut spec);
        match to_model(&spec) {
            Err(SpecError::Invalid { field: named, why }) => assert!(named == field && why.contains(piece), "{named}: {why}"),
            other => panic!("{piece}: {other:?}"),
        }
    };
    refused(&|s| s.lifecycle.as_mut().unwrap().scaling = None, "reactive", "--min-nodes");
    refused(&|s| s.lifecycle.as_mut().unwrap().r#type = "unbounded".into(), "reactive", "add --reactive");
    refused(&|s| s.lifecycle.as_mut().unwrap().walltime_seconds = 60, "walltime", "leave out --walltime");
    refused(&|s| s.resources.as_mut().unwrap().nodes = 2, "reactive", "--min-nodes");
    refused(&|s| s.resources.as_mut().unwrap().nodelist = vec!["n1".into()], "nodelist", "another node");
    refused(&|s| s.pty = Some(v1::TerminalSize { rows: 24, columns: 80 }), "reactive", "--pty");
    refused(&|s| s.lifecycle.as_mut().unwrap().scaling.as_mut().unwrap().replicas_min = 0, "min-nodes", "the least comes first");
    let grouped = |s: &mut v1::AllocationSpec| {
        let indices = vec![v1::IndexRun { first: 0, last: 9, step: 1 }];
        s.task_group = Some(v1::TaskGroup { indices, ..Default::default() });
    };
    refused(&grouped, "task-group", "--walltime");
}

#[test]
fn bad_values_are_refused_by_name() {
    type Change = fn(&mut v1::AllocationSpec);
    let cases: [(&str, Change); 38] = [
        ("nodes", |s| s.resources = None),
        ("shared", |s| s.resources.as_mut().unwrap().shared = true),
        ("mem", |s| s.resources.as_mut().unwrap().memory_gb = u64::MAX),
        ("mem", |s| {
            let resources = s.resources.as_mut().unwrap();
            (resources.memory_gb, resources.memory_bytes) = (1, 1 << 30);
        }),
        ("walltime", |s| s.lifecycle = None),
        ("walltime", |s| s.lifecycle.as_mut().unwrap().r#type = "unbounded".into()),
        ("entrypoint", |s| s.entrypoint = None),
        ("entrypoint", |s| s.entrypoint = Some(v1::Entrypoint::default())),
        ("lifecycle", |s| s.lifecycle.as_mut().unwrap().r#type = "endless".into()),
        ("telemetry", |s| s.telemetry_mode = "loud".into()),
        ("on-isolation", |s| s.on_isolation = "panic".into()),
        ("requeue", |s| s.requeue = Some(v1::Requeue { policy: "often".into(), max: 0 })),
        ("preemption-class", |s| {
            s.lifecycle =
                Some(v1::Lifecycle { walltime_seconds: 1, preemption_class: 256 + 5, preemption_class_set: true, ..Default::default() });
        }),
        ("preemption-class", |s| s.lifecycle.as_mut().unwrap().preemption_class = 7),
        ("constraint", |s| constrain(s, "gpu_count", "four")),
        ("constraint", |s| constrain(s, "gpu_type", "")),
        ("constraint", |s| constrain(s, "a|b", "")),
        ("memory-policy", |s| constrain(s, "memory_policy", "near")),
        ("constraint", |s| {
            s.binding = Some(v1::RankBinding { memory_policy: "local".into(), ..Default::default() });
            constrain(s, "memory_policy", "bind");
        }),
        ("constraint", |s| {
            s.resources.as_mut().unwrap().cpus = 1;
            constrain(s, "allow_cxl_memory", "true");
        }),
        ("data-mount", |s| s.data = Some(mounted("ftp://a", "", ""))),
        ("data-mount", |s| s.data = Some(mounted("a", "", ""))),
        ("data-mount", |s| s.data = Some(mounted("/a", "sometimes", ""))),
        ("scratch-per-node", |s| s.data = Some(v1::Data { scratch_per_node: "much".into(), ..Default::default() })),
        ("liveness-probe", |s| s.liveness_probe = Some(v1::LivenessProbe::default())),
        ("liveness-probe", |s| s.liveness_probe = probed("tcp", 65_536, "")),
        ("liveness-probe", |s| s.liveness_probe = probed("tcp", 80, "/x")),
        ("liveness-probe", |s| s.liveness_probe = probed("http", 0, "/x")),
        ("expose", |s| s.connectivity = exposed("a", 65_536, "")),
        ("expose", |s| s.connectivity = exposed("a b", 80, "")),
        ("network-domain", |s| s.connectivity = Some(v1::Connectivity { network_domain: "a\n".into(), expose: vec![] })),
        ("env", |s| drop(s.env.insert("PMI_RANK".into(), "0".into()))),
        ("env", |s| drop(s.env.insert("LATTICE_NODE".into(), "n1".into()))),
        ("env", |s| drop(s.env.insert(PMI_PORT_VARIABLE.into(), "4711".into()))),
        ("env", |s| drop(s.env.insert(PMI_VARIABLE.into(), "pmi3".into()))),
        ("stdin", |s| drop(s.env.insert(STDIN_VARIABLE.into(), "some".into()))),
        ("stdin", |s| drop(s.env.insert(STDIN_VARIABLE.into(), "4096".into()))),
        ("uenv", |s| s.environment = Some(v1::Environment { uenv: "/a.sqfs".into(), ..Default::default() })),
    ];
    for (field, change) in cases {
        let mut spec = minimal();
        change(&mut spec);
        match to_model(&spec) {
            Err(error @ SpecError::Invalid { field: named, .. }) => {
                assert_eq!(named, field);
                assert_eq!(status(&error).code(), tonic::Code::InvalidArgument);
            }
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[test]
fn pmi_by_port_and_pmix_are_requested_by_variables() {
    let mut spec = minimal();
    spec.env.insert(PMI_VARIABLE.into(), "pmix".into());
    spec.env.insert(PMI_PORT_VARIABLE.into(), PMI_PORT_ASKED.into());
    assert_eq!(to_model(&spec).unwrap().env.get(PMI_PORT_VARIABLE).map(String::as_str), Some(PMI_PORT_ASKED));
}

#[test]
fn images_are_paths_with_or_without_a_digest() {
    let hex = "AB".repeat(32);
    let request = |text: &str| {
        let mut spec = minimal();
        spec.environment = Some(v1::Environment { uenv: text.into(), ..Default::default() });
        image_request(&spec)
    };
    assert_eq!(request(""), Ok(None));
    assert_eq!(request("/a@b.sqfs"), Ok(Some(ImageRequest { path: "/a@b.sqfs".into(), sha256: None })));
    let pinned = request(&format!("/a.sqfs@sha256:{hex}")).unwrap().unwrap();
    assert_eq!(pinned, ImageRequest { path: "/a.sqfs".into(), sha256: Some(hex.to_lowercase()) });
    for bad in ["a.sqfs", "prgenv-gnu/24.11:v1", "/a@sha256:", "/a@sha256:xy", &format!("@sha256:{hex}")] {
        assert!(matches!(request(bad), Err(SpecError::Invalid { field: "uenv", .. })), "{bad}");
    }
}

#[test]
fn a_pinned_digest_must_be_the_recorded_one() {
    let mut spec = minimal();
    let (a, b) = ("a".repeat(64), "b".repeat(64));
    spec.environment = Some(v1::Environment { uenv: format!("/x@sha256:{a}"), sha256: a.clone(), ..Default::default() });
    assert_eq!(to_model(&spec).unwrap().uenv, Some(Box::new(Image { path: "/x".into(), sha256: a })));
    spec.environment.as_mut().unwrap().sha256 = b;
    assert!(matches!(to_model(&spec), Err(SpecError::Invalid { field: "uenv", .. })));
}

fn text() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9 ä=:/@._-]{0,20}"
}

fn env() -> impl Strategy<Value = std::collections::BTreeMap<String, String>> {
    prop::collection::btree_map("[A-KM-RT-Z_a-z][a-zA-Z0-9_]{0,8}", text(), 0..6)
        .prop_map(|env| env.into_iter().filter(|(name, _)| !is_wireup_variable(name)).collect())
}

fn entrypoint() -> impl Strategy<Value = Entrypoint> {
    prop_oneof![
        ("[a-z \n]{0,40}", prop::collection::vec(text(), 0..4))
            .prop_map(|(body, args)| Entrypoint::Script { text: format!("#!/bin/sh\n{body}").into(), args }),
        ("[a-z/]{1,10}", prop::collection::vec(text(), 0..4)).prop_map(|(program, mut args)| {
            args.insert(0, program);
            Entrypoint::Command { argv: args }
        }),
    ]
}

fn data() -> impl Strategy<Value = Data> {
    let mount = ("/[a-zä ]{1,9}", "/[a-z]{1,9}", any::<bool>());
    let mount = mount.prop_map(|(source, target, read_only)| DataMount { source: source.into(), target: target.into(), read_only });
    (any::<bool>(), prop::collection::vec(mount, 0..4), prop::option::of(1..u64::MAX)).prop_map(|(defaults, mut mounts, scratch_bytes)| {
        mounts.sort_by(|a, b| a.target.cmp(&b.target));
        mounts.dedup_by(|a, b| a.target == b.target);
        Data { defaults, mounts, scratch_bytes }
    })
}

fn probe() -> impl Strategy<Value = LivenessProbe> {
    let check = prop_oneof![Just(ProbeCheck::Tcp), "/[a-z?=&/]{0,9}".prop_map(|path| ProbeCheck::Http { path })];
    (check, 1..=u16::MAX, 0..=86_400u64, 1..=86_400u64, 1..=300u64, 1..=1000u32).prop_map(
        |(check, port, delay, period, timeout, failures_max)| {
            let [initial_delay, period, timeout] = [delay, period, timeout].map(Duration::from_secs);
            LivenessProbe { check, port, initial_delay, period, timeout, failures_max }
        },
    )
}

fn connectivity() -> impl Strategy<Value = Connectivity> {
    let exposed = ("[a-zä]{1,9}", 1..=u16::MAX, "[a-z0-9]{1,9}").prop_map(|(name, port, protocol)| Exposed { name, port, protocol });
    ("[a-zä ]{0,9}", prop::collection::vec(exposed, 0..4)).prop_map(|(network_domain, mut expose)| {
        expose.sort();
        expose.dedup_by(|a, b| (&a.name, a.port) == (&b.name, b.port));
        Connectivity { network_domain, expose }
    })
}

prop_compose! {
    fn binding()(
        cpu_bind in prop::sample::select(CpuBind::NAMES.to_vec()),
        gpus_per_task in 0..4u32,
        gpu_bind in prop::option::of(prop::sample::select(GpuBind::NAMES.to_vec())),
        memory_policy in prop::sample::select(MemoryPolicy::NAMES.to_vec()),
    ) -> RankBinding {
        RankBinding { cpu_bind: cpu_bind.1, gpus_per_task, gpu_bind: gpu_bind.map(|g| g.1), memory_policy: memory_policy.1 }
    }
}

prop_compose! {
    fn launch()(
        distribution in prop_oneof![Just(Distribution::Block), Just(Distribution::Cyclic), (1..9u32).prop_map(Distribution::Plane)],
        programs in prop::collection::vec((1..3u32, prop::collection::vec("[a-z]{1,5}", 1..3)), 0..3),
        cpus_per_task in 0..4u32,
        slurm_env in any::<bool>(),
        keeps_on_bad_exit in any::<bool>(),
    ) -> EntryLaunch {
        let programs = programs.into_iter().map(|(ranks, argv)| Program { ranks, argv }).collect();
        EntryLaunch { shape: LaunchShape { distribution, programs, cpus_per_task, slurm_env }, ranks: 0, keeps_on_bad_exit }
    }
}

fn dependencies() -> impl Strategy<Value = Vec<Dependency>> {
    let delayed = (1..=31_536_000_u32).prop_map(|seconds| DependencyCondition::AfterDelay { seconds });
    let conditions = prop_oneof![prop::sample::select(DependencyCondition::ALL.to_vec()), delayed];
    let named = prop::collection::btree_map(any::<u128>(), conditions, 0..4);
    named.prop_map(|named| {
        let dependency = |(number, condition)| Dependency { on: lattice_model::AllocationId(uuid::Uuid::from_u128(number)), condition };
        named.into_iter().map(dependency).collect()
    })
}

fn task_group() -> impl Strategy<Value = Option<TaskGroup>> {
    let run = (0..1000u32, 0..50u32, 1..5u32).prop_map(|(first, more, step)| IndexRun { first, last: first + more * step, step });
    let indices = prop::collection::vec(run, 1..9).prop_map(|runs| TaskIndices::new(runs).unwrap());
    let limits = (prop::option::of(1..u32::MAX), prop::option::of(any::<u32>()));
    let group = (indices, limits);
    prop::option::of(group.prop_map(|(indices, (concurrent_max, failures_max))| TaskGroup { indices, concurrent_max, failures_max }))
}

fn output_files() -> impl Strategy<Value = Option<OutputFiles>> {
    let name = || prop::sample::select(vec!["", "out", "/dev/null", "%x-%j_%4t.%N", "\\%q"]);
    let files = (name(), name(), name(), any::<bool>()).prop_map(|(stdout, stderr, stdin, append)| OutputFiles {
        append: append && !(stdout.is_empty() && stderr.is_empty()),
        stdout: stdout.to_owned(),
        stderr: stderr.to_owned(),
        stdin: stdin.to_owned(),
    });
    // A message without any file is that of no files.
    files.prop_map(|files| Some(files).filter(|files| *files != OutputFiles::default()))
}

fn scaling() -> impl Strategy<Value = Option<Scaling>> {
    let metric =
        prop::sample::select(vec!["gpu_utilization", "cpu_utilization", "connection_rate", "queue_depth", "q{job=\"a b\",x=~\"a|b\"}"]);
    let times = prop::array::uniform4(1000..=86_400_000_u64);
    let policy = (metric, 1..=1_000_000_000_000_u64, 1..1_000_000_u64, times).prop_map(|(metric, target, down_threshold, times)| {
        let [interval_ms, up_window_ms, down_window_ms, cooldown_ms] = times;
        ScalePolicy {
            interval_ms,
            up_window_ms,
            down_window_ms,
            down_threshold: Amount(down_threshold),
            cooldown_ms,
            ..ScalePolicy::new(metric.parse().unwrap(), Amount(target))
        }
    });
    let signal = prop::option::of(prop::sample::select(signals()).prop_map(|signal| u8::try_from(signal.number()).unwrap()));
    let drain = (signal, 0..=3_600_000_u64).prop_map(|(signal, grace_ms)| Drain { signal, grace_ms });
    let replicas = (1..=1000_u32).prop_flat_map(|least| (Just(least), least..=1000));
    let scaling = (replicas, prop::option::of(policy), drain).prop_map(|((replicas_min, replicas_max), policy, drain)| Scaling {
        replicas_min,
        replicas_max,
        policy,
        drain,
    });
    prop::option::weighted(0.25, scaling)
}

fn automatic() -> impl Strategy<Value = Option<Automatic>> {
    prop::option::of(prop_oneof![Just(Automatic::CostBased), (1..=2_592_000u64).prop_map(|seconds| Automatic::Every { seconds })])
}

prop_compose! {
    fn model_spec()(
        labels in ("[a-zä]{1,20}", text(), text(), text()),
        tags in prop::collection::btree_map("[a-zä.]{1,9}", "[a-zä= ]{0,9}", 0..6),
        share in prop::option::of((0..512u32, 0..=u64::MAX, 0..8u32)),
        (nodes, tasks_per_node, seconds, binding) in (1..=100_000u32, 1..=4096u32, prop::option::of(1..=31_536_000u64), binding()),
        entrypoint in entrypoint(),
        uenv in prop::option::of(("/[a-z@:]{0,20}", "[0-9a-f]{64}")),
        dir in "/[a-zä ]{0,20}",
        env in env(),
        requeue in prop::sample::select(vec![RequeuePolicy::Never, RequeuePolicy::OnNodeFailure, RequeuePolicy::Always]),
        requeues_max in 1..=100u32,
        on_isolation in prop::sample::select(vec![OnIsolation::Continue, OnIsolation::Stop]),
        checkpoint in prop::option::of((
            prop_oneof![
                (prop::sample::select(signals()), prop::sample::select(SignalTo::ALL.to_vec())).prop_map(|(signal, to)| CheckpointPolicy::by_signal(signal.to(to))),
                prop::sample::select(CheckpointMethod::ALL.to_vec()).prop_map(CheckpointPolicy::by),
                (1..=u16::MAX).prop_map(|port| CheckpointPolicy { port: std::num::NonZeroU16::new(port), ..CheckpointPolicy::by(CheckpointMethod::Call) }),
            ],
            automatic(),
        ).prop_map(|(policy, automatic)| CheckpointPolicy { automatic, ..policy })),
        preemption_class in 0..=10u8,
        data in data(),
        liveness_probe in prop::option::of(probe()),
        pty in prop::option::of((1..=u16::MAX, 1..=u16::MAX)),
        connectivity in connectivity(),
        constraints in (prop::collection::btree_set("[a-z_]{1,9}(=[A-Za-z0-9]{1,9})?", 0..4), 0..9u32, 0..2000u64),
        session in prop::bool::weighted(0.2),
        (launch, depends_on, tasks, scaling, output_files, warned) in (
            launch(),
            dependencies(),
            task_group(),
            scaling(),
            output_files(),
            prop::option::of((1..=31i32, 1..100u64, any::<bool>())),
        ),
    ) -> AllocationSpec {
        let (name, tenant, project, vcluster) = labels;
        // Each replica has one node and no end.
        let (nodes, seconds, pty) = if scaling.is_some() { (1, None, None) } else { (nodes, seconds, pty) };
        let own = binding.gpus_per_task * tasks_per_node;
        let share = share.map(|(cores, memory_bytes, gpus)| (cores, memory_bytes, gpus.max(own)));
        let session = session && seconds.is_some() && requeue != RequeuePolicy::Always;
        let entrypoint = if session { Entrypoint::Script { text: lattice_model::session::HOLDER.into(), args: vec![] } } else { entrypoint };
        let pty = pty.filter(|_| matches!(entrypoint, Entrypoint::Command { .. })).map(|(rows, columns)| TerminalSize { rows, columns });
        let is_script = !session && matches!(entrypoint, Entrypoint::Script { .. });
        let is_short = seconds.is_some_and(|seconds| seconds <= 365 * 43_200);
        let tasks = tasks.filter(|_| is_script && is_short && requeue != RequeuePolicy::Always).map(Box::new);
        let is_group = tasks.is_some();
        let (checkpoint, liveness_probe) = (checkpoint.filter(|_| !is_group), liveness_probe.filter(|_| !is_group));
        let mut connectivity = connectivity;
        if is_group {
            connectivity.expose.clear();
        }
        let mut launch = launch;
        let others: u32 = launch.shape.programs.iter().map(|p| p.ranks).sum();
        match &entrypoint {
            Entrypoint::Command { .. } if others < nodes * tasks_per_node => launch.ranks = others + 1,
            Entrypoint::Command { .. } | Entrypoint::Script { .. } => launch.shape.programs.clear(),
        }
        if launch.shape.programs.is_empty() && requeues_max % 3 == 0 {
            launch.ranks = nodes * tasks_per_node;
        }
        if share.is_some_and(|(cores, ..)| cores < launch.shape.cpus_per_task * tasks_per_node) {
            launch.shape.cpus_per_task = 0;
        }
        let (features, gpus, gib) = constraints;
        let listed = if gib % 3 == 1 && nodes < 100 && scaling.is_none() { nodes } else { 0 };
        let named = (1..=listed).map(|n| format!("n{n}").parse().unwrap()).collect();
        let topology = [Topology::Tight, Topology::Any, Topology::AtMost(3), Topology::Any][(gib % 4) as usize];
        let (same_numa, cxl_memory) = (gib % 5 < 2, share.is_none() && gib % 7 < 3);
        let output_files = output_files.filter(|_| !session).map(|files| OutputFiles {
            stdin: if pty.is_some() { String::new() } else { files.stdin.clone() },
            ..files
        });
        let output_files = output_files.filter(|files| *files != OutputFiles::default()).map(Box::new);
        let end_warning = warned
            .filter(|(_, before, _)| seconds.is_some_and(|seconds| *before < seconds))
            .map(|(signal, before, script_only)| Box::new(EndWarning { signal, before: Duration::from_secs(before), script_only: script_only && (is_script || session) }));
        let excluded = (0..gib % 4).map(|n| format!("x{n}").parse().unwrap()).collect();
        let expression = ["", "a|(b&c)", "(a|b)&[c|d]", "[a|gpu_type=NVIDIA GH200]", "[a*1]", "(a|b)&[(c&d)*1]"][(gib % 6) as usize];
        let expression = if topology != Topology::Any || scaling.is_some() { "a|b" } else { expression };
        let choice = lattice_model::feature_expression::parse(expression).unwrap().choice.map(Box::new);
        let constraints = Constraints {
            features, choice, cores: gpus % 3, sockets: gpus % 2, gpus, memory_bytes: gib << 30, conformance: gpus % 2 == 1, nodes: named, excluded, topology,
            same_numa, cxl_memory,
        };
        let walltime_min = seconds.filter(|_| !is_group && preemption_class % 3 == 0).map(|seconds| Duration::from_secs(seconds.div_ceil(2)));
        let begin = (preemption_class % 2 == 0).then_some(Timestamp(7));
        let deadline = seconds.filter(|_| !is_group && preemption_class % 5 == 0).map(|seconds| Timestamp(7 + seconds * 1000));
        let timing = Timing { begin, deadline, walltime_min }.unless_empty();
        let events = MailEvent::ALL.into_iter().take(usize::from(preemption_class)).collect();
        let mail = (preemption_class > 0 && requeues_max % 2 == 0).then(|| Box::new(Mail { events, user: "ada@example.org".to_owned() }));
        let is_range = scaling.is_none() && listed == 0 && gpus % 2 == 0 && nodes < NODES_MAX && (launch.ranks == 0 || launch.ranks > nodes);
        AllocationSpec {
            name, tenant, project, vcluster, tags, nodes,
            nodes_max: is_range.then_some(nodes + 1), tasks_per_node, binding,
            spread: None, topology_wait: None, exclusive_user: gpus % 3 == 1, memory_unit: MemoryUnit::NAMES[gpus as usize % 3].1,
            cpus_per_gpu: gpus % 5, ntasks_per_gpu: gpus % 2,
            share: share.map(|(cores, memory_bytes, gpus)| Resources { cores: cores.max(u32::from(memory_bytes == 0 && gpus == 0)), memory_bytes, gpus }),
            walltime: seconds.map(Duration::from_secs),
            entrypoint,
            uenv: uenv.map(|(path, sha256)| Box::new(Image { path: path.into(), sha256 })),
            submit_dir: Some("/elsewhere".into()).filter(|_| requeues_max % 2 == 1),
            submit_host: if requeues_max % 3 == 1 { "login1".to_owned() } else { String::new() },
            working_dir: dir.into(),
            env, requeue, requeues_max, preemption_class, data, liveness_probe: liveness_probe.map(Box::new), pty, session, constraints, connectivity, on_isolation, checkpoint, launch,
            sensitive: false,
            hold: preemption_class % 2 == 1,
            depends_on,
            singleton: requeues_max % 4 == 1,
            tasks,
            scaling: scaling.map(Box::new),
            output_files,
            end_warning,
            timing,
            mail,
            comment: if gpus % 2 == 0 { "for ä".to_owned() } else { String::new() },
            nice: i32::from(preemption_class) - 3,
            reservation: (gpus % 4 == 3).then(|| "course".to_owned()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn model_to_message_and_back(spec in model_spec()) {
        let message = from_model(&spec);
        prop_assert_eq!(to_model(&message), Ok(spec));
    }

    /// The other direction, through bytes: a message in canonical form is reproduced.
    #[test]
    fn message_to_model_and_back(spec in model_spec()) {
        use prost::Message;
        let message = from_model(&spec);
        let read = v1::AllocationSpec::decode(message.encode_to_vec().as_slice()).unwrap();
        prop_assert_eq!(from_model(&to_model(&read).unwrap()), message);
    }

    /// Bytes from a network never cause a panic.
    #[test]
    fn hostile_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        use prost::Message;
        if let Ok(spec) = v1::AllocationSpec::decode(bytes.as_slice()) {
            drop(image_request(&spec));
            drop(to_model(&spec));
        }
    }
}

#[test]
fn bounds_in_time_and_mail_are_read_and_refused_by_name() {
    let timing = |begin_ms, deadline_ms| Some(v1::Timing { begin_ms, deadline_ms, walltime_min_seconds: 30 });
    let read = |timing, mail| to_model(&v1::AllocationSpec { timing, mail, ..minimal() });
    let model = read(timing(0, 90_000), None).unwrap();
    let wanted = Timing { begin: None, deadline: Some(Timestamp(90_000)), walltime_min: Some(Duration::from_secs(30)) };
    assert_eq!(model.timing.as_deref(), Some(&wanted));
    assert_eq!(read(Some(v1::Timing::default()), None).unwrap().timing, None);
    assert!(matches!(read(timing(80_000, 90_000), None), Err(SpecError::Invalid { field: "deadline", .. })));
    let mail = |events: &[&str]| {
        let events = events.iter().map(|event| (*event).to_owned()).collect();
        read(None, Some(v1::Mail { events, user: String::new() }))
    };
    assert_eq!(mail(&["begin", "END"]).unwrap().mail.unwrap().events, [MailEvent::Begin, MailEvent::End].into());
    assert!(mail(&["done"]).unwrap_err().to_string().starts_with("mail-type: \"done\" is no event"));
    assert!(mail(&[]).unwrap_err().to_string().starts_with("mail-type: which events?"));
}

#[test]
fn gpus_per_task_are_requested_with_a_share_of_a_node() {
    let mut message = from_model(&AllocationSpec::new("a", Entrypoint::Command { argv: vec!["true".into()] }, std::path::Path::new("/")));
    message.tasks_per_node = 3;
    message.binding = Some(v1::RankBinding { gpus_per_task: 2, ..Default::default() });
    assert_eq!(to_model(&message).unwrap().share, None, "a whole node has all of its GPUs");
    message.resources.as_mut().unwrap().cpus = 3;
    assert_eq!(to_model(&message).unwrap().share.unwrap().gpus, 6);
    message.resources.as_mut().unwrap().gpus = 5;
    assert!(matches!(to_model(&message), Err(SpecError::Invalid { field: "gpus-per-task", .. })));
    message.binding = Some(v1::RankBinding { cpu_bind: "threads".into(), ..Default::default() });
    assert!(matches!(to_model(&message), Err(SpecError::Invalid { field: "cpu-bind", .. })));
}

#[test]
fn cpus_per_task_are_requested_with_a_share_of_a_node() {
    let mut message = from_model(&AllocationSpec::new("a", Entrypoint::Command { argv: vec!["true".into()] }, std::path::Path::new("/")));
    message.tasks_per_node = 3;
    message.launch = Some(v1::LaunchShape { cpus_per_task: 2, ..Default::default() });
    assert_eq!(to_model(&message).unwrap().share, None, "a whole node has all of its cores");
    message.resources.as_mut().unwrap().memory_bytes = 1 << 30;
    assert_eq!(to_model(&message).unwrap().share.unwrap().cores, 6);
    message.resources.as_mut().unwrap().cpus = 5;
    assert!(matches!(to_model(&message), Err(SpecError::Invalid { field: "cpus-per-task", .. })));
}

#[test]
fn a_nodelist_has_the_requested_number_of_nodes_each_once() {
    let named = |names: &[&str], nodes: u32| {
        let mut message =
            from_model(&AllocationSpec::new("a", Entrypoint::Command { argv: vec!["true".into()] }, std::path::Path::new("/")));
        let resources = message.resources.as_mut().unwrap();
        resources.nodes = nodes;
        resources.nodelist = names.iter().map(|name| (*name).to_owned()).collect();
        to_model(&message).map(|spec| spec.constraints.nodes.len())
    };
    assert_eq!(named(&["n1", "n2"], 2), Ok(2));
    for (names, nodes, why) in
        [(&["n1"][..], 2, "named: 1, asked for: 2"), (&["n1", "n1"], 2, "twice"), (&["n1", "n2"], 1, "leave -N out"), (&["a b"], 1, "a b")]
    {
        match named(names, nodes) {
            Err(SpecError::Invalid { field: "nodelist", why: reason }) => assert!(reason.contains(why), "{reason}"),
            other => panic!("{names:?} {nodes}: {other:?}"),
        }
    }
}
