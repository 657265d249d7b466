//! The released binary, killed with SIGKILL.

use crate::lab::{Agent, Lab, PATIENCE, eventually, status, submit};
use lattice_model::{AllocationId, Epoch, ReportItem};
use lattice_quorum_client::wire::{Answer, Down, Request};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use uuid::Uuid;

pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn config_file(lab: &Lab, id: u64) -> PathBuf {
    let path = lab.scratch.0.join(format!("{id}.yaml"));
    // JSON is YAML.
    std::fs::write(&path, serde_json::to_vec_pretty(lab.config(id)).unwrap()).unwrap();
    path
}

pub fn start(lab: &Lab, id: u64, bootstrap: bool) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lattice-quorum"));
    command.arg("--config").arg(config_file(lab, id)).args(bootstrap.then_some("--bootstrap"));
    let log = std::fs::File::create(lab.scratch.0.join(format!("{id}.log"))).unwrap();
    Process(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_killed_then_all_are_and_nothing_acknowledged_is_lost() {
    let mut lab = Lab::new(3, |c| {
        c.heartbeat_ms = 100;
        c.election_ms = 1000;
    });
    lab.release_ports();
    let mut members = [Some(start(&lab, 1, true)), Some(start(&lab, 2, false)), Some(start(&lab, 3, false))];
    let client = lab.api(&[1, 2, 3]);
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(submit(&client, 1).await);
    }
    // A machine that stalls may make one take longer.
    let mut failovers = Vec::new();
    for _ in 0..3 {
        let leader = status(&client).await.leader.unwrap().0;
        let at = usize::try_from(leader - 1).unwrap();
        drop(members[at].take());
        let killed = Instant::now();
        ids.push(submit(&client, 1).await);
        let failover = killed.elapsed();
        failovers.push(failover);
        if failover < Duration::from_secs(3) {
            break;
        }
        members[at] = Some(start(&lab, leader, false));
        let back = lab.api(&[leader]);
        eventually("it to be back", async || back.call(&Request::ListNodes, Duration::from_secs(1)).await.is_ok(), |ok| *ok).await;
    }
    assert!(failovers.last().is_some_and(|failover| *failover < Duration::from_secs(3)), "{failovers:?}");

    // All at once, in the middle of submissions.
    let writer = {
        let client = client.clone();
        tokio::spawn(async move {
            let mut done = Vec::new();
            let end = Instant::now() + Duration::from_millis(300);
            while Instant::now() < end {
                done.push(submit(&client, 1).await);
            }
            done
        })
    };
    ids.extend(writer.await.unwrap());
    members.iter_mut().for_each(|m| drop(m.take()));
    let refused = client.call(&Request::ListNodes, Duration::from_millis(300)).await;
    assert!(refused.is_err(), "{refused:?}");
    for id in 1..=3 {
        members[usize::try_from(id - 1).unwrap()] = Some(start(&lab, id, false));
    }
    for id in &ids {
        let answer = client.call(&Request::GetAllocation { key: id.to_string() }, PATIENCE).await;
        assert!(matches!(&answer, Ok(Answer::Allocation(a)) if a.id == *id), "{answer:?}");
    }
    for id in 1..=3 {
        let one = lab.api(&[id]);
        let whole = async || crate::auditing::walk(&one).await;
        let want = ids.len() as u64;
        let _whole = eventually("the chain is whole", whole, |a| a.as_ref().is_ok_and(|walk| walk.head.seq > want)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_outlives_an_election_and_its_reports_are_committed_after_it() {
    // Far below the two seconds after which a member without a leader closes sessions.
    let mut lab = Lab::new(3, |c| {
        c.heartbeat_ms = 20;
        c.election_ms = 200;
    });
    lab.release_ports();
    let mut members = [Some(start(&lab, 1, true)), Some(start(&lab, 2, false)), Some(start(&lab, 3, false))];
    let client = lab.api(&[1, 2, 3]);
    submit(&client, 1).await;
    let leader = status(&client).await.leader.unwrap().0;
    let follower = (1..=3).find(|id| *id != leader).unwrap();
    let mut agent = Agent::register(&lab.api(&[follower]), "n1").await;
    let released = || ReportItem::Released { allocation: AllocationId(Uuid::new_v4()), epoch: Epoch(1), usage: None };
    agent.report(released()).await;
    drop(members[usize::try_from(leader - 1).unwrap()].take());
    let meanwhile = agent.report(released()).await;
    assert!(!meanwhile.iter().any(|message| matches!(message, Down::Close { .. } | Down::Move)), "{meanwhile:?}");
    assert_ne!(status(&lab.api(&[follower])).await.leader.unwrap().0, leader);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_says_in_one_line_why_it_does_not_start_and_ends_on_sigterm() {
    let mut lab = Lab::new(1, |_| {});
    lab.release_ports();
    let mut member = start(&lab, 1, true);
    submit(&lab.api(&[1]), 1).await;
    let run = |arguments: &[&str]| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_lattice-quorum"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut text = String::new();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (child.wait().unwrap().code(), text)
    };
    let config = config_file(&lab, 1).display().to_string();
    let (code, text) = run(&["--config", &config]);
    assert!(code == Some(1) && text.lines().count() <= 2 && text.contains("cannot listen there"), "{text}");
    let broken = lab.scratch.0.join("broken.yaml");
    std::fs::write(&broken, "data_dri: /x\n").unwrap();
    let (code, text) = run(&["--config", &broken.display().to_string()]);
    assert!(code == Some(1) && text.contains("data_dir"), "{text}");
    let (code, text) = run(&["ca", "issue", "--dir", "/nowhere", "--name", "n1", "--role", "king", "--out", "/nowhere"]);
    assert!(code == Some(2) && text.contains("king"), "{text}");

    // Only the process that this test started, by its id.
    let pid = member.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let ended = eventually("it ends", async || member.0.try_wait().unwrap(), Option::is_some).await;
    assert_eq!(ended.and_then(|s| s.code()), Some(0));
}
