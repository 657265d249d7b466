//! The follower with a ledger of its own, and a database in a temporary directory.

use super::*;
use crate::accounting::NoHistory;
use crate::question::tests::query;
use crate::record::tests::ended;
use crate::store::tests::Directory;
use lattice_model::ended_work::EndedWork;
use parking_lot::Mutex;
use std::sync::Arc;

/// The part of the quorum that the follower uses.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    accounted: Option<AccountedUntil>,
    waiting: Vec<EndedWork>,
    ended: u64,
    /// Another node has the lease.
    is_held_elsewhere: bool,
    token: u64,
    /// How many confirmations are still to be lost.
    lost_confirmations: u32,
    /// Each confirmation that arrived.
    confirmed: Vec<u64>,
    is_away: bool,
}

impl Fake {
    fn end(&self, count: u64) {
        let mut state = self.0.lock();
        for _ in 0..count {
            state.ended += 1;
            if state.accounted.is_some() {
                let work = ended(state.ended);
                state.waiting.push(work);
            }
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.0.lock())
    }

    /// The ledger's last confirmed number, and how many ends wait.
    fn progress(&self) -> (Option<u64>, usize) {
        self.with(|state| (state.accounted.map(|until| until.sequence), state.waiting.len()))
    }

    fn answers(&self) -> Result<(), CallError> {
        if self.0.lock().is_away { Err(CallError::Unavailable { why: "m1: no answer in time".to_owned() }) } else { Ok(()) }
    }
}

impl Ledger for Fake {
    async fn ended_work(&self, after: u64) -> Result<EndedWorkPage, CallError> {
        self.answers()?;
        let state = self.0.lock();
        // Pages of three.
        let work: Vec<_> = state.waiting.iter().filter(|work| work.sequence > after).take(3).cloned().collect();
        Ok(EndedWorkPage { work, accounted: state.accounted, ended: state.ended, waiting: state.waiting.len() as u64, dropped: 0 })
    }

    async fn account(&self, until: AccountedUntil, lease_token: u64) -> Result<(), CallError> {
        self.answers()?;
        let mut state = self.0.lock();
        if state.is_held_elsewhere || lease_token != state.token {
            return Err(Refusal::StaleLease { name: "accounting".to_owned(), token: lease_token }.into());
        }
        if let Some(now) = state.accounted.filter(|now| now.store != until.store) {
            return Err(Refusal::OtherStore { store: now.store }.into());
        }
        if state.lost_confirmations > 0 && state.accounted.is_some() {
            state.lost_confirmations -= 1;
            return Err(CallError::Unavailable { why: "m1: no answer in time".to_owned() });
        }
        state.accounted = Some(until);
        state.waiting.retain(|work| work.sequence > until.sequence);
        state.confirmed.push(until.sequence);
        Ok(())
    }

    async fn hold_lease(&self, held: Option<u64>) -> Result<Option<u64>, CallError> {
        self.answers()?;
        let mut state = self.0.lock();
        if state.is_held_elsewhere {
            return Ok(None);
        }
        if held != Some(state.token) {
            state.token += 1;
        }
        Ok(Some(state.token))
    }

    async fn release_lease(&self, _: u64) {
        self.0.lock().token += 1;
    }
}

fn follower(ledger: &Fake, directory: &Directory) -> Follower<Fake> {
    let store = format!("sqlite://{}", directory.0.join("accounting.db").display());
    let settings = AccountingSettings { store, ..AccountingSettings::default() };
    Follower::new(ledger.clone(), settings, Accounting::default(), NodeProblems::default())
}

/// Passes until nothing is left to do; a failed pass is repeated.
async fn settle(follower: &mut Follower<Fake>) {
    for _ in 0..100 {
        match follower.pass().await {
            Ok(Next::After(_)) => return,
            Ok(Next::AtOnce) => {}
            Err(failed) => {
                follower.fail(&failed).await;
            }
        }
    }
    panic!("it does not settle");
}

async fn stored(follower: &Follower<Fake>) -> Vec<u64> {
    let page = follower.accounting.query(&query()).await.unwrap();
    page.work.iter().rev().map(|work| work.sequence).collect()
}

#[tokio::test]
async fn everything_that_ends_after_the_store_was_seen_is_stored_once() {
    let (ledger, directory) = (Fake::default(), Directory::new());
    ledger.end(5);
    let mut follower = follower(&ledger, &directory);
    settle(&mut follower).await;
    assert_eq!(stored(&follower).await, [] as [u64; 0], "what ended before was not kept");
    assert_eq!(ledger.with(|state| state.confirmed.clone()), [0, 5]);
    ledger.end(7);
    settle(&mut follower).await;
    settle(&mut follower).await;
    assert_eq!(stored(&follower).await, [6, 7, 8, 9, 10, 11, 12]);
    assert_eq!((ledger.with(|state| state.confirmed.clone()), ledger.progress()), (vec![0, 5, 8, 11, 12], (Some(12), 0)));
}

#[tokio::test]
async fn a_batch_whose_confirmation_was_lost_is_not_stored_again_not_even_by_the_next_process() {
    let (ledger, directory) = (Fake::default(), Directory::new());
    settle(&mut follower(&ledger, &directory)).await;
    ledger.end(2);
    ledger.with(|state| state.lost_confirmations = 1);
    let mut dying = follower(&ledger, &directory);
    while dying.pass().await.is_ok() {}
    assert_eq!(ledger.progress(), (Some(0), 2), "the ledger does not know that they are stored");
    drop(dying);
    ledger.end(1);
    let mut next = follower(&ledger, &directory);
    settle(&mut next).await;
    assert_eq!(stored(&next).await, [1, 2, 3]);
    assert_eq!(ledger.progress(), (Some(3), 0));
}

#[tokio::test]
async fn another_store_gets_nothing_and_takes_no_lease_from_the_right_one() {
    let (ledger, directory, other) = (Fake::default(), Directory::new(), Directory::new());
    settle(&mut follower(&ledger, &directory)).await;
    ledger.end(1);
    let token = ledger.with(|state| state.token);
    let mut wrong = follower(&ledger, &other);
    let failed = wrong.pass().await.unwrap_err();
    wrong.fail(&failed).await;
    assert!(matches!(failed, Failed::Quorum(CallError::Refused(Refusal::OtherStore { .. }))), "{failed}");
    assert_eq!((ledger.with(|state| state.token), ledger.progress().1), (token, 1));
    let problem = wrong.accounting.problem().unwrap();
    assert!(problem.contains("lattice admin accounting move"), "{problem}");
    assert_eq!(wrong.problems.lines(), [format!("accounting: {problem}")]);
    // The cluster moves to another store: its follower continues, and gets the waiting records.
    ledger.with(|state| state.accounted = None);
    settle(&mut wrong).await;
    assert_eq!(stored(&wrong).await, [1]);
}

#[tokio::test]
async fn an_agent_without_the_lease_waits_and_one_that_lost_it_asks_again() {
    let (ledger, directory) = (Fake::default(), Directory::new());
    ledger.with(|state| state.is_held_elsewhere = true);
    let mut follower = follower(&ledger, &directory);
    assert_eq!(follower.pass().await.unwrap(), Next::After(STANDBY_INTERVAL));
    ledger.with(|state| state.is_held_elsewhere = false);
    settle(&mut follower).await;
    ledger.with(|state| state.token += 1);
    ledger.end(1);
    let failed = follower.pass().await.unwrap_err();
    follower.fail(&failed).await;
    assert!(follower.lease.is_none(), "{failed}");
    settle(&mut follower).await;
    assert_eq!(stored(&follower).await, [1]);
}

#[tokio::test]
async fn a_database_that_cannot_be_opened_is_a_problem_until_it_can() {
    let (ledger, directory) = (Fake::default(), Directory::new());
    let mut follower = follower(&ledger, &directory);
    follower.settings.store = format!("sqlite://{}", directory.0.join("later/accounting.db").display());
    let failed = follower.pass().await.unwrap_err();
    follower.fail(&failed).await;
    assert!(follower.problems.lines()[0].contains("later/accounting.db"), "{:?}", follower.problems.lines());
    assert!(matches!(follower.accounting.query(&query()).await, Err(NoHistory::NotOpen { .. })));
    assert_eq!(ledger.progress(), (None, 0), "nothing is promised to the ledger");
    std::fs::create_dir(directory.0.join("later")).unwrap();
    settle(&mut follower).await;
    follower.report(None);
    assert_eq!((follower.problems.lines(), follower.accounting.problem()), (vec![], None));
}

#[tokio::test]
async fn an_older_copy_of_the_database_is_used_and_what_it_lacks_is_reported() {
    let (ledger, directory) = (Fake::default(), Directory::new());
    settle(&mut follower(&ledger, &directory)).await;
    ledger.end(2);
    settle(&mut follower(&ledger, &directory)).await;
    // Three more were stored and confirmed before the database was replaced by a copy.
    ledger.with(|state| {
        state.ended = 5;
        state.accounted = state.accounted.map(|until| AccountedUntil { sequence: 5, ..until });
    });
    ledger.end(1);
    let mut restored = follower(&ledger, &directory);
    settle(&mut restored).await;
    assert_eq!(stored(&restored).await, [1, 2, 6]);
    let lacks = "accounting store: the database lacks ended work 3 to 5, which it had before: it was restored from an older copy. New \
                 ended work is stored in it; copy the missing part into it from a newer copy";
    assert_eq!(restored.problems.lines(), [lacks]);
}

#[tokio::test]
async fn an_agent_that_gets_the_lease_again_sees_what_another_one_stored_in_its_database() {
    let (ledger, directory) = (Fake::default(), Directory::new());
    let (mut first, mut second) = (follower(&ledger, &directory), follower(&ledger, &directory));
    settle(&mut first).await;
    ledger.end(1);
    settle(&mut first).await;
    ledger.with(|state| state.is_held_elsewhere = true);
    first.lease.as_mut().unwrap().renew_at = Instant::now();
    assert_eq!(first.pass().await.unwrap(), Next::After(STANDBY_INTERVAL));
    ledger.with(|state| state.is_held_elsewhere = false);
    ledger.end(2);
    settle(&mut second).await;
    ledger.end(1);
    ledger.with(|state| state.token += 1);
    settle(&mut first).await;
    assert_eq!(stored(&first).await, [1, 2, 3, 4]);
    assert_eq!(first.problems.lines(), [] as [String; 0], "it took the other agent's work for an older copy");
    // The same, if it was stopped between the check of its lease and the question to the ledger.
    ledger.end(1);
    second.lease = None;
    settle(&mut second).await;
    assert!(first.lease.is_some());
    first.pass().await.unwrap();
    assert_eq!((first.position, first.problems.lines()), (Some(5), vec![]));
}

#[tokio::test]
async fn stored_work_is_confirmed_before_more_is_written() {
    let (ledger, directory) = (Fake::default(), Directory::new());
    settle(&mut follower(&ledger, &directory)).await;
    ledger.end(3);
    ledger.with(|state| state.lost_confirmations = 1);
    let mut slow = follower(&ledger, &directory);
    while slow.pass().await.is_ok() {}
    ledger.end(2);
    let mut next = follower(&ledger, &directory);
    settle(&mut next).await;
    assert_eq!(ledger.with(|state| state.confirmed.clone()), [0, 3, 5]);
}

#[tokio::test]
async fn the_lease_is_given_back_for_a_while_if_the_store_keeps_failing() {
    let (ledger, directory) = (Fake::default(), Directory::new());
    let mut follower = follower(&ledger, &directory);
    settle(&mut follower).await;
    ledger.end(1);
    let away = directory.0.with_extension("away");
    std::fs::rename(&directory.0, &away).unwrap();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let failed = follower.pass().await.unwrap_err();
        assert!(matches!(failed, Failed::Store(_)), "{failed}");
        pauses.push((follower.fail(&failed).await, follower.lease.is_some()));
    }
    let (keeps, gives) = ((Duration::ZERO, true), (HANDOVER, false));
    assert_eq!(pauses, [keeps, keeps, keeps, gives, keeps, keeps, keeps, gives]);
    std::fs::rename(&away, &directory.0).unwrap();
    settle(&mut follower).await;
    assert_eq!((stored(&follower).await, ledger.progress()), (vec![1], (Some(1), 0)));
}

#[tokio::test]
async fn a_database_that_is_replaced_under_the_agent_gets_nothing_until_the_right_one_is_back() {
    let (ledger, directory) = (Fake::default(), Directory::new());
    let mut follower = follower(&ledger, &directory);
    settle(&mut follower).await;
    ledger.end(1);
    settle(&mut follower).await;
    let away = directory.0.with_extension("away");
    std::fs::rename(&directory.0, &away).unwrap();
    std::fs::create_dir(&directory.0).unwrap();
    ledger.end(1);
    let failed = follower.pass().await.unwrap_err();
    assert!(matches!(failed, Failed::Store(StoreError::Replaced { .. })), "{failed}");
    follower.fail(&failed).await;
    let failed = follower.pass().await.unwrap_err();
    assert!(matches!(failed, Failed::Quorum(CallError::Refused(Refusal::OtherStore { .. }))), "{failed}");
    follower.fail(&failed).await;
    assert_eq!((follower.lease.is_none(), ledger.progress()), (true, (Some(1), 1)));
    std::fs::remove_dir_all(&directory.0).unwrap();
    std::fs::rename(&away, &directory.0).unwrap();
    settle(&mut follower).await;
    assert_eq!((stored(&follower).await, ledger.progress()), (vec![1, 2], (Some(2), 0)));
}

#[tokio::test]
async fn the_lease_is_given_back_in_the_end_and_an_outage_of_the_quorum_is_over_when_it_answers() {
    let (ledger, directory) = (Fake::default(), Directory::new());
    settle(&mut follower(&ledger, &directory)).await;
    let follower = follower(&ledger, &directory);
    let (problems, stop) = (follower.problems.clone(), CancellationToken::new());
    ledger.with(|state| state.is_away = true);
    let task = tokio::spawn(follower.run(stop.clone()));
    while problems.lines().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(problems.lines()[0].contains("the quorum cannot be reached"), "{:?}", problems.lines());
    ledger.with(|state| state.is_away = false);
    ledger.end(1);
    while ledger.progress() != (Some(1), 0) || !problems.lines().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let token = ledger.with(|state| state.token);
    stop.cancel();
    task.await.unwrap();
    assert_eq!(ledger.with(|state| state.token), token + 1, "it was not released");
}
