//! Sessions, claims, watches and permissions.

use crate::auditing::find;
use crate::lab::{Agent, Lab, PATIENCE, claim, eventually, lease, owner, spec, submit};
use futures::future::join_all;
use lattice_ledger::Action;
use lattice_model::claim::ClaimShare;
use lattice_model::{
    AllocationId, AllocationSpec, AllocationState, AuditAction, AuditFilter, Boot, Claim, EndReason, HoldKind, Incarnation, NodeState,
    ReportItem, Resources,
};
use lattice_pki::identity::Role;
use lattice_quorum::config::NodeAdmission;
use lattice_quorum_client::wire::{Answer, Change, Claimed, Down, Refusal, Request, Up, WatchAllocations, WatchMessage, WatchRequest};
use lattice_quorum_client::{CallError, QuorumClient};
use std::time::Duration;
use uuid::Uuid;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_a_leader_serves_nobody() {
    const WITHIN: Duration = Duration::from_millis(500);
    let mut lab = Lab::new(2, |_| {});
    let first = lab.start(1, true).await;
    let node = |lab: &Lab, members: &[u64]| lab.client(members, "n1", Role::Node);
    assert!(!node(&lab, &[1]).is_served(WITHIN).await, "it is without a majority");
    assert!(!node(&lab, &[2]).is_served(WITHIN).await, "it accepts connections and does not answer");
    let second = lab.start(2, false).await;
    let leader = eventually("a leader", async || first.leader().filter(|l| second.leader() == Some(*l)), Option::is_some).await.unwrap();
    let other = 3 - leader;
    let both = node(&lab, &[1, 2]);
    assert!(eventually("the other one to serve", async || both.is_served(WITHIN * 4).await, |served| *served).await);
    assert_eq!(Agent::register(&both, "n1").await.down.member(), lab.config(other).listens().0);
    assert!(!node(&lab, &[leader]).is_served(PATIENCE).await, "sessions are for the others");
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allocation_goes_from_submission_to_its_end() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    let client = lab.api(&[1]);
    let mut agent = Agent::register(&client, "n1").await;
    let token = lease(&client, "n1").await;
    let id = submit(&client, 1).await;
    let watch = WatchRequest { nodes: true, allocations: WatchAllocations::Live, tenants: true, ..WatchRequest::nothing() };
    let mut watch = client.watch(&watch).await.unwrap();
    assert!(matches!(watch.next().await, Ok(WatchMessage::Start { .. })), "a watch begins with a list");
    let Ok(WatchMessage::Changes { changes, complete: true, .. }) = watch.next().await else { panic!("the list follows") };
    assert!(matches!(&changes[..], [Change::Node(_), Change::Allocation(_)]), "{changes:?}");

    let Ok(Claimed { epoch, .. }) = claim(&client, id, token, &["n1"]).await else { panic!("the claim holds") };
    let Down::Desired(list) = agent.next().await else { panic!("the node gets no list") };
    assert_eq!((list.shares[0].allocation, list.shares[0].epoch, list.shares[0].state), (id, epoch, AllocationState::Staging));
    assert_eq!(list.shares[0].nodes[..], ["n1".parse().unwrap()]);

    let mut received = agent.report(ReportItem::Prepared { allocation: id, epoch }).await;
    if received.is_empty() {
        received.push(agent.next().await);
    }
    assert!(matches!(&received[0], Down::Desired(list) if list.shares[0].state == AllocationState::Running), "{received:?}");
    agent.report(ReportItem::Ended { allocation: id, epoch, reason: EndReason::Exited { code: 3 } }).await;

    // The node is not free before it has reported the release.
    let next = submit(&client, 1).await;
    match claim(&client, next, token, &["n1"]).await {
        Err(CallError::Refused(Refusal::Conflict { conflicts })) => assert_eq!(conflicts[0].holder, Some(id)),
        other => panic!("{other:?}"),
    }
    agent.report(ReportItem::Released { allocation: id, epoch, usage: None }).await;
    assert!(matches!(claim(&client, next, token, &["n1"]).await, Ok(Claimed { .. })));

    let key = id.short();
    let Answer::Allocation(ended) = client.call(&Request::GetAllocation { key }, PATIENCE).await.unwrap() else { panic!() };
    assert_eq!((ended.state, ended.reason), (AllocationState::Failed, Some(EndReason::Exited { code: 3 })));
    let mut states = Vec::new();
    while states.last() != Some(&AllocationState::Failed) {
        let WatchMessage::Changes { changes, .. } = watch.next().await.unwrap() else { panic!("the watch goes on") };
        states.extend(changes.into_iter().filter_map(|change| match change {
            Change::Allocation(a) if a.id == id => Some(a.state),
            _ => None,
        }));
    }
    assert_eq!(states, [AllocationState::Staging, AllocationState::Running, AllocationState::Failed]);
    let records = crate::auditing::walk(&client).await.unwrap().head.seq;
    let log = crate::auditing::find(&lab, &client, lattice_model::AuditFilter::default()).await;
    assert_eq!(log.len() as u64, records);
    drop(watch);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_about_a_superseded_claim_is_acknowledged_and_refused() {
    let mut lab = Lab::new(3, |_| {});
    let members = [lab.start(1, true).await, lab.start(2, false).await, lab.start(3, false).await];
    let client = lab.api(&[1, 2, 3]);
    // Whether or not its member is the leader.
    for member in 1..=3 {
        let (one, two) = (format!("m{member}-one"), format!("m{member}-two"));
        let mut first = Agent::register(&lab.client(&[member], &one, Role::Node), &one).await;
        let mut second = Agent::register(&lab.client(&[member], &two, Role::Node), &two).await;
        let token = lease(&client, "n1").await;
        let id = submit(&client, 2).await;
        let Ok(Claimed { epoch, .. }) = claim(&client, id, token, &[&one, &two]).await else { panic!("the claim holds") };
        second.report(ReportItem::PrepareFailed { allocation: id, epoch, why: "no image".into() }).await;
        first.report(ReportItem::Prepared { allocation: id, epoch }).await;
        assert_eq!(first.superseded, [(id, epoch)]);
        // A release report for the ended claim is never refused.
        first.report(ReportItem::Released { allocation: id, epoch, usage: None }).await;
        assert_eq!((first.superseded.len(), second.superseded.len()), (1, 0));
    }
    for member in members {
        member.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_one_of_two_claims_for_a_node_holds_whichever_members_are_asked() {
    let mut lab = Lab::new(3, |_| {});
    let members = [lab.start(1, true).await, lab.start(2, false).await, lab.start(3, false).await];
    let (first, second) = (lab.api(&[2]), lab.api(&[3]));
    let _agent = Agent::register(&first, "n1").await;
    let token = lease(&first, "n1").await;
    let (a, b) = (submit(&first, 1).await, submit(&second, 1).await);
    let (left, right) = tokio::join!(claim(&first, a, token, &["n1"]), claim(&second, b, token, &["n1"]));
    let (won, refusal) = match (left, right) {
        (Ok(Claimed { .. }), Err(CallError::Refused(refusal))) => (a, refusal),
        (Err(CallError::Refused(refusal)), Ok(Claimed { .. })) => (b, refusal),
        other => panic!("{other:?}"),
    };
    let Refusal::Conflict { conflicts } = refusal else { panic!("{refusal:?}") };
    assert_eq!(conflicts.iter().map(|c| c.holder).collect::<Vec<_>>(), [Some(won)]);
    for member in members {
        member.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submission_claimed_for_its_own_node_is_answered_with_the_nodes_list() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    let (first, second) = (lab.api(&[1]), lab.client(&[1], "n2", Role::Api));
    let (agent, other) = (Agent::register(&first, "n1").await, Agent::register(&second, "n2").await);
    let token = lease(&first, "n1").await;
    let Ok(Answer::Nodes(nodes)) = first.call(&Request::ListNodes, PATIENCE).await else { panic!("nodes were asked for") };
    let submitted = async |on: &str, life: Option<Incarnation>| {
        let id = AllocationId(Uuid::new_v4());
        let node = nodes.iter().find(|n| n.id.as_str() == on).unwrap();
        let resources = Resources { cores: 1, memory_bytes: 1 << 20, gpus: 0 };
        let share = ClaimShare { node: node.id.clone(), resources, hold_revision: node.hold_revision };
        let claim = Some(Claim {
            allocation: id,
            requeue_count: 0,
            lease_token: token,
            shares: vec![share],
            after: None,
            by: None,
            walltime: None,
        });
        let spec = AllocationSpec { share: Some(resources), ..spec(1) };
        let request = Request::Submit { id, spec: Box::new(spec), owner: owner(), claim, life, login_tenants: [].into() };
        (id, first.call(&request, PATIENCE).await.unwrap())
    };
    let (id, answer) = submitted("n1", Some(agent.incarnation)).await;
    let Answer::Submitted { revision, desired: Some(list), .. } = answer else { panic!("{answer:?}") };
    assert_eq!(list.shares.iter().map(|s| s.allocation).collect::<Vec<_>>(), [id]);
    assert!(list.revision >= revision);
    let without = |answer: &Answer| matches!(answer, Answer::Submitted { desired: None, .. });
    let (_, answer) = submitted("n1", Some(Incarnation(agent.incarnation.0 + 1))).await;
    assert!(without(&answer), "another life of the agent: {answer:?}");
    let (_, answer) = submitted("n2", Some(other.incarnation)).await;
    assert!(without(&answer), "another node's list: {answer:?}");
    let (_, answer) = submitted("n1", None).await;
    assert!(matches!(answer, Answer::Done { .. }), "nobody asked: {answer:?}");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_log_names_the_agent_that_proposed_a_claim_whichever_member_it_asks() {
    let mut lab = Lab::new(3, |_| {});
    let members = [lab.start(1, true).await, lab.start(2, false).await, lab.start(3, false).await];
    let first = lab.api(&[1, 2, 3]);
    eventually("a leader", async || first.call(&Request::ListNodes, PATIENCE).await.is_ok(), |ok| *ok).await;
    // A follower forwards the name in the agent's certificate to the leader.
    let follower = (1..=3).find(|id| members[0].leader().is_some_and(|leader| leader != *id)).unwrap();
    let second = lab.client(&[follower], "n2", Role::Api);
    let _agents = (Agent::register(&first, "n1").await, Agent::register(&second, "n2").await);
    let token = lease(&first, "n1").await;
    let waiting = submit(&first, 1).await;
    let claimed = claim(&second, waiting, token, &["n1"]).await;
    assert!(matches!(claimed, Ok(Claimed { .. })), "{claimed:?}");
    let Ok(Answer::Nodes(nodes)) = first.call(&Request::ListNodes, PATIENCE).await else { panic!("nodes were asked for") };
    let share = nodes.iter().find(|n| n.id.as_str() == "n2").map(|n| ClaimShare {
        node: n.id.clone(),
        resources: n.size,
        hold_revision: n.hold_revision,
    });
    let newcomer = AllocationId(Uuid::new_v4());
    let brought = Some(Claim {
        allocation: newcomer,
        requeue_count: 0,
        lease_token: token,
        shares: share.into_iter().collect(),
        after: None,
        by: None,
        walltime: None,
    });
    let request =
        Request::Submit { id: newcomer, spec: Box::new(spec(1)), owner: owner(), claim: brought, life: None, login_tenants: [].into() };
    second.call(&request, PATIENCE).await.unwrap();
    let filter = AuditFilter { actions: vec![AuditAction::AllocationClaimed], ..AuditFilter::default() };
    let records = find(&lab, &first, filter).await;
    let actors: Vec<_> = records.iter().map(|record| (record.allocation.unwrap(), record.actor.as_str())).collect();
    assert_eq!(actors, [(waiting, "node:n2"), (newcomer, "node:n2")], "n1 holds the lease");
    for member in members {
        member.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_entitles_to_its_role_and_name_alone() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    let node = lab.client(&[1], "n2", Role::Node);
    let submission = Request::Submit {
        id: AllocationId(Uuid::new_v4()),
        spec: Box::new(spec(1)),
        owner: owner(),
        claim: None,
        life: None,
        login_tenants: [].into(),
    };
    match node.call(&submission, PATIENCE).await {
        Err(CallError::Refused(Refusal::Role { needed, role })) => assert_eq!((needed.as_str(), role.as_str()), ("api", "node")),
        other => panic!("{other:?}"),
    }
    let Ok(Answer::Nodes(_)) = node.call(&Request::ListNodes, PATIENCE).await else { panic!("nodes may be listed") };
    // With another node's name.
    let (_up, mut down) = node.session(Agent::registration("n1", Boot(Uuid::nil()), 0)).await.unwrap();
    assert!(matches!(down.next().await, Err(CallError::Refused(_))));
    // A lease in another's name.
    let api = lab.api(&[1]);
    let lease = Request::AcquireLease { name: "x".into(), holder: "n2".parse().unwrap(), ttl_ms: 1000, user: None };
    assert!(matches!(api.call(&lease, PATIENCE).await, Err(CallError::Refused(Refusal::Malformed { .. }))));
    // A member's certificate cannot open a session, and another authority's certificate cannot open
    // anything.
    let stranger = Lab::new(1, |_| {});
    let endpoints = vec![lab.config(1).listens().0];
    let foreign = lattice_quorum_client::QuorumClient::new(endpoints, stranger.agent("n1", Role::Api)).unwrap();
    let refused = foreign.call(&Request::Status, Duration::from_millis(500)).await;
    assert!(matches!(refused, Err(CallError::Unavailable { .. })), "{refused:?}");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_of_another_boot_registers_in_the_place_of_the_incarnation_that_the_quorum_names() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    let client = lab.client(&[1], "n1", Role::Node);
    let before = Agent::register(&client, "n1").await.incarnation;
    let boot = Boot(Uuid::from_u128(1));
    let (_up, mut down) = client.session(Agent::registration("n1", boot, 0)).await.unwrap();
    let answer = down.next().await;
    assert!(matches!(&answer, Ok(Down::RegisterAgain { incarnation }) if *incarnation == before), "{answer:?}");
    let mut register = Agent::registration("n1", boot, before.0);
    if let Up::Register { replaces, .. } = &mut register {
        *replaces = Some(before);
    }
    let (_up, mut down) = client.session(register).await.unwrap();
    let answer = down.next().await;
    assert!(matches!(&answer, Ok(Down::Registered { incarnation, .. }) if *incarnation > before), "{answer:?}");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_is_degraded_then_down_and_ready_when_heard_again() {
    let mut lab = Lab::new(3, |c| {
        c.node_heartbeat_ms = 100;
        c.node_degraded_after_ms = 400;
        c.node_down_after_ms = 400;
    });
    let members = [lab.start(1, true).await, lab.start(2, false).await, lab.start(3, false).await];
    // On a follower: its heartbeats reach the leader in a summary.
    let any = lab.api(&[1, 2, 3]);
    eventually("a leader", async || any.call(&Request::ListNodes, PATIENCE).await.is_ok(), |ok| *ok).await;
    let follower = (1..=3).find(|id| members[0].leader().is_some_and(|l| l != *id)).unwrap();
    let client = lab.client(&[follower], "n1", Role::Api);
    let mut agent = Agent::register(&client, "n1").await;
    let state = async || match any.call(&Request::ListNodes, PATIENCE).await.unwrap() {
        Answer::Nodes(nodes) => nodes[0].state,
        other => panic!("{other:?}"),
    };
    eventually("degraded", state, |s| *s == NodeState::Degraded).await;
    eventually("down", state, |s| *s == NodeState::Down).await;
    agent
        .up
        .send(Up::Heartbeat {
            incarnation: agent.incarnation,
            seq: 7,
            keys: None,
            health: None,
            conformance: None,
            stale: false,
            running: None,
        })
        .await
        .unwrap();
    while agent.next().await != (Down::HeartbeatAck { seq: 7 }) {}
    eventually("ready", state, |s| *s == NodeState::Ready).await;
    // A repeated heartbeat and an older one are refused and counted, and are no sign of life.
    eventually("degraded", state, |s| *s == NodeState::Degraded).await;
    for seq in [7, 6] {
        agent
            .up
            .send(Up::Heartbeat {
                incarnation: agent.incarnation,
                seq,
                keys: None,
                health: None,
                conformance: None,
                stale: false,
                running: None,
            })
            .await
            .unwrap();
    }
    let replayed = async || match client.call(&Request::Status, PATIENCE).await.unwrap() {
        Answer::Status(status) => status.refused.into_iter().find(|(what, _)| what == "repeated heartbeats"),
        other => panic!("{other:?}"),
    };
    eventually("both to be counted", replayed, |found| found.as_ref().is_some_and(|(_, times)| *times == 2)).await;
    eventually("down", state, |s| *s == NodeState::Down).await;
    for member in members {
        member.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_nobody_renews_ends_and_the_next_token_is_higher() {
    let mut lab = Lab::new(1, |c| {
        c.node_heartbeat_ms = 100;
        c.node_degraded_after_ms = 400;
    });
    let member = lab.start(1, true).await;
    let (one, two) = (lab.client(&[1], "n1", Role::Api), lab.client(&[1], "n2", Role::Api));
    let take = |holder: &str| Request::AcquireLease { name: "x".into(), holder: holder.parse().unwrap(), ttl_ms: 500, user: None };
    let Ok(Answer::Lease { token, .. }) = one.call(&take("n1"), PATIENCE).await else { panic!("it is free") };
    let Ok(Answer::Lease { token: same, .. }) = one.call(&take("n1"), PATIENCE).await else { panic!("it is its own") };
    assert_eq!(token, same);
    assert!(matches!(two.call(&take("n2"), PATIENCE).await, Err(CallError::Refused(Refusal::LeaseHeld { .. }))));
    let taken = async || two.call(&take("n2"), PATIENCE).await;
    let Ok(Answer::Lease { token: next, .. }) = eventually("the lease ends", taken, Result::is_ok).await else { panic!() };
    assert!(next > token);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_session_of_a_removed_node_ends_and_it_is_refused_until_it_is_admitted() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    let (api, client) = (lab.api(&[1]), lab.client(&[1], "n1", Role::Node));
    let mut agent = Agent::register(&client, "n1").await;
    let mut watch = api.watch(&WatchRequest { nodes: true, ..WatchRequest::nothing() }).await.unwrap();
    let (node, by, reason) = (agent.node.clone(), "anna".to_owned(), "sold".to_owned());
    let asks = async |action: Action| api.call(&lab.as_operator("anna", Request::from(action)), PATIENCE).await;
    let remove = Action::RemoveNode { node: node.clone(), by: by.clone(), reason: reason.clone() };
    let refused = asks(remove.clone()).await;
    assert!(matches!(&refused, Err(CallError::Refused(Refusal::NotRemovable { .. }))), "{refused:?}");
    let drain =
        Action::SetHold { node: node.clone(), kind: HoldKind::Drain, by: by.clone(), reason: reason.clone(), until: None, deadline: None };
    asks(drain).await.unwrap();
    asks(remove.clone()).await.unwrap();
    asks(remove).await.unwrap();
    let why = loop {
        match agent.next().await {
            Down::Removed { why } => break why,
            Down::Desired(_) | Down::HeartbeatAck { .. } | Down::Members(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(why.contains("was removed from this cluster by anna@") && why.contains("(sold)"), "{why}");
    loop {
        match tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap() {
            WatchMessage::Changes { changes, .. } if changes.contains(&Change::NodeRemoved(node.clone())) => break,
            WatchMessage::Start { .. } | WatchMessage::Changes { .. } => {}
            other @ WatchMessage::Resync { .. } => panic!("{other:?}"),
        }
    }
    // The site admits all nodes, but not this one.
    let (_up, mut down) = client.session(Agent::registration("n1", Boot(Uuid::nil()), 1)).await.unwrap();
    let answer = down.next().await;
    assert!(matches!(&answer, Ok(Down::Removed { why }) if why.contains("`lattice node admit n1`")), "{answer:?}");
    let Ok(Answer::Admissions(waiting)) = api.call(&Request::ListAdmissions, PATIENCE).await else {
        panic!("an agent with the role api sees who waits")
    };
    assert_eq!(waiting.waiting.iter().map(|waits| &waits.node).collect::<Vec<_>>(), [&node]);
    asks(Action::Admit { node: node.clone(), by, reason }).await.unwrap();
    let agent = Agent::register(&client, "n1").await;
    assert_eq!(agent.incarnation, Incarnation(2), "above that of its earlier life");
    let records =
        find(&lab, &api, AuditFilter { node: Some(node), actions: vec![AuditAction::NodeRemoved], ..AuditFilter::default() }).await;
    assert_eq!(records.iter().map(|record| record.detail.as_str()).collect::<Vec<_>>(), ["sold; it was Drained, under drain"]);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_agents_register_at_once_only_the_one_without_admission_is_refused() {
    let mut lab = Lab::new(3, |config| config.node_admission = NodeAdmission::Listed);
    let members = [lab.start(1, true).await, lab.start(2, false).await, lab.start(3, false).await];
    for member in &members {
        tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    }
    let api = lab.api(&[1, 2, 3]);
    let names: Vec<String> = (0..24).map(|number| format!("m{number}")).collect();
    for name in &names {
        let admit = Action::Admit { node: name.parse().unwrap(), by: "anna".to_owned(), reason: "rack 4".to_owned() };
        api.call(&lab.as_operator("anna", Request::from(admit)), PATIENCE).await.unwrap();
    }
    let clients: Vec<QuorumClient> = names.iter().map(|name| lab.client(&[1, 2, 3], name, Role::Node)).collect();
    let stranger = lab.client(&[1, 2, 3], "stranger", Role::Node);
    let registered = join_all(names.iter().zip(&clients).map(|(name, client)| Agent::register(client, name)));
    let ask = async || match stranger.session(Agent::registration("stranger", Boot(Uuid::nil()), 0)).await {
        Ok((_up, mut down)) => format!("{:?}", down.next().await),
        Err(_) => String::new(),
    };
    let is_refused = |answer: &String| answer.contains("`lattice node admit stranger`");
    let (agents, _refused) = tokio::join!(registered, eventually("the stranger to be refused", ask, is_refused));
    for (agent, name) in agents.iter().zip(&names) {
        assert!(agent.node.as_str() == name && agent.incarnation >= Incarnation(1), "{name}: {:?}", agent.incarnation);
    }
    for member in members {
        member.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_lost_its_leader_or_its_majority_closes_its_streams() {
    let mut lab = Lab::new(3, |_| {});
    let mut members = vec![Some(lab.start(1, true).await), Some(lab.start(2, false).await), Some(lab.start(3, false).await)];
    for member in members.iter().flatten() {
        tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    }
    // Only the leader itself is left: no election can show it that nobody follows it.
    let leader = members[0].as_ref().and_then(lattice_quorum::member::Member::leader).unwrap();
    let client = lab.api(&[leader]);
    let mut agent = Agent::register(&client, "n1").await;
    let watch = WatchRequest { nodes: true, ..WatchRequest::nothing() };
    let mut watch = client.watch(&watch).await.unwrap();
    assert!(matches!(watch.next().await, Ok(WatchMessage::Start { .. })));
    for id in (1..=3).filter(|id| *id != leader) {
        members[usize::try_from(id - 1).unwrap()].take().unwrap().stop().await;
    }
    assert!(matches!(agent.next().await, Down::Close { .. }));
    let ended = loop {
        match tokio::time::timeout(PATIENCE, watch.next()).await.unwrap() {
            // The list, and other messages that were in transit.
            Ok(WatchMessage::Changes { .. }) => {}
            ended => break ended,
        }
    };
    assert!(matches!(ended, Err(CallError::Unavailable { .. })), "{ended:?}");
    let refused = client.call(&Request::ListNodes, Duration::from_millis(800)).await;
    assert!(matches!(refused, Err(CallError::Unavailable { .. })), "{refused:?}");
    let Ok(Answer::Status(status)) = client.call(&Request::Status, PATIENCE).await else { panic!("it does not answer a status request") };
    assert_eq!(status.nodes.len(), 1);
    members.swap_remove(usize::try_from(leader - 1).unwrap()).unwrap().stop().await;
}

/// The value of a series without labels on a member's own page.
async fn counted(listen: &str, name: &str) -> u64 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut page = String::new();
    let mut stream = tokio::net::TcpStream::connect(listen).await.unwrap();
    stream.write_all(format!("GET /metrics HTTP/1.1\r\nHost: {listen}\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
    stream.read_to_string(&mut page).await.unwrap();
    let of = |line: &str| line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' '])).is_some();
    let line = page.lines().find(|line| of(line)).unwrap_or_else(|| panic!("{name} is not on the page:\n{page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_that_repeatedly_miscount_the_nodes_work_are_counted() {
    const MISCOUNTED: &str = "lattice_node_heartbeats_miscounted_total";
    let listen = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut lab = Lab::new(1, |config| config.telemetry.metrics_listen = Some(listen.clone()));
    let member = lab.start(1, true).await;
    let client = lab.api(&[1]);
    let mut agent = Agent::register(&client, "n1").await;
    let mut seq = 0;
    let mut miscounts_after = async |agent: &mut Agent, running: &[Option<u32>]| {
        for running in running.iter().copied() {
            seq += 1;
            let (incarnation, keys) = (agent.incarnation, None);
            let beat = Up::Heartbeat { incarnation, seq, keys, health: None, conformance: None, stale: false, running };
            agent.up.send(beat).await.unwrap();
        }
        while agent.next().await != (Down::HeartbeatAck { seq }) {}
        // A recent page is served again for a second.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        counted(&listen, MISCOUNTED).await
    };
    // A node with pending reports sends no number.
    assert_eq!(miscounts_after(&mut agent, &[Some(0), None, None, None, None, Some(1), Some(1), Some(0)]).await, 0);
    let token = lease(&client, "n1").await;
    let id = submit(&client, 1).await;
    let Ok(Claimed { .. }) = claim(&client, id, token, &["n1"]).await else { panic!("the claim holds") };
    assert_eq!(miscounts_after(&mut agent, &[Some(0), Some(0), Some(1), Some(1), Some(1), Some(1)]).await, 0, "it has no list yet");
    assert_eq!(miscounts_after(&mut agent, &[Some(0), Some(0), Some(0), Some(0)]).await, 2, "the third and the fourth");
    assert_eq!(miscounts_after(&mut agent, &[Some(1), Some(1)]).await, 2);
    member.stop().await;
}
