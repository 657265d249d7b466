//! The command line.

mod checkpoint;
mod node;
mod preempt;
mod telemetry;
mod watching;

pub use checkpoint::*;
pub use node::*;
pub use preempt::*;
pub use telemetry::*;
pub use watching::*;

use crate::flags::SubmitFlags;
use crate::later::Later;
use crate::output::Output;
use clap::{ArgAction, Args, ColorChoice, Parser, Subcommand};
use lattice_api::allocation::state_from_name;
use lattice_model::duration::{self, BareNumber};
use lattice_model::{AllocationState, Stdin};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Runs work on the machines of a cluster
///
/// Every command asks the agent of this machine (or the one that --endpoint names). An allocation is named by its id, by the
/// beginning of its id where that is unique, or by @last for the one submitted last.
#[derive(Parser)]
#[command(name = "lattice", version, color = ColorChoice::Never, after_help = EXIT_CODES, disable_help_subcommand = true)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 well; 1 other; 2 wrong usage; 3 not found; 4 refused; 5 no agent or no
quorum answers. launch, attach, session and logs -f give the program's own code (128 + signal), 125
when Lattice failed, 126 and 127 as a shell does.

Settings: ~/.config/lattice/config.yaml (endpoint, tenant, vcluster, output);
LATTICE_ENDPOINT, LATTICE_TENANT and LATTICE_VCLUSTER win over it.";

#[derive(Args)]
pub struct Global {
    /// How to show the answer (logs and launch always give the program's own bytes)
    #[arg(short = 'o', long, global = true, value_name = "FORMAT", help_heading = "Everywhere")]
    pub output: Option<Output>,
    /// The agent to ask: unix:/path/of/agent.sock or http://host:port
    #[arg(long, global = true, value_name = "ENDPOINT", help_heading = "Everywhere")]
    pub endpoint: Option<String>,
    /// Say nothing on stderr but errors
    #[arg(short, long, global = true, help_heading = "Everywhere")]
    pub quiet: bool,
    /// Accepted; nothing is ever coloured
    #[arg(long, global = true, hide = true)]
    pub no_color: bool,
}

#[derive(Subcommand)]
pub enum Command {
    /// Put a script or a command into the queue
    Submit(Later<Submit>),
    /// List your allocations, or show one
    Status(Later<Status>),
    /// Why an allocation stands where it stands
    Explain(Later<Key>),
    /// End allocations
    Cancel(Later<Cancel>),
    /// Have allocations save themselves and give their nodes back
    Preempt(Later<Preempt>),
    /// Have allocations that are Suspended and held go on
    Resume(Later<Resume>),
    /// Show what an allocation's program wrote
    Logs(Later<Logs>),
    /// Show what a running allocation uses of its nodes now
    Top(Later<Top>),
    /// Follow what a running allocation uses, and its alerts, to its end
    Watch(Later<Watch>),
    /// How closely an allocation is measured: every look is kept for a while
    Telemetry(Later<Telemetry>),
    /// What is the matter with a running allocation: its processes, what they wait for, network and storage
    #[command(visible_alias = "diagnostics")]
    Diag(Later<Diag>),
    /// One metric of two or more allocations, each counted from its own start
    Compare(Later<Compare>),
    /// Open a terminal in a running allocation
    Attach(Later<Attach>),
    /// Ask for nodes and open a terminal on the first of them; when its shell ends, they are given back
    Session(Later<InteractiveSession>),
    /// Run a program: inside an allocation on its nodes, elsewhere as a job of its own that is waited for
    Launch(Later<Launch>),
    /// List the nodes, or show one
    Nodes(Later<ListNodes>),
    /// Nodes, their states and holds: what is known of them, and what operators do with them
    Node(Later<Node>),
    /// The quorum's members
    Quorum(Later<Quorum>),
    /// Work that saves itself: ask it to, and what it saved
    Checkpoint(Later<Checkpoint>),
    /// The queues (--vcluster): whose they are, which nodes they have, and what waits in them
    #[command(name = "vcluster")]
    VCluster(Later<VCluster>),
    /// Leases for programs of your own: one holder at a time, fenced by a token
    Lease(Later<Lease>),
    /// Network domains: names that work of one tenant shares, each with a VNI
    Network(Later<Network>),
    /// What running work offers, and where
    Service(Later<Service>),
    /// The audit log
    Audit(Later<Audit>),
    /// The gossip between the agents
    Gossip(Later<Gossip>),
    /// Run a whole cluster of one machine in one process, to try things out
    #[command(disable_help_flag = true)]
    Dev(Rest),
    /// Look at this machine and say what is missing, and what to do about it
    #[command(disable_help_flag = true)]
    Doctor(Rest),
    /// Tenants and their quotas, vClusters, limits of the whole cluster
    Admin(Later<Admin>),
}

impl Command {
    /// Whether a good end gives the exit code of somebody's program rather than ours.
    pub fn gives_the_programs_code(&self) -> bool {
        match self {
            Self::Launch(_) | Self::Attach(_) => true,
            Self::Session(session) => session.0.what.is_none(),
            Self::Logs(logs) => logs.0.follow,
            _ => false,
        }
    }
}

const SUBMIT_EXAMPLES: &str = "Examples:
  lattice submit job.sh
      a script; its #LATTICE (or #SBATCH) lines say what it needs
  lattice submit --nodes=4 --walltime=2h job.sh
      the command line wins over the script's lines
  lattice submit -N 2 --tasks-per-node 8 --uenv ./env.sqfs -- ./simulate input.nml
      16 ranks of one MPI program on 2 nodes

A script's lines, before its first command:
  #!/bin/bash
  #LATTICE --nodes=4 --walltime=2h
  #LATTICE name=simulation
  lattice launch ./simulate input.nml";

#[derive(Args)]
#[command(after_help = SUBMIT_EXAMPLES, override_usage = "lattice submit [OPTIONS] SCRIPT [-- ARGS...]\n       lattice submit [OPTIONS] -- COMMAND [ARGS...]")]
pub struct Submit {
    #[command(flatten)]
    pub flags: SubmitFlags,
    /// The script to run on the first node; it starts ranks with `lattice launch`
    pub script: Option<OsString>,
    /// The script's arguments (those that begin with a dash go after --)
    pub args: Vec<String>,
    /// Without a script: the program to run as nodes × tasks-per-node ranks, and its arguments
    #[arg(last = true)]
    pub rest: Vec<String>,
}

const LAUNCH_EXAMPLES: &str = "Examples:
  lattice launch ./simulate
      in a script: the allocation's tasks-per-node on each of its nodes
  lattice launch -n 4 --label hostname
      in a script: 4 ranks, each line with its rank
  lattice launch --alloc 1f0c9a4e hostname
      from outside, in an allocation that runs
  lattice launch --alloc 1f0c9a4e --pty -n 1 python3
      the same with a terminal, which outlives a restart of the agent
  lattice launch --pty bash
      elsewhere: a job of its own with your terminal, once it has its node; hanging up cancels it
  lattice launch -n 8 -m cyclic ./simulate
      ranks dealt out to the nodes in turn
  lattice launch -n 1 ./server : -n 15 ./worker
      one MPI world of two programs
  lattice launch -w n1,n2,n1 ./simulate
      in a script: rank 0 on n1, rank 1 on n2, rank 2 on n1
  lattice launch -N 2 -n 16 ./simulate
      elsewhere: asks for 2 nodes, waits, shows the output, gives the exit code";

#[derive(Args)]
#[command(after_help = LAUNCH_EXAMPLES)]
pub struct Launch {
    /// Ranks in all
    #[arg(short = 'n', long = "ntasks", value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks: Option<u32>,
    /// Begin each line with its rank
    #[arg(short, long)]
    pub label: bool,
    /// Give the first rank a terminal: yours
    #[arg(long, conflicts_with = "label")]
    pub pty: bool,
    /// The ranks that read standard input: a rank's number, all or none [default: 0, of a pipe or a file]
    #[arg(short = 'i', long, alias = "input", value_name = "RANK", conflicts_with = "pty")]
    pub stdin: Option<Stdin>,
    /// Inside an allocation: the node of each rank, in rank order: n1,n2,n1 or n[1-2],n1, or a file of such lines (a name with a /)
    #[arg(short = 'w', long, value_name = "LIST", conflicts_with_all = ["nodes", "distribution"])]
    pub nodelist: Option<String>,
    /// Inside an allocation: tell at the end how each rank ended, on stderr or into a file; as JSON with -o json
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub exit_table: Option<String>,
    /// The allocation to run in; by default the one this process runs in
    #[arg(long, value_name = "ID")]
    pub alloc: Option<String>,
    /// Said by -o per-rank.
    #[arg(skip)]
    pub per_rank: bool,
    #[command(flatten)]
    pub flags: SubmitFlags,
    /// The program and its arguments; further programs of the same launch begin with `: -n RANKS`
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[derive(Args)]
pub struct Key {
    /// The allocation: its id, the beginning of it, or @last
    pub id: String,
}

#[derive(Args)]
pub struct Status {
    /// One allocation: its id, the beginning of it, or @last
    #[arg(conflicts_with_all = ["all", "state", "limit"])]
    pub id: Option<String>,
    /// Everybody's, not only your own
    #[arg(short, long)]
    pub all: bool,
    /// Only those in these states (pending, staging, running, suspended, completed, failed, cancelled)
    #[arg(long, value_delimiter = ',', value_parser = state)]
    pub state: Vec<AllocationState>,
    /// At most this many, the newest
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// As one member of the quorum has it, agreed with nobody: also without a majority. Its age is said
    #[arg(long)]
    pub stale: bool,
    /// Those that have not ended, then a line for each change; one that is named, until it has ended
    #[arg(short, long, conflicts_with_all = ["limit", "stale"])]
    pub watch: bool,
}

#[derive(Args)]
pub struct Cancel {
    /// The allocations
    #[arg(required_unless_present = "all_mine", conflicts_with = "all_mine")]
    pub ids: Vec<String>,
    /// All of your own that have not ended
    #[arg(long)]
    pub all_mine: bool,
    /// With --all-mine: only those in these states
    #[arg(long, value_delimiter = ',', value_parser = state, requires = "all_mine")]
    pub state: Vec<AllocationState>,
}

#[derive(Args)]
pub struct Logs {
    /// The allocation
    pub id: String,
    /// Follow until it has ended, then give its program's exit code
    #[arg(short, long)]
    pub follow: bool,
    /// Only this rank
    #[arg(long)]
    pub rank: Option<u32>,
    /// Of each rank's output, begin with the last N lines
    #[arg(long, value_name = "N")]
    pub tail: Option<u64>,
    /// Only what was written after this: 2026-03-01T10:00:00Z, or 10m for ten minutes ago (to about a second)
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only what was written by this
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Only stdout
    #[arg(long, conflicts_with = "stderr")]
    pub stdout: bool,
    /// Only stderr
    #[arg(long)]
    pub stderr: bool,
    /// Only the ranks of this node
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Begin each line with its rank
    #[arg(short, long)]
    pub label: bool,
}

const TOP_EXAMPLES: &str = "Examples:
  lattice top 1f0c9a4e
      what all its nodes together use now, and over the last 30 seconds
  lattice top @last --per-node --duration=10m
      node by node, with means and maxima of the last ten minutes
  lattice top @last --per-gpu
      each GPU that it has: how busy, how full, what it draws, why its clocks are held down

The agents of its nodes measure once a second, and answer themselves: no store is asked. SOURCE says what each number comes
from, AGE how long ago it was measured; what cannot be had on a node is not shown.";

#[derive(Args)]
#[command(after_help = TOP_EXAMPLES)]
pub struct Top {
    /// The allocation
    pub id: String,
    /// Each node for itself, not their sums
    #[arg(long, conflicts_with_all = ["per_gpu", "wide"])]
    pub per_node: bool,
    /// Each of its GPUs for itself
    #[arg(long, conflicts_with = "wide")]
    pub per_gpu: bool,
    /// A line for each node, with a column for each number
    #[arg(long)]
    pub wide: bool,
    /// How far back MEAN and MAX reach: 30s to 1h, a bare number is seconds
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = top_duration)]
    pub duration: Duration,
}

fn top_duration(text: &str) -> Result<Duration, String> {
    let duration = duration::parse(text, BareNumber::Seconds).map_err(|e| e.to_string())?;
    let bounds = Duration::from_secs(1)..=Duration::from_secs(3600);
    if bounds.contains(&duration) { Ok(duration) } else { Err("1s to 1h are possible: agents keep no more".to_owned()) }
}

const ATTACH_EXAMPLES: &str = "Examples:
  lattice attach 1f0c9a4e
      your shell on the allocation's first node, among its processes, with its image and its environment
  lattice attach 1f0c9a4e --node n7 -- htop
      a program of your choice on one of its nodes

The terminal closes with the allocation; its own end does not touch the allocation. Exit codes: the program's own
(128 + signal), 125 when no terminal could be opened, 5 when the agent or the node went away under it.";

#[derive(Args)]
#[command(after_help = ATTACH_EXAMPLES, override_usage = "lattice attach [OPTIONS] ID [-- COMMAND [ARGS...]]")]
pub struct Attach {
    /// The allocation
    pub id: String,
    /// On this one of its nodes [default: its first]
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    #[arg(long = "command", value_name = "LINE", hide = true, conflicts_with = "command")]
    pub command_line: Option<String>,
    /// The program and its arguments [default: your shell]
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

const SESSION_EXAMPLES: &str = "Examples:
  lattice session --walltime 4h
      your shell on a node of your own, once there is one
  lattice session -N 2 --walltime 8h --uenv ./env.sqfs --constraint gpu_type=GH200 --vcluster interactive
      on the first of two such nodes, in an image; `lattice launch` in it uses both
  lattice session list; lattice session delete 1f0c9a4e
      those that are open; end one, by its id or its allocation's

When the shell ends, the nodes are given back. When the connection is lost instead, what ran in the terminal is hung up
(use tmux or screen) and the allocation goes on until its walltime: `lattice attach ID` opens a fresh shell, `lattice session
delete ID` ends it. While it still waits for its nodes, Ctrl-C or hanging up cancels it.";

#[derive(Args)]
#[command(after_help = SESSION_EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct InteractiveSession {
    #[command(subcommand)]
    pub what: Option<SessionCommand>,
    #[command(flatten)]
    pub flags: SubmitFlags,
}

#[derive(Subcommand)]
pub enum SessionCommand {
    /// Your sessions that are open
    List(SessionList),
    /// End sessions, and give back their nodes
    Delete(SessionDelete),
}

#[derive(Args)]
pub struct SessionList {
    /// Everybody's, not only your own
    #[arg(short, long)]
    pub all: bool,
}

#[derive(Args)]
pub struct SessionDelete {
    /// The session: its id or its allocation's, the beginning of one, or @last
    pub id: String,
}

const LEASE_EXAMPLES: &str = "Examples:
  token=$(lattice lease grant nightly-build --ttl 30s -o name)
      take it, for this user at this machine's node; the same again gives the same token
  lattice lease renew nightly-build --token $token
      in time, again and again; exit code 4 means that it is lost: stop
  lattice lease release nightly-build --token $token

A lease has one holder at a time. Its token rises with every new grant: hand it to what you guard, and let that refuse
older ones. A cordoned or quarantined node gets no lease and renews none.";

#[derive(Args)]
#[command(after_help = LEASE_EXAMPLES)]
pub struct Lease {
    #[command(subcommand)]
    pub what: LeaseCommand,
}

#[derive(Subcommand)]
pub enum LeaseCommand {
    /// Take a lease; its token is the answer
    Grant(LeaseGrant),
    /// Give it its whole time again
    Renew(LeaseToken),
    /// Give it back
    Release(LeaseToken),
    /// Take leases away from whoever holds them (operators)
    Revoke(LeaseRevoke),
    /// Who holds what
    List(LeaseList),
}

#[derive(Args)]
pub struct LeaseGrant {
    /// What it is about
    pub name: String,
    /// How long it lives unless it is renewed: 1s to 1h
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = ttl)]
    pub ttl: Duration,
}

#[derive(Args)]
pub struct LeaseToken {
    /// The lease
    pub name: String,
    /// What the grant answered
    #[arg(long, value_name = "N")]
    pub token: u64,
}

#[derive(Args)]
pub struct LeaseRevoke {
    /// The leases
    #[arg(required_unless_present = "bad", conflicts_with = "bad")]
    pub names: Vec<String>,
    /// All whose holder is held, Down or not registered
    #[arg(long)]
    pub bad: bool,
}

#[derive(Args)]
pub struct LeaseList {
    /// Only those whose holder is held, Down or not registered
    #[arg(long)]
    pub bad: bool,
    /// Then a line for each grant and each end; renewals are no changes
    #[arg(short, long, conflicts_with = "bad")]
    pub watch: bool,
}

#[derive(Args)]
pub struct Quorum {
    #[command(subcommand)]
    pub what: QuorumCommand,
}

#[derive(Subcommand)]
pub enum QuorumCommand {
    /// Who leads, who follows, how far each is, as the member in use sees it
    Status,
    /// The members, as the leader sees them
    Members,
    /// Let a member join: it runs already, with an empty data_dir and without --bootstrap; it learns, then votes
    Add(AddMember),
    /// Take a member out; it stops serving
    Remove(MemberId),
    /// Let a new member vote in the place of another, in one change
    Replace(ReplaceMember),
    /// Let another member lead
    TransferLeader(Transfer),
    /// The built-in certificate authority: init, issue, renew
    #[command(disable_help_flag = true)]
    Ca(Rest),
    /// Copy the state to the place for backups now; on a member's machine, by lattice-quorum
    #[command(disable_help_flag = true)]
    Backup(Rest),
    /// Check a backup whole; on a member's machine, by lattice-quorum
    #[command(disable_help_flag = true)]
    Verify(Rest),
    /// Go on from a backup after the loss of the whole quorum, or (--plan) say what is the matter; on a member's machine, by lattice-quorum
    #[command(disable_help_flag = true)]
    Recover(Rest),
    /// Go back to a backup on purpose; on a member's machine, by lattice-quorum
    #[command(disable_help_flag = true)]
    Restore(Rest),
}

impl QuorumCommand {
    /// What a member's own program does, and how it calls that.
    pub fn of_a_member(&self) -> Option<(&'static str, &Rest)> {
        match self {
            Self::Ca(rest) => Some(("ca", rest)),
            Self::Backup(rest) => Some(("backup", rest)),
            Self::Verify(rest) => Some(("verify", rest)),
            Self::Recover(rest) => Some(("recover", rest)),
            Self::Restore(rest) => Some(("restore", rest)),
            Self::Status | Self::Members | Self::Add(_) | Self::Remove(_) | Self::Replace(_) | Self::TransferLeader(_) => None,
        }
    }
}

#[derive(Args)]
pub struct AddMember {
    /// Its id, one that no member had before
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub id: u64,
    /// Where agents reach it
    #[arg(long, value_name = "HOST:PORT")]
    pub service: String,
    /// Where members reach it
    #[arg(long, value_name = "HOST:PORT")]
    pub raft: String,
}

#[derive(Args)]
pub struct MemberId {
    /// The member
    pub id: u64,
}

#[derive(Args)]
pub struct ReplaceMember {
    /// The member that goes; it may be dead
    pub old: u64,
    #[command(flatten)]
    pub new: AddMember,
}

#[derive(Args)]
pub struct Transfer {
    /// The member that is to lead [default: the one that has most of the log]
    pub to: Option<u64>,
}

#[derive(Args)]
pub struct Audit {
    #[command(subcommand)]
    pub what: AuditCommand,
}

#[derive(Subcommand)]
pub enum AuditCommand {
    /// Show who did what: the oldest first, for operators
    Query(AuditQuery),
    /// Walk the whole hash chain, check every signature, and name the first record that does not hold
    Verify(AuditVerify),
    /// Write a signed JSON bundle that can be verified without Lattice
    Export(AuditExport),
}

const AUDIT_QUERY_EXAMPLES: &str = "Examples:
  lattice audit query --alloc 1f0c9a4e
      the whole history of one allocation
  lattice audit query --user alice --since 2026-03-01 --until 2026-03-15
      what alice did, and what was done to alice's allocations, in two weeks
  lattice audit query --type attach-started,logs-read --since 1d -o json
      who looked into whose work since yesterday

A time is 2026-03-01T10:00:00Z, a day (its beginning in UTC), or how long ago (90s, 10m, 2h, 1d).";

#[derive(Args)]
pub struct AuditFilterArgs {
    /// What this user did, and what was done to this user's allocations (or what node:ID, member:ID did)
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// About this allocation: its id, the beginning of it, or @last
    #[arg(long, value_name = "ID")]
    pub alloc: Option<String>,
    /// About this node
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Of these types, such as AllocationEnded or attach-started
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    pub types: Vec<String>,
    /// Not before this
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Before this
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
}

#[derive(Args)]
#[command(after_help = AUDIT_QUERY_EXAMPLES)]
pub struct AuditQuery {
    #[command(flatten)]
    pub filter: AuditFilterArgs,
    /// Go on behind this record
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub after: u64,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
}

#[derive(Args)]
pub struct AuditVerify {
    /// A key (64 hexadecimal digits) that may have signed; with it, a chain in which any other key was used does not hold
    #[arg(long, value_name = "KEY")]
    pub key: Vec<String>,
}

#[derive(Args)]
pub struct AuditExport {
    #[command(flatten)]
    pub filter: AuditFilterArgs,
    /// Where to write it [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

#[derive(Args)]
pub struct Gossip {
    #[command(subcommand)]
    pub what: GossipCommand,
}

#[derive(Subcommand)]
pub enum GossipCommand {
    /// Every member that this agent's gossip knows, and who is suspected, since when and by how many
    Members(GossipMembers),
    /// What changes, as this agent sees it, one line each until interrupted: who joins, is suspected, refutes, is down, changes its state
    Watch,
    /// The keys that gossip is sealed with, and how far a rotation is
    Keys(GossipKeys),
}

#[derive(Args)]
pub struct GossipMembers {
    /// Only those that are suspected
    #[arg(long)]
    pub suspected: bool,
    /// What this agent's gossip has counted: traffic, refusals by reason, suspicions, refutations, its own health (0 is well)
    #[arg(long, conflicts_with = "suspected")]
    pub counters: bool,
}

#[derive(Args)]
pub struct GossipKeys {
    #[command(subcommand)]
    pub what: Option<GossipKeysCommand>,
}

#[derive(Subcommand)]
pub enum GossipKeysCommand {
    /// Bring in a new key, seal with it once every node that is not Down has it, and forget the old one; waits until that is done.
    /// Given again it goes on with a rotation that is under way
    Rotate(RotateKeys),
}

#[derive(Args)]
pub struct RotateKeys {
    /// Begin it and leave it to the quorum: `lattice gossip keys` shows how far it is
    #[arg(long)]
    pub no_wait: bool,
}

#[derive(Args)]
pub struct Admin {
    #[command(subcommand)]
    pub what: AdminCommand,
}

#[derive(Subcommand)]
pub enum AdminCommand {
    /// Who work is accounted to (--tenant), and how much of the cluster it may have at once
    Tenant(Tenant),
    /// Queues with a scheduler and nodes of their own
    #[command(name = "vcluster")]
    VCluster(VClusterAdmin),
    /// The VNIs of network domains
    Network(AdminNetwork),
    /// Show the limits of the whole cluster, or change them
    Limits(SetLimits),
    #[command(hide = true)]
    Raft(Quorum),
}

#[derive(Args)]
pub struct VCluster {
    #[command(subcommand)]
    pub what: VClusterCommand,
}

#[derive(Subcommand)]
pub enum VClusterCommand {
    /// Every vCluster: its tenant, its nodes, how much waits and runs, and whose agent serves it
    List,
    /// What waits in one, the next one first
    Queue(VClusterQueue),
}

#[derive(Args)]
pub struct VClusterQueue {
    /// The vCluster
    #[arg(default_value = lattice_model::DEFAULT_VCLUSTER)]
    pub name: String,
}

const VCLUSTER_EXAMPLES: &str = "Examples:
  lattice admin vcluster create --name debug --scheduler interactive-fifo --nodes n[1-4]
      a queue of its own on four nodes that no other queue uses from now on
  lattice admin vcluster create --name physics --scheduler interactive-fifo --tenant physics
      one for a tenant's work alone, placed on the nodes that are no vCluster's own
  lattice admin vcluster set-config --name debug --nodes n[1-6]
      all that are to be its own; what runs on others goes on there

The vCluster default always exists: it has the work that names none, and the nodes that are no other one's.";

#[derive(Args)]
#[command(after_help = VCLUSTER_EXAMPLES)]
pub struct VClusterAdmin {
    #[command(subcommand)]
    pub what: AdminVCluster,
}

#[derive(Subcommand)]
pub enum AdminVCluster {
    /// Create a vCluster
    Create(CreateVCluster),
    /// Change its tenant or its nodes; what waits or runs already stays
    SetConfig(SetVCluster),
    /// Every vCluster
    List,
    /// One vCluster
    Show(VClusterName),
    /// Forget a vCluster that has no work; its nodes are the default's then
    Delete(VClusterName),
    #[command(hide = true, disable_help_flag = true)]
    SetWeights(Rest),
}

impl AdminVCluster {
    /// What of it the documents have and this version has not.
    pub fn unbuilt(&self) -> Option<&'static str> {
        match self {
            Self::Create(CreateVCluster { settings, .. }) | Self::SetConfig(SetVCluster { settings, .. }) => settings.unbuilt(),
            Self::SetWeights(_) => Some("set-weights"),
            Self::List | Self::Show(_) | Self::Delete(_) => None,
        }
    }
}

#[derive(Args)]
pub struct VClusterName {
    /// The vCluster
    #[arg(value_name = "NAME", required_unless_present = "named")]
    name: Option<String>,
    #[arg(long = "name", value_name = "NAME", hide = true, conflicts_with = "name")]
    named: Option<String>,
}

impl VClusterName {
    pub fn get(self) -> String {
        self.name.or(self.named).unwrap_or_default()
    }
}

#[derive(Args)]
pub struct CreateVCluster {
    #[command(flatten)]
    pub name: VClusterName,
    /// How its queue is served: interactive-fifo (first come first served)
    #[arg(long, alias = "scheduler-type", value_name = "KIND")]
    pub scheduler: String,
    #[command(flatten)]
    pub settings: VClusterSettings,
}

#[derive(Args)]
pub struct SetVCluster {
    #[command(flatten)]
    pub name: VClusterName,
    #[command(flatten)]
    pub settings: VClusterSettings,
}

#[derive(Args)]
pub struct VClusterSettings {
    /// The tenant whose work alone it takes [none: everybody's]
    #[arg(long, value_name = "NAME|none")]
    pub tenant: Option<String>,
    /// All nodes that are its own, such as n1,n2 or n[1-8] [none: it shares the default's]
    #[arg(long, value_name = "HOSTLIST|none")]
    pub nodes: Option<String>,
    #[arg(long, hide = true)]
    cycle_interval: Option<String>,
    #[arg(long, hide = true)]
    description: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1)]
    borrow: Option<Option<String>>,
}

impl VClusterSettings {
    fn unbuilt(&self) -> Option<&'static str> {
        let given = [
            ("--cycle-interval", self.cycle_interval.is_some()),
            ("--description", self.description.is_some()),
            ("--borrow", self.borrow.is_some()),
        ];
        given.into_iter().find(|(_, set)| *set).map(|(flag, _)| flag)
    }
}

#[derive(Args)]
pub struct Tenant {
    #[command(subcommand)]
    pub what: TenantCommand,
}

#[derive(Subcommand)]
pub enum TenantCommand {
    /// Create a tenant; without quotas it has no limits
    Create(SetTenant),
    /// Change its quotas. Work that runs goes on, also above a lower one
    #[command(alias = "set-quota")]
    Update(SetTenant),
    /// Every tenant, its quotas and what it has of them
    List,
    /// One tenant
    Show(ShowTenant),
    /// Forget a tenant that has no work; its name is without limits then
    Delete(TenantName),
}

#[derive(Args)]
pub struct TenantName {
    /// The tenant
    #[arg(value_name = "NAME", required_unless_present = "named")]
    name: Option<String>,
    #[arg(long = "name", value_name = "NAME", hide = true, conflicts_with = "name")]
    named: Option<String>,
}

impl TenantName {
    pub fn get(self) -> String {
        self.name.or(self.named).unwrap_or_default()
    }
}

#[derive(Args)]
pub struct ShowTenant {
    #[command(flatten)]
    pub name: TenantName,
    #[arg(long, hide = true)]
    quotas: bool,
}

#[derive(Args)]
pub struct SetTenant {
    #[command(flatten)]
    pub name: TenantName,
    /// Nodes that its running allocations may have, all together [none: no limit]
    #[arg(long, value_name = "N|none", value_parser = quota)]
    pub max_nodes: Option<Quota>,
    /// Its allocations that may have nodes at once [none: no limit]
    #[arg(long, value_name = "N|none", value_parser = quota)]
    pub max_concurrent_allocations: Option<Quota>,
}

/// A quota as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    Unlimited,
    AtMost(u32),
}

#[derive(Args)]
pub struct AdminNetwork {
    #[command(subcommand)]
    pub what: AdminNetworkCommand,
}

#[derive(Subcommand)]
pub enum AdminNetworkCommand {
    /// Show the pool, or change it; a domain keeps the number that it has
    Pool(VniPool),
    /// How long one domain keeps its VNI without work, until it is released
    SetGrace(SetGrace),
}

#[derive(Args)]
pub struct SetGrace {
    /// The domain
    #[arg(long, value_name = "NAME")]
    pub domain: String,
    /// Of this tenant [default: that of your submissions]
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// At most 7d
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub grace: Duration,
}

#[derive(Args)]
pub struct VniPool {
    /// The first VNI [1000 at the beginning; lower ones are reserved]
    #[arg(long, value_name = "VNI")]
    pub start: Option<u32>,
    /// The last VNI [4095 at the beginning; at most 65535]
    #[arg(long, value_name = "VNI")]
    pub end: Option<u32>,
    /// How long a domain keeps its VNI without work [5m at the beginning; at most 7d]
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub grace: Option<Duration>,
}

#[derive(Args)]
pub struct SetLimits {
    /// Nodes of the whole cluster that may be claimed for sensitive use
    #[arg(long, value_name = "N")]
    pub sensitive_pool_size: Option<u32>,
    /// Without that limit
    #[arg(long, conflicts_with = "sensitive_pool_size")]
    pub no_sensitive_pool_size: bool,
}

#[derive(Args)]
pub struct Network {
    #[command(subcommand)]
    pub what: NetworkCommand,
}

#[derive(Subcommand)]
pub enum NetworkCommand {
    /// The domains that have a VNI now
    List(OfTenant),
    /// One of them, with its allocations
    Status(NamedOfTenant),
}

const SERVICE_EXAMPLES: &str = "Examples:
  lattice submit --service --expose api:8080/http serve.sh
      offers port 8080 of its nodes as \"api\" while it runs
  curl http://$(lattice service lookup api -o name | head -1)/
      where it is, also from within other work of the tenant

Nobody looks whether something listens there; --liveness-probe ends work that stops serving, and its endpoints with it.";

#[derive(Args)]
#[command(after_help = SERVICE_EXAMPLES)]
pub struct Service {
    #[command(subcommand)]
    pub what: ServiceCommand,
}

#[derive(Subcommand)]
pub enum ServiceCommand {
    /// The names under which running work offers something
    List(OfTenant),
    /// Where a name is offered now
    Lookup(NamedOfTenant),
}

#[derive(Args)]
pub struct OfTenant {
    /// Of this tenant [default: that of your submissions, else those of your own allocations; operators: all]
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Of all tenants that you may see, also where your submissions have one
    #[arg(short, long, conflicts_with = "tenant")]
    pub all: bool,
}

#[derive(Args)]
pub struct NamedOfTenant {
    /// Its name
    pub name: String,
    #[command(flatten)]
    pub of: OfTenant,
}

#[derive(Args)]
pub struct Rest {
    /// Handed on as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, num_args = 0.., action = ArgAction::Append)]
    pub args: Vec<OsString>,
}

fn quota(text: &str) -> Result<Quota, String> {
    match text {
        "none" => Ok(Quota::Unlimited),
        number => number.parse().map(Quota::AtMost).map_err(|_| "a number, or none".to_owned()),
    }
}

fn ttl(text: &str) -> Result<Duration, String> {
    duration::parse(text, BareNumber::Seconds).map_err(|error| error.to_string())
}

fn state(text: &str) -> Result<AllocationState, String> {
    state_from_name(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_the_documents_write_is_understood() {
        for line in [
            "submit script.sh",
            "submit script.sh --nodes=4",
            "submit script.sh -- --epochs 3",
            "submit --nodes=64 --walltime=72h --uenv=/prgenv-gnu.sqfs -- torchrun train.py",
            "submit --task-group=0-99%20 script.sh",
            "submit --depends-on=12345:success script.sh",
            "submit -N 2 --requeue script.sh",
            "submit --requeue=always -o name -- true",
            "status",
            "status 12345 -o json",
            "status --state=running,pending --all",
            "cancel 1 2 3",
            "cancel --state=pending --all-mine",
            "launch --alloc=12345 hostname",
            "launch --alloc=12345 -n 4 ./my_program --its=own -n 7",
            "launch -n4 -- true",
            "launch --alloc=12345 --pty bash",
            "launch --pty --walltime=1h bash",
            "logs 12345 --follow",
            "logs 12345 --stderr --node=x1000c0s0b0n3",
            "session --walltime=4h",
            "session --nodes=2 --constraint=gpu_type:GH200 --walltime=8h",
            "session --vcluster=interactive --walltime=2h",
            "session list --all",
            "session delete a1b2c3d4",
            "attach 12345",
            "attach 12345 --node=x1000c0s0b0n3",
            "attach a1b2c3d4 -- htop -d 5",
            "attach 12345 --command=nvidia-smi",
            "logs 12345 --tail=100",
            "logs 12345 --since=2026-03-01T10:00:00Z --until=2026-03-01T11:00:00Z",
            "nodes x1000c0s0b0n0",
            "node list",
            "node status",
            "quorum status",
            "quorum recover --plan --config q.yaml",
            "quorum backup --help",
            "node cordon n1 n2 --reason=fan",
            "node cordon n[1-64] --reason=fan --for=2h",
            "node cordon n1 --maintenance --reason=firmware --until=18:00",
            "node uncordon n1 --maintenance",
            "node drain n1 --reason=disk --deadline=4h --wait",
            "node drain n1 --reason=disk --urgent",
            "node undrain n[1-3],n7",
            "node quarantine n1 --reason=ecc",
            "node release n1",
            "node unquarantine n1",
            "node disable n1 --reason=smoke --yes",
            "node enable n1",
            "node fail n[1-2] --reason psu --off --yes",
            "node unwipe n1",
            "node repaired n1",
            "node boot n1",
            "node history n1 --since=2h",
            "node list --state=degraded",
            "node list n[1-4] --state=draining,drained --hold=drain",
            "lease grant a --ttl=10s -o name",
            "lease revoke --bad",
            "admin raft status",
            "admin tenant create --name=physics --max-nodes=100",
            "admin tenant create physics",
            "admin tenant update physics --max-nodes 250 --max-concurrent-allocations 50",
            "admin tenant set-quota --name=physics --max-nodes=none",
            "admin tenant show hospital-a --quotas",
            "admin tenant list",
            "admin vcluster create --name=hpc-batch --scheduler=hpc-backfill --tenant=physics --nodes=x1000c0s0b0n[0-199]",
            "admin vcluster create --name=sensitive --scheduler-type=sensitive-reservation --description=x",
            "admin vcluster set-weights --name=hpc-batch --priority=0.20",
            "admin vcluster set-config --name=hpc-batch --cycle-interval=15s",
            "admin vcluster show hpc-batch",
            "vcluster list",
            "vcluster queue hpc-batch",
            "nodes --vcluster=hpc-batch",
            "submit --service --expose=8080 serve.sh",
            "submit --network-domain=ml-workspace --expose api:8080/http train.sh",
            "network list",
            "network status ml-workspace --tenant physics",
            "service lookup api -o name",
            "admin network pool --start=1000 --end=8191 --grace=15m",
            "admin network set-grace --domain=ml --grace=15m",
            "admin limits --sensitive-pool-size=4",
            "audit query --user=dr-x --since=2026-03-01 --until=2026-03-15",
            "audit query --alloc=12345",
            "audit query --node=x1000c0s0b0n0 --since=2026-03-01 --output=json",
            "audit export --user=dr-x --since=2026-01-01 --until=2026-06-30 --file report.json",
            "audit verify",
            "gossip members",
            "gossip members --suspected",
            "gossip members --counters",
            "gossip watch",
            "gossip watch -o json",
            "gossip keys",
            "gossip keys -o json",
            "gossip keys rotate --no-wait",
            "doctor --config f --help",
            "dev",
        ] {
            if let Err(error) = Cli::try_parse_from(std::iter::once("lattice").chain(line.split(' '))) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_refused_with_what_was_meant() {
        for (line, meant) in [
            ("submit --noodes=4 x", "--nodes"),
            ("statsu", "status"),
            ("status --state=runing", "Running"),
            ("submit --nodes=0 x", "at least 1"),
            ("submit --walltime=soon x", "24h"),
            ("submit --env=A x", "NAME=VALUE"),
            ("cancel", "required"),
            ("cancel 1 --all-mine", "cannot be used"),
            ("launch", "required"),
            ("attach 1 --command=a -- b", "cannot be used"),
            ("node drain n1", "--reason"),
            ("node list --state=redy", "Ready"),
            ("node list --hold=x", "maintenance"),
            ("node cordon n1 --reason=x --for=1h --until=18:00", "cannot be used"),
        ] {
            match Cli::try_parse_from(std::iter::once("lattice").chain(line.split(' '))) {
                Ok(_) => panic!("{line} was taken"),
                Err(error) => {
                    assert_eq!(error.exit_code(), 2, "{line}");
                    assert!(error.to_string().contains(meant), "{line}: {error}");
                }
            }
        }
    }
}
