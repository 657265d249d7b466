//! The time of day jumps on the host of the leader, of a follower, and of an agent. Nothing ends early or lasts for
//! ever, and a certificate that was signed at a wrong time is replaced.

use crate::harness::{Group, Need, World, alone, ms};
use crate::hosts::{Load, on_hosts, others, submit, term};
use lattice_lab::lattice::text;
use lattice_lab::quorum::hosts::Hosts;
use lattice_lab::quorum::members::{Members, certificate};
use lattice_lab::{faults, process};
use lattice_ledger::Action;
use lattice_model::Timestamp;
use lattice_pki::identity::Role;
use lattice_quorum_client::wire::{Answer, Refusal, Request};
use lattice_quorum_client::{CallError, QuorumClient};
use libtest_mimic::Trial;
use std::fs;
use std::time::{Duration, Instant, SystemTime};
use tokio::task::JoinHandle;

const HOUR: i64 = 3600;
const TEN_YEARS: i64 = 10 * 365 * 86_400;
/// Lifetime of leases that nobody renews.
const LEASE_LIFETIME: Duration = Duration::from_millis(800);
/// How late a lease may end: the leader checks once a second.
const LATE: Duration = Duration::from_secs(3);
/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Lifetime of certificates that must expire.
const LIFE: Duration = Duration::from_secs(20);

/// How long `stop` work continues without an acknowledged heartbeat.
const LEASE: Duration = Duration::from_secs(4);

static AGENTS: Group = Group {
    theme: "clocks",
    name: "agents",
    nodes: 2,
    quorum: 1,
    tweak: |o| {
        o.clocks = true;
        o.member_lines = format!("run_lease_ms: {}\n", LEASE.as_millis());
    },
};

/// Its quorum's time stays ahead: no other test has this cluster.
static AHEAD: Group = Group { theme: "clocks", name: "quorum-ahead", nodes: 1, quorum: 1, tweak: |o| o.clocks = true };

static MEMBERS: Group = Group { theme: "clocks", name: "member-clocks", nodes: 2, quorum: 3, tweak: |o| o.clocks = true };

pub fn trials() -> Vec<Trial> {
    vec![
        MEMBERS.test("a_jump_of_the_leaders_clock_forgets_no_ended_work_and_ends_no_hold", &[], leader_jumps),
        MEMBERS.test("a_leader_whose_clock_stays_wrong_hands_over", &[], leader_stays_wrong),
        AGENTS.test("a_jump_of_a_lone_members_clock_forgets_no_ended_work", &[], lone_member_jumps),
        AGENTS.test("a_queue_goes_on_behind_work_that_waits_for_a_window_whatever_the_schedulers_clock_shows", &[], windows),
        AGENTS.test("a_service_that_idles_shrinks_whatever_the_schedulers_clock_shows", &[], shrinks),
        AGENTS.test("a_jump_of_an_agents_clock_ends_no_work_early_or_late", &[], agents),
        AHEAD.test("ended_work_is_forgotten_after_the_time_that_is_set", &[], forgotten_after_an_hour),
        alone("clocks::a_jump_ends_no_lease_early_or_late", &[Need::Hosts], || {
            on_hosts("clocks", |_| {}, leases);
        }),
        alone("clocks::a_jump_past_a_certificates_expiry_has_no_lasting_effect", &[Need::Hosts], || {
            on_hosts("clocks-certificates", |o| o.certificate_seconds = LIFE.as_secs(), certificates);
        }),
    ]
}

/// All of them: one has the lease of the queue.
fn shift_agents(w: &World, seconds: i64) {
    ["n1", "n2"].iter().for_each(|node| faults::shift_clock(&w.dir, node, seconds).unwrap());
}

/// By the wrong clocks, a window that comes is open, or one that is open is over or far ahead. The ledger knows better: what
/// is planned by them is refused, and so is all that is behind it.
fn windows(w: &World) {
    let reserve = |name: &str, more: &[&str]| w.ok(&[&["admin", "reservation", "create", name], more].concat());
    reserve("coming", &["--nodes=n2", "--start=now+30m", "--duration=1h", "--user=root"]);
    reserve("fans", &["--nodes=n1", "--start=now", "--duration=30m", "--maintenance"]);
    let waiting = [&["--reservation=coming", "--walltime=10m"][..], &["-w", "n1", "--walltime=10m"]]
        .map(|options| w.submit(&[options, &["--", "/bin/true"]].concat()));
    for seconds in [HOUR, -HOUR] {
        shift_agents(w, seconds);
        w.completed(&w.submit(&["-w", "n2", "--walltime=1m", "--", "/bin/true"]));
        waiting.iter().for_each(|job| assert_eq!(text(&w.status(job), "state"), "Pending", "with a clock that is wrong by {seconds} s"));
    }
    shift_agents(w, 0);
    waiting.iter().for_each(|job| drop(w.ok(&["cancel", job])));
    ["coming", "fans"].iter().for_each(|name| drop(w.ok(&["admin", "reservation", "delete", name])));
    w.assert_nothing_left();
}

/// By a clock that is behind, its replicas have just begun, and its metric has just fallen, for an hour.
fn shrinks(w: &World) {
    shift_agents(w, -HOUR);
    let bounds = ["--reactive", "--min-nodes=1", "--max-nodes=2", "--cores=1", "--pmi=none", "--drain-grace=1s"];
    let metric = ["--scale-metric=cpu_utilization", "--scale-target=0.9"];
    let soon = ["--scale-interval=1s", "--scale-up-window=1s", "--scale-down-window=2s", "--scale-cooldown=1s"];
    let id = w.submit(&[&bounds[..], &metric, &soon, &["--", "/bin/sleep", "600"]].concat());
    let count = |key: &str| w.status(&id)["scaling_state"][key].as_u64();
    w.wait("its replica to run", || count("running") == Some(1));
    w.ok(&["scale", &id, "2"]);
    w.wait("the idle service to shrink", || count("wanted") == Some(1));
    shift_agents(w, 0);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.assert_nothing_left();
}

fn agents(w: &World) {
    let go = w.dir.join("go");
    w.ok(&["node", "cordon", "n1", "--reason", "n2 is asked"]);
    let script = format!("echo up; until [ -e {} ]; do sleep 0.05; done; echo over", go.display());
    let job = w.submit(&["--cores", "1", "--walltime", "10m", "--on-isolation", "stop", "--requeue=never", "--", "/bin/sh", "-c", &script]);
    w.wait_log(&job, "up");
    let assert_runs = || {
        let nodes = w.lattice.nodes().unwrap();
        assert!(nodes.contains(&("n2".to_owned(), "Ready".to_owned())), "{nodes:?}");
        assert_eq!(text(&w.status(&job), "state"), "Running");
    };
    for seconds in [HOUR, -HOUR] {
        faults::shift_clock(&w.dir, "n2", seconds).unwrap();
        let since = Instant::now();
        let over = w.submit(&["--cores", "1", "--walltime", "1s", "--", "/bin/sleep", "600"]);
        assert_eq!(text(&w.ended(&over), "reason"), "walltime_exceeded");
        assert!(since.elapsed() < REQUEST_TIMEOUT + LATE, "a walltime of 1 s took {:?}", since.elapsed());
        w.wait("twice the lease to pass", || {
            assert_runs();
            since.elapsed() > LEASE * 2
        });
        // The next process reads what this one stored.
        faults::restart_node(&w.dir, "n2").unwrap();
        w.wait("n2 to be Ready", || w.lattice.nodes().unwrap().contains(&("n2".to_owned(), "Ready".to_owned())));
        assert_runs();
        let line = process::tail(&w.cluster().node("n2").unwrap().daemon.log, 1);
        let at = ms(&serde_json::json!({ "at": format!("{}.0", line.split('.').next().unwrap_or_default()) }), "at");
        let wrong = i64::try_from(at / 1000).unwrap() - now();
        assert!((wrong - seconds).abs() < 60, "its clock is wrong by {wrong} s, and should be by {seconds} s");
        w.completed(&w.submit(&["--cores", "1", "--", "/bin/true"]));
    }
    faults::shift_clock(&w.dir, "n2", 0).unwrap();
    fs::write(&go, "").unwrap();
    w.completed(&job);
    assert_eq!(w.log(&job), "up\nover\n");
    w.assert_nothing_left();
}

/// A member's clock is ten years ahead for two seconds. Work that ended before or meanwhile is known and not run again.
fn forgets_nothing(w: &World, member: u64) {
    let mut jobs: Vec<String> = (0..3).map(|_| w.submit(&["--", "/bin/true"])).collect();
    jobs.iter().for_each(|job| drop(w.completed(job)));
    w.ok(&["node", "cordon", "n2", "--reason", "fan", "--for", "1h"]);
    faults::shift_member_clock(&w.dir, member, TEN_YEARS).unwrap();
    let wrong = Instant::now();
    jobs.push(w.submit(&["--", "/bin/true"]));
    w.completed(&jobs[3]);
    let clock_status = || w.lattice.json(&["quorum", "status"]).unwrap()["clocks"].clone();
    w.wait("the wrong clock to be reported", || !text_of(&clock_status()).is_empty() && wrong.elapsed() > Duration::from_secs(2));
    faults::shift_member_clock(&w.dir, member, 0).unwrap();
    jobs.push(w.submit(&["--", "/bin/true"]));
    let last = w.completed(&jobs[4]);
    let off_ms = i64::try_from(ms(&last, "ended_at")).unwrap() - now() * 1000;
    assert!(off_ms.abs() < 30_000, "the last one ended {off_ms} ms from now: {last}");
    let known = |job: &String| (text(&w.status(job), "state"), w.status(job)["epoch"].clone());
    let before: Vec<_> = jobs.iter().map(known).collect();
    assert!(before.iter().all(|(state, _)| state == "Completed"), "{before:?}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let cluster = w.cluster();
        let credentials = lattice_pki::credentials::Credentials::new(certificate(&cluster, "n9", Role::Api).unwrap()).unwrap();
        let client = QuorumClient::new(cluster.members.iter().map(|m| m.service.clone()).collect(), credentials).unwrap();
        for key in &jobs {
            let there = client.call(&Request::GetAllocation { key: key.clone() }, REQUEST_TIMEOUT).await;
            let Ok(Answer::Allocation(there)) = there else { panic!("{key} is not known: {there:?}") };
            let again = Request::Submit {
                id: there.id,
                spec: Box::new((*there.spec).clone()),
                owner: there.owner,
                claim: None,
                life: None,
                login_tenants: [].into(),
            };
            client.call(&again, REQUEST_TIMEOUT).await.unwrap();
        }
    });
    // A second run of it would be ahead of this one in the queue.
    w.completed(&w.submit(&["--", "/bin/true"]));
    assert_eq!(jobs.iter().map(known).collect::<Vec<_>>(), before, "nothing is run again");
    let nodes = w.lattice.json(&["nodes"]).unwrap();
    let held =
        nodes.as_array().unwrap().iter().any(|n| text(n, "id") == "n2" && n["holds"].as_array().is_some_and(|holds| !holds.is_empty()));
    assert!(held, "the hold of an hour is over: {nodes}");
    w.ok(&["node", "uncordon", "n2"]);
    w.wait("the clocks to agree", || text_of(&clock_status()).is_empty());
}

/// The time of a quorum whose only member starts again with a clock that is two hours ahead.
fn forgotten_after_an_hour(w: &World) {
    w.ok(&["admin", "limits", "--ended-kept", "1h"]);
    let [first, second] = [(); 2].map(|()| w.submit(&["--", "/bin/true"]));
    let before = [&first, &second].map(|job| ms(&w.completed(job), "ended_at"));
    faults::kill_member(&w.dir, 1).unwrap();
    faults::shift_member_clock(&w.dir, 1, 2 * HOUR).unwrap();
    faults::start_member(&w.dir, 1).unwrap();
    w.leader();
    // They are kept until the next work ends.
    let newer = w.submit(&["--", "/bin/true"]);
    let ended_at = ms(&w.completed(&newer), "ended_at");
    let least = 3_600_000;
    assert!(before.iter().all(|before| ended_at - before > least), "{before:?}, and then {ended_at}: the quorum's time is not ahead");
    for job in [&first, &second] {
        let forgotten = w.run(&["status", job]);
        assert_eq!(forgotten.code(), 3, "{}", forgotten.err());
        assert!(forgotten.err().contains("the quorum keeps ended work for 1 hour, or less"), "{}", forgotten.err());
    }
    assert_eq!(text(&w.status(&newer), "state"), "Completed");
    let ended = w.lattice.json(&["quorum", "status"]).unwrap()["ended"].clone();
    assert_eq!((&ended["count"], &ended["cut_short"], &ended["kept_seconds"]), (&1.into(), &false.into(), &3600.into()), "{ended}");
    assert_eq!(ms(&ended, "oldest_ended_at"), ended_at, "{ended}");
    assert!(before.contains(&ms(&ended, "forgotten_until")), "{ended}");
}

fn text_of(value: &serde_json::Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

fn leader_jumps(w: &World) {
    let leader = w.leader();
    forgets_nothing(w, leader);
}

fn lone_member_jumps(w: &World) {
    forgets_nothing(w, 1);
}

fn leader_stays_wrong(w: &World) {
    let leader = w.leader();
    faults::shift_member_clock(&w.dir, leader, HOUR).unwrap();
    w.wait("another leader", || w.lattice.leader().ok().flatten().is_some_and(|now| now != leader));
    let job = w.submit(&["--", "/bin/true"]);
    let off_ms = i64::try_from(ms(&w.completed(&job), "ended_at")).unwrap() - now() * 1000;
    assert!(off_ms.abs() < 30_000, "it ended {off_ms} ms from now");
    let clock_text = || text_of(&w.lattice.json(&["quorum", "status"]).unwrap()["clocks"]);
    // A difference is shown in whole seconds.
    let expected = [HOUR - 1, HOUR].map(|seconds| format!("the clock of member {leader} is {seconds} s ahead"));
    w.wait("the member with the wrong clock to be named", || expected.iter().any(|expected| clock_text().contains(expected)));
    assert_ne!(w.leader(), leader);
    faults::shift_member_clock(&w.dir, leader, 0).unwrap();
    w.wait("the clocks to agree", || clock_text().is_empty());
}

/// A client, and the name under which it holds leases.
struct Holder {
    name: &'static str,
    client: QuorumClient,
}

impl Holder {
    fn new(members: &Members, name: &'static str) -> Self {
        let tls = certificate(&members.cluster, name, Role::Api).unwrap();
        Self { name, client: members.client_as(tls).unwrap() }
    }

    async fn acquire(&self, lease: &str, ttl: Duration) -> Result<u64, CallError> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap();
        let request = Request::AcquireLease { name: lease.to_owned(), holder: self.name.parse().unwrap(), ttl_ms, user: None };
        match self.client.call(&request, REQUEST_TIMEOUT).await? {
            Answer::Lease { token, .. } => Ok(token),
            other => panic!("a lease was asked for: {other:?}"),
        }
    }

    /// Renews a lease until the task is aborted, and fails if the lease is lost.
    fn keep(self, lease: &'static str, token: u64) -> JoinHandle<()> {
        tokio::spawn(async move {
            let renewal = Request::RenewLease { name: lease.to_owned(), token, holder: self.name.parse().unwrap(), user: None };
            loop {
                let renewed = self.client.call(&renewal, REQUEST_TIMEOUT).await;
                assert!(renewed.is_ok(), "{lease} was lost: {renewed:?}");
                tokio::time::sleep(LEASE_LIFETIME / 4).await;
            }
        })
    }
}

async fn leases(hosts: &Hosts, members: &mut Members) {
    let leader = members.leader().await.unwrap();
    let before = term(members, leader).await;
    let (keeper, first, second) = (Holder::new(members, "keeper"), Holder::new(members, "first"), Holder::new(members, "second"));
    // Connections are made while the clocks agree: this test of leases does not cover jumps past the certificates'
    // lifetime.
    let clients: Vec<(u64, QuorumClient)> =
        [leader, others(leader)[0]].into_iter().map(|id| (id, members.client_at(id).unwrap())).collect();
    let token = keeper.acquire("kept", LEASE_LIFETIME).await.unwrap();
    let kept = keeper.keep("kept", token);
    let load = Load::begin(members);
    let mut last = 0;
    for (member, client) in &clients {
        for jump in [HOUR, -HOUR, TEN_YEARS, -TEN_YEARS, 0] {
            let case = format!("member {member}, a jump to {jump} s");
            let token = first.acquire("short", LEASE_LIFETIME).await.unwrap();
            let granted = Instant::now();
            assert!(token > last, "{case}");
            hosts.shift_clock(*member, jump).unwrap();
            assert_wrong_by(client, jump).await;
            // Another holder gets the lease soon after its end, and not before.
            last = loop {
                match second.acquire("short", LEASE_LIFETIME).await {
                    Ok(next) => break next,
                    Err(CallError::Refused(Refusal::LeaseHeld { .. })) => {}
                    Err(other) => panic!("{case}: {other}"),
                }
                assert!(granted.elapsed() < LEASE_LIFETIME + LATE, "{case}: it does not end");
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            assert!(granted.elapsed() >= LEASE_LIFETIME - Duration::from_millis(50), "{case}: it ended after {:?}", granted.elapsed());
            assert!(last > token, "{case}");
            let held = first.acquire("kept", LEASE_LIFETIME).await;
            assert!(matches!(held, Err(CallError::Refused(Refusal::LeaseHeld { .. }))), "{case}: {held:?}");
            // The next round begins with a free lease.
            while !matches!(release(&second, last).await, Ok(Answer::Done { .. })) {}
            // A leader whose clock stays wrong would transfer the leadership.
            hosts.shift_clock(*member, 0).unwrap();
            assert_wrong_by(client, 0).await;
        }
    }
    assert!(!kept.is_finished(), "{:?}", kept.await);
    kept.abort();
    assert_eq!((members.leader().await.unwrap(), term(members, leader).await), (leader, before), "no short jump makes an election");
    let longest = load.end(members).await;
    assert!(longest < Duration::from_secs(2), "a submission took {longest:?}");
}

async fn release(holder: &Holder, token: u64) -> Result<Answer, CallError> {
    let request = Request::from(Action::ReleaseLease { name: "short".to_owned(), token, holder: holder.name.parse().unwrap(), user: None });
    let released = holder.client.call(&request, REQUEST_TIMEOUT).await;
    match released {
        // It ended by itself meanwhile, which is equally good.
        Err(CallError::Refused(Refusal::StaleLease { .. })) => Ok(Answer::Done { revision: lattice_model::Revision(0) }),
        other => other,
    }
}

/// Checks that the jump reached the member.
async fn assert_wrong_by(client: &QuorumClient, seconds: i64) {
    let Ok(Answer::Status(status)) = client.call(&Request::Status, REQUEST_TIMEOUT).await else { panic!("the member does not answer") };
    let seen = (seconds_of(status.at) - now()).abs_diff(seconds);
    assert!(seen < 60, "the member's clock is off by {} s, and should be by {seconds} s", seconds_of(status.at) - now());
}

fn seconds_of(at: Timestamp) -> i64 {
    i64::try_from(at.0 / 1000).unwrap()
}

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

async fn certificates(hosts: &Hosts, members: &mut Members) {
    let load = Load::begin(members);
    let leader = members.leader().await.unwrap();
    let before = term(members, leader).await;
    // A member signs itself a certificate while its clock is wrong.
    let follower = others(leader)[0];
    let certificate_of = |member: u64| std::fs::read(members.data_dir(member).join("certificate.json")).unwrap_or_default();
    let seen = certificate_of(follower);
    hosts.shift_clock(follower, HOUR).unwrap();
    wait("a certificate of the wrong hour", LIFE, async || certificate_of(follower) != seen).await;
    // Open connections stay; no new ones are made, because each side considers the other's certificate to be outside of
    // its validity.
    load.goes_on(20).await;
    assert!(submit(&client_of(members, &others(follower))).await.is_ok(), "the others serve");
    let refused = members.client_at(follower).unwrap().call(&Request::Status, Duration::from_secs(2)).await;
    assert!(matches!(refused, Err(CallError::Unavailable { .. })), "{refused:?}");
    hosts.shift_clock(follower, 0).unwrap();
    wait("the member to be reached again", Duration::from_secs(5), async || is_reached(members, follower).await).await;

    // By the clock of another member the authority's certificate has expired, so it signs nothing.
    let second = others(leader)[1];
    let log = members.cluster.member(second).unwrap().daemon.log.clone();
    hosts.shift_clock(second, TEN_YEARS + 86_400).unwrap();
    let refused = async || std::fs::read_to_string(&log).unwrap().contains("the authority's own certificate has expired");
    wait("the authority's end", Duration::from_secs(5), refused).await;
    load.goes_on(20).await;
    hosts.shift_clock(second, 0).unwrap();
    let back = Instant::now();
    let seen = certificate_of(second);
    wait("the next certificate", LIFE, async || certificate_of(second) != seen).await;
    // By now every earlier certificate has expired.
    tokio::time::sleep((LIFE + Duration::from_secs(1)).saturating_sub(back.elapsed())).await;
    for member in 1..=crate::hosts::MEMBERS {
        assert!(is_reached(members, member).await, "member {member}");
    }
    assert_eq!((members.leader().await.unwrap(), term(members, leader).await), (leader, before), "no follower's clock makes an election");
    load.end(members).await;
}

async fn is_reached(members: &Members, member: u64) -> bool {
    members.client_at(member).unwrap().call(&Request::Status, Duration::from_secs(1)).await.is_ok()
}

/// A client with new connections to some members.
fn client_of(members: &Members, some: &[u64]) -> QuorumClient {
    let services = some.iter().map(|id| members.cluster.member(*id).unwrap().service.clone()).collect();
    QuorumClient::new(services, lattice_pki::credentials::Credentials::new(members.tls.clone()).unwrap()).unwrap()
}

async fn wait(what: &str, limit: Duration, mut seen: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + limit;
    while !seen().await {
        assert!(Instant::now() < end, "waited {limit:?} in vain for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
