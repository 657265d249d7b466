//! The ways in which work is asked to save itself, each with its answer: by a signal and a file, through a page of memory, in a call in
//! which it waits, or in a call to a port of its own.

use super::callers::{Asked, Asking, Callers};
use super::catching;
use super::directory::{Answer, Place};
use super::page::Page;
use super::part::{blocking, shim_of};
use super::port::{Calling, Port};
use crate::context::{Context, Shared};
use lattice_model::{AllocationId, AskBy, AskSignal, DesiredShare, Epoch};
use lattice_node::Progress;
use lattice_runtime::identity;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long work may take to call again after its agent came back.
const CALLS_AGAIN: Duration = Duration::from_secs(5);
/// Between two looks at whether processes of it live.
const LIVES: Duration = Duration::from_millis(500);

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
    /// Processes in all.
    pub all: usize,
    /// Why none of them would hear.
    pub deaf: Option<String>,
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
    pub fn of(context: &Context, share: &DesiredShare) -> Result<Self, String> {
        let policy = share.spec.checkpoint.ok_or("its submission asks for no checkpoints")?;
        match policy.by {
            AskBy::Signal => Ok(Self::Signal(policy.signal)),
            AskBy::SharedMemory => {
                let path = context.checkpoints.means()?.directories.page_of(share.allocation);
                Page::open(path, &share.owner).map(|page| Self::Page(Arc::new(page)))
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
    pub fn find(&self, context: &Context, allocation: AllocationId) -> Result<Found, String> {
        let shim = shim_of(context, allocation);
        if let Self::Signal(signal) = self {
            let mut now = catching::look(context, allocation, shim, *signal)?;
            let deaf = now.not_to_be_asked(*signal).map_err(catching::unseen)?;
            return Ok(Found { all: now.all, deaf });
        }
        let all = catching::count(context, allocation, shim).map_err(catching::unseen)?;
        let deaf = match self {
            Self::Page(page) if all > 0 => {
                let why = "no process listens on the page that $LATTICE_CHECKPOINT_SHM names: nothing was asked; \
                           --checkpoint=shmem is for programs that use it, with lattice_checkpoint for one";
                (!page.is_listened()?).then(|| why.to_owned())
            }
            Self::Port { port, .. } if all > 0 => port.deaf()?,
            Self::Page(_) | Self::Port { .. } | Self::Call { .. } | Self::Signal(_) => None,
        };
        Ok(Found { all, deaf })
    }

    /// The same, once work that is asked in calls has had the time to call. `asked`: the same was asked before; who heard it then waits
    /// no more.
    pub async fn heard(&self, found: Found, asked: bool) -> Found {
        match self {
            Self::Call { callers, key } if found.all > 0 && !asked => {
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
    pub fn answer(&self, place: &Place, token: &str) -> Result<Option<Answer>, String> {
        match self {
            Self::Signal(_) | Self::Call { .. } | Self::Port { .. } => place.answer(token),
            Self::Page(page) => page.asked(token)?.map_or(Ok(None), |number| page.answer(number)),
        }
    }

    /// Takes back what was asked for, where no answer came: the application would save itself for nobody, and be told that it was heard.
    /// `asking`: as of [`Self::ask`], after which nothing is asked for this token again.
    pub async fn withdraw(&self, place: &Arc<Place>, token: &str, asking: &Arc<Mutex<()>>) -> Result<(), String> {
        let (way, place, token, asking) = (self.clone(), Arc::clone(place), token.to_owned(), Arc::clone(asking));
        blocking(move || {
            let _asked_before = asking.lock().unwrap_or_else(PoisonError::into_inner);
            match way {
                Self::Signal(_) => Ok(()),
                Self::Page(page) => page.withdraw(&token),
                Self::Call { .. } | Self::Port { .. } if matches!(place.answered(&token), Ok(Some(_))) => Ok(()),
                Self::Call { .. } | Self::Port { .. } => place.withdraw(&token),
            }
        })
        .await
    }

    /// Says what is asked for. Asked for the same again, who has begun to answer is left alone. `asking` is held for as long as a thread
    /// does it, which may outlive the call.
    #[expect(clippy::too_many_arguments, reason = "what is asked, of whom, and until when")]
    pub async fn ask(
        &self,
        context: &Shared,
        share: &Arc<DesiredShare>,
        place: &Arc<Place>,
        token: &str,
        deadline_ms: u64,
        stop: &CancellationToken,
        asking: &Arc<Mutex<()>>,
    ) -> Result<AskedFor, String> {
        let (context, share, place, token) = (Arc::clone(context), Arc::clone(share), Arc::clone(place), token.to_owned());
        let (way, stop, asking) = (self.clone(), stop.clone(), Arc::clone(asking));
        blocking(move || {
            let _turn = asking.lock().unwrap_or_else(PoisonError::into_inner);
            // A thread outlives the round that it works for: what is asked for since then stays as it is.
            let going_on = || if stop.is_cancelled() { Err("given up".to_owned()) } else { Ok(()) };
            going_on()?;
            let again = place.saved(&token).is_ok_and(|found| !found.is_empty());
            place.forget_all_but(&token).map_err(|e| format!("what earlier checkpoints left there: {e}"))?;
            going_on()?;
            place.ask(&token, deadline_ms)?;
            match way {
                Self::Signal(signal) => {
                    let mut now = catching::look(&context, share.allocation, shim_of(&context, share.allocation), signal)?;
                    let deaf = now.not_to_be_asked(signal).map_err(catching::unseen)?;
                    // Of ranks that were asked together one may have gone on to something else by now.
                    if again && now.is_heard() {
                        return now.unasked(signal).map(AskedFor::Processes).map_err(catching::unseen);
                    }
                    if let Some(why) = deaf {
                        return Err(why);
                    }
                    going_on()?;
                    let all = now.all;
                    let sent = now.send(signal).map_err(|e| format!("{signal} cannot be sent: {e}"))?;
                    if sent.is_empty() { Err(catching::none_catches(all, signal)) } else { Ok(AskedFor::Processes(sent)) }
                }
                Self::Page(page) => {
                    going_on()?;
                    let number = page.ask(&token, deadline_ms)?;
                    Ok(AskedFor::Page(page, number))
                }
                Self::Call { callers, key } => {
                    going_on()?;
                    let _asking = callers.ask(key, Asked { token, deadline_ms });
                    Ok(AskedFor::Call { callers, key, _asking })
                }
                Self::Port { callers, key, port } => {
                    going_on()?;
                    let asked = Asked { token, deadline_ms };
                    let _asking = callers.ask(key, asked.clone());
                    let calling = Calling::begin(context.checkpoints.clone(), share, port, asked);
                    Ok(AskedFor::Port { callers, key, _asking, calling })
                }
            }
        })
        .await
    }
}

impl AskedFor {
    /// Why no answer can come any more; `None`: one may.
    pub async fn in_vain(&self, context: &Shared, share: &DesiredShare) -> Result<Option<String>, String> {
        match self {
            Self::Processes(asked) => {
                let ended = asked.iter().all(|fd| identity::pidfd_ended(fd.as_fd()).unwrap_or(true));
                Ok(ended.then(|| format!("all {} processes that were asked have ended, and none said that it had saved", asked.len())))
            }
            Self::Page(page, _) => {
                let page = Arc::clone(page);
                let listened = blocking(move || page.is_listened()).await?;
                Ok((!listened).then(|| "nobody listens any more who was asked, and none said that it had saved".to_owned()))
            }
            Self::Port { calling, .. } => Ok(calling.over()),
            Self::Call { .. } => {
                let all = count(context, share).await?;
                Ok((all == 0).then(|| "what was asked has ended, and none of it said that it had saved".to_owned()))
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
                blocking(move || page.progress(number)).await.ok().flatten()
            }
            Self::Call { callers, key, .. } | Self::Port { callers, key, .. } => callers.progress(*key),
        }
    }
}

async fn count(context: &Shared, share: &DesiredShare) -> Result<usize, String> {
    let (context, allocation) = (Arc::clone(context), share.allocation);
    blocking(move || {
        let counted = catching::count(&context, allocation, shim_of(&context, allocation));
        counted.map_err(catching::unseen)
    })
    .await
}
