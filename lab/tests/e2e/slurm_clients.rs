//! Programs that people use with Slurm, unchanged, against our commands of Slurm's names.

use crate::harness::{Group, JOB, Need, World, machine};
use lattice_lab::process::{self, Finished};
use libtest_mimic::Trial;
use std::path::{Path, PathBuf};
use std::process::Command;

static CLIENTS: Group = Group::small("slurm_clients");

const NEEDS: &[Need] = &[Need::SlurmClients];

pub fn trials() -> Vec<Trial> {
    vec![
        CLIENTS.test("submitit_runs_arrays_and_ranks_and_sees_failures", NEEDS, submitit),
        CLIENTS.test("dask_jobqueue_has_workers_as_jobs", NEEDS, dask),
        CLIENTS.test("parsl_runs_programs_on_a_block_of_nodes", NEEDS, parsl),
        CLIENTS.test("psij_follows_jobs_to_their_end", NEEDS, psij),
        CLIENTS.test("snakemake_runs_a_workflow", NEEDS, snakemake),
        CLIENTS.test("reframe_checks_a_job", NEEDS, reframe),
    ]
}

/// The directory in which a program runs, with Slurm's commands in its PATH.
struct Place {
    dir: PathBuf,
    commands: PathBuf,
    python: PathBuf,
    socket: PathBuf,
}

impl Place {
    fn make(w: &World, name: &str) -> Self {
        let dir = w.dir.join(format!("client-{name}"));
        let commands = w.dir.join("slurm-commands");
        if !commands.exists() {
            std::fs::create_dir_all(&commands).unwrap();
            w.ok(&["compat", "install", "--dir", &commands.to_string_lossy()]);
        }
        std::fs::create_dir_all(&dir).unwrap();
        let python = machine().slurm_clients.clone().expect("it is needed");
        Self { dir, commands, python, socket: w.lattice.socket().to_owned() }
    }

    fn run(&self, program: &Path, args: &[&str]) -> Finished {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command.args(args).current_dir(&self.dir).env("HOME", &self.dir).env_remove("XDG_STATE_HOME").env_remove("XDG_CONFIG_HOME");
        command.env("PATH", format!("{}:{}/bin:{path}", self.commands.display(), self.python.display()));
        command.env("LATTICE_ENDPOINT", format!("unix:{}", self.socket.display()));
        // The workers' connections stay on this machine, without a proxy.
        for proxy in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
            command.env_remove(proxy);
        }
        let finished = process::run(&mut command, 2 * JOB).unwrap();
        assert!(!finished.timed_out, "{} hangs; so far: {}{}", program.display(), finished.out(), finished.err());
        finished
    }

    /// Runs a Python program of ours that calls the client; returns what it prints.
    fn python(&self, text: &str) -> String {
        let program = self.dir.join("program.py");
        std::fs::write(&program, text).unwrap();
        let done = self.run(&self.python.join("bin/python"), &[&program.to_string_lossy(), &self.dir.to_string_lossy()]);
        assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
        done.out()
    }
}

fn submitit(w: &World) {
    let printed = Place::make(w, "submitit").python(include_str!("slurm_clients/submitit_run.py"));
    let want = "array [11, 22, 33]\nranks [(0, 4, 2), (1, 4, 2), (2, 4, 2), (3, 4, 2)]\nfailure True\ncancelled CANCELLED\n";
    assert_eq!(printed, want);
    w.assert_nothing_left();
}

fn dask(w: &World) {
    let printed = Place::make(w, "dask").python(include_str!("slurm_clients/dask_run.py"));
    assert_eq!(printed, "squares [0, 1, 4, 9]\n");
    w.assert_nothing_left();
}

fn parsl(w: &World) {
    let printed = Place::make(w, "parsl").python(include_str!("slurm_clients/parsl_run.py"));
    assert_eq!(printed, "doubled [0, 2, 4, 6]\nprogram 0\n");
    w.assert_nothing_left();
}

fn psij(w: &World) {
    let printed = Place::make(w, "psij").python(include_str!("slurm_clients/psij_run.py"));
    assert_eq!(printed, "two COMPLETED ['hello', 'hello']\nbad FAILED 1\nlong CANCELED\n");
    w.assert_nothing_left();
}

fn snakemake(w: &World) {
    let place = Place::make(w, "snakemake");
    std::fs::write(place.dir.join("Snakefile"), include_str!("slurm_clients/Snakefile")).unwrap();
    let options = [
        "--executor",
        "slurm",
        "--jobs",
        "2",
        "--default-resources",
        "slurm_account=none",
        "slurm_partition=default",
        "--slurm-init-seconds-before-status-checks",
        "1",
        "--seconds-between-status-checks",
        "1",
        "--latency-wait",
        "5",
    ];
    let done = place.run(&place.python.join("bin/snakemake"), &options);
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    assert_eq!(std::fs::read_to_string(place.dir.join("sum.txt")).unwrap(), "1\n2\n");
    w.assert_nothing_left();
}

fn reframe(w: &World) {
    let place = Place::make(w, "reframe");
    let write = |name: &str, text: &str| {
        let path = place.dir.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let settings = write("settings.py", include_str!("slurm_clients/reframe_settings.py"));
    let test = write("two_ranks.py", include_str!("slurm_clients/reframe_test.py"));
    let done = place.run(&place.python.join("bin/reframe"), &["-C", &settings, "-c", &test, "-r"]);
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    assert!(done.out().contains("Ran 1/1 test case(s) from 1 check(s) (0 failure(s)"), "{}", done.out());
    w.assert_nothing_left();
}
