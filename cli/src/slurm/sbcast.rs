//! `sbcast`: copies a file to every node of the allocation, by a launch of one rank on each node that reads the file as
//! its standard input.

use super::arguments;
use crate::command::launch;
use clap::{ArgAction, Parser};
use lattice_cli_session::failure::Failure;
use lattice_cli_session::message::write_message_line;
use lattice_cli_session::session::Session;
use lattice_cli_syntax::args::launch::Launch;
use lattice_cli_syntax::flags::{SubmitFlags, Wireup};
use lattice_model::Stdin;
use lattice_slurm::job_id::JobId;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// The script that runs on each node: `$1` the destination, `$2` its mode, `$3` its size in bytes, `$4` whether an existing
/// file is replaced, `$5` its time of modification (empty: now). The file gets its name only when it is complete. On a file
/// system that several nodes share, the first node makes it, and the others find the same content.
const RECEIVE: &str = r#"
umask 077
[ -d "$1" ] && { echo "$1 is a directory on $LATTICE_NODE" >&2; exit 1; }
part=$(mktemp "$1.sbcast.XXXXXXXX") || exit 1
trap 'rm -f "$part"' EXIT
cat > "$part" || exit 1
[ "$(wc -c < "$part")" -eq "$3" ] || { echo "$1 is incomplete on $LATTICE_NODE" >&2; exit 1; }
chmod "$2" "$part" || exit 1
[ -z "$5" ] || touch -d "@$5" "$part" || exit 1
if [ "$4" = replace ]; then mv -f "$part" "$1"; exit; fi
ln "$part" "$1" 2>/dev/null && exit 0
cmp -s "$part" "$1" && exit 0
if [ -e "$1" ]; then echo "$1 exists on $LATTICE_NODE: File exists" >&2; else ln "$part" "$1"; fi
exit 1
"#;

#[derive(Debug, Parser)]
#[command(name = "sbcast", about = "Copy a file to every node of this job", disable_version_flag = true)]
struct Options {
    /// Accepted; nothing is compressed, and the file arrives the same
    #[arg(short = 'C', long = "compress", num_args = 0..=1, require_equals = true, hide = true)]
    _compress: Option<Option<String>>,
    /// Accepted; it is for --send-libs
    #[arg(long = "exclude", value_name = "LIST", hide = true)]
    _exclude: Option<String>,
    /// Accepted; the launch's tree has its own fanout
    #[arg(short = 'F', long = "fanout", value_name = "N", hide = true)]
    _fanout: Option<u32>,
    /// Replace a file that is there
    #[arg(short, long)]
    force: bool,
    /// The job [default: this one]
    #[arg(short, long, value_name = "JOB")]
    jobid: Option<String>,
    /// Keep the times of the file; its mode is always kept
    #[arg(short, long)]
    preserve: bool,
    /// Refused: libraries are not sent along
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", hide = true)]
    send_libs: Option<String>,
    /// Accepted; pieces have their own size
    #[arg(short = 's', long = "size", value_name = "BYTES", hide = true)]
    _size: Option<String>,
    /// Accepted; a node that is lost ends the launch
    #[arg(short = 't', long = "timeout", value_name = "SECONDS", hide = true)]
    _timeout: Option<u64>,
    /// Report what is copied
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// The file on this node
    source: String,
    /// Its name on every node; a relative one begins at the current directory
    dest: String,
}

pub async fn run(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    let Some(options) = arguments::parse::<Options>("sbcast", args)? else { return Ok(0) };
    if options.send_libs.as_deref().is_some_and(|given| given != "no") {
        return Err(Failure::usage("--send-libs is not possible: libraries are not sent along")
            .hint("put the program and its libraries into an image (--uenv), or copy them one by one"));
    }
    let is_set = |name: &str| std::env::var(name).is_ok_and(|value| !value.is_empty() && value != "0");
    let (force, preserve) = (options.force || is_set("SBCAST_FORCE"), options.preserve || is_set("SBCAST_PRESERVE"));
    let alloc = allocation(options.jobid.as_deref())?;
    let cannot = |error: std::io::Error| Failure::usage(format!("Can't open `{}`: {error}", options.source));
    let file = File::open(&options.source).map_err(cannot)?;
    let about = file.metadata().map_err(cannot)?;
    if !about.is_file() {
        return Err(Failure::usage(format!("`{}` is not a file", options.source)));
    }
    let dir = std::env::current_dir().map_err(|error| Failure::other(format!("cannot find the working directory: {error}")))?;
    let dest = dir.join(&options.dest);
    let dest = dest.to_str().ok_or_else(|| Failure::usage("the destination's name is not UTF-8"))?;
    if options.verbose > 0 {
        write_message_line(format_args!("{} bytes of {} to {dest}", about.len(), options.source));
    }
    nix::unistd::dup2_stdin(&file).map_err(|error| cannot(error.into()))?;
    let command = command(dest, &about, force, preserve);
    Box::pin(launch::run(session, launch(alloc, command, &dir))).await
}

/// The allocation that is named; `None`: the one of this process.
fn allocation(jobid: Option<&str>) -> Result<Option<String>, Failure> {
    let Some(typed) = jobid else {
        return match launch::own_allocation() {
            Some(_) => Ok(None),
            None => Err(Failure::usage("Need a job id to run this command").hint("call it in a job's script, or with --jobid")),
        };
    };
    let id = typed.parse::<JobId>().map_err(|error| Failure::usage(error.to_string()))?;
    id.key_with_task().map(Some).ok_or_else(|| Failure::usage(format!("--jobid={typed} names several jobs")))
}

fn command(dest: &str, about: &Metadata, force: bool, preserve: bool) -> Vec<String> {
    let mode = format!("{:o}", about.permissions().mode() & 0o7777);
    let time = if preserve { about.mtime().to_string() } else { String::new() };
    let replace = if force { "replace" } else { "keep" };
    ["/bin/sh", "-c", RECEIVE, "sbcast", dest, &mode, &about.len().to_string(), replace, &time].map(str::to_owned).into()
}

/// One rank on each node; all of them read standard input, and one that fails does not end the others.
fn launch(alloc: Option<String>, command: Vec<String>, dir: &Path) -> Launch {
    let mut flags =
        SubmitFlags { tasks_per_node: Some(1), pmi: Some(Wireup::None), chdir: dir.to_str().map(str::to_owned), ..SubmitFlags::default() };
    flags.layout.no_kill_on_bad_exit = true;
    Launch { label: false, pty: false, stdin: Some(Stdin::All), exit_table: None, alloc, per_rank: false, flags, command }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::io::Write;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    struct Dir(PathBuf);

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Runs the script of a node; returns its exit code and its messages.
    fn receive(dest: &Path, source: &Path, content: &[u8], force: bool) -> (i32, String) {
        let about = std::fs::metadata(source).unwrap();
        let argv = command(dest.to_str().unwrap(), &about, force, true);
        let mut child =
            Command::new(&argv[0]).args(&argv[1..]).env("LATTICE_NODE", "n1").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(content).unwrap();
        let done = child.wait_with_output().unwrap();
        (done.status.code().unwrap(), String::from_utf8(done.stderr).unwrap())
    }

    #[test]
    fn the_options_are_those_of_slurm() {
        Options::command().debug_assert();
        let given = Options::try_parse_from(["sbcast", "-fpC", "-s", "8m", "-F4", "a", "/tmp/a"]).unwrap();
        assert_eq!((given.force, given.preserve, given.source.as_str(), given.dest.as_str()), (true, true, "a", "/tmp/a"));
    }

    #[test]
    fn a_file_is_made_whole_with_its_mode_and_replaced_only_on_request() {
        let dir = Dir(std::env::temp_dir().join(format!("lattice-sbcast-{}", uuid::Uuid::new_v4())));
        std::fs::create_dir_all(&dir.0).unwrap();
        let (source, dest) = (dir.0.join("source"), dir.0.join("dest"));
        std::fs::write(&source, "new\n").unwrap();
        std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o750)).unwrap();
        assert_eq!(receive(&dest, &source, b"new\n", false), (0, String::new()));
        let about = std::fs::metadata(&dest).unwrap();
        assert_eq!((about.permissions().mode() & 0o7777, about.mtime()), (0o750, std::fs::metadata(&source).unwrap().mtime()));
        assert_eq!(receive(&dest, &source, b"new\n", false), (0, String::new()), "another node of the same file system");
        std::fs::write(&dest, "old\n").unwrap();
        let (code, why) = receive(&dest, &source, b"new\n", false);
        assert!(code == 1 && why.contains("exists on n1: File exists"), "{why}");
        assert_eq!(receive(&dest, &source, b"ne", true).0, 1, "it is incomplete");
        assert_eq!(std::fs::read(&dest).unwrap(), b"old\n");
        assert_eq!(receive(&dest, &source, b"new\n", true), (0, String::new()));
        assert_eq!(std::fs::read(&dest).unwrap(), b"new\n");
        assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 2, "no parts are left");
    }
}
