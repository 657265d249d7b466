use super::*;
use crate::{CheckpointEvent, DEFERRAL_MS_MAX, Saved};
use lattice_model::NodeId;

fn id(n: u8) -> CheckpointId {
    format!("00000000-0000-4000-9000-0000000000{n:02x}").parse().unwrap()
}

fn node() -> NodeId {
    "n0".parse().unwrap()
}

fn reference(n: u8, epoch: u64) -> CheckpointRef {
    CheckpointRef { id: id(n), epoch: Epoch(epoch), step: None, bytes: 10 }
}

fn under_way(n: u8) -> Checkpointing {
    Checkpointing::begin(id(n), Epoch(3), None, [node()].into_iter().collect(), 1000, DEFERRAL_MS_MAX, 0)
}

/// Everything is in the store, and the quorum is being notified.
fn written(n: u8) -> Checkpointing {
    let mut state = under_way(n);
    let saved = Saved { files: 1, bytes: 10, step: None, manifest: Some("00".to_owned()) };
    state.handle(1, CheckpointEvent::Able { node: node(), round: 1, idle: false });
    state.handle(2, CheckpointEvent::NodeSaved { node: node(), round: 1, saved });
    state.handle(3, CheckpointEvent::Written);
    state
}

fn complete(n: u8) -> Checkpointing {
    let mut state = written(n);
    state.handle(4, CheckpointEvent::Committed { id: id(n) });
    assert!(matches!(state.end(), Some(CheckpointEnd::Complete { .. })), "{state:?}");
    state
}

fn failed(n: u8) -> Checkpointing {
    let mut state = under_way(n);
    state.handle(1, CheckpointEvent::NodeFailed { node: node(), round: 1, why: "deaf".to_owned() });
    assert!(matches!(state.end(), Some(CheckpointEnd::Failed { .. })), "{state:?}");
    state
}

fn facts(saves: bool, is_head: bool, is_synced: bool) -> WalltimeFacts {
    WalltimeFacts { saves, is_head, is_synced }
}

fn step(walltime: &mut Walltime, event: WalltimeEvent, facts: WalltimeFacts) -> Vec<WalltimeAction> {
    let mut out = Vec::new();
    walltime.handle(event, facts, &mut out);
    out
}

#[test]
fn the_end_of_walltime_is_decided_once() {
    use WalltimeAction::{AwaitHead, FindCheckpoint, NotifyLaunches, ReportExceeded};
    let cases = [
        (facts(false, true, false), ReportExceeded),
        (facts(false, false, true), ReportExceeded),
        (facts(true, false, false), AwaitHead),
        (facts(true, true, true), FindCheckpoint),
    ];
    for (facts, action) in cases {
        let mut walltime = Walltime::default();
        assert_eq!(step(&mut walltime, WalltimeEvent::Synced, facts), [], "it runs");
        assert!(!walltime.is_over());
        assert_eq!(step(&mut walltime, WalltimeEvent::Over, facts), [NotifyLaunches, action]);
        assert!(walltime.is_over());
        assert_eq!(step(&mut walltime, WalltimeEvent::Over, facts), []);
        assert_eq!(step(&mut walltime, WalltimeEvent::Synced, facts), []);
    }
}

#[test]
fn a_head_whose_shim_has_not_reported_all_decides_once_it_has() {
    let mut walltime = Walltime::default();
    assert_eq!(step(&mut walltime, WalltimeEvent::Over, facts(true, true, false)), [WalltimeAction::NotifyLaunches]);
    assert_eq!(step(&mut walltime, WalltimeEvent::Over, facts(true, true, false)), []);
    assert!(walltime.is_over());
    assert_eq!(step(&mut walltime, WalltimeEvent::Synced, facts(true, true, true)), [WalltimeAction::FindCheckpoint]);
}

#[test]
fn a_checkpoint_that_is_under_way_is_awaited_whatever_was_noted() {
    for (state, noted) in [(under_way(1), None), (under_way(2), Some(id(1))), (written(1), None)] {
        assert_eq!(awaited_checkpoint(&state, noted, Epoch(3), None), AwaitedCheckpoint::UnderWay);
    }
}

#[test]
fn an_earlier_checkpoint_counts_only_if_it_was_noted_for_this_end() {
    let (noted, other, former) = (reference(1, 3), reference(9, 3), reference(1, 2));
    let awaited = |last: &Checkpointing, note, committed| awaited_checkpoint(last, note, Epoch(3), committed);
    assert_eq!(awaited(&complete(1), None, Some(&noted)), AwaitedCheckpoint::Nothing, "it was asked for before another end");
    assert_eq!(awaited(&complete(1), Some(id(1)), None), AwaitedCheckpoint::Whole(noted.clone()));
    // A checkpoint that was begun after the noted one.
    assert_eq!(awaited(&complete(2), Some(id(1)), None), AwaitedCheckpoint::Whole(reference(2, 3)));
    assert_eq!(awaited(&failed(2), Some(id(1)), Some(&noted)), AwaitedCheckpoint::Whole(noted.clone()));
    assert_eq!(awaited(&failed(2), Some(id(1)), Some(&other)), AwaitedCheckpoint::Nothing);
    assert_eq!(awaited(&failed(2), Some(id(1)), Some(&former)), AwaitedCheckpoint::Nothing, "under another claim");
    // The checkpoint failed while an earlier life waited for it: this life reports the same.
    assert_eq!(awaited(&failed(1), Some(id(1)), None), AwaitedCheckpoint::Again);
}

#[test]
fn a_checkpoint_whole_in_the_store_counts_as_saved_before_the_quorum_has_it() {
    for state in [written(1), complete(1)] {
        let saved = EndReason::WalltimeSaved { checkpoint: id(1) };
        assert_eq!(end_of_walltime(&state), (Some(reference(1, 3)), saved));
    }
    for state in [under_way(1), failed(1)] {
        assert_eq!(end_of_walltime(&state), (None, EndReason::WalltimeExceeded));
    }
}

#[test]
fn other_nodes_wait_ten_seconds_longer_than_the_head_and_count_none_without_the_quorum() {
    let (mut wait, first) = HeadWait::begin(1000, 30_000);
    assert_eq!(first, HeadWaitAction::LookAt { at_ms: 32_000 });
    for now_ms in (32_000..41_000).step_by(1000) {
        assert_eq!(wait.handle(now_ms, Some(now_ms - 4999)), HeadWaitAction::LookAt { at_ms: now_ms + 1000 });
        assert_eq!(wait.handle(now_ms, Some(now_ms - 5000)), HeadWaitAction::LookAt { at_ms: now_ms + 1000 }, "not connected");
        assert_eq!(wait.handle(now_ms, None), HeadWaitAction::LookAt { at_ms: now_ms + 1000 });
    }
    assert_eq!(wait.handle(41_000, Some(41_000)), HeadWaitAction::ReportExceeded);
}
