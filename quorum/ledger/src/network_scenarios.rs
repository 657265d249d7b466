//! Scenarios of network domains, services and cluster-wide limits. Each command takes a second.

use super::scenarios::{LimitsChange, Story, id, node, spec, user};
use super::{Action, Outcome, QuotaChange};
use crate::{DomainStatus, Refusal, VniPoolChange};
use lattice_model::network::{DomainState, NoVni};
use lattice_model::{
    AllocationSpec, AllocationState, AuditAction, Connectivity, EndReason, Epoch, Exposed, Quota, ReportItem, RequeuePolicy,
};

fn within(tenant: &str, domain: &str) -> AllocationSpec {
    let connectivity = Connectivity { network_domain: domain.into(), expose: vec![] };
    AllocationSpec { tenant: tenant.into(), connectivity, ..spec(1, RequeuePolicy::Always, 9) }
}

fn submit(number: u128, spec: AllocationSpec) -> Action {
    Action::Submit { id: id(number), spec: Box::new(spec), owner: user(7), claim: None }
}

fn pool(start: u32, end: u32, grace_ms: u64) -> Action {
    Action::SetVniPool { change: VniPoolChange { start: Some(start), end: Some(end), grace_ms: Some(grace_ms) }, by: "root".into() }
}

fn ended(s: &mut Story, on: u8, number: u128, epoch: Epoch) {
    s.report(on, ReportItem::Ended { allocation: id(number), epoch, reason: EndReason::Exited { code: 0 } });
}

fn released(s: &mut Story, on: u8, number: u128, epoch: Epoch) {
    s.report(on, ReportItem::Released { allocation: id(number), epoch, usage: None });
}

fn vni(s: &Story, number: u128) -> Option<u32> {
    s.ledger.allocation(id(number)).unwrap().vni
}

/// The only domain of this name.
fn domain(s: &Story, name: &str) -> Option<DomainStatus> {
    let mut found = s.ledger.domain_statuses(None, Some(name), s.now());
    assert!(found.len() <= 1);
    found.pop()
}

#[test]
fn a_domain_has_the_lowest_free_number_from_its_first_claim_to_the_end_of_its_grace() {
    let mut s = Story::new(6);
    s.done(pool(1000, 4095, 5000));
    for (number, tenant, name) in [(1, "physics", "ml"), (2, "physics", "ml"), (3, "chemistry", "ml"), (4, "physics", "eval")] {
        s.done(submit(number, within(tenant, name)));
    }
    assert_eq!(s.ledger.domains().count(), 0, "what waits takes no number");
    let first = s.claimed(1, &[0]);
    let others = [(2, 1), (3, 2), (4, 3)].map(|(number, on)| s.claimed(number, &[on]));
    // Allocations in one domain have the same VNI; a domain of another tenant with the same name
    // has another VNI.
    assert_eq!([1, 2, 3, 4].map(|number| vni(&s, number)), [Some(1000), Some(1000), Some(1001), Some(1002)]);
    assert_eq!(s.ledger.desired(&node(0)).shares[0].vni, Some(1000));
    ended(&mut s, 1, 2, others[0]);
    released(&mut s, 1, 2, others[0]);
    assert_eq!(domain_of(&s, "physics").state, DomainState::Active);
    ended(&mut s, 0, 1, first);
    assert!(matches!(domain_of(&s, "physics").state, DomainState::Grace { left_ms: 5000 }));
    released(&mut s, 0, 1, first);
    // An allocation that joins during the grace period gets the same VNI, and the grace period
    // starts again later.
    s.done(submit(5, within("physics", "ml")));
    let joined = s.claimed(5, &[0]);
    assert_eq!((vni(&s, 5), domain_of(&s, "physics").state), (Some(1000), DomainState::Active));
    ended(&mut s, 0, 5, joined);
    released(&mut s, 0, 5, joined);
    for _ in 0..3 {
        s.done(Action::ReleaseDomains);
    }
    assert!(matches!(domain_of(&s, "physics").state, DomainState::Grace { left_ms: 1000 }));
    s.done(Action::ReleaseDomains);
    assert_eq!(s.ledger.domains().count(), 2);
    s.done(submit(6, within("physics", "other")));
    s.claimed(6, &[0]);
    assert_eq!(vni(&s, 6), Some(1000), "the lowest that is free");
}

fn domain_of(s: &Story, tenant: &str) -> DomainStatus {
    s.ledger.domain_statuses(Some(&[tenant.to_owned()]), Some("ml"), s.now()).pop().unwrap()
}

#[test]
fn what_gets_no_number_waits_and_the_others_go_on() {
    let mut s = Story::new(4);
    s.done(pool(1000, 1000, 0));
    for (number, name) in [(1, "a"), (2, "b"), (3, "a"), (4, "")] {
        s.done(submit(number, within("", name)));
    }
    let epoch = s.claimed(1, &[0]);
    let refused = s.claim(2, &[1]).unwrap_err();
    assert_eq!(refused, Refusal::NoVni(NoVni::Exhausted { domain: "b".into(), used: 1, size: 1 }));
    assert!(refused.to_string().contains("VNI pool exhausted (1/1 in use)") && refused.remedy().is_some());
    let joined = s.claimed(3, &[1]);
    s.claimed(4, &[2]);
    // Without a grace period, the VNI is still not free while a node may run work that used it.
    ended(&mut s, 0, 1, epoch);
    s.done(Action::Cancel { id: id(3), by: user(7) });
    s.done(Action::ReleaseDomains);
    let status = domain(&s, "a").unwrap();
    assert_eq!((status.state, status.nodes), (DomainState::Leaving, vec![node(0), node(1)]));
    released(&mut s, 0, 1, epoch);
    s.done(Action::ReleaseDomains);
    assert!(matches!(s.claim(2, &[0]), Err(Refusal::NoVni(_))));
    released(&mut s, 1, 3, joined);
    s.done(Action::ReleaseDomains);
    s.claimed(2, &[0]);
    assert_eq!((vni(&s, 2), domain(&s, "a")), (Some(1000), None));
}

#[test]
fn a_tenant_has_fifty_domains_at_most() {
    let mut s = Story::new(1);
    for number in 0..51 {
        let share = lattice_model::Resources { memory_bytes: 1, ..Default::default() };
        s.done(submit(number, AllocationSpec { share: Some(share), ..within("physics", &format!("d{number}")) }));
        let part = lattice_model::spec::share_of(&share, &s.ledger.node(&node(0)).unwrap().size);
        // The node is too small for all allocations at once: each one ends, and its domain enters
        // its grace period.
        let claimed = s.claim_share(number, 0, part);
        if number == 50 {
            assert!(matches!(claimed, Err(Refusal::NoVni(NoVni::TooManyDomains { most: 50, .. }))), "{claimed:?}");
            return;
        }
        let Ok(Outcome::Claimed { epoch }) = claimed else { panic!("{claimed:?}") };
        s.done(Action::Cancel { id: id(number), by: user(7) });
        released(&mut s, 0, number, epoch);
    }
}

#[test]
fn a_pool_that_shrinks_takes_no_number_away() {
    let mut s = Story::new(2);
    s.done(submit(1, within("", "a")));
    s.claimed(1, &[0]);
    s.done(pool(2000, 2000, 1000));
    assert_eq!((vni(&s, 1), domain(&s, "a").unwrap().vni), (Some(1000), 1000));
    let status = s.ledger.vni_pool_status();
    assert_eq!((status.used, status.outside, status.pool.size()), (0, 1, 1));
    s.done(submit(2, within("", "b")));
    s.claimed(2, &[1]);
    assert_eq!(vni(&s, 2), Some(2000));
    for (start, end) in [(1, 999), (999, 2000), (2000, 1999), (2000, 65_536)] {
        assert!(matches!(s.act(pool(start, end, 0)), Err(Refusal::Malformed { .. })), "{start} to {end}");
    }
    let change = VniPoolChange { end: Some(2001), ..VniPoolChange::default() };
    s.done(Action::SetVniPool { change, by: "root".into() });
    let now = s.ledger.vni_pool();
    assert_eq!((now.start, now.end, now.grace_ms), (2000, 2001, 1000), "what was not said stays");
}

#[test]
fn one_domain_may_have_a_grace_of_its_own_until_it_is_released() {
    let mut s = Story::new(1);
    let grace = |grace_ms| Action::SetDomainGrace { domain: (String::new(), "a".into()), grace_ms, by: "root".into() };
    assert!(matches!(s.act(grace(0)), Err(Refusal::NoSuchDomain { .. })));
    s.done(submit(1, within("", "a")));
    let epoch = s.claimed(1, &[0]);
    assert!(matches!(s.act(grace(u64::MAX)), Err(Refusal::Malformed { .. })));
    s.done(grace(2000));
    s.done(Action::Cancel { id: id(1), by: user(7) });
    released(&mut s, 0, 1, epoch);
    assert!(matches!(domain(&s, "a").unwrap(), DomainStatus { grace_ms: 2000, state: DomainState::Grace { left_ms: 1000 }, .. }));
    s.done(Action::ReleaseDomains);
    assert_eq!(domain(&s, "a"), None);
    s.done(submit(2, within("", "a")));
    s.claimed(2, &[0]);
    assert_eq!(domain(&s, "a").unwrap().grace_ms, 300_000);
}

#[test]
fn work_that_is_requeued_leaves_its_domain_and_joins_it_again() {
    let mut s = Story::new(2);
    s.done(submit(1, within("", "a")));
    let epoch = s.claimed(1, &[0]);
    s.report(0, ReportItem::Ended { allocation: id(1), epoch, reason: EndReason::Exited { code: 1 } });
    assert_eq!((s.ledger.allocation(id(1)).unwrap().state, vni(&s, 1)), (AllocationState::Pending, None));
    assert!(matches!(domain(&s, "a").unwrap().state, DomainState::Grace { .. }));
    s.claimed(1, &[1]);
    assert_eq!((vni(&s, 1), domain(&s, "a").unwrap().members), (Some(1000), vec![id(1)]));
}

fn serving(tenant: &str, nodes: u32, ports: &[(&str, u16)], requeue: RequeuePolicy) -> AllocationSpec {
    let expose = ports.iter().map(|(name, port)| Exposed { name: (*name).into(), port: *port, protocol: "tcp".into() }).collect();
    AllocationSpec {
        tenant: tenant.into(),
        connectivity: Connectivity { network_domain: String::new(), expose },
        ..spec(nodes, requeue, 1)
    }
}

fn found(s: &Story, name: &str, tenant: Option<&str>) -> Vec<String> {
    let tenants = tenant.map(|t| vec![t.to_owned()]);
    s.ledger.endpoints(name, tenants.as_deref(), 100).into_iter().map(|e| format!("{}:{}", e.host, e.port)).collect()
}

#[test]
fn a_service_is_found_while_its_port_is_open_and_its_allocation_runs_and_never_otherwise() {
    let mut s = Story::new(4);
    s.done(submit(1, serving("physics", 2, &[("api", 80), ("metrics", 90)], RequeuePolicy::Always)));
    s.done(submit(2, serving("physics", 1, &[("api", 81)], RequeuePolicy::Never)));
    s.done(submit(3, serving("chemistry", 1, &[("api", 82)], RequeuePolicy::Never)));
    let prepared = |s: &mut Story, number: u128, epoch, on: &[u8]| {
        on.iter().for_each(|n| s.report(*n, ReportItem::Prepared { allocation: id(number), epoch }));
    };
    let open = |s: &mut Story, number: u128, epoch, on: u8, ports: &[u16]| {
        s.report(on, ReportItem::PortsOpen { allocation: id(number), epoch, ports: ports.to_vec() });
    };
    let first = s.claimed(1, &[0, 1]);
    prepared(&mut s, 1, first, &[0]);
    open(&mut s, 1, first, 0, &[80, 90]);
    assert_eq!(found(&s, "api", None), [""; 0], "it is being prepared");
    prepared(&mut s, 1, first, &[1]);
    assert_eq!((found(&s, "api", None), s.ledger.services(None, 10)), (vec![], vec![]), "no port is open");
    open(&mut s, 1, first, 1, &[80]);
    assert_eq!((found(&s, "api", None), found(&s, "metrics", None)), (vec!["n1:80".to_owned()], vec![]), "each node and port by itself");
    // A repetition changes nothing, and a port that is not exposed is not listed.
    open(&mut s, 1, first, 1, &[80, 90, 22]);
    open(&mut s, 1, first, 0, &[80, 90]);
    open(&mut s, 1, first, 2, &[80]);
    for (number, on, port) in [(2, 2, 81), (3, 3, 82)] {
        let epoch = s.claimed(number, &[on]);
        prepared(&mut s, number, epoch, &[on]);
        open(&mut s, number, epoch, on, &[port]);
    }
    assert_eq!(found(&s, "api", Some("physics")), ["n0:80", "n1:80", "n2:81"]);
    assert_eq!(found(&s, "api", Some("chemistry")), ["n3:82"]);
    assert_eq!((found(&s, "api", None).len(), found(&s, "metrics", None).len(), s.ledger.endpoints("api", None, 1).len()), (4, 2, 1));
    let names: Vec<_> = s.ledger.services(None, 10).into_iter().map(|n| (n.tenant, n.name, n.endpoints, n.allocations)).collect();
    let name = |tenant: &str, name: &str, endpoints, allocations| (tenant.to_owned(), name.to_owned(), endpoints, allocations);
    assert_eq!(names, [name("chemistry", "api", 1, 1), name("physics", "api", 3, 2), name("physics", "metrics", 2, 1)]);
    // After a requeue, a cancel or a failed probe, the endpoint is gone in the same commit.
    s.report(1, ReportItem::Ended { allocation: id(1), epoch: first, reason: EndReason::ProbeFailed { node: node(1), why: "x".into() } });
    assert_eq!(s.ledger.allocation(id(1)).unwrap().state, AllocationState::Pending);
    assert_eq!(found(&s, "api", Some("physics")), ["n2:81"]);
    s.done(Action::Cancel { id: id(2), by: user(7) });
    let epoch = s.ledger.allocation(id(3)).unwrap().epoch;
    ended(&mut s, 3, 3, epoch);
    assert_eq!((found(&s, "api", None), s.ledger.services(None, 10)), (vec![], vec![]));
    for (number, on, epoch) in [(1, 0, first), (1, 1, first)] {
        released(&mut s, on, number, epoch);
    }
    let again = s.claimed(1, &[1, 0]);
    prepared(&mut s, 1, again, &[0, 1]);
    assert_eq!(found(&s, "api", None), [""; 0], "its new processes do not listen yet");
    open(&mut s, 1, again, 0, &[80]);
    open(&mut s, 1, again, 1, &[80]);
    assert_eq!(found(&s, "api", None), ["n1:80", "n0:80"], "its first node first");
}

#[test]
fn nodes_for_sensitive_use_are_counted_over_all_tenants() {
    let mut s = Story::new(5);
    let limit = |to| LimitsChange { sensitive_pool_size: to, ..LimitsChange::default() }.by("root");
    let sensitive = |nodes| AllocationSpec { sensitive: true, ..spec(nodes, RequeuePolicy::Never, 0) };
    s.done(limit(QuotaChange::AtMost(3)));
    for (number, tenant) in [(1, "hospital-a"), (2, "hospital-b")] {
        s.done(submit(number, AllocationSpec { tenant: tenant.into(), ..sensitive(2) }));
    }
    s.submit(3, 2, RequeuePolicy::Never, 0);
    let epoch = s.claimed(1, &[0, 1]);
    let Err(Refusal::Quota(excess)) = s.claim(2, &[2, 3]) else { panic!("three are the most") };
    assert_eq!((excess.quota, excess.current, excess.requested, excess.limit), (Quota::SensitivePoolSize, 2, 2, 3));
    let message = Refusal::Quota(excess).to_string();
    assert_eq!(message, "allocation rejected: sensitive work would exceed sensitive_pool_size quota (current: 2, requested: 2, limit: 3)");
    // Other work is not affected.
    s.claimed(3, &[2, 3]);
    assert_eq!(s.ledger.limits(s.now()).sensitive_nodes, 2);
    // The limit is lowered below the current number: running work continues.
    s.done(limit(QuotaChange::AtMost(1)));
    assert_eq!(s.ledger.limits(s.now()).sensitive_nodes, 2);
    ended(&mut s, 0, 1, epoch);
    assert_eq!(s.ledger.limits(s.now()).sensitive_nodes, 0);
    released(&mut s, 0, 1, epoch);
    released(&mut s, 1, 1, epoch);
    assert!(matches!(s.claim(2, &[0, 1]), Err(Refusal::Quota(_))));
    s.done(limit(QuotaChange::Unlimited));
    s.claimed(2, &[0, 1]);
}

#[test]
fn what_an_operator_changes_and_which_numbers_were_given_is_in_the_audit_log() {
    let mut s = Story::new(1);
    let mut records = s.acted(pool(1000, 1001, 0));
    records.extend(s.acted(LimitsChange { sensitive_pool_size: QuotaChange::AtMost(4), ..LimitsChange::default() }.by("root")));
    s.done(submit(1, within("physics", "ml")));
    let claim = Action::Claim(s.proposal(1, &[0]));
    records.extend(s.acted(claim));
    s.done(Action::Cancel { id: id(1), by: user(7) });
    let epoch = s.ledger.allocation(id(1)).unwrap().epoch;
    released(&mut s, 0, 1, epoch);
    records.extend(s.acted(Action::ReleaseDomains));
    let audited: Vec<_> = records.iter().map(|r| (r.action, r.actor.as_str(), r.detail.as_str())).collect();
    assert_eq!(audited[0], (AuditAction::VniPoolSet, "root", "VNIs 1000 to 1001, grace 0 ms"));
    assert_eq!(audited[1], (AuditAction::LimitsSet, "root", "sensitive_pool_size 4"));
    assert_eq!(audited[2], (AuditAction::NetworkDomainCreated, "quorum", "\"ml\" of tenant \"physics\", VNI 1000"));
    assert_eq!(audited.last().unwrap(), &(AuditAction::NetworkDomainReleased, "quorum", "\"ml\" of tenant \"physics\", VNI 1000"));
    // A repetition changes nothing.
    assert_eq!(s.acted(pool(1000, 1001, 0)), []);
}
