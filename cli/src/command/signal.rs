//! `lattice signal` and `lattice requeue`. Each continues after a failure; the exit code is that of the first failure.

use super::preempt::{print_done, report_failure};
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::short;
use lattice_cli_syntax::args::signal::{Requeue, Signal, SignalTarget};
use lattice_model::count::counted;

pub async fn signal(session: &Session, args: Signal) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let (mut sent, mut exit) = (Vec::new(), 0);
    for typed in &args.ids {
        let asked = match session.resolve_key(typed) {
            Ok(key) => {
                let request = v1::SignalRequest { key, signal: args.signal.number().into(), to: args.to.name().to_owned() };
                answer(client.allocations().signal(request)).await
            }
            Err(failure) => Err(failure),
        };
        match asked {
            Ok(response) => {
                if let Some(failure) = unsent(&response, args.to) {
                    exit = report_failure(failure, exit);
                }
                sent.push(response);
            }
            Err(failure) => exit = report_failure(failure, exit),
        }
    }
    let processes = |response: &v1::SignalResponse| response.nodes.iter().map(|node| u64::from(node.processes)).sum::<u64>();
    match session.format() {
        Format::Table => {
            let line = |response: &v1::SignalResponse| {
                let nodes = response.nodes.iter().filter(|node| node.processes > 0).count() as u64;
                let got = match processes(response) {
                    1 => "1 process".to_owned(),
                    more => format!("{more} processes"),
                };
                let on = counted(nodes, "node");
                format!("Sent {} to {got} of allocation {} on {on}\n", args.signal, short(&response.id))
            };
            print(&sent.iter().filter(|response| processes(response) > 0).map(line).collect::<String>())?;
        }
        Format::Name => print_names(sent.iter().filter(|response| processes(response) > 0).map(|response| response.id.as_str()))?,
        Format::Data(notation) => {
            let node = |node: &v1::signal_response::Node| {
                let failed = Some(&node.failed).filter(|failed| !failed.is_empty());
                serde_json::json!({ "node": node.node, "processes": node.processes, "failed": failed })
            };
            let list = sent
                .iter()
                .map(|response| serde_json::json!({ "id": response.id, "nodes": response.nodes.iter().map(node).collect::<Vec<_>>() }));
            notation.print(&list.collect::<Vec<_>>())?;
        }
    }
    Ok(exit)
}

/// The failure if some nodes did not confirm the signal, or if no process got it.
fn unsent(response: &v1::SignalResponse, to: SignalTarget) -> Option<Failure> {
    let id = short(&response.id);
    let failed: Vec<String> =
        response.nodes.iter().filter(|node| !node.failed.is_empty()).map(|node| format!("node {}: {}", node.node, node.failed)).collect();
    if !failed.is_empty() {
        return Some(Failure::new(Exit::Unavailable, format!("allocation {id}: {}", failed.join("; "))));
    }
    if response.nodes.iter().any(|node| node.processes > 0) {
        return None;
    }
    let (whom, hint) = match to {
        SignalTarget::Ranks | SignalTarget::Launches => ("rank", format!("`lattice signal {id} --to script` signals its script")),
        SignalTarget::Script => ("script", format!("`lattice signal {id}` signals its ranks")),
    };
    Some(Failure::new(Exit::Refused, format!("no {whom} of allocation {id} runs now: nothing was sent")).hint(hint))
}

pub async fn requeue(session: &Session, args: Requeue) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let (mut done, mut exit) = (Vec::new(), 0);
    for typed in args.ids {
        let asked = match session.resolve_key(&typed) {
            Ok(key) => answer(client.allocations().requeue(v1::RequeueRequest { key, reason: args.reason.clone() })).await,
            Err(failure) => Err(failure),
        };
        match asked {
            Ok(response) => done.push((response.id, "Pending".to_owned())),
            Err(failure) => exit = report_failure(failure, exit),
        }
    }
    print_done(session, &done, |(id, _)| format!("Allocation {} is back in the queue\n", short(id)))?;
    Ok(exit)
}
