//! The ways to ask work to save itself, and to get its answer: by a signal and a file, through a
//! memory page, in a call in which the work waits, or in a call to a port of the work.

use super::blocking::{SavingBroke, blocking};
use super::callers::{Asked, Asking, Callers};
use super::catching::{self, CatchingError, SignalTargets};
use super::directory::{Answer, DirectoryError, Place, PlaceError};
use super::handles::{Handles, Shared};
use super::page::{Page, PageError};
use super::port::{Calling, Port, PortError};
use lattice_agent_common::config::checkpoint::CheckpointsUnavailable;
use lattice_model::{AllocationId, CheckpointMethod, CheckpointSignal, DesiredShare, Epoch};
use lattice_node::Progress;
use lattice_runtime::identity;
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

/// How long to wait until the work calls: after a restart of its agent, it must call again.
const CALL_WAIT: Duration = Duration::from_secs(5);
/// Interval of the checks whether processes of the work are alive.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(500);

/// Why an allocation's work on this node cannot be asked, or its answer is unknown.
#[derive(Debug, Error)]
pub enum RequestError {
    #[error("its submission asks for no checkpoints")]
    NoPolicy,
    #[error(transparent)]
    Unavailable(#[from] CheckpointsUnavailable),
    #[error(transparent)]
    Signal(#[from] CatchingError),
    #[error(transparent)]
    Page(#[from] PageError),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("files of earlier checkpoints cannot be removed: {0}")]
    ForgetEarlier(#[source] io::Error),
    #[error("{token}: {source}")]
    ForgetSaved { token: String, source: io::Error },
    #[error("given up")]
    GivenUp,
    #[error(transparent)]
    Broke(#[from] SavingBroke),
}

/// How to ask one allocation's work on this node.
#[derive(Clone)]
pub enum RequestMethod {
    Signal(CheckpointSignal),
    Page(Arc<Page>),
    Call { callers: Callers, key: (AllocationId, Epoch) },
    Port { callers: Callers, key: (AllocationId, Epoch), port: Port },
}

/// The state of the work.
pub struct Found {
    /// Whether any process is alive.
    pub lives: bool,
    /// Why no request may be made: no process would notice it, or the signal would end a rank.
    pub deaf: Option<String>,
    /// The processes to signal, as they were seen; `None`: the work is not asked by a signal.
    pub targets: Option<SignalTargets>,
}

/// A request whose answer is awaited.
pub enum AskedFor {
    /// The processes that got the signal.
    Processes(Vec<OwnedFd>),
    /// The page, and the number of the request on it.
    Page(Arc<Page>, u32),
    /// Sent to the calls of the work that wait now or later.
    Call { callers: Callers, key: (AllocationId, Epoch), _asking: Asking },
    /// Made in a call to the work's port. It is also sent to calls from the work, so that progress
    /// and answer may arrive either way.
    Port { callers: Callers, key: (AllocationId, Epoch), _asking: Asking, calling: Calling },
}

impl RequestMethod {
    /// The method that the submission names.
    pub fn of(context: &Handles, share: &DesiredShare) -> Result<Self, RequestError> {
        let policy = share.spec.checkpoint.ok_or(RequestError::NoPolicy)?;
        match policy.method {
            CheckpointMethod::Signal => Ok(Self::Signal(policy.signal)),
            CheckpointMethod::SharedMemory => {
                let path = context.checkpoints.means()?.directories.page_of(share.allocation);
                Ok(Self::Page(Arc::new(Page::open(path, &share.owner)?)))
            }
            CheckpointMethod::Call => {
                let (key, callers) = ((share.allocation, share.epoch), context.checkpoints.callers().clone());
                match policy.port {
                    None => Ok(Self::Call { callers, key }),
                    Some(port) => Ok(Self::Port { callers, key, port: Port::of(context, share.allocation, port)? }),
                }
            }
        }
    }

    /// Whether the work is alive, and whether it would notice a request. For work that waits in
    /// calls, [`Self::complete`] completes the result. Blocks.
    pub fn find(&self, context: &Handles, allocation: AllocationId) -> Result<Found, RequestError> {
        let shim = shim_of(context, allocation);
        if let Self::Signal(signal) = self {
            let mut now = catching::look(context, allocation, shim, *signal)?;
            let deaf = now.not_to_be_asked(*signal).map_err(CatchingError::Look)?;
            return Ok(Found { lives: now.all > 0, deaf, targets: Some(now) });
        }
        let lives = catching::lives(context, allocation, shim).map_err(CatchingError::Look)?;
        let deaf = match self {
            Self::Page(page) if lives => {
                let why = "no process listens on the page that $LATTICE_CHECKPOINT_SHM names, so no request was made; \
                           --checkpoint=shmem needs a program that uses the page, for example with lattice_checkpoint";
                (!page.is_listened()?).then(|| why.to_owned())
            }
            Self::Port { port, .. } if lives => port.deaf()?,
            Self::Page(_) | Self::Port { .. } | Self::Call { .. } | Self::Signal(_) => None,
        };
        Ok(Found { lives, deaf, targets: None })
    }

    /// Completes `found` for work that is asked in calls: waits up to `CALL_WAIT` for a call.
    /// `asked`: the same request may have been made before. Then it does not wait, because work
    /// that has received the request no longer waits in a call.
    pub async fn complete(&self, found: Found, asked: bool) -> Found {
        match self {
            Self::Call { callers, key } if found.lives && !asked => {
                let mut waiting = callers.waiting(*key);
                let called = matches!(tokio::time::timeout(CALL_WAIT, waiting.wait_for(|number| *number > 0)).await, Ok(Ok(_)));
                let why = "no process of the work waits in a call to its agent, so no request was made; --checkpoint=grpc needs a program \
                           that calls ApplicationService.Register, for example `lattice checkpoint await`";
                Found { deaf: (!called).then(|| why.to_owned()), ..found }
            }
            Self::Page(_) | Self::Port { .. } | Self::Call { .. } | Self::Signal(_) => found,
        }
    }

    /// The answer to this token, if there is one. Blocks.
    pub fn answer(&self, place: &Place, token: &str) -> Result<Option<Answer>, RequestError> {
        Ok(match self {
            Self::Signal(_) | Self::Call { .. } | Self::Port { .. } => place.answer(token)?,
            Self::Page(page) => match page.asked(token)? {
                Some(number) => page.answer(number)?,
                None => None,
            },
        })
    }

    /// Withdraws a request that got no answer: otherwise the application would save itself although
    /// nobody waits, and its answer would be acknowledged. A signal cannot be withdrawn. Blocks; no
    /// thread may make a request for this token afterwards.
    pub fn withdraw(&self, place: &Place, token: &str) -> Result<(), RequestError> {
        match self {
            Self::Signal(_) => {}
            Self::Page(page) => page.withdraw(token)?,
            Self::Call { .. } | Self::Port { .. } if matches!(place.answered(token), Ok(Some(_))) => {}
            Self::Call { .. } | Self::Port { .. } => place.withdraw(token)?,
        }
        Ok(())
    }
}

/// A request to one node's work that has not been made yet.
pub struct Request {
    pub context: Shared,
    pub share: Arc<DesiredShare>,
    pub method: RequestMethod,
    pub place: Arc<Place>,
    pub token: String,
    pub deadline_ms: u64,
    /// Whether the request may have been made before.
    pub asked: bool,
    /// Bytes that the previous request left in the directory; `None`: unknown.
    pub left: Option<u64>,
    /// The processes to signal, as they were seen.
    pub targets: Option<SignalTargets>,
    /// Cancelled when the request is no longer wanted.
    pub stop: CancellationToken,
    /// Locked by the thread that makes the request, which may outlive the task that wanted it.
    pub asking: Arc<Mutex<()>>,
}

impl Request {
    /// Makes the request. If it was made before by a signal and the work has begun to save, the
    /// signal is not sent again while any process still catches it. Blocks.
    pub fn make(mut self) -> Result<AskedFor, RequestError> {
        let asking = Arc::clone(&self.asking);
        let _turn = asking.lock();
        self.check_wanted()?;
        let again = self.asked && self.place.saved(&self.token).is_ok_and(|found| !found.is_empty());
        // Removing the files of an earlier request takes time. If there is space for both requests,
        // the work is asked first.
        let has_space = self.left.is_some_and(|left| self.place.room().is_ok_and(|room| room / 2 > left));
        if !has_space {
            self.forget_earlier()?;
            self.check_wanted()?;
        }
        self.prepare().or_else(|_| {
            // Perhaps the disk is full: removing the earlier files gives space.
            self.forget_earlier()?;
            self.check_wanted()?;
            self.prepare()
        })?;
        let asked = self.send(again)?;
        if matches!(self.method, RequestMethod::Page(_))
            && let Err(why) = self.place.request(&self.token, self.deadline_ms)
        {
            tracing::warn!(allocation = %self.share.allocation, %why, "the request is on the page, but its file cannot be written");
        }
        if has_space && let Err(why) = self.forget_earlier() {
            tracing::warn!(allocation = %self.share.allocation, %why, "files of an earlier checkpoint stay and take space");
        }
        Ok(asked)
    }

    /// Returns an error once the request is no longer wanted: a thread may outlive its round, and
    /// must not change the request of a later round.
    fn check_wanted(&self) -> Result<(), RequestError> {
        if self.stop.is_cancelled() { Err(RequestError::GivenUp) } else { Ok(()) }
    }

    fn forget_earlier(&self) -> Result<(), RequestError> {
        self.place.forget_all_but(&self.token).map_err(RequestError::ForgetEarlier)
    }

    /// Creates everything that must exist before the work is asked: the token's directory, and the
    /// request's file, except for work that reads its request from the page.
    fn prepare(&self) -> Result<(), RequestError> {
        self.place.make_room(&self.token)?;
        match self.method {
            RequestMethod::Page(_) => {}
            RequestMethod::Signal(_) | RequestMethod::Call { .. } | RequestMethod::Port { .. } => {
                self.place.request(&self.token, self.deadline_ms)?;
            }
        }
        Ok(())
    }

    /// `again`: the request was made before, and the work has begun to save.
    fn send(&mut self, again: bool) -> Result<AskedFor, RequestError> {
        let (token, deadline_ms, allocation) = (self.token.clone(), self.deadline_ms, self.share.allocation);
        let seen = self.targets.take();
        self.check_wanted()?;
        match &self.method {
            RequestMethod::Signal(signal) => {
                let work = (&*self.context, allocation, shim_of(&self.context, allocation));
                // In a repetition it is no error if one of the ranks no longer catches the signal.
                let caught = if again { catching::catching_processes(work, *signal)? } else { None };
                let asked = match caught {
                    Some(caught) => caught,
                    None => catching::ask(work, *signal, seen.filter(|_| !again), || self.check_wanted())?,
                };
                Ok(AskedFor::Processes(asked))
            }
            RequestMethod::Page(page) => Ok(AskedFor::Page(Arc::clone(page), page.ask(&token, deadline_ms)?)),
            RequestMethod::Call { callers, key } => {
                let _asking = callers.ask(*key, Asked { token, deadline_ms });
                Ok(AskedFor::Call { callers: callers.clone(), key: *key, _asking })
            }
            RequestMethod::Port { callers, key, port } => {
                let asked = Asked { token, deadline_ms };
                let _asking = callers.ask(*key, asked.clone());
                let calling = Calling::begin(self.context.checkpoints.clone(), Arc::clone(&self.share), port.clone(), asked);
                Ok(AskedFor::Port { callers: callers.clone(), key: *key, _asking, calling })
            }
        }
    }
}

impl AskedFor {
    /// Why no answer can arrive any more; `None`: an answer may still arrive.
    pub async fn why_no_answer(&self, context: &Shared, share: &DesiredShare) -> Result<Option<String>, RequestError> {
        match self {
            Self::Processes(asked) => {
                let ended = asked.iter().all(|fd| identity::pidfd_ended(fd.as_fd()).unwrap_or(true));
                Ok(ended.then(|| format!("all {} processes that were asked have ended, and none reported that it had saved", asked.len())))
            }
            Self::Page(page, _) => {
                let page = Arc::clone(page);
                let listened = blocking(move || page.is_listened().map_err(RequestError::from)).await?;
                Ok((!listened).then(|| "no process listens on the page any more, and none reported that it had saved".to_owned()))
            }
            Self::Port { calling, .. } => Ok(calling.over()),
            Self::Call { .. } => {
                let (context, allocation) = (Arc::clone(context), share.allocation);
                let lives = move || {
                    let lives = catching::lives(&context, allocation, shim_of(&context, allocation));
                    lives.map_err(|error| RequestError::Signal(CatchingError::Look(error)))
                };
                Ok((!blocking(lives).await?)
                    .then(|| "all processes of the work have ended, and none reported that it had saved".to_owned()))
            }
        }
    }

    /// Least time between two calls of [`Self::why_no_answer`].
    pub fn pause(&self) -> Duration {
        match self {
            Self::Processes(_) | Self::Page(..) | Self::Port { .. } => Duration::ZERO,
            Self::Call { .. } => LIVENESS_INTERVAL,
        }
    }

    /// The work's progress, as it reports it.
    pub async fn progress(&self) -> Option<Progress> {
        match self {
            Self::Processes(_) => None,
            Self::Page(page, number) => {
                let (page, number) = (Arc::clone(page), *number);
                // The same error also occurs when the answer is read, and is reported there.
                blocking(move || page.progress(number).map_err(RequestError::from)).await.ok().flatten()
            }
            Self::Call { callers, key, .. } | Self::Port { callers, key, .. } => callers.progress(*key),
        }
    }
}

fn shim_of(context: &Handles, allocation: AllocationId) -> Option<u32> {
    context.allocations.get(allocation).and_then(|worker| worker.detail.borrow().shim_pid)
}
