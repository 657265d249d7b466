//! `lattice-mpi-launcher [OPTIONS OF SSH] HOST COMMAND`: this program under another name, which the `mpirun` of an MPI
//! library calls instead of ssh inside an allocation.
//!
//! The process that the library starts is not one of our ranks: it is a single process on the node HOST, without the
//! variables of ranks. Unless HOST is the allocation's first node, where launches are recorded, the launch also has a
//! process on that node, which ends at once.

use super::launch::{Ending, ExitAfterSignal, LaunchOutput, follow_launch};
use lattice_api::v1;
use lattice_api::v1::launch_shape::RankPlace;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::follow::Screen;
use lattice_cli_session::label::Marks;
use lattice_cli_session::request::{Surroundings, task_variables};
use lattice_cli_session::retries::Retries;
use lattice_cli_session::session::Session;
use lattice_cli_syntax::args::Global;
use lattice_model::binding::{CpuBind, GpuBind};
use lattice_model::launch::{PMI_VARIABLE, Pmi};
use lattice_model::spec::RANK_WIREUP;
use lattice_model::{NodeId, hostlist};
use std::env;
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

/// The name by which MPI libraries call this program.
const NAME: &str = "lattice-mpi-launcher";
/// Options of ssh with a value.
const SSH_OPTIONS_WITH_VALUE: &str = "BbcDEeFIiJLlmOoPpQRSWw";
/// Our own variables that only a rank has.
const RANK_VARIABLES: &str = "LATTICE_RANK|LATTICE_LOCAL_RANK|LATTICE_LOCAL_SIZE|LATTICE_NPROCS|LATTICE_LAUNCH_ID";
/// Login shells whose syntax the libraries know: a library writes its command for the user's shell.
const SHELLS: [&str; 7] = ["sh", "bash", "dash", "ksh", "zsh", "csh", "tcsh"];
const SHELL_DEFAULT: &str = "/bin/sh";

/// Whether this process was called by the name `NAME`.
pub fn is_called() -> bool {
    env::args_os().next().is_some_and(|called| Path::new(&called).file_name() == Some(OsStr::new(NAME)))
}

/// Runs the launcher, and returns the command's exit code.
pub fn main() -> ExitCode {
    let global = Global { quiet: true, ..Global::default() };
    let arguments =
        env::args_os().skip(1).map(|a| a.into_string().map_err(|_| Failure::usage(format!("{NAME}: an argument that is not UTF-8"))));
    let done = arguments.collect::<Result<Vec<_>, _>>().and_then(|arguments| Call::parse(&arguments)).and_then(|call| {
        let session = Session::new(&global)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::other(format!("cannot start: {error}")))?;
        runtime.block_on(run(&session, call))
    });
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.about(NAME).beside_a_program().report(),
    }
}

/// The library's request.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    host: String,
    user: Option<String>,
    /// A command for a shell.
    command: String,
}

impl Call {
    /// Parses the arguments. Options that a library adds are for ssh; since there is no ssh connection, all are ignored
    /// except `-l USER`.
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut user = None;
        let mut rest = arguments.iter();
        let host = loop {
            let Some(argument) = rest.next() else {
                return Err(Failure::usage(format!("{NAME}: the host is missing")).hint(format!("mpirun calls it, as {NAME} HOST COMMAND")));
            };
            let Some(letters) = argument.strip_prefix('-').filter(|letters| !letters.is_empty()) else { break argument };
            let Some((at, letter)) = letters.char_indices().find(|(_, c)| SSH_OPTIONS_WITH_VALUE.contains(*c)) else { continue };
            let value = match &letters[at + 1..] {
                "" => rest.next().cloned(),
                value => Some(value.to_owned()),
            };
            if letter == 'l' {
                user = value;
            }
        };
        let (host, user) = match host.rsplit_once('@') {
            Some((of, host)) => (host, Some(of.to_owned())),
            None => (host.as_str(), user),
        };
        let command = rest.map(String::as_str).collect::<Vec<_>>().join(" ");
        if command.trim().is_empty() {
            return Err(Failure::usage(format!("{NAME}: the command for {host} is missing"))
                .hint("`lattice attach --node` opens a terminal on a node"));
        }
        Ok(Self { host: host.to_owned(), user, command })
    }
}

/// The id of this process's allocation, and its nodes in their order.
fn nodes() -> Result<(String, Vec<NodeId>), Failure> {
    let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
    let (Some(allocation), Some(list)) = (variable("LATTICE_ALLOC_ID"), variable("LATTICE_NODELIST")) else {
        return Err(Failure::new(Exit::Refused, "this process is in no allocation, and mpirun starts programs only inside one")
            .hint("run mpirun in a script (lattice submit), in lattice session or in lattice attach"));
    };
    let nodes: Result<Vec<NodeId>, _> = list.split(',').map(str::parse).collect();
    nodes.map(|nodes| (allocation, nodes)).map_err(|error| Failure::usage(format!("LATTICE_NODELIST: {error}")))
}

/// The node that a library names: by its full name, or by the part of the name before the first dot if only one node
/// has that part, because some libraries use only that part.
fn find_node<'a>(host: &str, nodes: &'a [NodeId]) -> Result<&'a NodeId, Failure> {
    if let Some(node) = nodes.iter().find(|node| node.as_str() == host) {
        return Ok(node);
    }
    let first = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let mut alike = nodes.iter().filter(|node| first(node.as_str()) == first(host));
    match (alike.next(), alike.next()) {
        (Some(node), None) => Ok(node),
        (Some(_), Some(_)) => Err(Failure::new(Exit::Refused, format!("{host} may be more than one of the allocation's nodes"))
            .hint("use full names, with orte_keep_fqdn_hostnames (PRRTE: prte_keep_fqdn_hostnames) set to 1")),
        (None, _) => Err(Failure::new(Exit::Refused, format!("{host} is not one of the allocation's nodes ({})", hostlist::fold(nodes)))
            .hint("leave out lists of hosts: mpirun finds the allocation's nodes by itself")),
    }
}

/// The program that runs on each of the launch's nodes: it exits on a node other than `node`, and becomes the command
/// on `node`. It closes the PMI socket and removes the variables of ranks, because the process is not a rank.
fn program(node: &NodeId, shell: &str, command: String) -> Vec<String> {
    let wireup: String = RANK_WIREUP.iter().map(|prefix| format!("{prefix}*|")).collect();
    let script = format!(
        "test \"$LATTICE_NODE\" = \"$1\" || exit 0\n\
         case \"$PMI_FD\" in [3-9]) eval \"exec $PMI_FD>&-\" ;; esac\n\
         for v in $(env | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p'); do case $v in {wireup}{RANK_VARIABLES}) unset \"$v\" ;; esac; done\n\
         exec \"$2\" -c \"$3\""
    );
    ["/bin/sh", "-c", &script, NAME, node.as_str(), shell].map(str::to_owned).into_iter().chain([command]).collect()
}

async fn run(session: &Session, call: Call) -> Result<u8, Failure> {
    let (allocation, nodes) = nodes()?;
    let node = find_node(&call.host, &nodes)?;
    let account = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    if let Some(user) = call.user.filter(|user| account.as_ref().is_none_or(|a| a.name != *user)) {
        return Err(
            Failure::new(Exit::Refused, format!("user {user}: an allocation's processes run as its owner")).hint("leave the user out")
        );
    }
    let shell = account.map(|a| a.shell).filter(|shell| shell.file_name().is_some_and(|name| SHELLS.iter().any(|s| name == *s)));
    let shell = shell.as_ref().and_then(|shell| shell.to_str()).unwrap_or(SHELL_DEFAULT);
    let around = Surroundings::read(None)?;
    let mut env = around.env;
    env.extend(task_variables());
    // The library's daemon is not a rank, and gives PMI to its own ranks.
    env.insert(PMI_VARIABLE.to_owned(), Pmi::None.name().to_owned());
    let place = |node: &NodeId| RankPlace { node: node.to_string(), ranks: 1 };
    let places: Vec<RankPlace> = nodes.first().filter(|head| *head != node).into_iter().chain([node]).map(place).collect();
    let request = v1::LaunchRequest {
        id: uuid::Uuid::new_v4().to_string(),
        allocation,
        argv: program(node, shell, call.command),
        ranks: u32::try_from(places.len()).unwrap_or_default(),
        tasks_per_node: 1,
        working_dir: around.dir.to_str().ok_or_else(|| Failure::usage("the working directory's name is not UTF-8"))?.to_owned(),
        env,
        // The exit code of the daemon is for the library: it must not end the launch.
        shape: Some(v1::LaunchShape { places, on_bad_exit: "keep".to_owned(), ..Default::default() }),
        // The daemon gets all of the allocation's resources on its node, and the library divides them.
        binding: Some(v1::RankBinding {
            cpu_bind: CpuBind::NAMES.iter().find(|(_, bind)| *bind == CpuBind::None).map_or("", |(name, _)| name).to_owned(),
            gpu_bind: GpuBind::NAMES.iter().find(|(_, bind)| *bind == GpuBind::None).map_or("", |(name, _)| name).to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let shown = LaunchOutput { screen: Screen::new(Marks::default()), table: None, tasks: None };
    let retries = Retries::within_allocation();
    let client = retries.connect(session).await?;
    let ending = Ending { exit_after_signal: ExitAfterSignal::AtOnce, limit: None };
    follow_launch(session, client, &request, shown, None, ending, retries).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Call, u8> {
        Call::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).map_err(|failure| failure.exit())
    }

    #[test]
    fn options_of_ssh_are_ignored_and_the_rest_is_for_a_shell() {
        let call = |user: Option<&str>| Ok(Call { host: "n2".into(), user: user.map(str::to_owned), command: "a \"b\" -c".into() });
        for (line, user) in [
            ("-x n2 a \"b\" -c", None),
            ("n2 a \"b\" -c", None),
            ("-qTx -p 22 -oBatchMode=yes -o X=y -n n2 a \"b\" -c", None),
            ("-l u n2 a \"b\" -c", Some("u")),
            ("-xlu n2 a \"b\" -c", Some("u")),
            ("u@n2 a \"b\" -c", Some("u")),
        ] {
            assert_eq!(read(line), call(user), "{line}");
        }
        for line in ["", "-x", "-p 22", "n2", "-l", "n2  "] {
            assert_eq!(read(line), Err(2), "{line:?}");
        }
    }

    #[test]
    fn a_host_is_a_node_by_its_full_name_or_by_a_unique_first_part() {
        let nodes = ["a.x", "b.x", "b.y", "c"].map(|n| n.parse::<NodeId>().unwrap());
        let of = |host: &str| find_node(host, &nodes).map(|n| n.to_string()).map_err(|failure| failure.text());
        assert_eq!(["a.x", "a", "b.y", "c", "c.z"].map(of), ["a.x", "a.x", "b.y", "c", "c"].map(|n| Ok(n.to_owned())));
        assert!(of("b").is_err_and(|text| text.contains("more than one")));
        assert!(of("d").is_err_and(|text| text.contains("not one of the allocation's nodes")));
    }

    #[test]
    fn the_command_runs_only_on_its_node_and_without_the_variables_of_ranks() {
        let run = |here: &str| {
            let argv = program(
                &"n2".parse().unwrap(),
                "/bin/sh",
                "echo \"$PMI_RANK$LATTICE_RANK$PMIX_ID-$LATTICE_ALLOC_ID-$KEPT\"; exit 7".into(),
            );
            let given = [
                ("LATTICE_NODE", here),
                ("PMI_RANK", "1"),
                ("LATTICE_RANK", "1"),
                ("PMIX_ID", "a\nKEPT=no"),
                ("LATTICE_ALLOC_ID", "x"),
                ("KEPT", "y"),
            ];
            let done = std::process::Command::new(&argv[0]).args(&argv[1..]).envs(given).output().unwrap();
            (done.status.code(), String::from_utf8(done.stdout).unwrap())
        };
        assert_eq!(run("n2"), (Some(7), "-x-y\n".to_owned()));
        assert_eq!(run("n1"), (Some(0), String::new()));
    }
}
