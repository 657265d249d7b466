//! `lattice nodes` and `lattice node …`.

use clap::{Args, Subcommand};
use lattice_model::{HoldKind, NodeState};

#[derive(Args)]
pub struct Nodes {
    /// One node, or a list such as n[1-64],login
    pub node: Option<String>,
    /// As one member of the quorum has them, agreed with nobody: also without a majority. Their age is said
    #[arg(long)]
    pub stale: bool,
}

#[derive(Args)]
pub struct ListNodes {
    #[command(flatten)]
    pub nodes: Nodes,
    /// Only those in these states: ready, degraded, down, draining, drained, booting, failed
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = state, conflicts_with = "watch")]
    pub state: Vec<NodeState>,
    /// Only those under this hold: cordon, maintenance, quarantine, drain, disable, failure, wipe
    #[arg(long, value_name = "HOLD", value_parser = hold, conflicts_with = "watch")]
    pub hold: Option<HoldKind>,
    /// Only those of this vCluster
    #[arg(long, value_name = "NAME", conflicts_with_all = ["watch", "node"])]
    pub vcluster: Option<String>,
    /// Then a line for each change, without what is on the nodes and what gossip says of them
    #[arg(short, long, conflicts_with = "stale")]
    pub watch: bool,
}

const NODE_HELP: &str = "What keeps new work off a node, and what lifts it:
  cordon        no new work, for as long as is said          uncordon
  maintenance   the same, for planned work on the node       uncordon --maintenance
  quarantine    the same, for a node that is not trusted     release
  drain         the same, then Drained when it is empty      undrain, at any time
  disable       Down at once, what runs there is ended       enable
  fail          Down at once, its hardware failed            repaired
  wipe          no new work until the node has wiped itself  that; unwipe, before it begins

NODES are names or lists such as n[1-64],login. A command for several nodes says a line for each and goes on where one is
refused; it ends with 4 when any was. All but list, status and --help are for operators.";

#[derive(Args)]
#[command(after_help = NODE_HELP)]
pub struct Node {
    #[command(subcommand)]
    pub what: NodeCommand,
}

#[derive(Subcommand)]
pub enum NodeCommand {
    /// What the agent knows of its own node, quorum or not, and what a drain there waits for; for others, what the quorum has
    /// and what they say themselves, which needs no quorum
    Status(Nodes),
    /// List the nodes, or some of them; without a quorum as gossip has them
    List(ListNodes),
    /// Admit nodes that the cluster does not know: each registers by itself within seconds. Or show which wait for that
    Admit(Admit),
    /// What happened to nodes: registrations, states, holds; the newest last
    History(History),
    /// Keep new work and leases off nodes; what runs there goes on
    Cordon(Cordon),
    /// Lift that again
    Uncordon(Uncordon),
    /// Keep new work off nodes, and have them Drained when what runs there has ended
    Drain(Drain),
    /// Take drained nodes back into service, or call a drain off that is under way
    Undrain(OnNodes),
    /// Keep new work off nodes that are not trusted, or broken
    Quarantine(WithReason),
    /// Lift that again
    #[command(alias = "unquarantine")]
    Release(OnNodes),
    /// Take nodes out of service at once: what runs there is ended, and requeued where its policy says so
    Disable(Disable),
    /// Lift that again: a node is in service as soon as its agent is heard
    Enable(OnNodes),
    /// Say that the hardware of nodes failed: Down at once; work waits for evidence that it is gone, as on any node that is Down
    Fail(Fail),
    /// Say that it is repaired: a node is in service as soon as its agent is heard
    Repaired(OnNodes),
    /// Say that nodes are being booted: each is back when it registers under another boot id, and Failed when it does not in time
    Boot(Boot),
    /// Vouch that nothing runs any more on nodes that are silent: their work is ended there, and begun elsewhere as it wants
    ConfirmDead(ConfirmDead),
    /// Keep everything new off nodes until each has wiped itself with the site's hook, once nothing runs there any more
    Wipe(Wipe),
    /// Call a wipe back for which something still has to end
    Unwipe(OnNodes),
    /// Have nodes look once more what they are made of: drivers, firmware, kernel, image
    Fingerprint(Fingerprint),
    /// Say that what drifted nodes are made of now is what is expected of them
    AcceptDrift(WithReason),
}

const ADMIT_HELP: &str =
    "A certificate alone makes no node. Where the members' configuration says `node_admission: listed` (the default), a node registers
that the cluster knows, or whose name was admitted here. It may be admitted before it is installed. A node that has registered is known
for good: `lattice node disable` takes it out of service.

Examples:
  lattice node admit --list
      nodes that wait, with their addresses, and admitted ones that have not registered
  lattice node admit n[1-64] --reason 'rack 4'
  lattice node admit --withdraw n7
      n7 may not register after all, as long as it has not";

#[derive(Args)]
#[command(after_help = ADMIT_HELP)]
pub struct Admit {
    /// The nodes
    #[arg(value_name = "NODES", required_unless_present = "list", conflicts_with = "list")]
    pub nodes: Vec<String>,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT", default_value = lattice_model::NO_REASON)]
    pub reason: String,
    /// Withdraw admissions that were not used yet
    #[arg(long)]
    pub withdraw: bool,
    /// Show which nodes wait for admission, and which are admitted and have not registered
    #[arg(long, conflicts_with = "withdraw")]
    pub list: bool,
}

const WIPE_HELP: &str =
    "What runs there goes on, and `lattice node unwipe` calls the wipe back. When the last share is released the agent runs its wipe_hook; when that ends with 0 the node is in service
again. Where it fails the node is quarantined with what the hook said last, and stays out of service until --force was tried with success.";

#[derive(Args)]
#[command(after_help = WIPE_HELP)]
pub struct Wipe {
    #[command(flatten)]
    pub with: MayGiveReason,
    /// Try one that failed once more
    #[arg(long)]
    pub force: bool,
    /// Do not ask: what the hook wipes is gone
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args)]
pub struct Fingerprint {
    /// The nodes; without any, the one of the agent asked
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
    /// Why: shown to whoever waits for the node
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

/// What the documents write without a reason.
#[derive(Args)]
pub struct MayGiveReason {
    #[command(flatten)]
    pub on: OnNodes,
    /// Why: shown to whoever waits for the node
    #[arg(long, value_name = "TEXT", default_value = lattice_model::NO_REASON)]
    pub reason: String,
}

const TIMES: &str = "A time is 2026-03-01T18:00:00Z, a day (its beginning in UTC), or 18:00 for the next time that it is that in UTC.";

#[derive(Args)]
#[command(after_help = TIMES)]
pub struct Cordon {
    #[command(flatten)]
    pub with: WithReason,
    /// It ends by itself then, by the quorum's clock
    #[arg(long, value_name = "TIME", conflicts_with = "for_long")]
    pub until: Option<String>,
    /// It ends by itself after so long: 90s, 30m, 2h
    #[arg(long = "for", id = "for_long", value_name = "DURATION")]
    pub for_long: Option<String>,
    /// As a hold of its own, for planned work on the node
    #[arg(long)]
    pub maintenance: bool,
}

#[derive(Args)]
pub struct Uncordon {
    #[command(flatten)]
    pub on: OnNodes,
    /// The hold for planned work
    #[arg(long)]
    pub maintenance: bool,
}

const DRAIN_HELP: &str = "Examples:
  lattice node drain n[1-8] --reason 'new firmware' --wait
      no new work there; ends when all eight are Drained
  lattice node drain n7 --reason disk --deadline 4h
      what still runs after four hours is ended, and requeued where its policy says so
  lattice node drain n7 --reason memory --urgent --deadline 10m --wait --yes
      what can save itself does so now and goes on elsewhere; what still runs after ten minutes is ended

A deadline is how long from now (90s, 30m, 4h), or a time: 2026-03-01T18:00:00Z, or 18:00 for the next time that it is that in UTC.";

#[derive(Args)]
#[command(after_help = DRAIN_HELP)]
pub struct Drain {
    #[command(flatten)]
    pub with: MayGiveReason,
    /// What still runs there then is ended, and requeued where its policy says so
    #[arg(long, value_name = "WHEN")]
    pub deadline: Option<String>,
    /// Wait until all of them are Drained, and say what for
    #[arg(long)]
    pub wait: bool,
    /// Have what runs there save itself and go elsewhere, where it can (--checkpoint); other work goes on until it ends, or until the
    /// deadline
    #[arg(long)]
    pub urgent: bool,
    /// Do not ask: what can save itself loses its nodes
    #[arg(long, requires = "urgent")]
    pub yes: bool,
}

#[derive(Args)]
pub struct Disable {
    #[command(flatten)]
    pub with: MayGiveReason,
    /// Do not ask: what runs there is ended
    #[arg(long)]
    pub yes: bool,
}

const FAIL_HELP: &str =
    "For people, and for programs that watch power supplies, memory and buses. Work that may not run twice (--on-isolation=stop) is ended
there at once. Other work goes on where it can: `--off` vouches that the nodes are powered off, and has it begun elsewhere.";

#[derive(Args)]
#[command(after_help = FAIL_HELP)]
pub struct Fail {
    #[command(flatten)]
    pub with: WithReason,
    /// That they are powered off as well: nothing runs there any more. Work that still runs is begun a second time
    #[arg(long)]
    pub off: bool,
    /// Do not ask: they are off
    #[arg(long, requires = "off")]
    pub yes: bool,
}

#[derive(Args)]
pub struct Boot {
    #[command(flatten)]
    pub on: OnNodes,
    /// Why
    #[arg(long, value_name = "TEXT", default_value = "asked for")]
    pub reason: String,
}

#[derive(Args)]
pub struct ConfirmDead {
    #[command(flatten)]
    pub on: OnNodes,
    /// That they are powered off, or that whatever ran there has ended: work that still runs is begun a second time
    #[arg(long)]
    pub yes: bool,
    /// How that is known, for the audit log
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

#[derive(Args)]
pub struct History {
    /// The nodes
    #[arg(required = true, value_name = "NODES")]
    pub nodes: Vec<String>,
    /// Not before this: 2026-03-01T10:00:00Z, a day, or how long ago (90s, 10m, 2h, 1d)
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
}

fn state(text: &str) -> Result<NodeState, String> {
    let names = || NodeState::ALL.map(|state| state.to_string()).join(", ");
    NodeState::from_name(text).ok_or_else(|| format!("there are {}", names()))
}

fn hold(text: &str) -> Result<HoldKind, String> {
    let names = || HoldKind::ALL.map(|kind| kind.to_string()).join(", ");
    HoldKind::from_name(text).ok_or_else(|| format!("there are {}", names()))
}
