//! Property tests: random histories of commands, and invariants checked after each of them.

mod commands;
pub(crate) mod invariants;
mod moves;
pub(crate) mod scans;
mod watcher;

use super::scenarios::{LimitsChange, id, node, spec, user};
use super::{Action, AuditHead, Command, Ledger, Outcome, QuotaChange, UserLimitsChange};
use crate::history::ChangeSet;
use commands::action;
use invariants::{
    invariant_changes_are_published, invariant_claims_follow_the_share_policy, invariant_dependencies_are_settled,
    invariant_each_attempt_is_charged_once, invariant_each_domain_has_a_number_of_its_own, invariant_each_end_is_accounted_with_its_use,
    invariant_ended_work_is_kept_while_it_is_held, invariant_gossip_keys_follow_each_other, invariant_holds_hold, invariant_homes_are_kept,
    invariant_job_numbers_are_given_once, invariant_leases_are_fenced, invariant_no_claim_exceeds_a_quota,
    invariant_nodes_are_never_oversubscribed, invariant_one_live_claim_for_each_allocation,
    invariant_only_keys_on_record_sign_what_is_there, invariant_refusals_change_nothing, invariant_removed_nodes_are_gone,
    invariant_replicas_are_as_wanted, invariant_sensitive_nodes_are_limited, invariant_services_are_of_what_runs,
    invariant_sessions_are_of_what_runs, invariant_singletons_wait_for_earlier_ones, invariant_tasks_are_in_one_place,
    invariant_the_audit_checkpoint_moves_forward, invariant_users_run_what_they_may, invariant_waits_end,
    invariant_what_is_dropped_is_said_to_be_forgotten, invariant_what_stops_is_claimed_when_it_is_over,
};
use lattice_model::{AuditAction, AuditRecord, Epoch, NodeState, RequeuePolicy, Revision, Timestamp};
use moves::{Move, a_move};
use proptest::prelude::*;
use scans::invariant_indexes_equal_scans;
use watcher::{NodeWatcher, Watcher};

const NODES: u8 = 4;
const TENANT: &str = "physics";
/// Number of histories that together must exercise enough commands.
const HISTORIES: usize = 80;

struct History {
    commands: Vec<(Revision, Command)>,
    states: Vec<Ledger>,
    audit: Vec<AuditRecord>,
    claims: usize,
    /// Number of records in which only phases of shares changed.
    phases: usize,
}

fn play(moves: &[Move]) -> History {
    play_with(moves, QuotaChange::Unlimited)
}

/// `kept`: how many ended allocations of each user are kept at first.
fn play_with(moves: &[Move], kept: QuotaChange) -> History {
    let mut ledger = Ledger::default();
    let mut history = History { commands: vec![], states: vec![ledger.clone()], audit: vec![], claims: 0, phases: 0 };
    let mut last_epoch = Epoch(0);
    let mut head = AuditHead::default();
    // Start with a scheduler's node, so that claims can succeed.
    let join = |node| Move::Register { node, boot: 1, memory: false, new_life: true };
    let beginning: Vec<Move> = (0..NODES)
        .map(join)
        .chain([Move::Lease { holder: 0, trial: false, user: None, named: false }])
        // A store gets all ends.
        .chain([Move::Accounting { begins: false }, Move::Accounting { begins: true }])
        .chain([Move::Fence { node: 0, silent_ms: 3000, how: 1 }])
        .chain([Move::Limits { sensitive: QuotaChange::Keep, running: QuotaChange::Keep, history: kept }])
        .collect();
    for (index, a_move) in (1u64..).zip(beginning.iter().chain(moves)) {
        // Two commands share an entry.
        let revision = Revision(index / 2 + 1);
        let command = Command { at: Timestamp(index * 10), action: action(&ledger, a_move) };
        let before = ledger.clone();
        let applied = ledger.apply(revision, &command);
        invariant_nodes_are_never_oversubscribed(&ledger);
        invariant_one_live_claim_for_each_allocation(&ledger);
        invariant_refusals_change_nothing(&before, &ledger, &applied);
        invariant_changes_are_published(&before, &ledger, &applied);
        invariant_removed_nodes_are_gone(&before, &ledger, &applied);
        invariant_only_keys_on_record_sign_what_is_there(&ledger, &applied);
        invariant_leases_are_fenced(&before, &ledger);
        invariant_gossip_keys_follow_each_other(&before, &ledger, &applied);
        let claimed = match &command.action {
            Action::Claim(claim) if applied.result.is_ok() => ledger.allocation(claim.allocation),
            _ => None,
        };
        invariant_holds_hold(&before, &ledger, claimed.map(|a| &**a));
        invariant_sessions_are_of_what_runs(&ledger);
        invariant_tasks_are_in_one_place(&ledger);
        invariant_replicas_are_as_wanted(&ledger);
        invariant_dependencies_are_settled(&ledger, claimed.map(|a| &**a));
        invariant_singletons_wait_for_earlier_ones(&ledger, claimed.map(|a| &**a));
        invariant_what_stops_is_claimed_when_it_is_over(&before, claimed.map(|a| &**a), &ledger);
        invariant_homes_are_kept(&ledger, claimed.map(|a| &**a));
        invariant_each_domain_has_a_number_of_its_own(&ledger);
        invariant_services_are_of_what_runs(&ledger);
        invariant_sensitive_nodes_are_limited(&before, &ledger);
        invariant_the_audit_checkpoint_moves_forward(&before, &ledger);
        invariant_waits_end(&ledger);
        invariant_users_run_what_they_may(&before, &ledger);
        invariant_each_attempt_is_charged_once(&before, &ledger);
        invariant_each_end_is_accounted_with_its_use(&before, &ledger, &applied);
        invariant_indexes_equal_scans(&ledger);
        invariant_ended_work_is_kept_while_it_is_held(&before, &ledger);
        invariant_what_is_dropped_is_said_to_be_forgotten(&before, &ledger);
        invariant_job_numbers_are_given_once(&before, &ledger);
        if let Ok(Outcome::Claimed { epoch }) = applied.result {
            invariant_no_claim_exceeds_a_quota(&before, &ledger);
            invariant_claims_follow_the_share_policy(&ledger, epoch);
            assert!(epoch > last_epoch, "epochs rise");
            last_epoch = epoch;
            history.claims += 1;
        }
        for record in &applied.audit {
            head.follow(record).unwrap();
        }
        assert_eq!(&head, ledger.audit_head());
        history.phases += applied.changed.shares.len();
        history.audit.extend(applied.audit);
        history.commands.push((revision, command));
        history.states.push(ledger.clone());
    }
    history
}

fn replay(mut ledger: Ledger, commands: &[(Revision, Command)]) -> Ledger {
    for (revision, command) in commands {
        ledger.apply(*revision, command);
    }
    ledger
}

/// Watchers begin with the list after each entry; each ends with the current list, or learns that
/// changes were dropped.
fn follow(commands: &[(Revision, Command)], bytes_max: usize, at_once: usize) -> Result<(), TestCaseError> {
    let mut ledger = Ledger::default();
    let mut history = crate::history::History::new(ledger.place());
    history.keep(bytes_max);
    let list =
        |ledger: &Ledger| (Watcher::list(ledger), (0..NODES).map(|number| NodeWatcher::list(ledger, node(number))).collect::<Vec<_>>());
    let mut lists = vec![(ledger.place(), list(&ledger))];
    for entry in commands.chunk_by(|one, next| one.0 == next.0) {
        let mut changed = super::Changed::default();
        entry.iter().for_each(|(revision, command)| changed.merge(ledger.apply(*revision, command).changed));
        let set = ChangeSet::of(&ledger, changed);
        if !set.is_empty() {
            history.push(set);
        }
        lists.push((ledger.place(), list(&ledger)));
    }
    let (now, (state, _)) = lists.last().cloned().unwrap();
    prop_assert_eq!(history.after(now, 1).map(|sets| sets.len()), Ok(0));
    for (mut place, (mut watcher, mut of_nodes)) in lists {
        loop {
            match history.after(place, at_once) {
                Ok(sets) => {
                    let Some(last) = sets.last() else {
                        prop_assert_eq!(&watcher, &state);
                        of_nodes.iter().for_each(|watcher| watcher.agrees_with(&ledger));
                        break;
                    };
                    prop_assert!(sets[0].revision > place.revision && sets.is_sorted_by(|a, b| a.revision < b.revision));
                    place.revision = last.revision;
                    for set in &sets {
                        watcher.take(set);
                        of_nodes.iter_mut().for_each(|watcher| watcher.take(set));
                    }
                }
                Err(compacted) => {
                    prop_assert!(place < compacted.begins);
                    break;
                }
            }
        }
    }
    Ok(())
}

fn a_history_limit() -> impl Strategy<Value = QuotaChange> {
    prop_oneof![Just(QuotaChange::Unlimited), (0..2u32).prop_map(QuotaChange::AtMost)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn all_invariants_hold_after_every_command(moves in prop::collection::vec(a_move(), 1..120), kept in a_history_limit()) {
        play_with(&moves, kept);
    }

    #[test]
    fn replays_and_snapshots_give_the_same_state(moves in prop::collection::vec(a_move(), 1..80), cut in any::<prop::sample::Index>()) {
        let history = play(&moves);
        let cut = cut.index(history.commands.len() + 1);
        let prefix = replay(Ledger::default(), &history.commands[..cut]);
        prop_assert_eq!(&prefix, &history.states[cut]);
        let restored: Ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&prefix).unwrap()).unwrap();
        prop_assert_eq!(&restored, &prefix);
        prop_assert_eq!(&replay(restored, &history.commands[cut..]), history.states.last().unwrap());
        // Commands have the same effect after they were written to the log and read back.
        let through: Vec<(Revision, Command)> = history
            .commands
            .iter()
            .map(|(r, c)| (*r, rmp_serde::from_slice(&rmp_serde::to_vec_named(c).unwrap()).unwrap()))
            .collect();
        prop_assert_eq!(&through, &history.commands);
    }

    #[test]
    fn a_list_and_the_later_changes_give_the_state_unless_changes_were_dropped(
        moves in prop::collection::vec(a_move(), 1..80), kept in a_history_limit(), bytes_max in 0..60_000usize, at_once in 1..4usize,
    ) {
        follow(&play_with(&moves, kept).commands, bytes_max, at_once)?;
    }

    /// Most commands end work that is forgotten at once or soon.
    #[test]
    fn a_watcher_learns_of_the_end_of_work_that_is_forgotten(
        steps in prop::collection::vec((0..6u128, any::<bool>(), any::<bool>()), 1..60), kept in 0..3u32, at_once in 1..4usize,
    ) {
        let users = UserLimitsChange { user_history: QuotaChange::AtMost(kept), ..UserLimitsChange::default() };
        let limit = LimitsChange { users, ..LimitsChange::default() }.by("root");
        let mut commands = vec![(Revision(1), Command { at: Timestamp(1), action: limit })];
        let mut revision = Revision(2);
        for (number, submits, begins_entry) in steps {
            revision.0 += u64::from(begins_entry);
            let spec = Box::new(spec(1, RequeuePolicy::Never, 0));
            let submit = Action::Submit { id: id(number), spec, owner: user(7), claim: None };
            let action = if submits { submit } else { Action::Cancel { id: id(number), by: user(7) } };
            commands.push((revision, Command { at: Timestamp(revision.0), action }));
        }
        follow(&commands, usize::MAX, at_once)?;
    }

    #[test]
    fn the_chain_breaks_on_any_changed_byte(
        moves in prop::collection::vec(a_move(), 20..60), which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), flip in 1..=255u8,
    ) {
        let mut audit = play(&moves).audit;
        prop_assume!(!audit.is_empty());
        let which = which.index(audit.len());
        let mut text = serde_json::to_vec(&audit[which]).unwrap();
        let at = at.index(text.len());
        text[at] ^= flip;
        // If the text is no longer a valid record, the damage is noticed without the chain.
        let Ok(changed) = serde_json::from_slice::<AuditRecord>(&text) else { return Ok(()) };
        prop_assume!(changed != audit[which]);
        audit[which] = changed;
        let mut head = AuditHead::default();
        prop_assert!(audit.iter().any(|record| head.follow(record).is_err()) );
    }
}

#[test]
fn histories_are_not_idle() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let moves = prop::collection::vec(a_move(), 120);
    let kept = |number: usize| if number.is_multiple_of(2) { QuotaChange::Unlimited } else { QuotaChange::AtMost(0) };
    let histories: Vec<History> =
        (0..HISTORIES).map(|number| play_with(&moves.new_tree(&mut runner).unwrap().current(), kept(number))).collect();
    let claims: usize = histories.iter().map(|history| history.claims).sum();
    assert!(claims > 60, "{claims} claims in {HISTORIES} histories exercise little");
    let phases: usize = histories.iter().map(|history| history.phases).sum();
    assert!(phases > 10, "{phases} changes of phases alone in {HISTORIES} histories exercise little");
    let recorded = |action| histories.iter().flat_map(|history| &history.audit).filter(|record| record.action == action).count();
    let domains = [AuditAction::NetworkDomainCreated, AuditAction::NetworkDomainReleased].map(recorded);
    assert!(domains.iter().all(|count| *count > 3), "{domains:?} domains created and released in {HISTORIES} histories exercise little");
    let dropped = |one: &Ledger, next: &Ledger| one.allocations().filter(|a| next.allocation(a.id).is_none()).count();
    let dropped: usize = histories.iter().flat_map(|history| history.states.windows(2)).map(|pair| dropped(&pair[0], &pair[1])).sum();
    assert!(dropped > 0, "{dropped} ended allocations dropped in {HISTORIES} histories exercise little");
    let states = |state: NodeState| {
        let stands = |ledger: &&Ledger| ledger.nodes().any(|n| n.state == state);
        histories.iter().flat_map(|history| &history.states).filter(stands).count()
    };
    let with_use = histories.iter().filter(|history| history.states.last().is_some_and(|last| !last.usage_records.is_empty())).count();
    assert!(with_use > 0, "use is recorded in {with_use} of {HISTORIES} histories: they exercise little");
    let scaled = recorded(AuditAction::AllocationScaled);
    assert!(scaled > 0, "{scaled} services scaled in {HISTORIES} histories exercise little");
    let removed = recorded(AuditAction::NodeRemoved);
    assert!(removed > 3, "{removed} nodes removed in {HISTORIES} histories exercise little");
    for state in NodeState::ALL {
        assert!(states(state) > 3, "{state} in {} states of {HISTORIES} histories exercises little", states(state));
    }
}
