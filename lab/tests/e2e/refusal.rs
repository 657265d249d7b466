//! Bad input gets a clear error at once and changes nothing.

use crate::harness::{Group, JOB, World, binaries};
use lattice_lab::lattice::text;
use lattice_lab::process;
use lattice_lab::quorum::members::certificate;
use lattice_ledger::SCHEDULER_LEASE;
use lattice_model::claim::ClaimShare;
use lattice_model::{Claim, Revision};
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::Role;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request};
use libtest_mimic::Trial;
use std::process::Command;

static REFUSAL: Group = Group::small("refusal");

pub fn trials() -> Vec<Trial> {
    vec![
        REFUSAL.test("wrong_command_lines_are_refused_with_what_was_meant", &[], command_lines),
        REFUSAL.test("scripts_that_cannot_be_are_refused", &[], scripts),
        REFUSAL.test("what_is_too_large_is_refused_with_its_size", &[], too_large),
        REFUSAL.test("too_many_names_and_too_long_ones_are_refused_and_ten_thousand_are_not_too_many", &[], names),
        REFUSAL.test("a_refused_claim_is_explained", &[], claim),
        REFUSAL.test("fields_that_are_not_built_are_refused_by_name", &[], not_built),
        REFUSAL.test("a_command_that_does_not_exist_gives_127", &[], no_command),
        REFUSAL.test("unknown_keys_of_configuration_are_refused", &[], configuration),
        REFUSAL.test("an_unreachable_agent_is_named", &[], no_agent),
        REFUSAL.test("pmi_garbage_fails_that_launch_alone", &[], garbage),
    ]
}

/// Runs the command; it must end with this code and these texts, and change nothing in the queue.
fn refused(w: &World, args: &[&str], code: i32, pieces: &[&str]) {
    let before = w.lattice.allocations().unwrap().len();
    let done = w.run(args);
    let stderr = done.err();
    assert_eq!(done.code(), code, "`lattice {}`: {stderr}", args.join(" "));
    assert_eq!(done.out(), "", "`lattice {}`", args.join(" "));
    for piece in pieces {
        assert!(stderr.to_lowercase().contains(&piece.to_lowercase()), "`lattice {}` should say {piece:?}: {stderr}", args.join(" "));
    }
    assert_eq!(w.lattice.allocations().unwrap().len(), before, "`lattice {}` changed something", args.join(" "));
}

fn command_lines(w: &World) {
    refused(w, &["submit", "--noodes", "2", "--", "/bin/true"], 2, &["--noodes", "--nodes"]);
    refused(w, &["sumbit", "x"], 2, &["submit"]);
    refused(w, &["submit", "--nodes", "0", "--", "/bin/true"], 2, &["nodes"]);
    refused(w, &["submit", "--tasks-per-node", "0", "--", "/bin/true"], 2, &["tasks-per-node"]);
    refused(w, &["submit", "--tasks-per-node", "99999", "--", "/bin/true"], 2, &["tasks"]);
    refused(w, &["submit", "--walltime", "soon", "--", "/bin/true"], 2, &["soon"]);
    refused(w, &["submit"], 2, &[]);
    refused(w, &["status", "xyz"], 3, &["xyz"]);
    refused(w, &["status", "ffffffff"], 3, &["ffffffff"]);
    refused(w, &["explain", "ffffffff"], 3, &["ffffffff"]);
    refused(w, &["logs", "ffffffff"], 3, &["ffffffff"]);
}

fn scripts(w: &World) {
    refused(w, &["submit", "/nonexistent/job.sh"], 2, &["/nonexistent/job.sh"]);
    let no_line = w.script("no-line.sh", "echo hi\n");
    refused(w, &["submit", &no_line], 2, &["#!"]);
    let wrong = w.script("wrong.sh", "#!/bin/sh\n#LATTICE --noodes=2\necho hi\n");
    refused(w, &["submit", &wrong], 2, &["line 2", "--noodes", "--nodes"]);
    let zero = w.script("zero.sh", "#!/bin/sh\n#LATTICE nodes=0\n");
    refused(w, &["submit", &zero], 2, &["line 2", "nodes"]);
}

fn too_large(w: &World) {
    let long = "x".repeat(70_000);
    refused(w, &["submit", "--", "/bin/echo", &long], 2, &["the specification has 7", "bytes, at most 65536 are committed"]);
    let script = w.script("long.sh", &format!("#!/bin/sh\n#{}\n", "x".repeat(1 << 20)));
    refused(w, &["submit", &script], 2, &["long.sh", "more than 1048576 bytes"]);
}

fn names(w: &World) {
    let long = "f".repeat(100_000);
    let too_long = ["the request has 1000", "bytes, at most 65536 are accepted: make it smaller"];
    for args in [&["status", &long][..], &["explain", &long], &["cancel", &long], &["logs", &long], &["status", "--name", &long]] {
        refused(w, args, 2, &too_long);
    }
    // Many are cancelled one after the other, and each unknown id is named.
    let here = w.submit(&["--nodes", "9", "--wait-for-nodes", "--", "/bin/true"]);
    let unknown: Vec<String> = (0..300).map(|number| format!("{number:08x}-0000-4000-8000-000000000000")).collect();
    let cancel: Vec<&str> = ["cancel"].into_iter().chain(unknown.iter().map(String::as_str)).chain([here.as_str()]).collect();
    let cancelled = w.run(&cancel);
    assert!(cancelled.code() == 3 && cancelled.out().contains(&here[..8]), "{} {}", cancelled.code(), cancelled.err());
    assert!(unknown.iter().all(|id| cancelled.err().contains(id)), "{}", cancelled.err());
    assert_eq!(text(&w.status(&here), "state"), "Cancelled");

    let too_many = ["a list has at most 100000 names"];
    refused(w, &["nodes", "n[1-100001]"], 2, &too_many);
    refused(w, &["node", "cordon", "n[1-100001]", "--reason", "x"], 2, &too_many);
    refused(w, &["nodes", "n[1-100000]"], 3, &["there is no node \"n10\""]);
    let create = |nodes| ["admin", "vcluster", "create", "wide", "--scheduler", "interactive-fifo", "--nodes", nodes];
    refused(w, &create("n[1-100001]"), 2, &too_many);
    refused(w, &create("a-name-as-long-as-names-are-n[1-100000]"), 2, &["the request has", "at most 1048576 are accepted"]);
    // This list is short enough to reach the quorum, which does not know the nodes.
    refused(w, &create("n[1-10000]"), 3, &["there is no node n10"]);
}

/// Another scheduler, with the lease's own token, claims nodes that do not exist, are in use, or have changed.
fn claim(w: &World) {
    let holder = w.submit(&["--", "/bin/sh", "-c", "sleep 60"]);
    w.running(&holder);
    let waiting = w.submit(&["--nodes", "20", "--wait-for-nodes", "--", "/bin/true"]);
    let leases = w.lattice.json(&["lease", "list"]).unwrap();
    let lease = leases.as_array().unwrap().iter().find(|l| l["name"] == SCHEDULER_LEASE).unwrap();
    let lease_token = lease["token"].as_u64().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refusal = runtime.block_on(async {
        let cluster = w.cluster();
        let credentials = Credentials::new(certificate(&cluster, "other-scheduler", Role::Api).unwrap()).unwrap();
        let client = QuorumClient::new(cluster.members.iter().map(|m| m.service.clone()).collect(), credentials).unwrap();
        let Ok(Answer::Nodes(nodes)) = client.call(&Request::ListNodes, JOB).await else { panic!("nodes are listed") };
        let known = nodes.iter().map(|n| ClaimShare { node: n.id.clone(), resources: n.size, hold_revision: n.hold_revision });
        let unknown = (nodes.len()..20).map(|number| ClaimShare {
            node: format!("x{number}").parse().unwrap(),
            resources: nodes[0].size,
            hold_revision: Revision(0),
        });
        let shares = known.chain(unknown).collect();
        let claim =
            Claim { allocation: waiting.parse().unwrap(), requeue_count: 0, lease_token, shares, after: None, by: None, walltime: None };
        let Ok(Answer::Claims(mut outcomes)) = client.call(&Request::Claims(vec![claim]), JOB).await else { panic!("claims were made") };
        outcomes.remove(0).unwrap_err()
    });
    assert!(refusal.to_string().contains("the claim conflicts with the current state"), "{refusal}");
    let refused = w.lattice.json(&["explain", &waiting]).unwrap()["refused_claim"].clone();
    let conflicts = refused["conflicts"].as_array().unwrap();
    assert_eq!(conflicts.len(), 16, "{refused}");
    let taken = conflicts.iter().find(|c| c["holder"] == holder.as_str()).unwrap_or_else(|| panic!("{refused}"));
    assert!(text(taken, "reason").contains(&format!("allocation {holder} (epoch ")), "{taken}");
    assert!(conflicts.iter().any(|c| c["node"] == "x3" && c["reason"] == "is not registered"), "{refused}");
    let shown = w.at("n2").ok(&["explain", &waiting]).unwrap();
    assert!(shown.contains("The last claim for it was refused at ") && shown.contains(&holder[..8]), "{shown}");
    w.ok(&["cancel", &waiting, &holder]);
    w.ended(&holder);
}

fn not_built(w: &World) {
    for option in ["--sensitive", "--image=a/b:c", "--checkpoint=manual", "--checkpoint=dmtcp"] {
        let name = option.split('=').next().unwrap();
        let done = w.run(&["submit", option, "--", "/bin/true"]);
        assert!(
            [2, 4].contains(&done.code()) && done.err().contains(name) && done.err().contains("not built"),
            "{option}: {} {}",
            done.code(),
            done.err()
        );
    }
}

fn no_command(w: &World) {
    let id = w.submit(&["--", "/no/such/program", "x"]);
    let ended = w.ended(&id);
    assert_eq!((text(&ended, "state").as_str(), text(&ended, "exit_code").as_str()), ("Failed", "127"), "{ended}");
    assert!(w.log(&id).contains("/no/such/program"), "{}", w.log(&id));
    assert_eq!(w.run(&["launch", "--", "no-such-program-on-the-path"]).code(), 127);
    let plain = w.script("not-executable", "hello\n");
    assert_eq!(w.run(&["launch", "--", &plain]).code(), 126);
}

fn configuration(w: &World) {
    let run = |program: &str, text: &str| {
        let config = w.script("bad.yaml", text);
        process::run(Command::new(binaries().dir.join(program)).args(["--config", &config]), JOB).unwrap()
    };
    for (program, text, meant) in
        [("lattice-agent", "node_id: x\nstate_dri: /tmp/x\n", "state_dir"), ("lattice-quorum", "id: 1\ndata_dri: /tmp/x\n", "data_dir")]
    {
        let done = run(program, text);
        assert!(!done.timed_out && done.code() != 0, "{program} started: {}", done.err());
        assert!(done.err().contains("line 2") || done.err().contains("2:"), "{}", done.err());
        assert!(done.err().contains("_dri") && done.err().contains(meant), "{}", done.err());
    }
}

fn no_agent(w: &World) {
    let mut command = w.lattice.command(&["status"]);
    let done = process::run(command.env("LATTICE_ENDPOINT", "unix:/nonexistent/agent.sock"), JOB).unwrap();
    assert!(done.code() == 5 && done.err().contains("/nonexistent/agent.sock"), "{} {}", done.code(), done.err());
}

fn garbage(w: &World) {
    let ring = crate::harness::lab_program().to_string_lossy().into_owned();
    let script = w.script(
        "garbage.sh",
        &format!(
            "#!/bin/sh\nlattice launch -n 4 {ring} pmi-ring 1000 10 --culprit 2 --deed garbage --at-line 3 >/dev/null\necho garbage gave $?\n\
             lattice launch -n 4 {ring} pmi-ring 3 1\necho after it $?\n"
        ),
    );
    let path = format!("PATH={}:/usr/bin:/bin", w.dir.join("bin").display());
    let agents: Vec<_> = w.cluster().nodes.iter().map(|n| n.daemon.process.clone()).collect();
    let id = w.submit(&["--nodes", "2", "--env", &path, &script]);
    w.completed(&id);
    let log = w.log(&id);
    assert!(log.contains("garbage gave ") && !log.contains("garbage gave 0\n"), "{log}");
    assert!(log.contains("after it 0\n"), "the shim and its next launch live: {log}");
    let cluster = w.cluster();
    assert!(cluster.nodes.iter().zip(&agents).all(|(n, before)| n.daemon.process == *before && n.daemon.alive()), "an agent died of it");
    w.assert_nothing_left();
}
