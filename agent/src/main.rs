//! `lattice-agent`: the agent of one node.

use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};
use lattice_agent::doctor::{self, Health};
use lattice_agent::recovery::Unusable;
use lattice_agent::{dev, own_memory, packers, run};
use lattice_agent_common::config::AgentConfig;
use lattice_model::with_causes;
use lattice_pki::tls::TlsFiles;
use lattice_runtime::failpoint::Point;
use lattice_telemetry::logging::Form as LogForm;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The agent of a Lattice node: it runs and measures all work on its node.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, after_help = environment_help())]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Serve,
}

fn environment_help() -> String {
    format!("{}\n{}", lattice_telemetry::logging::HELP, own_memory::HELP)
}

#[derive(Args)]
struct Serve {
    /// The agent's configuration file (YAML).
    #[arg(long, default_value = "/etc/lattice/agent.yaml")]
    config: PathBuf,
    /// Start even if the state on disk is that of another node or was written by a newer version: move it aside, and
    /// ask the shims on this node what runs here. Work without a shim is reported as lost.
    #[arg(long)]
    recover: bool,
    #[command(flatten)]
    bootstrap: Bootstrap,
}

/// A certificate in place of the configured one (`tls`): all three files or none, each also from its variable.
#[derive(Args)]
struct Bootstrap {
    /// A certificate (PEM) in place of the configured one; needs its key and its authority's certificate too [env:
    /// LATTICE_BOOTSTRAP_CERT]
    #[arg(long, value_name = "FILE")]
    bootstrap_cert: Option<PathBuf>,
    /// The key of --bootstrap-cert, PEM [env: LATTICE_BOOTSTRAP_KEY]
    #[arg(long, value_name = "FILE")]
    bootstrap_key: Option<PathBuf>,
    /// The certificate of the authority of --bootstrap-cert, PEM [env: LATTICE_BOOTSTRAP_CA]
    #[arg(long, value_name = "FILE")]
    bootstrap_ca: Option<PathBuf>,
}

impl Bootstrap {
    fn files(&self) -> anyhow::Result<Option<TlsFiles>> {
        let given = |flag: &Option<PathBuf>, variable: &str| {
            flag.clone().or_else(|| std::env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from))
        };
        let cert = given(&self.bootstrap_cert, "LATTICE_BOOTSTRAP_CERT");
        let key = given(&self.bootstrap_key, "LATTICE_BOOTSTRAP_KEY");
        match (cert, key, given(&self.bootstrap_ca, "LATTICE_BOOTSTRAP_CA")) {
            (Some(cert), Some(key), Some(ca)) => Ok(Some(TlsFiles { ca, cert, key })),
            (None, None, None) => Ok(None),
            _ => anyhow::bail!("--bootstrap-cert, --bootstrap-key and --bootstrap-ca belong together: give all three"),
        }
    }
}

#[derive(Subcommand)]
enum Command {
    /// Run a whole cluster in this process (one quorum member and one agent with all roles), to try things out.
    Dev(DevArgs),
    /// Check this machine, and say what is missing and how to fix it.
    Doctor {
        /// The agent's configuration file (YAML), for checks that depend on it [default: the default settings].
        #[arg(long)]
        config: Option<PathBuf>,
        /// The format of the report.
        #[arg(long, short, value_enum, default_value_t = Form::Table)]
        output: Form,
    },
    /// For the agent itself: print the topology that hwloc finds on this machine, as XML.
    #[command(hide = true)]
    HwlocXml,
    /// For the agent itself: compress files that arrive on a socket, which is standard input.
    #[command(hide = true)]
    PackFiles,
    /// For tests: list the points at which LATTICE_FAILPOINT makes an agent kill itself: part, work, name.
    #[command(hide = true)]
    Failpoints,
}

/// Formats of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Aligned columns for people
    #[value(alias = "wide")]
    Table,
    Json,
    Yaml,
}

#[derive(Args)]
struct DevArgs {
    /// The directory for all files of the cluster [default: lattice-dev-<uid> in the directory for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// A directory on a disk for the allocations' scratch [default: in memory].
    #[arg(long)]
    scratch_dir: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        None => return serve(&cli.serve),
        Some(Command::Dev(args)) => {
            // A person tries this out and reads the log, so always text.
            LogForm::Text.begin("agent", None);
            own_memory::wanted().and_then(|memory| in_runtime(|stop| dev::run(args.dir, args.scratch_dir, memory, stop)))
        }
        Some(Command::Doctor { config, output }) => return report(config.as_deref(), output),
        Some(Command::HwlocXml) => lattice_runtime::topology::hwloc::export().map_err(anyhow::Error::msg).and_then(|xml| {
            std::io::stdout().write_all(&xml)?;
            Ok(())
        }),
        Some(Command::PackFiles) => packers::serve(),
        Some(Command::Failpoints) => {
            for point in Point::ALL {
                println!("{:?}\t{:?}\t{point}", point.part(), point.work());
            }
            return ExitCode::SUCCESS;
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", with_causes(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn read_config(path: &Path) -> anyhow::Result<AgentConfig> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{}: the configuration cannot be read", path.display()))?;
    let config: AgentConfig = lattice_model::config::parse(&path.display().to_string(), &text)?;
    config.validate().with_context(|| path.display().to_string())?;
    Ok(config)
}

fn serve(args: &Serve) -> ExitCode {
    let form = match LogForm::wanted() {
        Ok(form) => form,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let memory = match own_memory::wanted() {
        Ok(memory) => memory,
        Err(error) => {
            eprintln!("error: {}", with_causes(error.as_ref()));
            return ExitCode::FAILURE;
        }
    };
    let config = configured(args);
    form.begin("agent", config.as_ref().ok().map(|config| config.node_id.as_str()));
    let unusable = if args.recover { Unusable::SetAside } else { Unusable::Refuse };
    match config.and_then(|config| in_runtime(|stop| run(config, unusable, memory, stop))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            form.log_fatal("error", &with_causes(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn configured(args: &Serve) -> anyhow::Result<AgentConfig> {
    let mut config = read_config(&args.config)?;
    if let Some(files) = args.bootstrap.files()? {
        config.tls = files;
    }
    Ok(config)
}

/// Runs `work` in a runtime, with a token that SIGTERM and SIGINT cancel.
fn in_runtime<F>(work: impl FnOnce(CancellationToken) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    lattice_agent::footprint::share_heaps();
    lattice_agent_common::limits::raise_open_files();
    die_of_panics();
    // With several processors, at least one is left for what is not asynchronous: the journal's
    // thread, shims, the work itself.
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get().saturating_sub(1).clamp(1, 8));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).max_blocking_threads(64).enable_all().build()?;
    let done = runtime.block_on(async {
        let stop = CancellationToken::new();
        let on_signal = stop.clone();
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let _signals = AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            on_signal.cancel();
        }));
        work(stop).await
    });
    // A blocking call (a copy of an image, a kernel call) must not keep the process alive.
    runtime.shutdown_background();
    done
}

/// Aborts on any panic: a panicked task would leave an agent that works only in part, while a
/// restarted agent finds all its work again.
fn die_of_panics() {
    let report_panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report_panic(panic);
        std::process::abort();
    }));
}

/// The width of standard output's lines, in characters: `COLUMNS`, or else that of the terminal.
/// `None`: no limit.
fn columns() -> Option<usize> {
    let requested = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
    requested.or_else(|| lattice_runtime::pty::columns_of(&std::io::stdout()))
}

fn report(config: Option<&Path>, form: Form) -> ExitCode {
    let config = match config.map(read_config) {
        None => AgentConfig::default(),
        Some(Ok(config)) => config,
        Some(Err(error)) => {
            eprintln!("error: {}", with_causes(error.as_ref()));
            return ExitCode::FAILURE;
        }
    };
    let findings = doctor::examine(&config);
    let text = match form {
        Form::Table => findings.iter().map(|finding| finding.lines(columns())).collect(),
        Form::Json => serde_json::to_string_pretty(&findings).unwrap_or_default() + "\n",
        Form::Yaml => lattice_model::config::write(&findings).unwrap_or_default(),
    };
    // A reader that has seen enough (`| head`) is no error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    if findings.iter().any(|f| f.health == Health::Missing) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
