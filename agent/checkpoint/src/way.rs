//! The ways in which work is asked to save itself, each with its answer: by a signal and a file, through a page of memory, in a call in
//! which it waits, or in a call to a port of its own.

use super::blocking::{SavingBroke, blocking};
use super::callers::{Asked, Asking, Callers};
use super::catching::{self, CatchingError, Hearers};
use super::directory::{Answer, DirectoryError, Place, PlaceError};
use super::handles::{Handles, Shared};
use super::page::{Page, PageError};
use super::port::{Calling, Port, PortError};
use lattice_agent_common::config::checkpoint::CheckpointsUnavailable;
use lattice_model::{AllocationId, AskBy, AskSignal, DesiredShare, Epoch};
use lattice_node::Progress;
use lattice_runtime::identity;
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

/// How long work may take to call again after its agent came back.
const CALLS_AGAIN: Duration = Duration::from_secs(5);
/// Between two looks at whether processes of it live.
const LIVES: Duration = Duration::from_millis(500);

/// Why one allocation's work on this node is not asked, or its answer is not known.
#[derive(Debug, Error)]
pub enum WayError {
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
    #[error("what earlier checkpoints left there: {0}")]
    ForgetEarlier(#[source] io::Error),
    #[error("{token}: {source}")]
    ForgetSaved { token: String, source: io::Error },
    #[error("given up")]
    GivenUp,
    #[error(transparent)]
    Broke(#[from] SavingBroke),
}

/// How one allocation's work on this node is asked.
#[derive(Clone)]
pub enum Way {
    Signal(AskSignal),
    Page(Arc<Page>),
    Call { callers: Callers, key: (AllocationId, Epoch) },
    Port { callers: Callers, key: (AllocationId, Epoch), port: Port },
}

/// What runs there.
pub struct Found {
    /// Whether any process does.
    pub lives: bool,
    /// Why none of them would hear.
    pub deaf: Option<String>,
    /// Those that are asked by a signal, as they were looked at.
    pub hearers: Option<Hearers>,
}

/// What was asked for, until the answer is there.
pub enum AskedFor {
    /// These got the signal.
    Processes(Vec<OwnedFd>),
    /// Under this number.
    Page(Arc<Page>, u32),
    /// In the calls that wait.
    Call { callers: Callers, key: (AllocationId, Epoch), _asking: Asking },
    /// In a call to its port; said to who calls as well, so that progress and answers of both are one.
    Port { callers: Callers, key: (AllocationId, Epoch), _asking: Asking, calling: Calling },
}

impl Way {
    /// As the submission has it.
    pub fn of(context: &Handles, share: &DesiredShare) -> Result<Self, WayError> {
        let policy = share.spec.checkpoint.ok_or(WayError::NoPolicy)?;
        match policy.by {
            AskBy::Signal => Ok(Self::Signal(policy.signal)),
            AskBy::SharedMemory => {
                let path = context.checkpoints.means()?.directories.page_of(share.allocation);
                Ok(Self::Page(Arc::new(Page::open(path, &share.owner)?)))
            }
            AskBy::Call => {
                let (key, callers) = ((share.allocation, share.epoch), context.checkpoints.callers().clone());
                match policy.port {
                    None => Ok(Self::Call { callers, key }),
                    Some(port) => Ok(Self::Port { callers, key, port: Port::of(context, share.allocation, port)? }),
                }
            }
        }
    }

    /// What runs there, and whether it would hear. Of work that waits in calls [`Self::heard`] tells the rest. For a thread that may
    /// block.
    pub fn find(&self, context: &Handles, allocation: AllocationId) -> Result<Found, WayError> {
        let shim = shim_of(context, allocation);
        if let Self::Signal(signal) = self {
            let mut now = catching::look(context, allocation, shim, *signal)?;
            let deaf = now.not_to_be_asked(*signal).map_err(CatchingError::Look)?;
            return Ok(Found { lives: now.all > 0, deaf, hearers: Some(now) });
        }
        let lives = catching::lives(context, allocation, shim).map_err(CatchingError::Look)?;
        let deaf = match self {
            Self::Page(page) if lives => {
                let why = "no process listens on the page that $LATTICE_CHECKPOINT_SHM names: nothing was asked; \
                           --checkpoint=shmem is for programs that use it, with lattice_checkpoint for one";
                (!page.is_listened()?).then(|| why.to_owned())
            }
            Self::Port { port, .. } if lives => port.deaf()?,
            Self::Page(_) | Self::Port { .. } | Self::Call { .. } | Self::Signal(_) => None,
        };
        Ok(Found { lives, deaf, hearers: None })
    }

    /// The same, once work that is asked in calls has had the time to call. `asked`: the same was asked before; who heard it then waits
    /// no more.
    pub async fn heard(&self, found: Found, asked: bool) -> Found {
        match self {
            Self::Call { callers, key } if found.lives && !asked => {
                let mut waiting = callers.waiting(*key);
                let called = matches!(tokio::time::timeout(CALLS_AGAIN, waiting.wait_for(|number| *number > 0)).await, Ok(Ok(_)));
                let why = "nothing of it waits at its agent's socket to be asked: nothing was asked; --checkpoint=grpc is for programs that \
                           call ApplicationService.Register, with `lattice checkpoint await` for one";
                Found { deaf: (!called).then(|| why.to_owned()), ..found }
            }
            Self::Page(_) | Self::Port { .. } | Self::Call { .. } | Self::Signal(_) => found,
        }
    }

    /// The answer to this token, if it is there. For a thread that may block.
    pub fn answer(&self, place: &Place, token: &str) -> Result<Option<Answer>, WayError> {
        Ok(match self {
            Self::Signal(_) | Self::Call { .. } | Self::Port { .. } => place.answer(token)?,
            Self::Page(page) => match page.asked(token)? {
                Some(number) => page.answer(number)?,
                None => None,
            },
        })
    }

    /// Takes back what was asked for, where no answer came: the application would save itself for nobody, and be told that it was heard.
    /// For a thread that may block, behind all that ask for this token.
    pub fn withdraw(&self, place: &Place, token: &str) -> Result<(), WayError> {
        match self {
            Self::Signal(_) => {}
            Self::Page(page) => page.withdraw(token)?,
            Self::Call { .. } | Self::Port { .. } if matches!(place.answered(token), Ok(Some(_))) => {}
            Self::Call { .. } | Self::Port { .. } => place.withdraw(token)?,
        }
        Ok(())
    }
}

/// A request to one node's work, of which nothing was said yet.
pub struct Request {
    pub context: Shared,
    pub share: Arc<DesiredShare>,
    pub way: Way,
    pub place: Arc<Place>,
    pub token: String,
    pub deadline_ms: u64,
    /// It was asked before, perhaps.
    pub asked: bool,
    /// How many bytes the request before it left there; `None`: that is not known.
    pub left: Option<u64>,
    /// Those that are asked by a signal, as they were looked at.
    pub hearers: Option<Hearers>,
    /// It is not wanted any more.
    pub stop: CancellationToken,
    /// Held for as long as a thread asks, which may outlive who wanted it.
    pub asking: Arc<Mutex<()>>,
}

impl Request {
    /// Says what is asked for. Asked for the same again, who has begun to answer is left alone. For a thread that may block.
    pub fn make(mut self) -> Result<AskedFor, WayError> {
        let asking = Arc::clone(&self.asking);
        let _turn = asking.lock();
        self.goes_on()?;
        let again = self.asked && self.place.saved(&self.token).is_ok_and(|found| !found.is_empty());
        // Removing what an earlier one left takes as long as there is much of it: the work is told first, where there is room for both.
        let roomy = self.left.is_some_and(|left| self.place.room().is_ok_and(|room| room / 2 > left));
        if !roomy {
            self.forget_earlier()?;
            self.goes_on()?;
        }
        self.prepare().or_else(|_| {
            // Perhaps for want of room, which there is then.
            self.forget_earlier()?;
            self.goes_on()?;
            self.prepare()
        })?;
        let asked = self.tell(again)?;
        if matches!(self.way, Way::Page(_))
            && let Err(why) = self.place.request(&self.token, self.deadline_ms)
        {
            tracing::warn!(allocation = %self.share.allocation, %why, "what is asked for is said by the page alone");
        }
        if roomy && let Err(why) = self.forget_earlier() {
            tracing::warn!(allocation = %self.share.allocation, %why, "it takes room");
        }
        Ok(asked)
    }

    /// A thread outlives the round that it works for: what is asked for since then stays as it is.
    fn goes_on(&self) -> Result<(), WayError> {
        if self.stop.is_cancelled() { Err(WayError::GivenUp) } else { Ok(()) }
    }

    fn forget_earlier(&self) -> Result<(), WayError> {
        self.place.forget_all_but(&self.token).map_err(WayError::ForgetEarlier)
    }

    /// All that lies there before the work is told. Who is asked through the page reads what is asked for there, and no file.
    fn prepare(&self) -> Result<(), WayError> {
        self.place.make_room(&self.token)?;
        match self.way {
            Way::Page(_) => {}
            Way::Signal(_) | Way::Call { .. } | Way::Port { .. } => self.place.request(&self.token, self.deadline_ms)?,
        }
        Ok(())
    }

    /// `again`: it has begun to answer.
    fn tell(&mut self, again: bool) -> Result<AskedFor, WayError> {
        let (token, deadline_ms, allocation) = (self.token.clone(), self.deadline_ms, self.share.allocation);
        let seen = self.hearers.take();
        self.goes_on()?;
        match &self.way {
            Way::Signal(signal) => {
                let work = (&*self.context, allocation, shim_of(&self.context, allocation));
                // Of ranks that were asked together one may have gone on to something else by now.
                let heard = if again { catching::heard(work, *signal)? } else { None };
                let asked = match heard {
                    Some(heard) => heard,
                    None => catching::ask(work, *signal, seen.filter(|_| !again), || self.goes_on())?,
                };
                Ok(AskedFor::Processes(asked))
            }
            Way::Page(page) => Ok(AskedFor::Page(Arc::clone(page), page.ask(&token, deadline_ms)?)),
            Way::Call { callers, key } => {
                let _asking = callers.ask(*key, Asked { token, deadline_ms });
                Ok(AskedFor::Call { callers: callers.clone(), key: *key, _asking })
            }
            Way::Port { callers, key, port } => {
                let asked = Asked { token, deadline_ms };
                let _asking = callers.ask(*key, asked.clone());
                let calling = Calling::begin(self.context.checkpoints.clone(), Arc::clone(&self.share), port.clone(), asked);
                Ok(AskedFor::Port { callers: callers.clone(), key: *key, _asking, calling })
            }
        }
    }
}

impl AskedFor {
    /// Why no answer can come any more; `None`: one may.
    pub async fn in_vain(&self, context: &Shared, share: &DesiredShare) -> Result<Option<String>, WayError> {
        match self {
            Self::Processes(asked) => {
                let ended = asked.iter().all(|fd| identity::pidfd_ended(fd.as_fd()).unwrap_or(true));
                Ok(ended.then(|| format!("all {} processes that were asked have ended, and none said that it had saved", asked.len())))
            }
            Self::Page(page, _) => {
                let page = Arc::clone(page);
                let listened = blocking(move || page.is_listened().map_err(WayError::from)).await?;
                Ok((!listened).then(|| "nobody listens any more who was asked, and none said that it had saved".to_owned()))
            }
            Self::Port { calling, .. } => Ok(calling.over()),
            Self::Call { .. } => {
                let (context, allocation) = (Arc::clone(context), share.allocation);
                let lives = move || {
                    let lives = catching::lives(&context, allocation, shim_of(&context, allocation));
                    lives.map_err(|error| WayError::Signal(CatchingError::Look(error)))
                };
                Ok((!blocking(lives).await?).then(|| "what was asked has ended, and none of it said that it had saved".to_owned()))
            }
        }
    }

    /// Between two looks at that.
    pub fn pause(&self) -> Duration {
        match self {
            Self::Processes(_) | Self::Page(..) | Self::Port { .. } => Duration::ZERO,
            Self::Call { .. } => LIVES,
        }
    }

    /// How far it says that it is.
    pub async fn progress(&self) -> Option<Progress> {
        match self {
            Self::Processes(_) => None,
            Self::Page(page, number) => {
                let (page, number) = (Arc::clone(page), *number);
                // What is wrong with it, the answer says.
                blocking(move || page.progress(number).map_err(WayError::from)).await.ok().flatten()
            }
            Self::Call { callers, key, .. } | Self::Port { callers, key, .. } => callers.progress(*key),
        }
    }
}

fn shim_of(context: &Handles, allocation: AllocationId) -> Option<u32> {
    context.workers.get(allocation).and_then(|worker| worker.detail.borrow().shim_pid)
}
