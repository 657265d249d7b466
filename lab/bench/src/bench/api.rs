//! `bench api`: the API on the network beside the same calls on the socket: how long an answer takes, how many a core gives
//! a second, submissions, and what followers cost.
//!
//! One agent and one member. All clients are in this process, with connections that stay open. Limits of callers are as wide
//! as the settings allow, so that the agent is measured and not its limits.

mod http;

use self::http::{Connection, Request, Server};
use super::figures::{Figure, Report, Samples, Target};
use super::options::Options;
use super::surroundings::slow_files;
use super::turns::compared;
use anyhow::{Context, Result, ensure};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_lab::binaries::Binaries;
use lattice_lab::cluster::Cluster;
use lattice_lab::down::{self, Guard};
use lattice_lab::interrupt;
use lattice_lab::lattice::{Lattice, text};
use lattice_lab::machine::{self, Machine};
use lattice_lab::up::{self, Options as UpOptions};
use nix::unistd::User;
use std::path::Path;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Requests of each kind in a round, one after another.
const REQUESTS: usize = 2_000;
/// Submissions of each kind in a round, one after another.
const SUBMISSIONS: usize = 200;
/// Connections that ask at the same time, for the requests that one core answers.
const CONNECTIONS: usize = 16;
/// Allocations that are followed, and followers of each.
const FOLLOWED: usize = 100;
const FOLLOWERS: usize = 10;
/// The followers are divided among these users, because the calls of one user are limited.
const USERS: [&str; 8] = ["daemon", "bin", "sys", "games", "man", "lp", "mail", "news"];
/// How long the followers stay before the agent's memory is read.
const FOLLOW_TIME: Duration = Duration::from_secs(5);
/// What all followers together may cost, in megabytes.
const FOLLOWERS_MB: f64 = 200.0;
/// The median of one answer on the network, in milliseconds.
const ANSWER_MS: f64 = 1.0;
/// Answers for each second of the agent's processor time.
const ANSWERS_PER_CORE: f64 = 10_000.0;
/// A submission over REST, relative to one on the socket.
const SUBMISSION_RATIO: f64 = 1.2;
/// Wider than any load here.
const AGENT_LINES: &str = "api: {limits: {requests_per_second: 100000, burst: 1000000, submissions_per_minute: 1000000, \
                           connections_per_address: 4096, connections: 4096, streams_per_user: 250}}\n\
                           logs: {max_concurrent: 250}\n";
const REST: &str = "REST over TLS";
const SOCKET: &str = "gRPC on the socket";

/// Starts the cluster, measures, and removes it again.
pub fn run(dir: Option<&Path>, options: &Options) -> Result<Report> {
    options.validate()?;
    let machine = Machine::look();
    ensure!(machine.root, "bench api has tokens issued for several accounts: run it as root");
    let binaries = Binaries::beside_lab()?;
    if !options.no_build {
        binaries.build()?;
    }
    let own = std::env::temp_dir().join(format!("lattice-bench-api-{}", std::process::id()));
    let dir = dir.unwrap_or(&own);
    interrupt::watch();
    lattice_agent_common::limits::raise_open_files();
    let before = machine::cpu_pressure();
    let up_options = UpOptions {
        build: false,
        agents_dir: options.agents_dir.clone(),
        network_api: true,
        agent_lines: AGENT_LINES.to_owned(),
        ..UpOptions::new(1, 1, dir)
    };
    let guard = Guard::new(dir);
    let cluster = up::up(&up_options.with_audit_as_documented())?;
    let mut notes = Vec::from_iter(slow_files(&cluster));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let measured = runtime.block_on(measure(&cluster, options, &mut notes));
    down::require_gone(&guard.down(Duration::from_secs(10))?)?;
    let profile = binaries.profile();
    if profile == "debug" {
        notes.push("these are debug binaries: run the bench with --release before believing a miss".to_owned());
    }
    let cpu_pressure = [before, machine::cpu_pressure()];
    Ok(Report { bench: "api", profile, cpu_pressure, machine, figures: measured?, notes })
}

/// The agent, and how it is reached in both ways.
struct Agent {
    server: Server,
    client: Client,
    pid: i32,
    /// A token of each user.
    tokens: Vec<String>,
}

async fn measure(cluster: &Cluster, options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let lattice = Lattice::to(cluster, "n1")?;
    lattice.ok(&["admin", "limits", "--user-submissions-per-second", "none"])?;
    let agent = agent(cluster, &lattice).await?;
    let held = agent.submit_over_rest(&mut agent.server.connect().await?, 0).await?;
    let mut figures = answers(&agent, &held, options.rounds(), notes).await?;
    figures.push(per_core(&agent, options.rounds()).await?);
    figures.push(submissions(&agent, options.rounds(), notes).await?);
    figures.push(followers(&agent).await?);
    Ok(figures)
}

async fn agent(cluster: &Cluster, lattice: &Lattice) -> Result<Agent> {
    let node = cluster.node("n1")?;
    let mut tokens = Vec::new();
    for name in USERS {
        ensure!(User::from_name(name)?.is_some(), "this machine has no account {name}, as whom the bench submits");
        let args = ["admin", "token", "issue", "bench", "--account", name, "--scopes", "read,work", "--days", "1"];
        tokens.push(text(&lattice.json(&args)?, "token"));
    }
    Ok(Agent {
        server: Server::new(&node.api, &cluster.dir.join("ca/ca.crt"))?,
        client: Client::connect(&format!("unix:{}", node.socket.display())).await?,
        pid: node.daemon.process.as_ref().context("the agent's process")?.pid,
        tokens,
    })
}

impl Agent {
    fn token(&self, user: usize) -> &str {
        &self.tokens[user % self.tokens.len()]
    }

    /// Submits an allocation that is held; returns its id.
    async fn submit_over_rest(&self, connection: &mut Connection, user: usize) -> Result<String> {
        let body = r#"{"entrypoint": ["/bin/true"], "walltime": "1h", "hold": true}"#;
        let request = Request { method: "POST", path: "/api/v1/allocations", token: Some(self.token(user)), body: Some(body) };
        let (status, answer) = connection.ask(request).await?;
        ensure!((200..300).contains(&status), "a submission: {status} {}", String::from_utf8_lossy(&answer));
        let answer: serde_json::Value = serde_json::from_slice(&answer)?;
        Ok(text(&answer, "id"))
    }

    /// The same on the socket, as root.
    async fn submit_on_socket(&self) -> Result<()> {
        let command = v1::entrypoint::Command { argv: vec!["/bin/true".to_owned()] };
        let spec = v1::AllocationSpec {
            name: "true".to_owned(),
            entrypoint: Some(v1::Entrypoint { what: Some(v1::entrypoint::What::Command(command)) }),
            resources: Some(v1::ResourceRequest { nodes: 1, ..Default::default() }),
            lifecycle: Some(v1::Lifecycle { walltime_seconds: 3600, ..Default::default() }),
            working_dir: "/".to_owned(),
            hold: true,
            ..Default::default()
        };
        let request = v1::SubmitRequest { id: Uuid::new_v4().to_string(), spec: Some(spec), wait_for_nodes: false, dry_run: false };
        self.client.allocations().submit(request).await?;
        Ok(())
    }
}

/// A kind of request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    OverRest,
    OnSocket,
    /// A page that does not exist, with a token: the cost of a request before its handler.
    Nothing,
    /// A page that needs no token.
    Health,
}

/// How long one answer takes: the median of each round.
async fn answers(agent: &Agent, id: &str, rounds: usize, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let mut connection = agent.server.connect().await?;
    let subjects = [Asked::OverRest, Asked::OnSocket, Asked::Nothing, Asked::Health];
    let mut medians: [Vec<f64>; 4] = Default::default();
    for round in 0..rounds {
        interrupt::check()?;
        for turn in 0..subjects.len() {
            let at = (round + turn) % subjects.len();
            medians[at].push(median_ms(agent, &mut connection, id, subjects[at]).await?);
        }
        eprintln!("bench: api: answers: round {} of {rounds}", round + 1);
    }
    let [rest, socket, nothing, health] = medians;
    let target = Target::AtMost { value: ANSWER_MS, why: "a page of a portal asks for many".to_owned() };
    let one = compared("GET /allocations/{id}, median", "ms", &rest, &[(SOCKET, Some(&socket))], Some(target), notes)?;
    let before_handlers = "a page that is not there, with a token, median";
    let token = compared(before_handlers, "ms", &nothing, &[("a page that needs no token", Some(&health))], None, notes)?;
    Ok(vec![one, token])
}

async fn median_ms(agent: &Agent, connection: &mut Connection, id: &str, asked: Asked) -> Result<f64> {
    let path = format!("/api/v1/allocations/{id}");
    let token = Some(agent.token(0));
    let mut times = Vec::with_capacity(REQUESTS);
    for _ in 0..REQUESTS {
        let began = Instant::now();
        let (status, wanted) = match asked {
            Asked::OverRest => (connection.ask(Request::get(&path, token)).await?.0, 200),
            Asked::Nothing => (connection.ask(Request::get("/api/v1/nothing", token)).await?.0, 404),
            Asked::Health => (connection.ask(Request::get("/healthz", None)).await?.0, 200),
            Asked::OnSocket => {
                let request = v1::GetAllocationRequest { key: id.to_owned(), stale: false };
                agent.client.allocations().get(request).await?;
                (200, 200)
            }
        };
        times.push(began.elapsed().as_secs_f64() * 1e3);
        ensure!(status == wanted, "an answer with the status {status}");
    }
    Ok(Samples::of(times, 0).context("no answer")?.median)
}

/// The requests that one core of the agent answers a second: by its processor time. Each connection asks for an allocation
/// of its own: questions about the same one share an answer of the quorum.
async fn per_core(agent: &Agent, rounds: usize) -> Result<Figure> {
    let mut connections = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let mut connection = agent.server.connect().await?;
        let id = agent.submit_over_rest(&mut connection, 0).await?;
        connections.push((connection, format!("/api/v1/allocations/{id}")));
    }
    let mut values = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        interrupt::check()?;
        let before = machine::processor_time(agent.pid)?;
        let asking = connections.iter_mut().map(|(connection, path)| async move {
            for _ in 0..REQUESTS {
                let (status, _) = connection.ask(Request::get(path, Some(agent.token(0)))).await?;
                ensure!(status == 200, "an answer with the status {status}");
            }
            anyhow::Ok(())
        });
        futures::future::try_join_all(asking).await?;
        let seconds = (machine::processor_time(agent.pid)? - before).as_secs_f64();
        values.push((CONNECTIONS * REQUESTS) as f64 / seconds.max(f64::MIN_POSITIVE));
    }
    let name = format!("GET /allocations/{{id}} on {CONNECTIONS} connections: answered for each second of the agent's processor time");
    let target = Target::AtLeast { value: ANSWERS_PER_CORE, why: "a portal asks for many users".to_owned() };
    Ok(Figure::new(&name, "/s", Samples::of(values, 0).context("one value")?, vec![], Some(target)))
}

/// Submissions in both ways, in turns.
async fn submissions(agent: &Agent, rounds: usize, notes: &mut Vec<String>) -> Result<Figure> {
    let mut connection = agent.server.connect().await?;
    let (mut rest, mut socket) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        interrupt::check()?;
        for turn in 0..2 {
            let began = Instant::now();
            let over_rest = (round + turn) % 2 == 0;
            for _ in 0..SUBMISSIONS {
                if over_rest {
                    agent.submit_over_rest(&mut connection, round).await?;
                } else {
                    agent.submit_on_socket().await?;
                }
            }
            let each = began.elapsed().as_secs_f64() * 1e3 / SUBMISSIONS as f64;
            let times = if over_rest { &mut rest } else { &mut socket };
            times.push(each);
        }
        eprintln!("bench: api: submissions: round {} of {rounds}", round + 1);
    }
    let target = Target::RatioTo { peer: SOCKET.to_owned(), at_most: SUBMISSION_RATIO };
    compared(&format!("a submission, {REST}, one after another"), "ms", &rest, &[(SOCKET, Some(&socket))], Some(target), notes)
}

/// What followers of output cost the agent.
async fn followers(agent: &Agent) -> Result<Figure> {
    let mut connection = agent.server.connect().await?;
    let mut ids = Vec::new();
    for number in 0..FOLLOWED {
        ids.push(agent.submit_over_rest(&mut connection, number).await?);
    }
    let resident_mb = || machine::memory_of(agent.pid).map(|(resident, _)| resident as f64 / 1e6).context("the agent's memory");
    let before = resident_mb()?;
    let mut draining = tokio::task::JoinSet::new();
    for number in 0..FOLLOWED * FOLLOWERS {
        interrupt::check()?;
        let path = format!("/api/v1/allocations/{}/logs?follow=true", ids[number % FOLLOWED]);
        let mut connection = agent.server.connect().await?;
        connection.follow(Request::get(&path, Some(agent.token(number % FOLLOWED)))).await?;
        draining.spawn(connection.drain());
    }
    tokio::time::sleep(FOLLOW_TIME).await;
    let more = resident_mb()? - before;
    ensure!(draining.try_join_next().is_none(), "a follower lost its connection");
    draining.shutdown().await;
    let name = format!("{} followers of the output of {FOLLOWED} allocations that wait: the agent's memory more", FOLLOWED * FOLLOWERS);
    let target = Target::AtMost { value: FOLLOWERS_MB, why: "200 kB each, TLS included".to_owned() };
    Ok(Figure::new(&name, "MB", Samples::of(vec![more], 0).context("one value")?, vec![], Some(target)))
}
