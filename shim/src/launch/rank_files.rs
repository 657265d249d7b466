//! What each rank gets before its process exists: files, PMI connection, its part of the environment, its place.

use super::TERMINAL;
use crate::bridge::Pmix;
use crate::rank_input;
use crate::rank_socket::{PmiPort, PmiSocket};
use crate::surroundings::Surroundings;
use crate::terminal::RankTerminal;
use crate::{log_files, slurm};
use lattice_model::binding::{MemoryPolicy, RankPlace};
use lattice_model::{LaunchSpec, NodeRanks};
use lattice_pmi::{Job, PmiConnection, rank_environment};
use lattice_runtime::binding::{Binding, Memory};
use lattice_runtime::process::{self, Child, Environment, NotStarted, Prepared, Program};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The descriptor of a rank's PMI socket.
const PMI_FD: i32 = 3;

/// Our end of a rank's PMI connection, and the rank's part.
pub(super) enum PmiEnd {
    Inherited { ours: PmiSocket, theirs: OwnedFd },
    Port(PmiPort),
}

impl PmiEnd {
    fn make(by_port: bool) -> io::Result<Self> {
        if by_port {
            return PmiPort::open().map(Self::Port);
        }
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        Ok(Self::Inherited { ours: PmiSocket::new(ours), theirs: theirs.into() })
    }

    fn connection(&self) -> PmiConnection {
        match self {
            Self::Inherited { .. } => PmiConnection::Inherited(PMI_FD),
            Self::Port(port) => PmiConnection::Port(port.number()),
        }
    }

    /// The descriptors that the rank inherits.
    fn theirs(&self) -> &[OwnedFd] {
        match self {
            Self::Inherited { theirs, .. } => std::slice::from_ref(theirs),
            Self::Port(_) => &[],
        }
    }
}

impl AsFd for PmiEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Inherited { ours, .. } => ours.as_fd(),
            Self::Port(port) => port.as_fd(),
        }
    }
}

/// The variables by which a user selects MPICH's protocol: `1`, `2` or `x`. From version 5 on MPICH aborts if it finds
/// both PMI and PMIx and none of these is set.
const MPICH_PMI_VERSION: [&str; 3] = ["MPIR_CVAR_PMI_VERSION", "MPICH_PMI_VERSION", "MPIR_PARAM_PMI_VERSION"];

/// What a rank gets before its process exists.
pub(super) struct RankFiles {
    out: File,
    err: File,
    /// Its PMI connection.
    pub(super) pmi: Option<PmiEnd>,
    /// The terminal of the first rank, if requested, and its other end.
    pub(super) terminal: Option<(RankTerminal, OwnedFd)>,
    /// Our end of its standard input and the rank's end, if it reads input.
    pub(super) input: Option<(OwnedFd, OwnedFd)>,
    /// The file that is its standard input, if it has one.
    file: Option<File>,
    /// Its number in the launch.
    rank: u32,
    /// The environment variables of this rank only.
    env: Vec<(String, String)>,
    binding: Binding,
}

impl RankFiles {
    pub(super) fn make(
        spec: &LaunchSpec,
        part: &NodeRanks,
        job: &Job,
        local: u32,
        pmix: Option<&Pmix>,
        around: &Surroundings<'_>,
        token: &impl Fn(u32) -> u64,
    ) -> Result<Self, NotStarted> {
        let rank = job.rank(local);
        let [out, err] = log_files::create(around.dir, spec.number, rank, around.owner)?;
        let file = around.inputs.get(&rank).map(|input| input.as_ref().map_err(NotStarted::clone)).transpose()?.and_then(Option::as_ref);
        let system = |what: &str, error: io::Error| NotStarted { code: 126, why: format!("{what}: {error}") };
        let file = file.map(File::try_clone).transpose().map_err(|e| system("its standard input", e))?;
        let asked = spec.pmi().map_err(|unknown| NotStarted { code: 126, why: unknown.to_string() })?;
        let pmi = match asked.has_pmi() {
            true => Some(PmiEnd::make(spec.pmi_by_port()).map_err(|e| system("making its PMI socket", e))?),
            false => None,
        };
        let mut env = pmi.as_ref().map(|pmi| rank_environment(job, local, pmi.connection())).unwrap_or_default();
        // The user's settings for Open MPI take precedence.
        let chosen = |name: &String| name.starts_with("OMPI_") && spec.env.contains_key(name);
        let served = pmix.and_then(|pmix| pmix.env.get(local as usize)).into_iter().flatten();
        env.extend(served.filter(|(name, _)| !chosen(name)).cloned());
        if pmi.is_some() && pmix.is_some() && !MPICH_PMI_VERSION.iter().any(|name| spec.env.contains_key(*name)) {
            env.push((MPICH_PMI_VERSION[0].to_owned(), "1".to_owned()));
        }
        env.extend([
            ("LATTICE_RANK".to_owned(), rank.to_string()),
            ("LATTICE_LOCAL_RANK".to_owned(), local.to_string()),
            ("LATTICE_LOCAL_SIZE".to_owned(), job.count.to_string()),
        ]);
        env.extend(slurm::of_rank(spec, part, rank, local));
        let place = around.places.get(local as usize).cloned().unwrap_or_default();
        env.extend(place.visible.iter().map(|(name, ids)| ((*name).to_owned(), ids.clone())));
        let binding = binding(spec.binding.memory_policy, &place);
        if let Some(pmi) = &pmi {
            let added = around.epoll.add(pmi, EpollEvent::new(EpollFlags::EPOLLIN, token(local)));
            added.map_err(|e| system("watching its PMI socket", e.into()))?;
        }
        let terminal = match spec.pty.filter(|_| rank == 0) {
            Some(size) => {
                let log = out.try_clone().map_err(|e| system("its log file", e))?;
                let made = RankTerminal::make(around.owner, size, log, around.epoll, token(TERMINAL));
                Some(made.map_err(|e| system("making its terminal", e))?)
            }
            None => None,
        };
        let input = match spec.stdin() {
            Ok(stdin) if stdin.is_for(rank) => {
                Some(rank_input::pipe(around.owner).map_err(|e| system("making its standard input", e.into()))?)
            }
            Ok(_) | Err(_) => None,
        };
        Ok(Self { out, err, pmi, terminal, input, file, rank, env, binding })
    }

    fn prepare<'a>(
        &'a self,
        spec: &'a LaunchSpec,
        group: Option<&'a OwnedFd>,
        env: &'a Environment,
        around: &'a Surroundings<'_>,
    ) -> Result<Prepared<'a>, NotStarted> {
        let [stdin, stdout, stderr] = match (&self.terminal, &self.input) {
            (Some((_, slave)), _) => [slave.as_fd(); 3],
            (None, Some((_, theirs))) => [theirs.as_fd(), self.out.as_fd(), self.err.as_fd()],
            (None, None) => [self.file.as_ref().unwrap_or(around.null).as_fd(), self.out.as_fd(), self.err.as_fd()],
        };
        process::prepare(&Program {
            argv: spec.program_of(self.rank).1,
            env: &self.env,
            pid_variable: spec.shape.slurm_env.then_some(slurm::PID_VARIABLE),
            shared_env: Some(env),
            working_dir: &spec.working_dir,
            user: Some(around.owner),
            stdin,
            stdout,
            stderr,
            inherit: self.pmi.as_ref().map_or(&[], PmiEnd::theirs),
            cgroup: group.map(AsFd::as_fd),
            v1_groups: around.v1_groups,
            open_files: around.open_files,
            binding: Some(&self.binding),
            terminal: self.terminal.is_some(),
        })
    }
}

/// What the ranks of a launch share: their cgroup and most of their environment.
type Shared = (Option<OwnedFd>, Environment);

pub(super) fn make_ranks(
    files: &[Result<RankFiles, NotStarted>],
    spec: &LaunchSpec,
    shared: &Result<Shared, NotStarted>,
    around: &Surroundings<'_>,
) -> Vec<Result<Child, NotStarted>> {
    let prepared = files.iter().map(|files| {
        let (group, env) = shared.as_ref().map_err(NotStarted::clone)?;
        files.as_ref().map_err(NotStarted::clone)?.prepare(spec, group.as_ref(), env, around)
    });
    process::spawn_all(prepared.collect())
}

/// A rank's place in the kernel's terms.
fn binding(policy: MemoryPolicy, place: &RankPlace) -> Binding {
    let nodes = &place.memory_nodes;
    let memory = nodes.first().and_then(|first| match policy {
        MemoryPolicy::Local => None,
        MemoryPolicy::Interleave => Some(Memory::Interleave(nodes.clone())),
        MemoryPolicy::Preferred => Some(Memory::Preferred(*first)),
        MemoryPolicy::Bind => Some(Memory::Bind(nodes.clone())),
    });
    Binding::new(&place.cpus, memory.as_ref())
}
