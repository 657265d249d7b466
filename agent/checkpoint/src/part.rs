//! One node's part of a checkpoint's round: look at the work, ask it, wait for the answer, upload
//! what was saved.

use super::blocking::{SavingBroke, blocking};
use super::directory::{self, Answer, Claims, DirectoryError, Place, PlaceError};
use super::handles::{Handles, Shared};
use super::owner_of;
use super::packers::Packers;
use super::parts::{Ends, NewPart, Ready};
use super::request_method::{AskedFor, Found, Request, RequestError, RequestMethod};
use super::store::{Part, Source, StoreError, Uploads};
use lattice_agent_common::config::checkpoint::CheckpointsUnavailable;
use lattice_mesh::checkpoint::{FromSaver, PartOpen, ToSaver};
use lattice_mesh::frame::{self, FrameError};
use lattice_model::{AllocationId, CheckpointId, DesiredShare, Entrypoint, Epoch, with_causes};
use lattice_node::{Progress, Saved};
use lattice_registry::RunState;
use lattice_runtime::failpoint::{self, Point};
use parking_lot::Mutex;
use quinn::{RecvStream, SendStream};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Interval of the looks for the answer.
const ANSWER_LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Pause between retries of a store that does not answer.
const STORE_RETRY_PAUSE: Duration = Duration::from_millis(500);
/// A part may run for twice the time until the deadline, plus this. Its last report then stays for
/// the same time, for a head that asks again.
const REPORT_RETENTION: Duration = Duration::from_secs(600);
/// What a small file occupies on a disk, in bytes.
const BLOCK_BYTES: u64 = 4096;

/// Why this node's part of a checkpoint failed.
#[derive(Debug, Error)]
pub(super) enum PartError {
    #[error(transparent)]
    Unavailable(#[from] CheckpointsUnavailable),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("no rank runs on this node: the work has not begun here, or has ended")]
    NoRanks,
    #[error("the processes that were asked on this node have ended without an answer")]
    EndedUnanswered,
    #[error("work began on this node after the checkpoint had been requested: request another one")]
    BegunMeanwhile,
    #[error("{why}")]
    Deaf { why: String },
    #[error("{why}")]
    NoAnswerComes { why: String },
    #[error("{why}")]
    ApplicationFailed { why: String },
    #[error("this node has no part of this checkpoint")]
    NoPart,
    #[error(
        "the disk is full, and the application did not report how much it saved: the checkpoint may be incomplete; let the application report files= or bytes="
    )]
    DiskFull,
    #[error("the application reported that it had saved, but there is no file in $LATTICE_CHECKPOINT_DIR/{token}")]
    NoFiles { token: String },
    #[error("{difference}")]
    NotAsClaimed { difference: String },
    #[error("{}", with_causes(.0))]
    Put(#[source] StoreError),
    #[error("the thread that asks the work panicked")]
    AskingBroke,
    #[error(transparent)]
    Broke(#[from] SavingBroke),
}

/// The part of this round: the running one, or a new one in place of an older round's.
pub(super) fn attach(context: &Shared, share: &Arc<DesiredShare>, open: &PartOpen) -> Ends {
    let of = (share.epoch, CheckpointId(Uuid::from_bytes(open.id)), open.round);
    context.checkpoints.0.parts.attach(share.allocation, of, |NewPart { older, may_ask, reports: out, ready, stop }| {
        let left = older.as_ref().and_then(|last_report| left(last_report.borrow().as_ref()));
        let (tasks, context, share, open) = (&context.tasks, Arc::clone(context), Arc::clone(share), open.clone());
        tasks.spawn(Round { context, share, open, left, may_ask, out, ready, stop, asking: Arc::default() }.run(older));
    })
}

/// Serves the head of an allocation of this node, over the mesh.
pub async fn serve(context: &Shared, open: PartOpen, mut send: SendStream, mut recv: RecvStream) -> Result<(), FrameError> {
    let allocation = AllocationId(Uuid::from_bytes(open.allocation));
    let Some(handle) = context.allocations.of_epoch(allocation, Epoch(open.epoch)) else {
        let why = format!("allocation {} is not on this node under epoch {}", allocation.short(), open.epoch);
        return frame::write(&mut send, &FromSaver::Failed { why }).await;
    };
    let Ends { go, mut last_report, .. } = attach(context, &handle.share, &open);
    let receiving = async {
        loop {
            match frame::read::<ToSaver, _>(&mut recv).await? {
                ToSaver::Go => drop(go.send_replace(true)),
                ToSaver::Stop => {
                    context.checkpoints.0.parts.give_up(&open);
                    return Ok(());
                }
            }
        }
    };
    let sending = async {
        loop {
            let report = last_report.borrow_and_update().clone();
            if let Some(report) = report {
                frame::write(&mut send, &report).await?;
            }
            if last_report.changed().await.is_err() {
                return Ok(());
            }
        }
    };
    tokio::select! { ended = receiving => ended, ended = sending => ended }
}

/// Bytes that a part left on the disk, if its last report shows that.
fn left(last: Option<&FromSaver>) -> Option<u64> {
    match last? {
        FromSaver::Saved { files, bytes, .. } => Some(bytes.saturating_add(files.saturating_mul(BLOCK_BYTES))),
        FromSaver::Able { .. }
        | FromSaver::Saving
        | FromSaver::Failed { .. }
        | FromSaver::Deferred { .. }
        | FromSaver::Progressed { .. } => None,
    }
}

/// This node's part of one round.
struct Round {
    context: Shared,
    share: Arc<DesiredShare>,
    open: PartOpen,
    /// Bytes that the previous round left on the disk, if known.
    left: Option<u64>,
    /// Whether this node may ask the work.
    may_ask: watch::Receiver<bool>,
    out: watch::Sender<Option<FromSaver>>,
    ready: Ready,
    stop: CancellationToken,
    /// Locked by the thread that asks.
    asking: Arc<Mutex<()>>,
}

impl Round {
    async fn run(self, older: Option<watch::Receiver<Option<FromSaver>>>) {
        // The earlier round withdraws its request before this one asks.
        if let Some(mut older) = older {
            while older.changed().await.is_ok() {}
        }
        let until = Duration::from_millis(self.open.deadline_ms.saturating_sub(super::wall_ms())).saturating_mul(2) + REPORT_RETENTION;
        let allocation = self.share.allocation;
        let ended = async {
            let Some(handle) = self.context.allocations.of_epoch(allocation, self.share.epoch) else { return };
            let mut run_state = handle.run_state;
            // If only the agent stops, the work continues: withdraw nothing.
            let stops = run_state.wait_for(|run_state| *run_state == RunState::Ending).await.is_err();
            if stops {
                std::future::pending::<()>().await;
            }
        };
        let last = tokio::select! {
            () = self.stop.cancelled() => None,
            () = tokio::time::sleep(until) => None,
            () = ended => None,
            report = self.run_part() => Some(report.unwrap_or_else(|error| FromSaver::Failed { why: error.to_string() })),
        };
        if last.is_none() {
            // Cancelled before the request is withdrawn, so that a thread that is still asking
            // stops.
            self.stop.cancel();
        }
        drop(self.ready.take());
        let failed = matches!(last, Some(FromSaver::Failed { .. }));
        if let Err(why) = self.withdraw(failed).await {
            tracing::debug!(%allocation, %why, "the request of a checkpoint cannot be withdrawn");
        }
        if let Some(report) = last {
            tracing::debug!(%allocation, ?report, "this node's part of a checkpoint has ended");
            self.out.send_replace(Some(report));
            // The last report stays for a head that asks again.
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(until) => {}
            }
        }
        self.stop.cancel();
    }

    fn token(&self) -> String {
        directory::token(CheckpointId(Uuid::from_bytes(self.open.id)), self.open.round)
    }

    /// Withdraws a request that has no answer. `failed`: also removes what was saved, because it is
    /// of no use and space may be short. Otherwise nothing is removed: work whose checkpoint was
    /// given up may still be writing.
    async fn withdraw(&self, failed: bool) -> Result<(), RequestError> {
        let (context, share, asking) = (Arc::clone(&self.context), Arc::clone(&self.share), Arc::clone(&self.asking));
        let token = self.token();
        blocking(move || {
            // No thread of this round asks the work, or removes anything, after this.
            let _asked_before = asking.lock();
            let method = RequestMethod::of(&context, &share)?;
            let place = context.checkpoints.means()?.directories.open(share.allocation, &share.owner)?;
            method.withdraw(&place, &token)?;
            if failed { place.forget(&token).map_err(|source| RequestError::ForgetSaved { token, source }) } else { Ok(()) }
        })
        .await
    }

    /// Runs the whole part; returns its last report.
    async fn run_part(&self) -> Result<FromSaver, PartError> {
        let (context, share, out) = (&self.context, &self.share, &self.out);
        let (id, token) = (CheckpointId(Uuid::from_bytes(self.open.id)), self.token());
        let Looked { method, place, before } = {
            let (context, share, token) = (Arc::clone(context), Arc::clone(share), token.clone());
            blocking(move || Looked::at(&context, &share, &token)).await?
        };
        let answer = match before {
            Before::Answered(answer) => {
                out.send_replace(Some(FromSaver::Able { idle: false }));
                self.wait_for_permission().await;
                answer
            }
            Before::Unanswered { asked, found } => {
                let now = method.complete(found, asked).await;
                if !now.lives && has_ranks_here(context, share) {
                    return Err(PartError::NoRanks);
                }
                if !now.lives {
                    if asked {
                        return Err(PartError::EndedUnanswered);
                    }
                    out.send_replace(Some(FromSaver::Able { idle: true }));
                    self.wait_for_permission().await;
                    // Look again now that the other nodes are asked: work that has started
                    // meanwhile is part of no checkpoint.
                    let (context, allocation) = (Arc::clone(context), share.allocation);
                    if blocking(move || method.find(&context, allocation)).await?.lives {
                        return Err(PartError::BegunMeanwhile);
                    }
                    return Ok(FromSaver::from(Saved::default()));
                }
                if let Some(why) = now.deaf {
                    return Err(PartError::Deaf { why });
                }
                let request = Request {
                    context: Arc::clone(context),
                    share: Arc::clone(share),
                    method: method.clone(),
                    place: Arc::clone(&place),
                    token: token.clone(),
                    deadline_ms: self.open.deadline_ms,
                    asked,
                    left: self.left,
                    targets: now.targets,
                    stop: self.stop.clone(),
                    asking: Arc::clone(&self.asking),
                };
                let asked = self.asked(request).await?;
                failpoint::pass(Point::SaveAsked);
                out.send_replace(Some(FromSaver::Saving));
                let waiting = Waiting { context, share, method: &method, place: &place, token: &token, asked: &asked, out };
                waiting.answer().await?
            }
        };
        failpoint::pass(Point::SaveAck);
        match answer {
            Answer::Failed { why } => Err(PartError::ApplicationFailed { why }),
            Answer::Deferred { for_ms } => Ok(FromSaver::Deferred { for_ms }),
            Answer::Done(claims) => {
                let part = part_of(context, share, id, self.open.round)?;
                put(context, share, &part, claims, &place, &token).await.map(FromSaver::from)
            }
        }
    }

    async fn wait_for_permission(&self) {
        let _ = self.may_ask.clone().wait_for(|go| *go).await;
    }

    /// Reports that the work can be asked, and asks it once that is permitted: on the thread that
    /// has just written the permission, or on a blocking thread of its own.
    async fn asked(&self, request: Request) -> Result<AskedFor, PartError> {
        let (made, mut asked) = oneshot::channel();
        self.ready.put(Box::new(move || {
            failpoint::pass(Point::SaveUnasked);
            drop(made.send(request.make()));
        }));
        self.out.send_replace(Some(FromSaver::Able { idle: false }));
        tokio::select! {
            made = &mut asked => return Ok(made.map_err(|_| PartError::AskingBroke)??),
            () = self.wait_for_permission() => {}
        }
        if let Some(act) = self.ready.take() {
            self.context.tasks.spawn_blocking(act);
        }
        Ok(asked.await.map_err(|_| PartError::AskingBroke)??)
    }
}

/// What a part starts with. One blocking call reads all of it, because each switch of the thread
/// takes longer than the reads.
struct Looked {
    method: RequestMethod,
    place: Arc<Place>,
    before: Before,
}

enum Before {
    /// The work was asked before, and this is its answer.
    Answered(Answer),
    /// `asked`: the work may have been asked before.
    Unanswered { asked: bool, found: Found },
}

impl Looked {
    fn at(context: &Handles, share: &DesiredShare, token: &str) -> Result<Self, PartError> {
        let method = RequestMethod::of(context, share)?;
        let place = context.checkpoints.means()?.directories.open(share.allocation, &share.owner)?;
        // A request that was never made has no answer.
        let asked = place.asked(token)?;
        let before = match if asked { method.answer(&place, token)? } else { None } {
            Some(answer) => Before::Answered(answer),
            None => Before::Unanswered { asked, found: method.find(context, share.allocation)? },
        };
        Ok(Self { method, place: Arc::new(place), before })
    }
}

/// Whether ranks of an inline command belong on this node. A script may run anything anywhere.
fn has_ranks_here(context: &Handles, share: &DesiredShare) -> bool {
    match &share.spec.entrypoint {
        Entrypoint::Command { .. } => {
            let ranks = share.spec.usual_ranks(&share.nodes);
            ranks.iter().any(|part| part.node == context.me && part.count > 0)
        }
        Entrypoint::Script { .. } => false,
    }
}

/// A request that was made, and where its answer arrives.
struct Waiting<'a> {
    context: &'a Shared,
    share: &'a DesiredShare,
    method: &'a RequestMethod,
    place: &'a Arc<Place>,
    token: &'a str,
    asked: &'a AskedFor,
    out: &'a watch::Sender<Option<FromSaver>>,
}

impl Waiting<'_> {
    /// Waits for the answer as long as one may come, and reports progress.
    async fn answer(&self) -> Result<Answer, PartError> {
        let (mut last_looks, mut reported, mut reported_at, mut looked_at) = (0, None, Instant::now(), Instant::now());
        loop {
            let (method, place, token) = (self.method.clone(), Arc::clone(self.place), self.token.to_owned());
            if let Some(answer) = blocking(move || method.answer(&place, &token)).await? {
                return Ok(answer);
            }
            if last_looks > 0 || looked_at.elapsed() >= self.asked.pause() {
                looked_at = Instant::now();
                match self.asked.why_no_answer(self.context, self.share).await? {
                    // An answer that was written at the last moment is found after a few more looks.
                    Some(why) if last_looks > 10 => return Err(PartError::NoAnswerComes { why }),
                    Some(_) => last_looks += 1,
                    None => last_looks = 0,
                }
            }
            if reported_at.elapsed() >= PROGRESS_INTERVAL {
                reported_at = Instant::now();
                let progress = self.asked.progress().await;
                if let Some(Progress { percent, left_ms }) = progress.filter(|_| progress != reported) {
                    reported = progress;
                    self.out.send_replace(Some(FromSaver::Progressed { percent, left_ms }));
                }
            }
            tokio::time::sleep(ANSWER_LOOK_INTERVAL).await;
        }
    }
}

/// The record of what was uploaded for this token.
async fn uploads_of(context: &Shared, share: &DesiredShare, token: &str) -> Result<Uploads, PartError> {
    let path = context.checkpoints.means()?.directories.uploads_of(share.allocation);
    let (token, epoch) = (token.to_owned(), share.epoch.0);
    blocking(move || Ok(Uploads::open(&path, &token, epoch))).await
}

fn part_of(context: &Shared, share: &DesiredShare, id: CheckpointId, round: u32) -> Result<Part, PartError> {
    let index = share.nodes.iter().position(|node| *node == context.me).ok_or(PartError::NoPart)?;
    Ok(Part { owner: owner_of(share), id, epoch: share.epoch, round, index, node: context.me.clone() })
}

/// Uploads what was saved; waits while the store is unreachable.
async fn put(
    context: &Shared,
    share: &DesiredShare,
    part: &Part,
    claims: Claims,
    place: &Arc<Place>,
    token: &str,
) -> Result<Saved, PartError> {
    let store = context.checkpoints.store()?;
    let uploads = uploads_of(context, share, token).await?;
    let packers = Packers::of(context.slice.as_ref(), &context.bounds, share).map(Arc::new);
    let source = Source { directory: Arc::clone(place), token: token.to_owned(), packers };
    loop {
        let (at, of) = (Arc::clone(place), token.to_owned());
        let no_room = claims.is_of_no_size();
        let found = blocking(move || {
            if no_room && at.is_full()? {
                return Err(PartError::DiskFull);
            }
            Ok(at.saved(&of)?)
        })
        .await?;
        let files = found.iter().filter(|f| f.size.is_some()).count() as u64;
        if files == 0 {
            return Err(PartError::NoFiles { token: token.to_owned() });
        }
        if let Some(difference) = claims.wrong(&found) {
            return Err(PartError::NotAsClaimed { difference });
        }
        match store.put_part(part, &claims, &source, found, &uploads).await {
            Ok(saved) => {
                failpoint::pass(Point::SavePut);
                return Ok(saved);
            }
            Err(error @ StoreError::Store(_)) if !error.is_full() => {
                tracing::warn!(allocation = %share.allocation, error = with_causes(&error), "a checkpoint waits for its store");
                tokio::time::sleep(STORE_RETRY_PAUSE).await;
            }
            Err(error) => return Err(PartError::Put(error)),
        }
    }
}
