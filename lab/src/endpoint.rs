//! `lattice-lab endpoint`: an example application, also used by tests, with its own port at which its agent asks it to
//! save itself. It counts, and hashes each step with all steps before it. After a restart it continues where it was, if
//! the hash is right for that count.
//!
//! ```text
//! lattice submit --checkpoint=grpc --checkpoint-port=9999 -- lattice-lab endpoint --steps 1000
//! ```

use anyhow::{Context, Result, ensure};
use futures::Stream;
use lattice_api::v1;
use lattice_api::v1::checkpoint_endpoint_server::{CheckpointEndpoint, CheckpointEndpointServer};
use lattice_api::v1::save_update::Update;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

/// Interval between two steps.
const STEP: Duration = Duration::from_millis(20);
/// The name of its state's file in a checkpoint.
const FILE: &str = "n";

/// The options of the application.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Number of steps that it counts
    #[arg(long, default_value_t = 1000)]
    steps: u64,
    /// Defer the first request by a second
    #[arg(long)]
    defer: bool,
    /// Save only once this file exists
    #[arg(long)]
    hold: Option<PathBuf>,
    /// End before the last step, once this file exists
    #[arg(long)]
    until: Option<PathBuf>,
}

/// Runs until it has counted to the end.
pub fn run(options: &Options) -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(count(options))
}

async fn count(options: &Options) -> Result<()> {
    let port = std::env::var("LATTICE_CHECKPOINT_PORT").context("$LATTICE_CHECKPOINT_PORT is not set: submit with --checkpoint-port")?;
    let port: u16 = port.parse().with_context(|| format!("LATTICE_CHECKPOINT_PORT={port}"))?;
    let program = Arc::new(Program { options: options.clone(), now: Mutex::new(Now { chain: restored()?, ..Now::default() }) });
    let serves = tonic::transport::Server::builder()
        .add_service(CheckpointEndpointServer::new(Endpoint(Arc::clone(&program))))
        .serve(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let counts = async {
        loop {
            let step = {
                let mut now = program.now();
                now.chain.next();
                now.chain.step
            };
            println!("step {step}");
            if step >= options.steps || options.until.as_ref().is_some_and(|file| file.exists()) {
                return step;
            }
            tokio::time::sleep(STEP).await;
        }
    };
    tokio::select! {
        ended = serves => ended.with_context(|| format!("serving 127.0.0.1:{port}"))?,
        step = counts => println!("final {step}"),
    }
    Ok(())
}

/// The restored state.
fn restored() -> Result<Chain> {
    let Some(from) = std::env::var_os("LATTICE_RESTORE_FROM") else { return Ok(Chain::default()) };
    let path = Path::new(&from).join(FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    let (step, hash) = text.trim().split_once(' ').with_context(|| format!("{text:?} in {}", path.display()))?;
    let chain = Chain::counted(step.parse()?);
    ensure!(chain.hash.to_string() == hash, "{}: step {step} has the hash {}, not {hash}", path.display(), chain.hash);
    println!("restored {step}");
    Ok(chain)
}

/// The count, and the hash of all steps so far.
#[derive(Clone, Copy)]
struct Chain {
    step: u64,
    hash: blake3::Hash,
}

impl Default for Chain {
    fn default() -> Self {
        Self { step: 0, hash: blake3::hash(b"") }
    }
}

impl Chain {
    fn next(&mut self) {
        self.step += 1;
        self.hash = blake3::Hasher::new().update(self.hash.as_bytes()).update(&self.step.to_le_bytes()).finalize();
    }

    fn counted(steps: u64) -> Self {
        let mut chain = Self::default();
        (0..steps).for_each(|_| chain.next());
        chain
    }
}

struct Program {
    options: Options,
    now: Mutex<Now>,
}

#[derive(Default)]
struct Now {
    chain: Chain,
    deferred: bool,
    /// The last answered request, with its answer: a caller that lost the answer sends the same request again.
    answered: Option<(String, Update)>,
}

impl Program {
    fn now(&self) -> std::sync::MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one request.
    async fn answer(&self, request: &v1::SaveRequest, out: &mpsc::Sender<Result<v1::SaveUpdate, Status>>) -> Result<Update> {
        let token = request.token.clone();
        let before = self.now().answered.clone();
        if let Some((_, answer)) = before.filter(|(of, _)| *of == token) {
            return Ok(answer);
        }
        println!("asked {token}");
        let message = if self.options.defer && !std::mem::replace(&mut self.now().deferred, true) {
            println!("deferred {token}");
            Update::Deferral(v1::SaveDeferral { token: token.clone(), for_ms: 1000 })
        } else {
            for percent in [10, 40] {
                let far = Update::Progress(v1::SaveProgress { token: token.clone(), percent: Some(percent), left_ms: Some(9000) });
                out.send(Ok(v1::SaveUpdate { update: Some(far) })).await?;
            }
            while self.options.hold.as_ref().is_some_and(|file| !file.exists()) {
                ensure!(!out.is_closed(), "nobody waits for it any more");
                tokio::time::sleep(STEP).await;
            }
            let Chain { step, hash } = self.now().chain;
            let text = format!("{step} {hash}\n");
            fs::write(Path::new(&request.directory).join(FILE), &text)?;
            let file =
                v1::SavedFile { path: FILE.to_owned(), bytes: Some(text.len() as u64), blake3: blake3::hash(text.as_bytes()).to_string() };
            Update::Done(v1::SaveDone { token: token.clone(), step: Some(step), files: Some(1), list: vec![file], ..Default::default() })
        };
        self.now().answered = Some((token, message.clone()));
        Ok(message)
    }
}

/// The server of the port.
struct Endpoint(Arc<Program>);

#[tonic::async_trait]
impl CheckpointEndpoint for Endpoint {
    type CheckpointStream = Pin<Box<dyn Stream<Item = Result<v1::SaveUpdate, Status>> + Send>>;

    async fn checkpoint(&self, request: Request<v1::SaveRequest>) -> Result<Response<Self::CheckpointStream>, Status> {
        let (out, messages) = mpsc::channel(1);
        let (program, request) = (Arc::clone(&self.0), request.into_inner());
        tokio::spawn(async move {
            let answer = program.answer(&request, &out).await;
            let answer = answer.map(|message| v1::SaveUpdate { update: Some(message) }).map_err(|e| Status::internal(format!("{e:#}")));
            let _ = out.send(answer).await;
        });
        let messages = futures::stream::unfold(messages, async |mut messages| messages.recv().await.map(|message| (message, messages)));
        Ok(Response::new(Box::pin(messages)))
    }
}
