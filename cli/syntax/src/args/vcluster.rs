//! `lattice vcluster …` and `lattice admin vcluster …`.

use crate::UsageError;
use crate::flags::{TimeError, parse_walltime};
use crate::time::parse_cycle_interval;
use clap::{Args, Subcommand, ValueEnum};
use lattice_model::weights::NotAWeight;
use lattice_model::{Factor, Weight, millis};
use std::num::ParseFloatError;
use thiserror::Error;

/// Written by hand: the parser would put NAME before COMMAND, and there is one or the other.
const VCLUSTER_USAGE: &str = "lattice vcluster [OPTIONS] <NAME>\n       lattice vcluster [OPTIONS] <COMMAND>";

// Without `args_conflicts_with_subcommands`: after an option, the parser would read a command as a name.
#[derive(Args)]
#[command(arg_required_else_help = true, override_usage = VCLUSTER_USAGE)]
pub struct VCluster {
    #[command(subcommand)]
    command: Option<VClusterCommand>,
    /// Show this vCluster, as `show NAME` does
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

impl VCluster {
    /// The command; a name alone means `show NAME`.
    ///
    /// # Errors
    /// Neither a command nor a name is given, or both are.
    pub fn into_command(self) -> Result<VClusterCommand, UsageError> {
        match (self.command, self.name) {
            (Some(command), None) => Ok(command),
            (None, Some(name)) => Ok(VClusterCommand::Show(VClusterToShow { name })),
            (None, None) => Err(UsageError::new("neither a vCluster nor a command is given").with_hint(
                "`lattice vcluster NAME` shows one, `lattice vcluster list` lists them, `lattice vcluster --help` shows the commands",
            )),
            (Some(_), Some(name)) => Err(UsageError::new(format!("{name:?} and a command after it: give one of them"))
                .with_hint("`lattice vcluster NAME` shows a vCluster, `lattice vcluster --help` the commands")),
        }
    }
}

#[derive(Subcommand)]
pub enum VClusterCommand {
    /// List the vClusters: tenant, nodes, how much waits and runs, and which agent schedules each
    List,
    /// Show what waits in a vCluster, the next one first
    Queue(VClusterQueue),
    /// Show one vCluster: its settings, and what runs and is planned in it as a chart
    Show(VClusterToShow),
}

#[derive(Args)]
pub struct VClusterToShow {
    /// The vCluster
    #[arg(value_name = "NAME")]
    pub name: String,
}

#[derive(Args)]
pub struct VClusterQueue {
    /// The vCluster
    #[arg(default_value = lattice_model::DEFAULT_VCLUSTER)]
    pub name: String,
}

const VCLUSTER_EXAMPLES: &str = "Examples:
  lattice admin vcluster create debug --scheduler interactive-fifo \\
      --nodes n[1-4]
      a queue with four nodes that no other queue uses from now on
  lattice admin vcluster create physics --scheduler hpc-backfill \\
      --tenant physics
      a queue for the work of one tenant, on nodes that belong to no vCluster
  lattice admin vcluster set-config debug --nodes n[1-6]
      the whole list of its nodes; work that runs on other nodes continues there

The vCluster \"default\" always exists. It has the work that names no vCluster,
and the nodes that belong to no other. Its scheduler is hpc-backfill.";

#[derive(Args)]
#[command(after_help = VCLUSTER_EXAMPLES)]
pub struct VClusterAdmin {
    #[command(subcommand)]
    pub command: AdminVCluster,
}

#[derive(Subcommand)]
pub enum AdminVCluster {
    /// Create a vCluster
    Create(CreateVCluster),
    /// Change the tenant, the nodes, the interval of a vCluster, or what it lends and borrows; work that already waits
    /// or runs there stays
    SetConfig(SetVCluster),
    /// Change how much each factor counts in the order of its queue, from the next round of its scheduler on
    SetWeights(SetWeights),
    /// List the vClusters
    List,
    /// Show one vCluster
    Show(VClusterName),
    /// Delete a vCluster that has no work; its nodes belong to the default then
    Delete(VClusterName),
}

impl AdminVCluster {
    /// The command or option in this call that is documented but not implemented.
    pub fn unbuilt(&self) -> Option<&'static str> {
        match self {
            Self::Create(CreateVCluster { settings, .. }) | Self::SetConfig(SetVCluster { settings, .. }) => settings.unbuilt(),
            Self::SetWeights(_) | Self::List | Self::Show(_) | Self::Delete(_) => None,
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
    /// How its queue is scheduled: hpc-backfill (by class and score, with reservations for those that wait first; others
    /// overtake them where that delays none), ml-training or service-bin-pack (the same with other weights), or
    /// interactive-fifo (first come, first served)
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

const WEIGHTS_EXAMPLES: &str = "Examples:
  lattice admin vcluster set-weights batch --fair-share 0.35 --wait-time 0.2
      these two; the others stay as they are
  lattice admin vcluster set-weights batch --profile ml-training
      all weights of a profile
  lattice admin vcluster set-weights batch --profile default
      those of its scheduler again

Profiles are hpc-batch, ml-training, service, sensitive and interactive.
Work of a higher class comes first, whatever the weights are. `lattice explain`
shows the score of work that waits, term by term.";

#[derive(Args)]
#[command(after_help = WEIGHTS_EXAMPLES)]
pub struct SetWeights {
    #[command(flatten)]
    pub name: VClusterName,
    /// First take all weights of this profile, or of its scheduler (`default`)
    #[arg(long, value_name = "PROFILE")]
    pub profile: Option<String>,
    /// Of the preemption class, from 0 to 10
    #[arg(long, value_name = "WEIGHT", value_parser = parse_weight, allow_negative_numbers = true)]
    priority: Option<Weight>,
    /// Of the time of waiting
    #[arg(long, value_name = "WEIGHT", value_parser = parse_weight, allow_negative_numbers = true)]
    wait_time: Option<Weight>,
    /// Of how much less its tenant has used than its share
    #[arg(long, value_name = "WEIGHT", value_parser = parse_weight, allow_negative_numbers = true)]
    fair_share: Option<Weight>,
    /// Of how few topology groups it needs
    #[arg(long, value_name = "WEIGHT", value_parser = parse_weight, allow_negative_numbers = true)]
    topology: Option<Weight>,
    /// Of how much of its data is near; for now the same for all
    #[arg(long, value_name = "WEIGHT", value_parser = parse_weight, allow_negative_numbers = true)]
    data_readiness: Option<Weight>,
    /// Of how much work waits
    #[arg(long, value_name = "WEIGHT", value_parser = parse_weight, allow_negative_numbers = true)]
    backlog: Option<Weight>,
    /// Of how cheap energy is; for now the same for all
    #[arg(long, value_name = "WEIGHT", value_parser = parse_weight, allow_negative_numbers = true)]
    energy: Option<Weight>,
    /// Of how fast it saves itself
    #[arg(long, value_name = "WEIGHT", value_parser = parse_weight, allow_negative_numbers = true)]
    checkpoint: Option<Weight>,
    /// Of how alike its nodes are; for now the same for all
    #[arg(long, value_name = "WEIGHT", value_parser = parse_weight, allow_negative_numbers = true)]
    conformance: Option<Weight>,
}

impl SetWeights {
    /// The weights that are given.
    pub fn given(&self) -> impl Iterator<Item = (Factor, Weight)> {
        let of = |factor| match factor {
            Factor::Priority => self.priority,
            Factor::WaitTime => self.wait_time,
            Factor::FairShare => self.fair_share,
            Factor::Topology => self.topology,
            Factor::DataReadiness => self.data_readiness,
            Factor::Backlog => self.backlog,
            Factor::Energy => self.energy,
            Factor::Checkpoint => self.checkpoint,
            Factor::Conformance => self.conformance,
        };
        Factor::ALL.into_iter().filter_map(move |factor| Some((factor, of(factor)?)))
    }
}

/// The text is not a weight.
#[derive(Debug, Clone, PartialEq, Error)]
enum WeightError {
    #[error(transparent)]
    NotANumber(#[from] ParseFloatError),
    #[error(transparent)]
    NotAWeight(#[from] NotAWeight),
}

fn parse_weight(text: &str) -> Result<Weight, WeightError> {
    Ok(Weight::new(text.parse()?)?)
}

#[derive(Args)]
pub struct VClusterSettings {
    /// Take only the work of this tenant; `none`: of all tenants
    #[arg(long, value_name = "NAME|none")]
    pub tenant: Option<String>,
    /// All nodes that belong only to this vCluster, such as n1,n2 or n[1-8]; `none`: it uses the nodes of the vCluster
    /// "default"
    #[arg(long, value_name = "HOSTLIST|none")]
    pub nodes: Option<String>,
    /// The shortest time between two rounds of its scheduler, such as 5s; 0: a round follows each change
    #[arg(long, value_name = "TIME", value_parser = parse_cycle_interval)]
    pub cycle_interval: Option<u64>,
    /// Whether its work may use idle nodes that other vClusters lend, where too few of its own are free
    #[arg(long, value_name = "yes|no", num_args = 0..=1, require_equals = true, default_missing_value = "yes")]
    pub borrow: Option<Answer>,
    /// Lend its idle nodes to work of vClusters that borrow: work with a walltime of this at most, that saves itself or
    /// is requeued always; `none`: to nobody
    #[arg(long, value_name = "TIME|none", value_parser = parse_lend)]
    pub lend: Option<u64>,
    #[arg(long, hide = true)]
    description: Option<String>,
}

/// Yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Answer {
    Yes,
    No,
}

/// Parses a time, and returns milliseconds; `none` is 0.
fn parse_lend(text: &str) -> Result<u64, TimeError> {
    if text == "none" { Ok(0) } else { Ok(millis(parse_walltime(text)?)) }
}

impl VClusterSettings {
    fn unbuilt(&self) -> Option<&'static str> {
        self.description.is_some().then_some("--description")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    /// The command of a line, and its vCluster.
    fn command(line: &str) -> Result<(&'static str, String), UsageError> {
        let cli = Cli::try_parse_from(std::iter::once("lattice").chain(line.split(' '))).unwrap_or_else(|e| panic!("{line}: {e}"));
        let Command::VCluster(args) = cli.command else { panic!("{line} is another command") };
        Ok(match args.0.into_command()? {
            VClusterCommand::List => ("list", String::new()),
            VClusterCommand::Queue(args) => ("queue", args.name),
            VClusterCommand::Show(args) => ("show", args.name),
        })
    }

    #[test]
    fn a_name_alone_shows_that_vcluster() {
        for (line, want) in [
            ("vcluster physics", ("show", "physics")),
            ("vcluster -o json physics", ("show", "physics")),
            ("vcluster physics -o json", ("show", "physics")),
            ("vcluster lst", ("show", "lst")),
            ("vcluster show list", ("show", "list")),
            ("vcluster list", ("list", "")),
            ("vcluster -o json list", ("list", "")),
            ("vcluster queue", ("queue", "default")),
            ("vcluster queue physics", ("queue", "physics")),
        ] {
            assert_eq!(command(line), Ok((want.0, want.1.to_owned())), "{line}");
        }
    }

    #[test]
    fn a_name_and_a_command_are_refused_and_so_is_neither() {
        let refused = command("vcluster physics list").unwrap_err();
        assert!(refused.what.contains("\"physics\" and a command") && refused.hint.is_some(), "{refused}");
        let refused = command("vcluster -o json").unwrap_err();
        assert!(refused.what.contains("neither") && refused.hint.is_some(), "{refused}");
    }
}
