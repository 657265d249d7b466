//! The built `lattice` against a small real server on a Unix socket: its output, where it goes, and its exit codes.

use lattice_api::v1;
use lattice_api::v1::allocation_service_server::{AllocationService, AllocationServiceServer};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A directory of one test, removed on drop.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("lattice-cli-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// `lattice` with its own home and without this environment's settings.
fn lattice(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lattice"));
    command.args(args).env_clear().env("HOME", dir).env("PATH", "/usr/bin:/bin").current_dir(dir).stdin(Stdio::null());
    command.env("LATTICE_ENDPOINT", format!("unix:{}", dir.join("agent.sock").display()));
    command
}

fn run(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    outcome_of(&lattice(dir, args).output().unwrap())
}

fn outcome_of(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The requests that the server received, and how its single allocation has ended.
#[derive(Clone, Default)]
struct Scene {
    submitted: Arc<Mutex<Vec<v1::SubmitRequest>>>,
    launched: Arc<Mutex<Vec<v1::LaunchRequest>>>,
    cancelled: Arc<Mutex<Vec<String>>>,
    exit_code: Option<i32>,
    no_quorum: bool,
    some_wait: bool,
    listed: Arc<Mutex<Vec<v1::ListAllocationsRequest>>>,
    resumed: Arc<Mutex<Vec<v1::Received>>>,
    /// Its allocation is a task group.
    is_group: bool,
    logs_of_task: Arc<Mutex<Vec<Option<u32>>>>,
    tasks_cancelled: Arc<Mutex<Vec<v1::CancelTasksRequest>>>,
    retried: Arc<Mutex<Vec<v1::RetryTasksRequest>>>,
    /// Its allocation is a scaled service; the first two of a list are replicas of it.
    is_scaled: bool,
    /// The keys of logs.
    logs_of: Arc<Mutex<Vec<String>>>,
    scaled: Arc<Mutex<Vec<v1::ScaleRequest>>>,
    /// Logs and the state stay open after their first message until this is true.
    held: Option<Arc<watch::Sender<bool>>>,
}

impl Scene {
    fn allocation(&self, id: &str) -> v1::Allocation {
        v1::Allocation {
            id: id.to_owned(),
            name: "job".into(),
            owner: "ada".into(),
            state: if self.exit_code == Some(0) { "Completed" } else { "Failed" }.into(),
            exit_code: self.exit_code,
            nodes_requested: 1,
            tasks_per_node: 2,
            task_group: if self.is_group { "0-9%2" } else { "" }.into(),
            tasks: self.is_group.then(|| v1::TaskCounts { total: 10, completed: 9, failed: 1, ..Default::default() }),
            scaling: self.is_scaled.then(|| v1::Scaling { replicas_min: 1, replicas_max: 4, ..Default::default() }),
            ..Default::default()
        }
    }
}

const ID: &str = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88";

fn chunk(rank: u32, stderr: bool, data: &[u8]) -> v1::LogChunk {
    v1::LogChunk {
        node: "n1".into(),
        launch: 1,
        rank,
        stderr,
        data: data.to_vec(),
        bytes: data.len() as u64,
        epoch: 4,
        segment: 1,
        ..Default::default()
    }
}

fn output() -> Vec<v1::LogChunk> {
    vec![chunk(0, false, b"zero\nhal"), chunk(1, true, b"bad \xff\n"), chunk(0, false, b"f\nopen")]
}

fn streamed<T: Send + 'static>(items: Vec<T>) -> Response<Streamed<T>> {
    Response::new(Box::pin(tokio_stream::iter(items.into_iter().map(Ok))))
}

/// `first`, and `then` after the hold is lifted.
fn held_between<T: Send + 'static>(held: &watch::Sender<bool>, first: T, then: T) -> Response<Streamed<T>> {
    let (sender, receiver) = mpsc::channel(1);
    let mut held = held.subscribe();
    tokio::spawn(async move {
        if sender.send(Ok(first)).await.is_ok() && held.wait_for(|lifted| *lifted).await.is_ok() {
            drop(sender.send(Ok(then)).await);
        }
    });
    Response::new(Box::pin(ReceiverStream::new(receiver)))
}

#[tonic::async_trait]
impl AllocationService for Scene {
    type WatchStream = Streamed<v1::Allocation>;
    type LogsStream = Streamed<v1::LogChunk>;
    type LaunchStream = Streamed<v1::LaunchEvent>;

    async fn submit(&self, request: Request<v1::SubmitRequest>) -> Result<Response<v1::SubmitResponse>, Status> {
        if self.no_quorum {
            return Err(Status::unavailable("no majority of the quorum answers: nothing was queued"));
        }
        let request = request.into_inner();
        if let Some(spec) = &request.spec {
            lattice_api::spec::to_model(spec).map_err(|error| lattice_api::spec::status(&error))?;
        }
        let id = request.id.clone();
        self.submitted.lock().unwrap().push(request);
        Ok(Response::new(v1::SubmitResponse { id, warning: String::new(), checked: None, number: 0, expected: None }))
    }

    async fn get(&self, request: Request<v1::GetAllocationRequest>) -> Result<Response<v1::Allocation>, Status> {
        let key = request.into_inner().key;
        if let Some(number) = key.strip_prefix("1f0c[").and_then(|rest| rest.strip_suffix(']')).filter(|_| self.is_scaled) {
            let replica =
                v1::Allocation { replica_of: ID.into(), replica_number: number.parse().unwrap(), ..Scene::default().allocation(ID) };
            return Ok(Response::new(replica));
        }
        let submitted = self.submitted.lock().unwrap().iter().any(|s| s.id == key);
        if submitted || (key.len() >= 4 && ID.starts_with(&key)) {
            return Ok(Response::new(self.allocation(if submitted { &key } else { ID })));
        }
        Err(Status::not_found(format!("there is no allocation {key:?}")))
    }

    async fn list(&self, request: Request<v1::ListAllocationsRequest>) -> Result<Response<v1::ListAllocationsResponse>, Status> {
        let asked = request.into_inner();
        let ids = ["20000000-5b7d-4c39-9a54-0f3c2b1d7e88", "10000000-5b7d-4c39-9a54-0f3c2b1d7e88", "30000000-5b7d-4c39-9a54-0f3c2b1d7e88"];
        let mut allocations: Vec<_> = ids.iter().map(|id| self.allocation(id)).collect();
        for (at, allocation) in allocations.iter_mut().enumerate() {
            allocation.submitted_at_ms = [5, 9, 7][at];
        }
        // The first two wait, if some must wait.
        for (at, allocation) in allocations.iter_mut().enumerate().filter(|(at, _)| self.some_wait && *at < 2) {
            allocation.state = "Pending".into();
            allocation.status_message = format!("behind {at} submitted before it");
            allocation.queue_position = [2, 1][at];
        }
        for (allocation, number) in allocations.iter_mut().zip([7, 0]).filter(|_| self.is_scaled) {
            (allocation.replica_of, allocation.replica_number, allocation.scaling) = (ID.into(), number, None);
        }
        allocations.retain(|a| asked.states.is_empty() || asked.states.contains(&a.state));
        allocations.truncate(asked.limit as usize);
        self.listed.lock().unwrap().push(asked);
        Ok(Response::new(v1::ListAllocationsResponse { allocations, ..Default::default() }))
    }

    async fn watch(&self, request: Request<v1::WatchAllocationRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let ended = self.allocation(&request.into_inner().key);
        let Some(held) = &self.held else { return Ok(streamed(vec![ended])) };
        let running = v1::Allocation { state: "Running".into(), exit_code: None, ..ended.clone() };
        let cancelled = v1::Allocation { state: "Cancelled".into(), ..ended };
        Ok(held_between(held, running, cancelled))
    }

    async fn cancel(&self, request: Request<v1::CancelRequest>) -> Result<Response<v1::CancelResponse>, Status> {
        let id = request.into_inner().key;
        if id == "theirs" {
            return Err(Status::permission_denied("that is another user's"));
        }
        self.cancelled.lock().unwrap().push(id.clone());
        if let Some(held) = &self.held {
            held.send_replace(true);
        }
        Ok(Response::new(v1::CancelResponse { id, state: "Cancelled".into() }))
    }

    async fn get_tasks(&self, request: Request<v1::GetTasksRequest>) -> Result<Response<v1::GetTasksResponse>, Status> {
        let range = |first, last, state: &str, exit_code, reason: &str| v1::TaskRange {
            indices: Some(v1::IndexRun { first, last, step: 1 }),
            state: state.into(),
            exit_code,
            reason: reason.into(),
            ..Default::default()
        };
        let failed = range(7, 7, "Failed", Some(3), "exit_code 3");
        let ranges = match request.into_inner().index {
            None => vec![range(0, 6, "Completed", Some(0), "completed"), failed, range(8, 9, "Completed", Some(0), "completed")],
            Some(7) => vec![v1::TaskRange { lanes: vec![ID.into()], nodes: vec!["n1".into()], ..failed }],
            Some(_) => Vec::new(),
        };
        Ok(Response::new(v1::GetTasksResponse { id: ID.into(), ranges, truncated: false, counts: None }))
    }

    async fn list_steps(&self, request: Request<v1::ListStepsRequest>) -> Result<Response<v1::ListStepsResponse>, Status> {
        Ok(Response::new(v1::ListStepsResponse { id: request.into_inner().key, ..Default::default() }))
    }

    async fn cancel_tasks(&self, request: Request<v1::CancelTasksRequest>) -> Result<Response<v1::CancelTasksResponse>, Status> {
        self.tasks_cancelled.lock().unwrap().push(request.into_inner());
        Ok(Response::new(v1::CancelTasksResponse { id: ID.into(), cancelled: 11, ended: 1 }))
    }

    async fn retry_tasks(&self, request: Request<v1::RetryTasksRequest>) -> Result<Response<v1::SubmitResponse>, Status> {
        let request = request.into_inner();
        let id = request.id.clone();
        self.retried.lock().unwrap().push(request);
        Ok(Response::new(v1::SubmitResponse { id, warning: String::new(), checked: None, number: 0, expected: None }))
    }

    async fn scale(&self, request: Request<v1::ScaleRequest>) -> Result<Response<v1::ScaleResponse>, Status> {
        self.scaled.lock().unwrap().push(request.into_inner());
        Ok(Response::new(v1::ScaleResponse { id: ID.into(), before: 3, metric: String::new() }))
    }

    async fn explain(&self, _: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainResponse>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn logs(&self, request: Request<v1::LogsRequest>) -> Result<Response<Self::LogsStream>, Status> {
        let request = request.into_inner();
        self.logs_of_task.lock().unwrap().push(request.task);
        self.logs_of.lock().unwrap().push(request.key.clone());
        self.resumed.lock().unwrap().extend(request.received);
        if let Some(held) = &self.held {
            return Ok(held_between(held, chunk(0, false, b"first\n"), chunk(0, false, b"last\n")));
        }
        let key = request.key;
        if key == "nope" { Err(Status::not_found("there is no allocation \"nope\"")) } else { Ok(streamed(output())) }
    }

    type LaunchInputStream = Streamed<v1::LaunchInputResponse>;

    async fn launch_input(
        &self,
        _: Request<tonic::Streaming<v1::LaunchInputRequest>>,
    ) -> Result<Response<Self::LaunchInputStream>, Status> {
        Err(Status::internal("not asked here"))
    }

    type CheckpointStream = Streamed<v1::CheckpointEvent>;

    async fn checkpoint(&self, _: Request<v1::CheckpointRequest>) -> Result<Response<Self::CheckpointStream>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn list_checkpoints(&self, _: Request<v1::ListCheckpointsRequest>) -> Result<Response<v1::ListCheckpointsResponse>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn get_checkpoint(&self, _: Request<v1::CheckpointKey>) -> Result<Response<v1::CheckpointInfo>, Status> {
        Err(Status::internal("not asked here"))
    }

    type VerifyCheckpointStream = Streamed<v1::VerifyCheckpointProgress>;

    async fn verify_checkpoint(&self, _: Request<v1::CheckpointKey>) -> Result<Response<Self::VerifyCheckpointStream>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn remove_checkpoint(&self, _: Request<v1::CheckpointKey>) -> Result<Response<v1::RemoveCheckpointResponse>, Status> {
        Err(Status::internal("not asked here"))
    }

    type AttachStream = Streamed<v1::AttachEvent>;

    async fn attach(&self, _: Request<tonic::Streaming<v1::AttachRequest>>) -> Result<Response<Self::AttachStream>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn preempt(&self, _: Request<v1::PreemptRequest>) -> Result<Response<v1::PreemptResponse>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn requeue(&self, _: Request<v1::RequeueRequest>) -> Result<Response<v1::RequeueResponse>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn signal(&self, _: Request<v1::SignalRequest>) -> Result<Response<v1::SignalResponse>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn update(&self, _: Request<v1::UpdateAllocationRequest>) -> Result<Response<v1::UpdateAllocationResponse>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn hold(&self, _: Request<v1::HoldAllocationRequest>) -> Result<Response<v1::HoldAllocationResponse>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn resume(&self, _: Request<v1::ResumeRequest>) -> Result<Response<v1::ResumeResponse>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn top(&self, _: Request<v1::TopRequest>) -> Result<Response<v1::TopResponse>, Status> {
        Err(Status::internal("not asked here"))
    }

    type ReadTelemetryStream = Streamed<v1::ReadTelemetryResponse>;

    async fn set_telemetry(&self, _: Request<v1::SetTelemetryRequest>) -> Result<Response<v1::SetTelemetryResponse>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn read_telemetry(&self, _: Request<v1::ReadTelemetryRequest>) -> Result<Response<Self::ReadTelemetryStream>, Status> {
        Err(Status::internal("not asked here"))
    }

    type StreamMetricsStream = Streamed<v1::MetricsEvent>;

    async fn stream_metrics(&self, _: Request<v1::StreamMetricsRequest>) -> Result<Response<Self::StreamMetricsStream>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn diagnose(&self, _: Request<v1::DiagnoseRequest>) -> Result<Response<v1::DiagnoseResponse>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn compare(&self, _: Request<v1::CompareRequest>) -> Result<Response<v1::CompareResponse>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn abort_launch(&self, _: Request<v1::AbortLaunchRequest>) -> Result<Response<v1::AbortLaunchResponse>, Status> {
        Err(Status::internal("not asked here"))
    }

    async fn launch(&self, request: Request<v1::LaunchRequest>) -> Result<Response<Self::LaunchStream>, Status> {
        use v1::launch_event::{Ended, What};
        self.launched.lock().unwrap().push(request.into_inner());
        let event = |what| v1::LaunchEvent { what: Some(what) };
        let mut events: Vec<_> = output().into_iter().map(|chunk| event(What::Output(chunk))).collect();
        events.push(event(What::Ended(Ended { code: self.exit_code.unwrap_or(0), aborted: String::new() })));
        Ok(streamed(events))
    }
}

/// Runs `check` while the scene is served in its own directory.
fn served(scene: Scene, check: impl FnOnce(&Path)) {
    let dir = Dir::new();
    let runtime = serve(scene, &dir.0);
    check(&dir.0);
    runtime.shutdown_background();
}

/// Serves the scene for as long as the runtime lives.
fn serve(scene: Scene, dir: &Path) -> Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let guard = runtime.enter();
    // Bound before any request: the listener's queue accepts connections at once.
    let listener = UnixListener::bind(dir.join("agent.sock")).unwrap();
    let server = tonic::transport::Server::builder()
        .add_service(AllocationServiceServer::new(scene))
        .serve_with_incoming(UnixListenerStream::new(listener));
    runtime.spawn(server);
    drop(guard);
    runtime
}

#[test]
fn without_an_agent_it_says_so_and_what_to_do() {
    let dir = Dir::new();
    let (code, stdout, stderr) = run(&dir.0, &["status"]);
    assert_eq!((code, stdout.as_str()), (Some(5), ""));
    assert!(stderr.starts_with("error: no agent answers at unix:/") && stderr.contains("\nhint: is lattice-agent running"), "{stderr}");
    assert!(stderr.contains("lattice doctor"), "{stderr}");
    // Where the program's own code is expected, our failures use a code outside of its range.
    assert_eq!(run(&dir.0, &["launch", "true"]).0, Some(125));
    assert_eq!(run(&dir.0, &["logs", "-f", "1f0c"]).0, Some(125));
    assert_eq!(run(&dir.0, &["logs", "1f0c"]).0, Some(5));
}

#[test]
fn help_of_a_command_is_found_in_both_ways() {
    let dir = Dir::new();
    let (code, help, stderr) = run(&dir.0, &["help", "submit"]);
    assert!(code == Some(0) && help.contains("--hold") && help.contains("lattice submit - "), "{help}{stderr}");
    assert_eq!(run(&dir.0, &["submit", "--help"]), (code, help, stderr));
}

#[test]
fn a_wrong_command_line_is_2_with_what_was_meant() {
    let dir = Dir::new();
    for (args, meant) in [
        (vec!["submit", "--noodes=4", "--", "true"], "--nodes"),
        (vec!["submit"], "lattice submit SCRIPT"),
        (vec!["wait"], "required"),
        (vec!["submit", "missing.sh"], "cannot read the script missing.sh"),
        (vec!["launch", "-N", "3", "-n", "2", "true"], "use -N 2"),
        (vec!["launch", "-n", "2", "true", ":", "-n", "0", "true"], "a number of ranks is needed"),
        (vec!["admin", "role", "grant", "tenant-admin", "alice"], "give --tenant=NAME"),
        (vec!["admin", "role", "revoke", "operator", "alice", "--tenant=physics"], "leave it out"),
        (vec!["admin", "role", "grant", "user", "alice"], "everybody has the role user"),
        (vec!["--endpoint", "agent.sock", "status"], "is not an endpoint"),
    ] {
        let (code, _, stderr) = run(&dir.0, &args);
        assert_eq!(code, Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(meant), "{args:?}: {stderr}");
    }
    std::fs::create_dir_all(dir.0.join(".config/lattice")).unwrap();
    std::fs::write(dir.0.join(".config/lattice/config.yaml"), "tennant: x\n").unwrap();
    let (code, _, stderr) = run(&dir.0, &["status"]);
    assert!(code == Some(2) && stderr.contains("config.yaml: ") && stderr.contains("unknown field `tennant`"), "{stderr}");
}

#[test]
fn a_submission_is_sent_remembered_and_found_again() {
    let scene = Scene { exit_code: Some(0), ..Default::default() };
    served(scene.clone(), |dir| {
        let script = "#!/bin/sh\n#SBATCH --nodes=3\n#SBATCH --acctg-freq=30\n#LATTICE name=fromscript walltime=2h\ntrue\n";
        std::fs::write(dir.join("job.sh"), script).unwrap();
        let mut command = lattice(dir, &["submit", "-q", "--nodes=2", "job.sh", "a", "-o", "name", "--", "-b"]);
        let (code, stdout, stderr) = outcome_of(&command.env("PMI_RANK", "3").env("KEPT", "1").output().unwrap());
        assert_eq!(code, Some(0), "{stderr}");
        // Not even -q hides it.
        assert_eq!(stderr, "lattice: warning: job.sh line 3: #SBATCH --acctg-freq=30 does not change the job, and is ignored\n");
        let sent = scene.submitted.lock().unwrap().pop().unwrap();
        assert_eq!(stdout, format!("{}\n", sent.id));
        let spec = lattice_api::spec::to_model(&sent.spec.unwrap()).unwrap();
        assert_eq!((spec.nodes, spec.name.as_str(), spec.walltime.map(|time| time.as_secs())), (2, "fromscript", Some(7200)));
        assert_eq!(spec.entrypoint, lattice_model::spec::Entrypoint::Script { text: script.into(), args: vec!["a".into(), "-b".into()] });
        assert_eq!(spec.env.keys().collect::<Vec<_>>(), ["HOME", "KEPT", "PATH"]);
        assert_eq!(spec.working_dir, dir.canonicalize().unwrap());

        let (code, stdout, _) = run(dir, &["submit", "--", "true"]);
        let sent = scene.submitted.lock().unwrap().last().unwrap().id.clone();
        assert_eq!((code, stdout), (Some(0), format!("Submitted allocation {}\n", &sent[..8])));
        let (code, stdout, stderr) = run(dir, &["status", "@last", "-o", "json"]);
        assert_eq!(code, Some(0), "{stderr}");
        let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((json["id"].as_str(), json["exit_code"].as_i64()), (Some(sent.as_str()), Some(0)));
    });
}

#[test]
fn what_slurm_would_do_otherwise_is_refused_before_anything_is_sent() {
    let scene = Scene { exit_code: Some(0), ..Default::default() };
    served(scene.clone(), |dir| {
        let submitted = |lines: &str, args: &[&str]| {
            std::fs::write(dir.join("job.sh"), format!("#!/bin/sh\n{lines}true\n")).unwrap();
            run(dir, &[&["submit", "-q", "job.sh"], args].concat())
        };
        for line in ["--licenses=x", "--container=x", "--qos=high", "--gpus-per-socket=2", "--hold", "--unheard-of"] {
            let (code, _, stderr) = submitted(&format!("#SBATCH {line}\n"), &[]);
            assert!(code == Some(2) && stderr.starts_with(&format!("error: job.sh line 2: #SBATCH {line}: ")), "{code:?} {stderr}");
            assert!(stderr.contains("hint: "), "{stderr}");
        }
        assert!(scene.submitted.lock().unwrap().is_empty());
        let lines = "#SBATCH -n 6 -N 2 -c 4 -t 90\n#SBATCH --mem=4096 --gres=gpu:a100:2 -D sub -w n[1-2]\n";
        let (code, _, stderr) = submitted(lines, &[]);
        assert_eq!((code, stderr.as_str()), (Some(0), ""));
        let spec = lattice_api::spec::to_model(&scene.submitted.lock().unwrap().pop().unwrap().spec.unwrap()).unwrap();
        let share = lattice_model::Resources { cores: 12, memory_bytes: 4 << 30, gpus: 2 };
        assert_eq!((spec.nodes, spec.tasks_per_node, spec.ranks_min(), spec.share), (2, 3, 6, Some(share)));
        assert_eq!((spec.launch.shape.cpus_per_task, spec.walltime.map(|time| time.as_secs())), (4, Some(5400)));
        assert_eq!(spec.constraints.nodes.len(), 2);
        assert!(spec.constraints.features.contains("gpu_type=a100") && spec.launch.shape.slurm_env, "{spec:?}");
        assert_eq!((spec.working_dir, spec.submit_dir), (dir.canonicalize().unwrap().join("sub"), Some(dir.canonicalize().unwrap())));
        // On the command line, a number means the same time as in a script, but memory needs a unit.
        assert_eq!(submitted("", &["-t", "90"]).0, Some(0));
        let spec = lattice_api::spec::to_model(&scene.submitted.lock().unwrap().pop().unwrap().spec.unwrap()).unwrap();
        assert_eq!(spec.walltime.map(|time| time.as_secs()), Some(5400));
        let (code, _, stderr) = submitted("", &["--mem", "16"]);
        assert!(code == Some(2) && stderr.contains("write 16M (MiB) or 16G (GiB)"), "{stderr}");
        let (code, _, stderr) = run(dir, &["submit", "python3", "busy.py"]);
        assert!(code == Some(2) && stderr.contains("`lattice submit -- python3 busy.py`"), "{stderr}");
        let (code, _, stderr) = run(dir, &["launch", "--gres=gpu:1", "true"]);
        assert!(code == Some(2) && stderr.starts_with("error: --gres: ") && stderr.contains("--gpus"), "{stderr}");
        let (code, _, stderr) = run(dir, &["submit", "-o", "x.log", "job.sh"]);
        assert!(code == Some(2) && stderr.contains("names no file") && stderr.contains("--output=x.log"), "{stderr}");
    });
}

/// Runs `lattice` in its own terminal session.
fn in_session_of_its_own(dir: &Path, endpoint: &str, lines: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new("setsid");
    command.args(["--wait", "/bin/sh", "-c", lines]).env_clear().env("HOME", dir).env("PATH", "/usr/bin:/bin").current_dir(dir);
    command.env("LATTICE", env!("CARGO_BIN_EXE_lattice")).env("LATTICE_ENDPOINT", endpoint).stdin(Stdio::null());
    outcome_of(&command.output().unwrap())
}

#[test]
fn the_last_one_belongs_to_its_terminal_session_and_its_agent() {
    let scene = Scene { exit_code: Some(0), ..Default::default() };
    served(scene.clone(), |dir| {
        let socket = format!("unix:{}", dir.join("agent.sock").display());
        let twice = "$LATTICE submit -o name -- true && $LATTICE status @last -o name";
        let [first, second] = [(); 2].map(|()| in_session_of_its_own(dir, &socket, twice));
        for (code, stdout, stderr) in [&first, &second] {
            assert_eq!(*code, Some(0), "{stderr}");
            let ids: Vec<&str> = stdout.lines().collect();
            assert!(ids.len() == 2 && ids[0] == ids[1], "{stdout}");
        }
        assert_ne!(first.1, second.1);
        let other = in_session_of_its_own(dir, &socket, "$LATTICE status @last");
        assert!(other.0 == Some(3) && other.2.contains("nothing was submitted from this terminal session"), "{}", other.2);
        // A list of two agents has the same @last as the one that works; another agent has none.
        let elsewhere = "$LATTICE submit -o name -- true && $LATTICE --endpoint unix:/nonexistent,$LATTICE_ENDPOINT status @last -o name";
        let (code, stdout, stderr) = in_session_of_its_own(dir, &socket, elsewhere);
        assert!(code == Some(0) && stdout.lines().count() == 2, "{stdout} {stderr}");
        let (code, _, stderr) =
            in_session_of_its_own(dir, &socket, "$LATTICE submit -q -- true >/dev/null; $LATTICE --endpoint unix:/other status @last");
        assert!(code == Some(3) && stderr.contains("through unix:/other"), "{stderr}");
    });
}

#[test]
fn the_first_agent_of_a_list_that_answers_is_asked() {
    let scene = Scene { exit_code: Some(0), ..Default::default() };
    served(scene.clone(), |dir| {
        let socket = format!("unix:{}", dir.join("agent.sock").display());
        // The socket that a killed agent leaves.
        drop(std::os::unix::net::UnixListener::bind(dir.join("dead.sock")).unwrap());
        let dead = format!("unix:{}", dir.join("dead.sock").display());
        let asked = |list: &str| {
            let mut command = lattice(dir, &["submit", "-o", "name", "--", "true"]);
            outcome_of(&command.env("LATTICE_ENDPOINT", list).output().unwrap())
        };
        let (code, _, stderr) = asked(&format!("{dead},{socket}"));
        assert_eq!((code, stderr.as_str()), (Some(0), ""));
        assert_eq!(asked(&format!("unix:/nonexistent, {dead}, {socket}")).0, Some(0));
        let (code, _, stderr) = asked(&format!("{dead},unix:/nonexistent"));
        assert!(code == Some(5) && stderr.contains("of 2 agents") && stderr.contains("unix:/nonexistent"), "{stderr}");
        assert_eq!(asked(&dead).0, Some(5));
        let (code, _, stderr) = asked("http://127.0.0.1:80");
        assert!(code == Some(2) && stderr.contains("write unix:/path"), "{stderr}");
    });
}

#[test]
fn refusals_have_their_codes() {
    served(Scene::default(), |dir| {
        let (code, _, stderr) = run(dir, &["submit", "--depends-on=12:after+soon", "--", "true"]);
        assert!(code == Some(2) && stderr.contains("has no valid delay"), "{code:?} {stderr}");
        let (code, _, stderr) = run(dir, &["submit", "--sensitive", "--", "true"]);
        assert!(code == Some(4) && stderr.starts_with("error: --sensitive is not built yet"), "{code:?} {stderr}");
        let (code, _, stderr) = run(dir, &["submit", "--env", "PMI_RANK=1", "--", "true"]);
        assert!(code == Some(2) && stderr.contains("PMI_RANK"), "{code:?} {stderr}");
        assert_eq!(run(dir, &["status", "nope"]).0, Some(3));
        assert_eq!(run(dir, &["status", "@last"]).0, Some(3));
        assert_eq!(run(dir, &["explain", "1f0c"]).0, Some(1));
        // One refusal does not keep the others from being cancelled.
        let (code, stdout, _) = run(dir, &["cancel", "theirs", "1f0c9a4e", "-o", "name"]);
        assert_eq!((code, stdout.as_str()), (Some(4), "1f0c9a4e\n"));
    });
    served(Scene { no_quorum: true, ..Default::default() }, |dir| {
        let (code, _, stderr) = run(dir, &["submit", "--", "true"]);
        assert!(code == Some(5) && stderr.contains("lattice node status"), "{code:?} {stderr}");
    });
}

#[test]
fn a_listing_has_what_lives_first_and_says_when_it_is_cut() {
    let scene = Scene { exit_code: Some(0), some_wait: true, ..Default::default() };
    served(scene.clone(), |dir| {
        let (code, stdout, _) = run(dir, &["status", "-o", "name"]);
        let first: Vec<&str> = stdout.lines().map(|id| &id[..2]).collect();
        assert_eq!((code, first), (Some(0), vec!["10", "20", "30"]), "in the order of the queue, then what has ended");
        let (_, stdout, stderr) = run(dir, &["status", "-o", "json"]);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&stdout).unwrap().as_array().map(Vec::len), Some(3));
        assert_eq!(stderr, "", "data has no limit");
        let (_, stdout, stderr) = run(dir, &["status", "--limit", "1"]);
        assert!(stdout.contains("10000000") && stdout.lines().count() == 2, "{stdout}");
        assert!(stderr.contains("1 is shown") && stderr.contains("--limit N"), "{stderr}");
        let narrow = lattice(dir, &["status"]).env("COLUMNS", "60").output().unwrap();
        let (_, stdout, stderr) = outcome_of(&narrow);
        assert!(stdout.lines().all(|line| line.chars().count() <= 60) && stdout.contains("behind 1 "), "{stdout}");
        assert_eq!(stderr, "");
        scene.listed.lock().unwrap().clear();
        run(dir, &["status", "-u", "ada", "--name", "job", "--vcluster", "q", "--tenant", "t", "--node", "n1", "--state", "failed"]);
        let asked = scene.listed.lock().unwrap().pop().unwrap();
        let filter = [asked.user, asked.name, asked.vcluster, asked.tenant, asked.node];
        assert_eq!((filter, asked.all_users), (["ada", "job", "q", "t", "n1"].map(str::to_owned), true));
        assert_eq!(asked.states, ["Failed"]);
        assert_eq!(run(dir, &["cancel", "--all-mine", "--state", "pending"]).0, Some(0));
        assert_eq!(scene.cancelled.lock().unwrap().len(), 2);
    });
}

#[test]
fn wide_shows_every_column_and_yaml_what_json_shows() {
    served(Scene { exit_code: Some(0), ..Default::default() }, |dir| {
        let (code, stdout, _) = run(dir, &["status", "-o", "wide"]);
        let want = "\
ID        JOB  NAME  OWNER  STATE      NODES  WALLTIME  ELAPSED  LEFT  VCLUSTER  TENANT  UENV  ON  REASON
10000000  —    job   ada    Completed  1      service   —        —     default   —       —     —   —
";
        assert!(code == Some(0) && stdout.starts_with(want), "{stdout}");
        let json: serde_json::Value = serde_json::from_str(&run(dir, &["status", "-o", "json"]).1).unwrap();
        let yaml = |args: &[&str]| -> serde_json::Value {
            let (code, stdout, stderr) = run(dir, args);
            assert!(
                code == Some(0) && stdout.starts_with("- id: 10000000-5b7d-4c39-9a54-0f3c2b1d7e88\n  job: null\n  name: job\n"),
                "{stdout}{stderr}"
            );
            lattice_model::config::parse("stdout", &stdout).unwrap()
        };
        assert_eq!(yaml(&["status", "-o", "yaml"]), json);
        std::fs::create_dir_all(dir.join(".config/lattice")).unwrap();
        std::fs::write(dir.join(".config/lattice/config.yaml"), "output: yaml\n").unwrap();
        assert_eq!(yaml(&["status"]), json);
    });
}

#[test]
fn logs_keep_bytes_streams_and_the_programs_code() {
    served(Scene { exit_code: Some(7), ..Default::default() }, |dir| {
        let plain = lattice(dir, &["logs", "1f0c"]).output().unwrap();
        assert_eq!((plain.status.code(), plain.stdout, plain.stderr), (Some(0), b"zero\nhalf\nopen".to_vec(), b"bad \xff\n".to_vec()));
        let labelled = lattice(dir, &["logs", "-f", "--label", "1f0c"]).output().unwrap();
        assert_eq!(labelled.status.code(), Some(7));
        assert_eq!((labelled.stdout, labelled.stderr), (b"0: zero\n0: half\n0: open\n".to_vec(), b"1: bad \xff\n".to_vec()));
        assert_eq!(run(dir, &["logs", "-f", "nope"]).0, Some(125));
        assert_eq!(run(dir, &["logs", "nope"]).0, Some(3));
    });
}

#[test]
fn a_task_group_is_submitted_shown_and_run_again() {
    let scene = Scene { is_group: true, ..Default::default() };
    served(scene.clone(), |dir| {
        let (code, _, stderr) = run(dir, &["submit", "--wait", "--array=0-9%2", "--max-failures", "1", "--", "true"]);
        assert!(code == Some(1) && stderr.contains(" is Failed: "), "{code:?} {stderr}");
        let indices = vec![v1::IndexRun { first: 0, last: 9, step: 1 }];
        let sent = scene.submitted.lock().unwrap().pop().unwrap().spec.unwrap();
        assert_eq!(sent.task_group, Some(v1::TaskGroup { indices, concurrency: 2, max_failures: Some(1) }));

        let (_, stdout, _) = run(dir, &["status", "1f0c"]);
        assert!(stdout.contains("Task group:  0-9%2\n") && stdout.contains("\n10 tasks; `lattice status 1f0c9a4e --tasks`"), "{stdout}");
        let (code, stdout, stderr) = run(dir, &["status", "1f0c", "--tasks"]);
        let want = "STATE       TASKS  INDICES\nCompleted   9      0-6, 8-9\nFailed (3)  1      7\n";
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(0), want, ""));
        let (_, stdout, _) = run(dir, &["status", "1f0c", "--tasks", "-o", "name"]);
        assert_eq!(stdout, format!("{ID}[0-6]\n{ID}[7]\n{ID}[8-9]\n"));
        let (_, stdout, _) = run(dir, &["status", "1f0c[7]"]);
        assert!(stdout.starts_with(&format!("Task:       {ID}[7]\nState:      Failed\n")) && stdout.contains("1f0c9a4e on n1"), "{stdout}");
        let (code, _, stderr) = run(dir, &["status", "1f0c[77]"]);
        assert!(code == Some(3) && stderr.contains("task group 1f0c9a4e has no task 77"), "{code:?} {stderr}");
        let (code, _, stderr) = run(dir, &["status", "1f0c[7]", "--tasks"]);
        assert!(code == Some(2) && stderr.contains("leave the index behind the id out"), "{code:?} {stderr}");
        let (code, _, stderr) = run(dir, &["status", "1f0c[7]", "--watch"]);
        assert!(code == Some(2) && stderr.contains("`lattice logs -f '1f0c[7]'`"), "{code:?} {stderr}");

        assert_eq!(run(dir, &["logs", "1f0c[7]"]).0, Some(0));
        assert_eq!(run(dir, &["logs", "1f0c", "--task", "8"]).0, Some(0));
        assert_eq!(run(dir, &["logs", "-f", "1f0c[7]"]).0, Some(3), "the code of the task");
        assert_eq!(*scene.logs_of_task.lock().unwrap(), [Some(7), Some(8), Some(7)]);
        for option in ["--task=7", "--rank=0", "--label"] {
            assert_eq!(run(dir, &["logs", "1f0c[7]", option]).0, Some(2), "{option}");
        }

        let (code, stdout, _) = run(dir, &["cancel", "1f0c9a4e[10-20,30]", "1f0c9a4e"]);
        let want = "Cancelled 11 tasks of task group 1f0c9a4e; 1 had ended before\nAllocation 1f0c9a4e is cancelled\n";
        assert_eq!((code, stdout.as_str()), (Some(0), want));
        let asked = scene.tasks_cancelled.lock().unwrap().pop().unwrap();
        let indices = vec![v1::IndexRun { first: 10, last: 20, step: 1 }, v1::IndexRun { first: 30, last: 30, step: 1 }];
        assert_eq!(asked, v1::CancelTasksRequest { key: "1f0c9a4e".into(), indices });
        let (_, stdout, _) = run(dir, &["cancel", "1f0c9a4e[10-20,30]", "-o", "name"]);
        assert_eq!(stdout, format!("{ID}[10-20,30]\n"), "the whole id");

        let (code, stdout, _) = run(dir, &["retry", "1f0c", "--tasks=1-3", "-o", "name"]);
        let (_, all, _) = run(dir, &["retry", "@last", "--failed"]);
        let asked = scene.retried.lock().unwrap().clone();
        assert_eq!((code, stdout), (Some(0), format!("{}\n", asked[0].id)));
        assert_eq!((asked[0].key.as_str(), &asked[0].indices), ("1f0c", &vec![v1::IndexRun { first: 1, last: 3, step: 1 }]));
        assert_eq!((&asked[1].key, &asked[1].indices), (&asked[0].id, &Vec::new()), "all that failed");
        assert_eq!(all, format!("Submitted allocation {}\n", &asked[1].id[..8]));
    });
}

#[test]
fn a_service_that_scales_is_submitted_scaled_and_shown_by_its_replicas() {
    let scene = Scene { is_scaled: true, some_wait: true, ..Default::default() };
    served(scene.clone(), |dir| {
        let policy = ["--scale-metric=cpu_utilization", "--scale-target=0.8"];
        let line = [&["submit", "--reactive", "--min-nodes=1", "--max-nodes=4"][..], &policy, &["--", "true"]].concat();
        assert_eq!(run(dir, &line).0, Some(0));
        let sent = scene.submitted.lock().unwrap().pop().unwrap().spec.unwrap().lifecycle.unwrap();
        assert_eq!((sent.r#type.as_str(), sent.walltime_seconds), ("reactive", 0));
        assert_eq!(
            sent.scaling.unwrap().policy.map(|policy| (policy.metric, policy.target)),
            Some(("cpu_utilization".into(), "0.8".into()))
        );

        let (code, stdout, stderr) = run(dir, &["scale", "1f0c", "4"]);
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(0), "Service 1f0c9a4e: 4 replicas wanted (3 before)\n", ""));
        assert_eq!(*scene.scaled.lock().unwrap(), [v1::ScaleRequest { key: "1f0c".into(), replicas: 4 }]);

        let (_, stdout, _) = run(dir, &["status", "1f0c"]);
        assert!(stdout.contains("1 to 4") && stdout.contains("`lattice status 1f0c9a4e --replicas` lists its replicas"), "{stdout}");
        let (code, stdout, _) = run(dir, &["status", "1f0c", "--replicas", "-o", "name"]);
        assert_eq!(code, Some(0));
        let ids: Vec<&str> = stdout.lines().map(|line| &line[..8]).collect();
        assert_eq!(ids, ["10000000", "20000000", "30000000"], "those that wait, by number, and then the ended one");
        assert!(scene.listed.lock().unwrap().iter().all(|asked| asked.lanes_of == ID));
        let (_, stdout, _) = run(dir, &["status", "1f0c[3]"]);
        assert!(stdout.contains("3 of service 1f0c9a4e\n"), "{stdout}");

        assert_eq!(run(dir, &["logs", "1f0c[3]", "--rank=0"]).0, Some(0), "a replica has ranks");
        assert_eq!((scene.logs_of.lock().unwrap().pop(), scene.logs_of_task.lock().unwrap().pop()), (Some("1f0c[3]".into()), Some(None)));
        assert_eq!(run(dir, &["cancel", "1f0c[3,5-6]"]).0, Some(0));
        assert_eq!(*scene.cancelled.lock().unwrap(), ["1f0c[3]", "1f0c[5]", "1f0c[6]"]);
        assert!(scene.tasks_cancelled.lock().unwrap().is_empty());
        let (code, _, stderr) = run(dir, &["cancel", "1f0c[0-9999]"]);
        assert!(code == Some(2) && stderr.contains("`lattice cancel 1f0c` ends the whole service"), "{code:?} {stderr}");
    });
    served(Scene::default(), |dir| {
        let (code, _, stderr) = run(dir, &["status", "1f0c", "--replicas"]);
        assert!(code == Some(4) && stderr.contains("is no scaled service"), "{code:?} {stderr}");
    });
}

#[test]
fn a_launch_is_a_job_of_its_own_outside_and_ranks_inside() {
    let scene = Scene { exit_code: Some(143), ..Default::default() };
    served(scene.clone(), |dir| {
        let outside = lattice(dir, &["launch", "-N", "2", "-n", "6", "--", "prog", "-n", "9"]).output().unwrap();
        assert_eq!((outside.status.code(), outside.stdout), (Some(143), b"zero\nhalf\nopen".to_vec()));
        let spec = scene.submitted.lock().unwrap()[0].spec.clone().unwrap();
        let spec = lattice_api::spec::to_model(&spec).unwrap();
        assert_eq!((spec.nodes, spec.tasks_per_node), (2, 3));
        assert_eq!(spec.entrypoint, lattice_model::spec::Entrypoint::Command { argv: ["prog", "-n", "9"].map(String::from).to_vec() });

        let inside = lattice(dir, &["launch", "-n", "4", "prog"]).env("LATTICE_ALLOC_ID", ID).output().unwrap();
        assert_eq!(inside.status.code(), Some(143));
        let (code, _, stderr) = run(dir, &["launch", "--alloc=1f0c9a4e", "-N", "3", "--env", "A=B", "prog"]);
        assert_eq!(code, Some(143), "{stderr}");
        let asked = scene.launched.lock().unwrap().clone();
        let shape = |at: usize| (asked[at].allocation.as_str(), asked[at].ranks, asked[at].tasks_per_node);
        assert_eq!((shape(0), shape(1)), ((ID, 4, 0), ("1f0c9a4e", 6, 2)));
        assert_eq!(asked[1].env.get("A").map(String::as_str), Some("B"));
        let ours: Vec<_> = asked[0].env.iter().filter(|(name, _)| name.starts_with("LATTICE_")).collect();
        assert_eq!(ours, [(&"LATTICE_PMI".to_owned(), &"auto".to_owned())], "what such a program needs cannot be seen");
        assert_eq!(scene.submitted.lock().unwrap().len(), 1);

        let (code, _, stderr) = run(dir, &["launch", "--alloc=1f0c9a4e", "--uenv=x", "prog"]);
        assert!(code == Some(2) && stderr.contains("--uenv"), "{stderr}");
    });
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    served(Scene { exit_code: Some(0), ..Default::default() }, |dir| {
        let mut child = lattice(dir, &["status", "-o", "json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Closed before anything is written: the connection is not made yet.
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
    });
}

fn held() -> Option<Arc<watch::Sender<bool>>> {
    Some(Arc::new(watch::Sender::new(false)))
}

#[test]
fn following_survives_an_agent_that_dies_and_comes_back() {
    let dir = Dir::new();
    let before = serve(Scene { held: held(), ..Default::default() }, &dir.0);
    let mut child = lattice(&dir.0, &["logs", "-f", "1f0c"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    // All of its connections break, as after kill -9.
    drop(before);
    std::fs::remove_file(dir.0.join("agent.sock")).unwrap();
    let scene = Scene { exit_code: Some(3), ..Default::default() };
    let after = serve(scene.clone(), &dir.0);
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), rest), (Some(3), b"zero\nhalf\nopen".to_vec()));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("lattice: the connection to the agent broke; trying again\n"));
    let first = v1::Received { launch: 1, rank: 0, stderr: false, bytes: 6, epoch: 4, segment: 1 };
    assert_eq!(*scene.resumed.lock().unwrap(), [first]);
    drop(after);
}

#[test]
fn ctrl_c_cancels_and_follows_to_the_end() {
    let scene = Scene { held: held(), ..Default::default() };
    served(scene.clone(), |dir| {
        let mut child = lattice(dir, &["launch", "prog"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let interrupted = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
        assert!(interrupted.success());
        stdout.read_to_string(&mut line).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), line.as_str()), (Some(130), "first\nlast\n"));
        assert!(String::from_utf8_lossy(&output.stderr).contains("cancelling allocation"));
        let submitted = scene.submitted.lock().unwrap()[0].id.clone();
        assert_eq!(*scene.cancelled.lock().unwrap(), [submitted]);
    });
}
