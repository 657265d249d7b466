//! One real shim, and a test that plays its agent. Nothing is left behind, whatever the test does.

use lattice_model::test_builders::{desired_share, spec};
use lattice_model::{
    AllocationId, AllocationSpec, AllocationState, DesiredShare, EndWarning, Entrypoint, Epoch, LaunchId, LaunchShape, LaunchSpec,
    NodeRanks, OutputFiles, Placement, Principal, RankBinding, RankOutcome, Resources,
};
use lattice_runtime::cgroup::{Scope, Slice};
use lattice_runtime::data_mounts::Mount;
use lattice_runtime::identity;
use lattice_runtime::mounts::loops_of;
use lattice_runtime::process;
use lattice_runtime::shim::{
    Decoder, FromShim, LogStream, PROTOCOL_MAJOR, ShimConfig, ShimDir, StartedShim, StopReason, ToShim, connect_shim, encode, start_shim,
};
use std::fs::{self, DirBuilder};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longer than anything here takes, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The environment of a test.
pub struct Bed {
    pub dir: ShimDir,
    pub scratch: PathBuf,
    pub config: ShimConfig,
    pub pid: i32,
    pidfd: Option<OwnedFd>,
    slice: Option<Slice>,
    pub agent: Agent,
}

/// What differs between tests.
#[derive(Clone, Default)]
pub struct Setting {
    /// Without a scope: only by the process tree.
    pub without_scope: bool,
    /// Contents of `/hello` in an image that is mounted at `<scratch>/ue`.
    pub image: Option<&'static str>,
    /// Further mounts.
    pub mounts: Vec<Mount>,
    /// The image is this file instead.
    pub image_file: Option<PathBuf>,
    /// The state directory is a file system of this many kilobytes.
    pub disk_kib: Option<u32>,
    /// The part of the machine that the allocation has.
    pub placement: Option<Placement>,
    /// Prefix of the allocation's directory.
    pub deep: String,
    /// Whether the work needs a run lease.
    pub run_lease: bool,
    /// The script of the allocation.
    pub script: Option<&'static str>,
    /// The user's files for its output; their names may begin with the scratch directory as `DIR/`.
    pub output_files: Option<OutputFiles>,
    /// The signal before its walltime ends.
    pub end_warning: Option<EndWarning>,
}

/// The connection that a test holds as the agent.
pub struct Agent {
    stream: UnixStream,
    decoder: Decoder<FromShim>,
}

pub fn nobody() -> Principal {
    if nix::unistd::geteuid().is_root() {
        return Principal { name: "nobody".into(), uid: 65534, gid: 65534, groups: vec![65534] };
    }
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    Principal { name: "me".into(), uid: uid.as_raw(), gid: gid.as_raw(), groups: vec![] }
}

fn share(allocation: AllocationId, text: &str, setting: &Setting, scratch: &Path) -> DesiredShare {
    let in_scratch = |name: &str| name.replace("DIR/", &format!("{}/", scratch.display()));
    let output_files = setting.output_files.as_ref().map(|files| {
        let OutputFiles { stdout, stderr, stdin, append } = files;
        let (stdout, stderr, stdin) = (in_scratch(stdout), in_scratch(stderr), in_scratch(stdin));
        Box::new(OutputFiles { stdout, stderr, stdin, append: *append })
    });
    let end_warning = setting.end_warning.clone().map(Box::new);
    let entrypoint = Entrypoint::Script { text: text.into(), args: vec![] };
    DesiredShare {
        epoch: Epoch(7),
        owner: nobody(),
        state: AllocationState::Staging,
        resources: Resources { cores: 1, memory_bytes: 0, gpus: 0 },
        nodes: vec!["n1".parse().unwrap()].into(),
        spec: AllocationSpec { entrypoint, output_files, end_warning, ..spec() },
        ..desired_share(allocation)
    }
}

impl Bed {
    pub fn new(setting: Setting) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("lattice-shim-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let scratch = std::env::temp_dir().join(&name);
        DirBuilder::new().mode(0o755).create(&scratch).unwrap();
        let slice = (!setting.without_scope).then(|| Slice::find(Path::new(&format!("{name}.slice"))).unwrap());
        let allocation = AllocationId(uuid::Uuid::new_v4());
        let share = setting.script.map(|text| Box::new(share(allocation, text, &setting, &scratch)));
        let image = setting.image_file.or_else(|| setting.image.map(|hello| make_image(&scratch, hello)));
        let config = ShimConfig {
            protocol: PROTOCOL_MAJOR,
            allocation,
            epoch: Epoch(7),
            owner: nobody(),
            image: image.map(|image| (image, scratch.join("ue"))),
            mounts: setting.mounts,
            scope: slice.as_ref().map(|s| s.create_scope(allocation).unwrap().path().to_owned()),
            v1_groups: vec![],
            placement: setting.placement,
            grace_ms: 300,
            node: "n1".into(),
            open_files: None,
            boot: None,
            share,
            assignment: None,
            log_limits: None,
            run_lease: setting.run_lease,
            work_may_gain_privileges: false,
        };
        let state = scratch.join(setting.deep);
        if let Some(kib) = setting.disk_kib {
            let size = format!("size={kib}k");
            fs::create_dir_all(&state).unwrap();
            nix::mount::mount(Some("tmpfs"), &state, Some("tmpfs"), nix::mount::MsFlags::empty(), Some(size.as_str())).unwrap();
        }
        let dir = ShimDir::of(&state, allocation, Epoch(7));
        let started = start_shim(Path::new(env!("CARGO_BIN_EXE_lattice-shim")), &dir, &config).unwrap();
        let StartedShim { pid, pidfd, stream } = started;
        Self { dir, scratch, config, pid, pidfd: Some(pidfd), slice, agent: Agent::greet(stream) }
    }

    /// A shim that has reported that it is ready.
    pub fn ready(setting: Setting) -> Self {
        let mut bed = Self::new(setting);
        assert_eq!(bed.agent.synced()[1], FromShim::Ready { failed: None });
        bed
    }

    /// A launch with `ranks` ranks here, not started yet.
    pub fn launch(&self, number: u32, ranks: u32, argv: &[&str]) -> LaunchSpec {
        LaunchSpec {
            id: LaunchId(uuid::Uuid::new_v4()),
            number,
            allocation: self.config.allocation,
            epoch: self.config.epoch,
            argv: argv.iter().map(|a| (*a).to_owned()).collect(),
            env: [("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())].into(),
            working_dir: "/tmp".into(),
            pty: None,
            nodes: vec![NodeRanks { node: "n1".parse().unwrap(), first: 0, count: ranks }],
            binding: RankBinding::default(),
            shape: LaunchShape::default(),
            kill_on_bad_exit: false,
        }
    }

    /// Starts a launch of a shell script.
    pub fn start_sh(&mut self, number: u32, ranks: u32, script: &str) -> LaunchSpec {
        let launch = self.launch(number, ranks, &["sh", "-c", script]);
        self.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
        launch
    }

    /// The agent disconnects without a message, and another one connects.
    pub fn reconnect(&mut self) {
        self.agent = Agent::greet(connect_shim(&self.dir).unwrap());
    }

    /// The output of a rank.
    pub fn log(&self, number: u32, rank: u32, stream: LogStream) -> String {
        fs::read_to_string(self.dir.log(number, rank, stream)).unwrap_or_default()
    }

    /// Waits until a rank has written `text`.
    pub fn wait_log(&self, number: u32, rank: u32, text: &str) {
        eventually(&format!("rank {rank} of launch {number} to write {text:?}"), || self.log(number, rank, LogStream::Out).contains(text));
    }

    pub fn scope(&self) -> Scope {
        Scope::at(self.config.scope.clone().unwrap())
    }

    /// Stop and Quit; then checks that nothing is left.
    pub fn end(mut self) {
        self.agent.send(&ToShim::Stop { why: StopReason::Requested, grace_ms: 200 });
        self.agent.until("Stopped", |m| matches!(m, FromShim::Stopped { .. }));
        self.quit();
    }

    /// Quit; then checks that nothing is left.
    pub fn quit(mut self) {
        self.agent.send(&ToShim::Quit);
        assert_eq!(self.wait_shim(), RankOutcome::Exited { code: 0 }, "{}", fs::read_to_string(self.dir.shim_log()).unwrap());
        assert!(!self.dir.socket().exists());
        assert_eq!(fs::read_to_string(self.dir.shim_log()).unwrap_or_default().matches("panicked").count(), 0);
        if self.slice.is_some() {
            assert_eq!(self.scope().whole().processes(), Vec::<i32>::new());
            self.scope().whole().remove().unwrap();
        }
        if let Some((image, at)) = &self.config.image {
            eventually("the loop device to free itself", || loops_of(image).unwrap().is_empty());
            assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(at.to_str().unwrap()));
        }
    }

    /// Waits for the shim's end; returns its outcome.
    pub fn wait_shim(&mut self) -> RankOutcome {
        let mut outcome = None;
        eventually("the shim to end", || {
            outcome = process::reap(self.pid).unwrap();
            outcome.is_some()
        });
        self.pidfd = None;
        outcome.unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // Everything below the shim is killed before the shim, because nobody would own its orphans.
        if let Some(slice) = &self.slice {
            let _ = self.scope().whole().kill();
            let _ = self.scope().whole().wait_empty(PATIENCE);
            if self.pidfd.take().is_some() {
                let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(self.pid), None);
            }
            let _ = self.scope().whole().remove();
            let _ = slice.remove();
        } else if self.pidfd.is_some() {
            while process::signal_descendants(self.pid, libc::SIGKILL, |_| true) > 0 {}
            if let Some(pidfd) = self.pidfd.take() {
                let _ = identity::pidfd_signal(pidfd.as_fd(), libc::SIGKILL);
                let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(self.pid), None);
            }
        }
        if std::thread::panicking() {
            eprintln!("shim.log: {}", fs::read_to_string(self.dir.shim_log()).unwrap_or_default());
        }
        let _ = nix::mount::umount2(&self.scratch.join("small"), nix::mount::MntFlags::MNT_DETACH);
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

impl Agent {
    fn greet(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut agent = Self { stream, decoder: Decoder::default() };
        agent.send(&ToShim::Hello { protocol: PROTOCOL_MAJOR });
        agent
    }

    pub fn send(&mut self, message: &ToShim) {
        self.send_bytes(&encode(message).unwrap());
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Disconnects like a killed process, with unread messages.
    pub fn vanish(&mut self) {
        let (nothing, _) = UnixStream::pair().unwrap();
        self.stream = nothing;
    }

    /// The next message; `None` when the shim closed the connection.
    pub fn next(&mut self) -> Option<FromShim> {
        loop {
            if let Some(message) = self.decoder.next().unwrap() {
                return Some(message);
            }
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(n) => self.decoder.push(&chunk[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("no message from the shim: {e}"),
            }
        }
    }

    /// All messages up to and including the one that is waited for.
    pub fn until(&mut self, what: &str, wanted: impl Fn(&FromShim) -> bool) -> Vec<FromShim> {
        let mut seen = Vec::new();
        loop {
            let message = self.next().unwrap_or_else(|| panic!("the shim went away before {what}, after {seen:?}"));
            seen.push(message);
            if wanted(&seen[seen.len() - 1]) {
                return seen;
            }
        }
    }

    /// The complete replay after a connect.
    pub fn synced(&mut self) -> Vec<FromShim> {
        self.until("Synced", |m| *m == FromShim::Synced)
    }

    /// The outcome of every rank of a launch, by rank; and all messages until then.
    pub fn outcomes(&mut self, launch: &LaunchSpec) -> (Vec<RankOutcome>, Vec<FromShim>) {
        let mut outcomes = std::collections::BTreeMap::new();
        let mut seen = Vec::new();
        while outcomes.len() < launch.nodes.iter().find(|n| n.node.as_str() == "n1").unwrap().count as usize {
            let message = self.next().expect("the shim went away");
            if let FromShim::RankEnded { launch: id, rank, outcome } = &message
                && *id == launch.id
            {
                outcomes.insert(*rank, *outcome);
            }
            seen.push(message);
        }
        (outcomes.into_values().collect(), seen)
    }
}

/// Polls for a condition that no descriptor reports; polls often and gives up late.
pub fn eventually(what: &str, mut there: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !there() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn make_image(scratch: &Path, hello: &str) -> PathBuf {
    let (tree, image) = (scratch.join("tree"), scratch.join("image.sqfs"));
    DirBuilder::new().mode(0o755).create(&tree).unwrap();
    fs::write(tree.join("hello"), hello).unwrap();
    let made = Command::new("mksquashfs").args([&tree, &image]).args(["-quiet", "-no-progress"]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    image
}
