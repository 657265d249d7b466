//! `sinfo`.

use super::cluster::{expanded, fetch_nodes, fetch_partitions, fetch_reservations};
use super::command_line::{Command, all_or_variable, or_variable};
use super::squeue::wrong_format;
use super::surroundings::Surroundings;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Notation, print};
use lattice_cli_session::session::Session;
use lattice_cli_syntax::slurm_args::sinfo::Sinfo;
use lattice_slurm::format::{Layout, SortKey, sort_keys};
use lattice_slurm::json;
use lattice_slurm::node::{State, Use, reason};
use lattice_slurm::partition::Partition;
use lattice_slurm::scontrol::reservation_table;
use lattice_slurm::sinfo::{self, Group, NODE_FIELDS, Wanted, groups, in_states, sort};
use lattice_slurm::units::listed;
use std::ffi::OsString;
use std::time::Duration;

const SINFO: Command = Command("sinfo");

pub async fn run(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    show(session, args).await
}

async fn show(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    let Some(args) = SINFO.parse::<Sinfo>(args)? else { return Ok(0) };
    let surroundings = Surroundings::read()?;
    SINFO.check_clusters(&args.common.clusters, &surroundings.compat)?;
    if args.reservation {
        let all = fetch_reservations(&session.connect().await?).await?;
        let text = surroundings.with(|context| reservation_table(&all, context));
        print(if all.is_empty() { "No reservations in the system\n" } else { text.as_str() })?;
        return Ok(0);
    }
    let nodes = expanded(&args.nodes)?;
    let is_in_states = in_states(&listed(&args.states)).map_err(wrong_format)?;
    let names = listed(&all_or_variable(&args.partition, "SINFO_PARTITION"));
    let client = session.connect().await?;
    let is_wanted = |node: &v1::Node| {
        let state = State::of(node);
        let is_dead = state.is_silent || state.use_ == Use::Down;
        (nodes.is_empty() || nodes.contains(&node.id))
            && is_in_states(node)
            && (!args.dead || is_dead)
            && (!args.responding || !is_dead)
            && (!args.list_reasons || !reason(node).is_empty())
    };
    loop {
        let all = fetch_nodes(&client).await?;
        let mut partitions = fetch_partitions(&client, &all, &surroundings).await?;
        partitions.retain(|partition| names.is_empty() || names.contains(&partition.name));
        write(&args, partitions, &is_wanted, &surroundings)?;
        let Some(seconds) = args.iterate else { return Ok(0) };
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}

fn write(args: &Sinfo, partitions: Vec<Partition>, wants: &dyn Fn(&v1::Node) -> bool, surroundings: &Surroundings) -> Result<(), Failure> {
    let mut layout = layout(args)?;
    let keys = keys(args)?;
    let notation = if args.data.json.is_some() { Some(Notation::Json) } else { args.data.yaml.as_ref().map(|_| Notation::Yaml) };
    let is_filtered = !args.nodes.is_empty() || !args.states.is_empty() || args.dead || args.list_reasons;
    let wanted = Wanted { by_node: args.by_node, is_exact: args.exact, with_empty: !args.by_node && !is_filtered, wants };
    surroundings.with(|context| {
        let mut lines = groups(partitions, &layout, &wanted, context);
        sort(&mut lines, &keys, context);
        if let Some(notation) = notation {
            return notation.print(&json::nodes(&lines, context));
        }
        // Columns of a format that the user gave have the widths that it gives.
        if args.format.is_none() && args.long_format.is_none() {
            for letter in ['P', 'N'] {
                layout.widen(letter, &lines, context);
            }
        }
        let mut text = String::new();
        if args.iterate.is_some() || (args.long && args.format.is_none()) {
            text = context.clock.text(context.clock.now_ms) + "\n";
        }
        if !args.noheader {
            text.push_str(layout.heading().trim_end());
            text.push('\n');
        }
        for line in &lines {
            text.push_str(&layout.line(line, context));
            text.push('\n');
        }
        print(&text)
    })
}

fn layout(args: &Sinfo) -> Result<Layout<Group>, Failure> {
    if let Some(names) = &args.long_format {
        return Layout::of_names(names, NODE_FIELDS).map_err(wrong_format);
    }
    let default = match (args.list_reasons, args.summarize, args.by_node, args.long) {
        (true, _, _, false) => sinfo::REASONS,
        (true, _, _, true) => sinfo::LONG_REASONS,
        (false, true, ..) => sinfo::SUMMARY,
        (false, false, true, false) => sinfo::NODES,
        (false, false, true, true) => sinfo::LONG_NODES,
        (false, false, false, true) => sinfo::LONG,
        (false, false, false, false) => sinfo::DEFAULT,
    };
    let given = or_variable(args.format.as_ref(), "SINFO_FORMAT");
    Layout::of_letters(given.as_deref().unwrap_or(default), NODE_FIELDS).map_err(wrong_format)
}

/// Without `--sort`, partitions are in their own order, and nodes by name in a list of nodes.
fn keys(args: &Sinfo) -> Result<Vec<SortKey>, Failure> {
    let text = or_variable(args.sort.as_ref(), "SINFO_SORT");
    let text = text.unwrap_or_else(|| String::from(if args.by_node { "N" } else { "" }));
    sort_keys(&text, |letter| NODE_FIELDS.iter().any(|field| field.letter == Some(letter))).map_err(wrong_format)
}
