//! `lattice nodes` and `lattice node …`.

use clap::{Args, Subcommand};
use lattice_model::{HoldKind, NodeState};
use thiserror::Error;

#[derive(Args)]
pub struct NodeSelection {
    /// One node, or a list such as n[1-64],login
    pub node: Option<String>,
    /// Show the state that one member of the quorum has, which may be old; this works even without a majority. Its age
    /// is shown
    #[arg(long)]
    pub stale: bool,
}

#[derive(Args)]
pub struct ListNodes {
    #[command(flatten)]
    pub nodes: NodeSelection,
    /// Show only nodes in these states: ready, degraded, down, draining, drained, booting, failed
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = parse_state, conflicts_with = "watch")]
    pub state: Vec<NodeState>,
    /// Show only nodes under this hold: cordon, maintenance, quarantine, drain, disable, failure, wipe
    #[arg(long, value_name = "HOLD", value_parser = parse_hold, conflicts_with = "watch")]
    pub hold: Option<HoldKind>,
    /// Show only nodes of this vCluster
    #[arg(long, value_name = "NAME", conflicts_with_all = ["watch", "node"])]
    pub vcluster: Option<String>,
    /// After the list, print a line for each change of a node; not for changes of its work or of what gossip knows
    #[arg(short, long, conflicts_with = "stale")]
    pub watch: bool,
}

const NODE_HELP: &str = "What keeps new work off a node, and what lifts that again:
  cordon                no new work (you say how long)   uncordon
  cordon --maintenance  the same, for planned work       uncordon --maintenance
  quarantine            no new work: it is not trusted   release
  drain                 no new work, Drained when empty  undrain, at any time
  disable               Down now; its work is ended      enable
  fail                  Down now: its hardware failed    repaired
  wipe                  no new work until it is wiped    the wipe itself; unwipe

NODES are names or lists such as n[1-64],login. A command for several nodes
prints a line for each, and continues where one is refused; its exit code is 4
when any was refused. All commands but list, status and history are for
operators, and admit and remove for system admins. To others, history shows
their own records alone. Root may also use fingerprint.";

#[derive(Args)]
#[command(after_help = NODE_HELP)]
pub struct Node {
    #[command(subcommand)]
    pub command: NodeCommand,
}

#[derive(Subcommand)]
pub enum NodeCommand {
    /// Show what the agent knows of its own node, even without a quorum, and what a drain of it waits for. Of other
    /// nodes: what the quorum knows, and what their agents report
    Status(NodeSelection),
    /// List the nodes, or some of them; without a quorum, what gossip knows of them
    List(ListNodes),
    /// Admit new nodes, which then register by themselves within seconds; or list the nodes that wait for that
    Admit(Admit),
    /// Remove nodes that are Drained or Down and have no work: the cluster forgets them, and refuses them until they are
    /// admitted anew
    Remove(Remove),
    /// Show what happened to nodes (registrations, states, holds), the newest last
    History(History),
    /// Keep new work and leases off nodes; the work that runs there continues
    Cordon(Cordon),
    /// Lift a cordon
    Uncordon(Uncordon),
    /// Keep new work off nodes; they are Drained when their work has ended
    Drain(Drain),
    /// Take drained nodes back into service, or cancel a drain
    Undrain(OnNodes),
    /// Keep new work and leases off nodes that are broken or not trusted
    Quarantine(WithReason),
    /// Lift a quarantine
    #[command(alias = "unquarantine")]
    Release(OnNodes),
    /// Take nodes out of service at once; their work is ended, and requeued if its --requeue says so
    Disable(Disable),
    /// Take disabled nodes back into service; each is in service as soon as its agent reports
    Enable(OnNodes),
    /// Report that the hardware of nodes failed: they are Down at once. Work with --on-isolation=stop is
    /// ended; other work starts elsewhere only on evidence that it has ended
    Fail(Fail),
    /// Report that failed nodes are repaired; each is in service as soon as its agent reports
    Repaired(OnNodes),
    /// Report that nodes are being booted: each is back in service when it registers with a new boot id, and is Failed
    /// if it does not register in time
    Boot(Boot),
    /// Confirm that nothing runs any more on nodes that do not answer: their work is ended, and starts elsewhere if
    /// its --requeue says so
    ConfirmDead(ConfirmDead),
    /// Keep new work off nodes, and run the site's wipe hook on each when its work has ended
    Wipe(Wipe),
    /// Cancel a wipe that still waits for work to end
    Unwipe(OnNodes),
    /// Have nodes read their drivers, firmware, kernel and image again
    Fingerprint(Fingerprint),
    /// Accept the present drivers, firmware, kernel and image of nodes that have drifted
    AcceptDrift(WithReason),
}

const ADMIT_HELP: &str = "A certificate alone does not let a node register. With `node_admission: listed`
in the members' configuration (the default), only nodes may register that have
registered before, or whose names were admitted here. A node may be admitted
before it is installed. Once registered it stays known: `lattice node disable`
takes it out of service, and `lattice node remove` removes it. A removed node
needs a new admission, also where members admit all nodes.

Examples:
  lattice node admit --list
      the nodes that wait, with their addresses, and the nodes that are admitted
      and have not registered yet
  lattice node admit n[1-64] --reason 'rack 4'
  lattice node admit --withdraw n7
      n7 may not register after all, unless it already has";

#[derive(Args)]
#[command(after_help = ADMIT_HELP)]
pub struct Admit {
    /// The nodes
    #[arg(value_name = "NODES", required_unless_present = "list", conflicts_with = "list")]
    pub nodes: Vec<String>,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT", default_value = lattice_model::NO_REASON)]
    pub reason: String,
    /// Withdraw admissions of nodes that have not registered yet
    #[arg(long)]
    pub withdraw: bool,
    /// List the nodes that wait for admission, and the admitted nodes that have not registered yet
    #[arg(long, conflicts_with = "withdraw")]
    pub list: bool,
}

const REMOVE_HELP: &str = "For machines that leave the cluster. Work of the past keeps naming them. Their
holds, and the vCluster that they belonged to, are forgotten: if they are
admitted again, they register as new nodes. A machine that died with work is
removed after `lattice node confirm-dead`, and may return after it was booted.
Certificates stay valid: `lattice quorum ca revoke` ends those of a machine that
is not yours any more.

Examples:
  lattice node drain n[1-8] --wait --reason 'rack 4 is sold'
  lattice node remove n[1-8] --reason 'rack 4 is sold' --yes
  lattice node admit n3 --reason 'bought back'
      n3 may register again; its agent does so within seconds if it runs";

#[derive(Args)]
#[command(after_help = REMOVE_HELP)]
pub struct Remove {
    #[command(flatten)]
    pub on: OnNodes,
    /// Why, for the audit log, and for those who look for the node
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Do not ask whether the nodes may be removed
    #[arg(long)]
    pub yes: bool,
}

const WIPE_HELP: &str = "The work that runs there continues, and until it has ended `lattice node unwipe`
cancels the wipe. Then the agent runs its hooks.wipe. If the hook exits with 0,
the node is in service again. If not, the node is quarantined, with the last
lines of the hook as the reason, until a wipe with --force succeeds.";

#[derive(Args)]
#[command(after_help = WIPE_HELP)]
pub struct Wipe {
    #[command(flatten)]
    pub with: MayGiveReason,
    /// Repeat a wipe that failed
    #[arg(long)]
    pub force: bool,
    /// Do not ask whether the data may be wiped
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args)]
pub struct Fingerprint {
    /// The nodes [default: the node of the agent that is asked]
    #[arg(value_name = "NODES")]
    pub nodes: Vec<String>,
}

#[derive(Args)]
pub struct OnNodes {
    /// The nodes
    #[arg(required = true, value_name = "NODES")]
    pub nodes: Vec<String>,
}

#[derive(Args)]
pub struct WithReason {
    #[command(flatten)]
    pub on: OnNodes,
    /// The reason, which is shown to those who wait for the node
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

/// For commands that the documents also write without a reason.
#[derive(Args)]
pub struct MayGiveReason {
    #[command(flatten)]
    pub on: OnNodes,
    /// The reason, which is shown to those who wait for the node
    #[arg(long, value_name = "TEXT", default_value = lattice_model::NO_REASON)]
    pub reason: String,
}

const TIMES: &str = "A time is 2026-03-01T18:00:00Z, a day (its beginning in UTC), or 18:00 (the next
18:00 in UTC).";

#[derive(Args)]
#[command(after_help = TIMES)]
pub struct Cordon {
    #[command(flatten)]
    pub with: WithReason,
    /// End the cordon at this time, by the quorum's clock [default: it stays until it is lifted]
    #[arg(long, value_name = "TIME", conflicts_with = "for_long")]
    pub until: Option<String>,
    /// End the cordon after this time: 90s, 30m, 2h (a bare number is seconds)
    #[arg(long = "for", id = "for_long", value_name = "DURATION")]
    pub for_long: Option<String>,
    /// Hold the nodes for planned work, apart from any other cordon
    #[arg(long)]
    pub maintenance: bool,
}

#[derive(Args)]
pub struct Uncordon {
    #[command(flatten)]
    pub on: OnNodes,
    /// Lift the hold for planned work, not the cordon
    #[arg(long)]
    pub maintenance: bool,
}

const DRAIN_HELP: &str = "Examples:
  lattice node drain n[1-8] --reason 'new firmware' --wait
      no new work there; the command ends when all eight are Drained
  lattice node drain n7 --reason disk --deadline 4h
      work that still runs after four hours is ended, and requeued if its
      --requeue says so
  lattice node drain n7 --reason memory --urgent --deadline 10m --wait --yes
      work that can save its state does so now and continues elsewhere; work
      that still runs after ten minutes is ended

A deadline is a time from now (90s, 30m, 4h), or 2026-03-01T18:00:00Z, or 18:00
(the next 18:00 in UTC).";

#[derive(Args)]
#[command(after_help = DRAIN_HELP)]
pub struct Drain {
    #[command(flatten)]
    pub with: MayGiveReason,
    /// When work that still runs is ended, and requeued if its --requeue says so [default: it runs until it ends]
    #[arg(long, value_name = "WHEN")]
    pub deadline: Option<String>,
    /// Wait until all of them are Drained, and print what they wait for
    #[arg(long)]
    pub wait: bool,
    /// Have work that can (--checkpoint) save its state now and continue elsewhere; other work runs until it ends, or
    /// until the deadline
    #[arg(long)]
    pub urgent: bool,
    /// Do not ask whether work may lose its nodes
    #[arg(long, requires = "urgent")]
    pub yes: bool,
}

#[derive(Args)]
pub struct Disable {
    #[command(flatten)]
    pub with: MayGiveReason,
    /// Do not ask whether the work there may be ended
    #[arg(long)]
    pub yes: bool,
}

const FAIL_HELP: &str = "For people, and for programs that watch power supplies, memory and buses. Work
that may not run twice (--on-isolation=stop) is ended at once. Other work
continues if it can; `--off` confirms that the nodes are powered off, and such
work then starts elsewhere.";

#[derive(Args)]
#[command(after_help = FAIL_HELP)]
pub struct Fail {
    #[command(flatten)]
    pub with: WithReason,
    /// Also confirm that they are powered off. Caution: work that still runs there would then run twice
    #[arg(long)]
    pub off: bool,
    /// Do not ask whether they are off
    #[arg(long, requires = "off")]
    pub yes: bool,
}

#[derive(Args)]
pub struct Boot {
    #[command(flatten)]
    pub on: OnNodes,
    /// The reason, for the audit log
    #[arg(long, value_name = "TEXT", default_value = "asked for")]
    pub reason: String,
}

#[derive(Args)]
pub struct ConfirmDead {
    #[command(flatten)]
    pub on: OnNodes,
    /// Do not ask whether the nodes are powered off or all their work has ended. Caution: work that still runs would
    /// then run twice
    #[arg(long)]
    pub yes: bool,
    /// How you know that, for the audit log
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

#[derive(Args)]
pub struct History {
    /// The nodes
    #[arg(required = true, value_name = "NODES")]
    pub nodes: Vec<String>,
    /// Begin at this time: 2026-03-01T10:00:00Z, a day, or a time ago (90s, 10m, 2h, 1d)
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
}

/// The text is not a node's state.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the states are {}", NodeState::ALL.map(|state| state.to_string()).join(", "))]
struct UnknownState;

fn parse_state(text: &str) -> Result<NodeState, UnknownState> {
    NodeState::from_name(text).ok_or(UnknownState)
}

/// The text is not a kind of hold.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the holds are {}", HoldKind::ALL.map(|kind| kind.to_string()).join(", "))]
struct UnknownHold;

fn parse_hold(text: &str) -> Result<HoldKind, UnknownHold> {
    HoldKind::from_name(text).ok_or(UnknownHold)
}
