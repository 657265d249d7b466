//! Values of the cluster, for a shell that completes a command line: ids, nodes, vClusters, tenants, services.
//!
//! The agent answers as it answers any call of this user, with only what the user may see. A completion waits for the
//! agent only briefly, renews no login, and has no values if something fails.

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use lattice_api::allocation::STATES;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::short;
use lattice_cli_session::table::one_line;
use lattice_cli_syntax::args::Global;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

/// The longest time that a user waits for a completion, the connection included.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// The most values of one completion.
const VALUES_MAX: u32 = 200;

/// What is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The user's own allocations; with those that have ended, or without.
    Allocations {
        with_ended: bool,
    },
    Dags,
    Sessions,
    Nodes,
    VClusters,
    Tenants,
    Services,
}

/// Commands that are also about work that has ended.
const ABOUT_ENDED_WORK: [&str; 9] = ["logs", "status", "explain", "retry", "compare", "top", "checkpoint", "requeue", "wait"];

/// The kind of values of an option or argument, by its id; `path`: the names of the command and of the commands before it.
pub fn subject(path: &[&str], arg: &str) -> Option<Subject> {
    // Ids of members and of tokens, and a number of nodes.
    if matches!((path, arg), (["quorum" | "admin", ..], "id" | "ids") | (["submit" | "launch" | "session", ..], "nodes")) {
        return None;
    }
    let is_new = path.last() == Some(&"create");
    match (path, arg) {
        (["dag", ..], "id" | "ids") => Some(Subject::Dags),
        (["session", "delete"], "id") => Some(Subject::Sessions),
        ([first, ..], "id" | "ids" | "alloc" | "depends_on") => {
            Some(Subject::Allocations { with_ended: ABOUT_ENDED_WORK.contains(first) || arg == "depends_on" })
        }
        (_, "node" | "nodes" | "nodelist" | "exclude") => Some(Subject::Nodes),
        (_, "vcluster" | "queue") => Some(Subject::VClusters),
        (["vcluster", ..] | ["admin", "vcluster", ..], "name") if !is_new => Some(Subject::VClusters),
        (_, "tenant" | "of_tenant") => Some(Subject::Tenants),
        (["admin", "tenant", ..], "name") if !is_new => Some(Subject::Tenants),
        (["service", ..], "name") => Some(Subject::Services),
        _ => None,
    }
}

/// The options of the unfinished command line that choose the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    endpoint: Option<String>,
    config: Option<PathBuf>,
}

/// A value, and what it is.
struct Found {
    value: String,
    about: String,
}

impl Source {
    /// Reads the words of an unfinished command line.
    pub fn of(words: &[OsString]) -> Self {
        let value = |option: &str| {
            let behind = words.iter().skip_while(|word| *word != option).skip(1).find(|word| *word != "=").and_then(|word| word.to_str());
            let joined = words.iter().find_map(|word| word.to_str()?.strip_prefix(option)?.strip_prefix('='));
            joined.or(behind).filter(|value| !value.is_empty()).map(str::to_owned)
        };
        Self { endpoint: value("--endpoint"), config: value("--config").map(PathBuf::from) }
    }

    /// Completes values of this kind.
    pub fn completer(&self, subject: Subject) -> ArgValueCompleter {
        let source = self.clone();
        ArgValueCompleter::new(move |typed: &OsStr| source.candidates(subject, &typed.to_string_lossy()))
    }

    fn candidates(&self, subject: Subject, typed: &str) -> Vec<CompletionCandidate> {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
        let found = runtime.block_on(async { tokio::time::timeout(ANSWER_TIMEOUT, self.fetch(subject, typed)).await });
        // A look-up of a name may still be running.
        runtime.shutdown_background();
        let mut found = match found {
            Ok(Ok(found)) => found,
            Ok(Err(_)) | Err(_) => Vec::new(),
        };
        found.retain(|one| one.value.starts_with(typed));
        let candidate = |one: Found| CompletionCandidate::new(one.value).help(Some(one_line(&one.about).into()));
        found.into_iter().map(candidate).collect()
    }

    async fn fetch(&self, subject: Subject, typed: &str) -> Result<Vec<Found>, Failure> {
        let global = Global { endpoint: self.endpoint.clone(), config: self.config.clone(), quiet: true, ..Global::default() };
        let client = Session::without_renewal(&global)?.connect().await?;
        let one = |value: &str, about: &str| Found { value: value.to_owned(), about: about.to_owned() };
        Ok(match subject {
            Subject::Allocations { with_ended } => {
                let live = STATES.iter().filter(|state| !state.is_terminal()).map(ToString::to_string);
                let states = if with_ended { Vec::new() } else { live.collect() };
                let request = v1::ListAllocationsRequest { states, limit: VALUES_MAX, stale: true, ..Default::default() };
                let listed = answer(client.allocations().list(request)).await?.allocations;
                listed.iter().flat_map(|a| allocation(a, typed)).collect()
            }
            Subject::Dags => {
                let request = v1::ListDagsRequest { limit: VALUES_MAX, ..Default::default() };
                let listed = answer(client.dags().list(request)).await?.dags;
                listed.iter().map(|dag| one(short(&dag.id), &format!("{} ({})", dag.name, dag.state))).collect()
            }
            Subject::Sessions => {
                let listed = answer(client.sessions().list(v1::ListSessionsRequest { all_users: false })).await?.sessions;
                listed.iter().map(|session| one(short(&session.id), &session.node)).collect()
            }
            Subject::Nodes => {
                let listed = answer(client.nodes().list(v1::ListNodesRequest { stale: true, or_gossip: true })).await?.nodes;
                listed.iter().map(|node| one(&node.id, &node.state)).collect()
            }
            Subject::VClusters => {
                let listed = answer(client.vclusters().list(v1::ListVClustersRequest {})).await?.vclusters;
                listed.iter().map(|vcluster| one(&vcluster.name, &vcluster.scheduler)).collect()
            }
            Subject::Tenants => match answer(client.admin().list_tenants(v1::ListTenantsRequest {})).await {
                Ok(listed) => listed.tenants.iter().map(|tenant| one(&tenant.name, "tenant")).collect(),
                // A user who may not list all tenants can still see their own.
                Err(_) => {
                    let me = answer(client.admin().who_am_i(v1::WhoAmIRequest {})).await?;
                    me.member_of.iter().map(|tenant| one(tenant, "tenant")).collect()
                }
            },
            Subject::Services => {
                let listed = answer(client.admin().list_services(v1::ListServicesRequest { tenant: None })).await?.services;
                listed.iter().map(|service| one(&service.name, &service.tenant)).collect()
            }
        })
    }
}

/// The id of an allocation, and its job number if the user has begun to type one.
fn allocation(a: &v1::Allocation, typed: &str) -> Vec<Found> {
    let about = format!("{} ({})", a.name, a.state);
    let types_number = !typed.is_empty() && typed.bytes().all(|byte| byte.is_ascii_digit());
    let number = (a.number > 0 && types_number).then(|| Found { value: a.number.to_string(), about: format!("job, {about}") });
    std::iter::once(Found { value: short(&a.id).to_owned(), about }).chain(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_completed_depends_on_the_command() {
        let cases: [(&[&str], &str, Option<Subject>); 13] = [
            (&["cancel"], "ids", Some(Subject::Allocations { with_ended: false })),
            (&["logs"], "id", Some(Subject::Allocations { with_ended: true })),
            (&["submit"], "depends_on", Some(Subject::Allocations { with_ended: true })),
            (&["dag", "cancel"], "ids", Some(Subject::Dags)),
            (&["session", "delete"], "id", Some(Subject::Sessions)),
            (&["admin", "token", "revoke"], "id", None),
            (&["submit"], "nodes", None),
            (&["submit"], "nodelist", Some(Subject::Nodes)),
            (&["node", "drain"], "nodes", Some(Subject::Nodes)),
            (&["status"], "vcluster", Some(Subject::VClusters)),
            (&["admin", "vcluster", "create"], "name", None),
            (&["admin", "tenant", "show"], "name", Some(Subject::Tenants)),
            (&["submit"], "name", None),
        ];
        for (path, arg, want) in cases {
            assert_eq!(subject(path, arg), want, "{path:?} {arg}");
        }
    }

    #[test]
    fn a_job_number_is_offered_to_who_types_one() {
        let a =
            v1::Allocation { id: "1f0c9a4e-5b7d".into(), name: "sim".into(), state: "Running".into(), number: 12, ..Default::default() };
        let offered = |typed| allocation(&a, typed).into_iter().map(|one| format!("{} {}", one.value, one.about)).collect::<Vec<_>>();
        assert_eq!(offered(""), ["1f0c9a4e sim (Running)"]);
        assert_eq!(offered("1"), ["1f0c9a4e sim (Running)", "12 job, sim (Running)"]);
        assert_eq!(offered("1f"), ["1f0c9a4e sim (Running)"]);
    }

    #[test]
    fn options_before_the_typed_word_choose_the_agent() {
        let of = |line: &str| Source::of(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        let want = Source { endpoint: Some("unix:/a".into()), config: Some("c.yaml".into()) };
        assert_eq!(of("lattice --config=c.yaml cancel --endpoint unix:/a 1"), want);
        assert_eq!(of("lattice --config = c.yaml cancel --endpoint = unix:/a 1"), want);
        assert_eq!(of("lattice cancel 1"), Source::default());
    }
}
