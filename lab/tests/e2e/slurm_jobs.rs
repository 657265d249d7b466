//! `sbatch` and `salloc` with job scripts of the usual kinds, and with what people type.

use crate::harness::{Folder, Group, JOB, World, binaries, ended};
use lattice_lab::lattice::text;
use lattice_lab::process::{self, Finished};
use libtest_mimic::Trial;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

static SLURM_JOBS: Group = Group::small("slurm_jobs");

/// The site's names, which some of the scripts use.
const COMPAT: &str = "partition_mapping: {normal: default}\nqos_mapping: {long: 4}\ncluster_name: lab\n";
/// The least number of scripts.
const SCRIPTS_MIN: usize = 30;

pub fn trials() -> Vec<Trial> {
    vec![
        SLURM_JOBS.test("scripts_of_the_usual_kinds_run_or_are_refused_as_they_say", &[], scripts),
        SLURM_JOBS.test("sbatch_prints_what_scripts_parse", &[], answers),
        SLURM_JOBS.test("salloc_runs_a_command_with_the_nodes_and_gives_them_back", &[], allocates),
    ]
}

/// The commands of Slurm, and the site's names.
struct Site {
    folder: Folder,
    endpoint: String,
}

impl Site {
    fn new(w: &World) -> Self {
        let folder = Folder::new("slurm_jobs");
        let programs = folder.0.join("bin");
        std::fs::create_dir(&programs).unwrap();
        for command in ["sbatch", "srun", "salloc", "scontrol"] {
            std::os::unix::fs::symlink(binaries().lattice(), programs.join(command)).unwrap();
        }
        std::fs::write(folder.0.join("compat.yaml"), COMPAT).unwrap();
        Self { folder, endpoint: format!("unix:{}", w.lattice.socket().display()) }
    }

    /// A folder for the files of one job.
    fn jobs(&self, name: &str) -> PathBuf {
        let dir = self.folder.0.join(name);
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    fn command(&self, program: &str, dir: &Path, args: &[&str]) -> Command {
        let programs = self.folder.0.join("bin");
        let mut command = Command::new(programs.join(program));
        let path = std::env::var("PATH").unwrap_or_default();
        command.args(args).current_dir(dir).env("PATH", format!("{}:{path}", programs.display()));
        command.env("LATTICE_COMPAT", self.folder.0.join("compat.yaml")).env("LATTICE_ENDPOINT", &self.endpoint).env("NO_COLOR", "1");
        command
    }

    fn run(&self, program: &str, dir: &Path, args: &[&str]) -> Finished {
        let done = process::run(&mut self.command(program, dir, args), JOB).unwrap();
        assert!(!done.timed_out, "`{program} {}` hangs: {}{}", args.join(" "), done.out(), done.err());
        done
    }
}

/// A script's expectations, in comments such as `# expect: run`.
struct Script {
    name: String,
    path: PathBuf,
    said: BTreeMap<String, Vec<String>>,
}

impl Script {
    fn read(path: PathBuf) -> Self {
        let text = std::fs::read_to_string(&path).unwrap();
        let mut said: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (key, value) in text.lines().filter_map(|line| line.strip_prefix("# ")?.split_once(": ")) {
            said.entry(key.to_owned()).or_default().push(value.to_owned());
        }
        Self { name: path.file_stem().unwrap().to_str().unwrap().to_owned(), path, said }
    }

    fn first(&self, key: &str) -> Option<&str> {
        self.said.get(key).and_then(|values| values.first()).map(String::as_str)
    }

    /// The lines that its file must contain.
    fn prints(&self) -> Vec<String> {
        self.said.get("prints").cloned().unwrap_or_default()
    }
}

fn scripts(w: &World) {
    let site = Site::new(w);
    let all = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/slurm_scripts")).unwrap();
    let mut all: Vec<Script> = all.map(|entry| Script::read(entry.unwrap().path())).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(all.len() >= SCRIPTS_MIN, "there are only {} scripts", all.len());
    let mut running = Vec::new();
    for script in &all {
        let dir = site.jobs(&script.name);
        let file = format!("{}.sh", script.name);
        std::fs::copy(&script.path, dir.join(&file)).unwrap();
        let expected = script.first("expect").unwrap_or_else(|| panic!("{}: # expect: is missing", script.name));
        let args: Vec<&str> = std::iter::once(file.as_str()).chain(script.first("args").unwrap_or_default().split_whitespace()).collect();
        match expected.split_once(' ').unwrap_or((expected, "")) {
            ("run", "") => {
                let done = site.run("sbatch", &dir, &[&["--parsable"], args.as_slice()].concat());
                let code = script.first("code").unwrap_or("0");
                assert_eq!(done.code().to_string(), code, "{}: {}", script.name, done.err());
                running.push((script, dir, done.out().trim().to_owned()));
            }
            ("test-only", "") => {
                let done = site.run("sbatch", &dir, &[&["--test-only"], args.as_slice()].concat());
                let (says, printed) = (done.err(), done.out());
                assert!(done.code() == 0 && printed.is_empty(), "{}: {printed}{says}", script.name);
                assert!(says.contains(" to start at ") || says.contains(" would be accepted"), "{}: {says}", script.name);
            }
            ("refused", why) => {
                let done = site.run("sbatch", &dir, &args);
                assert_eq!((done.code(), done.out().as_str()), (1, ""), "{}: {}", script.name, done.err());
                assert!(done.err().starts_with("sbatch: error: ") && done.err().contains(why), "{}: {}", script.name, done.err());
            }
            _ => panic!("{}: # expect: {expected}", script.name),
        }
    }
    for (script, dir, number) in running {
        assert!(number.bytes().all(|digit| digit.is_ascii_digit()) && !number.is_empty(), "{}: {number:?}", script.name);
        let file = script.first("file").unwrap_or("slurm-{N}.out").replace("{N}", &number);
        let wanted = script.prints();
        let mut found = Vec::new();
        let is_there = process::until(JOB, || {
            found = std::fs::read_to_string(dir.join(&file)).unwrap_or_default().lines().map(str::to_owned).collect();
            if script.first("sorted").is_some() {
                found.sort();
            }
            found == wanted
        });
        assert!(is_there, "{}, job {number}: {file} has {found:?}, not {wanted:?}: {}", script.name, w.run(&["explain", &number]).out());
    }
}

fn answers(w: &World) {
    let site = Site::new(w);
    let dir = site.jobs("answers");
    let done = site.run("sbatch", &dir, &["--wrap", "echo wrapped $SLURM_JOB_NAME", "-t", "5"]);
    let number =
        done.out().strip_prefix("Submitted batch job ").unwrap_or_else(|| panic!("{}{}", done.out(), done.err())).trim().to_owned();
    assert_eq!(w.run(&["wait", &number]).code(), 0);
    assert_eq!(std::fs::read_to_string(dir.join(format!("slurm-{number}.out"))).unwrap(), "wrapped wrap\n");
    // A variable of Slurm's that describes no job may be set, and others may not.
    let set = site.run("sbatch", &dir, &["--parsable", "-t", "5", "--export=ALL,SLURM_X=1", "--wrap", "echo x $SLURM_X"]);
    let number = set.out().trim().to_owned();
    assert_eq!((set.code(), w.run(&["wait", &number]).code()), (0, 0), "{}", set.err());
    assert_eq!(std::fs::read_to_string(dir.join(format!("slurm-{number}.out"))).unwrap(), "x 1\n");
    let wrong = site.run("sbatch", &dir, &["-t", "5", "--export=ALL,SLURM_PROCID=1", "--wrap=true"]);
    assert!(wrong.code() == 1 && wrong.err().contains("SLURM_PROCID"), "{}", wrong.err());
    // Its requests for nodes are shown.
    let asks = site.run("sbatch", &dir, &["--parsable", "-H", "-t", "5", "-w", "n1", "-x", "n2", "--priority=1", "--wrap=true"]);
    assert!(asks.err().contains("--priority=1: behind all work of its class"), "{}", asks.err());
    let asks = asks.out().trim().to_owned();
    let record = site.run("scontrol", &dir, &["show", "job", &asks]).out();
    assert!(record.contains("ReqNodeList=n1 ExcNodeList=n2") && record.contains(" Nice=10000 "), "{record}");
    w.ok(&["cancel", &asks]);
    let quiet = site.run("sbatch", &dir, &["-Q", "--parsable", "-M", "lab", "-H", "-t", "5", "--wrap=true"]);
    let answer = quiet.out().trim().to_owned();
    let held = answer.strip_suffix(";lab").unwrap_or_else(|| panic!("{answer} {}", quiet.err()));
    assert_eq!(w.status(held)["held"], true);
    w.ok(&["cancel", held]);
    // All nodes are held for an hour, so it would begin later.
    let nodes = w.lattice.json(&["nodes"]).unwrap().as_array().unwrap().len().to_string();
    let free = site.run("sbatch", &dir, &["--test-only", "-t", "5", "--wrap=true"]).err();
    assert!(free.contains("Job 0 to start at ") && free.contains(" processors on nodes n"), "{free}");
    // The site's name of the default queue.
    assert!(free.trim_end().ends_with(" in partition normal"), "{free}");
    let holds = w.submit(&["-N", &nodes, "-t", "1h", "--", "/bin/sleep", "3600"]);
    w.running(&holds);
    let later = site.run("sbatch", &dir, &["--test-only", "-t", "5", "--wrap=true"]).err();
    let start = |line: &str| line.split(" to start at ").nth(1).and_then(|rest| rest.split(' ').next()).map(str::to_owned);
    assert!(start(&later) > start(&free) && start(&free).is_some(), "{free}{later}");
    w.ok(&["cancel", &holds]);
    w.ended(&holds);
    for (args, why) in [
        (&["--no-such-option", "x.sh"][..], "sbatch: error: --no-such-option: there is no such option"),
        (&["missing.sh"], "sbatch: error: cannot read the script missing.sh"),
        (&["--mem-per=1G", "x.sh"], "sbatch: error: --mem-per=1G: several options begin so"),
        (&["--wrap=true", "x.sh"], "sbatch: error: Script arguments are not permitted with --wrap option."),
    ] {
        let refused = site.run("sbatch", &dir, args);
        assert_eq!((refused.code(), refused.out().as_str()), (1, ""), "{args:?}");
        assert!(refused.err().starts_with(why), "{args:?}: {}", refused.err());
    }
    let of_variable = process::run(site.command("sbatch", &dir, &["--wrap=true"]).env("SBATCH_QOS", "gold"), JOB).unwrap();
    assert!(of_variable.code() == 1 && of_variable.err().contains("SBATCH_QOS=gold: the site has no QOS"), "{}", of_variable.err());
}

fn allocates(w: &World) {
    let site = Site::new(w);
    let dir = site.jobs("allocates");
    let work = "echo $SLURM_JOB_ID $SLURM_JOB_NUM_NODES $(hostname); srun -N 2 -n 2 sh -c 'echo on $SLURMD_NODENAME' | sort; exit 6";
    let done = site.run("salloc", &dir, &["-N", "2", "-w", "n[1-2]", "-t", "5", "sh", "-c", work]);
    let number = done.out().split(' ').next().unwrap_or_default().to_owned();
    let lines: Vec<String> = done.out().lines().skip(1).map(str::to_owned).collect();
    assert_eq!((done.code(), lines), (6, vec!["on n1".to_owned(), "on n2".to_owned()]), "{}{}", done.out(), done.err());
    for line in [format!("salloc: Granted job allocation {number}\n"), format!("salloc: Relinquishing job allocation {number}\n")] {
        assert!(done.err().contains(&line), "{line}: {}", done.err());
    }
    w.wait("the end of the allocation", || ended(&w.status(&number)));
    let kept = site.run("salloc", &dir, &["-t", "5", "--no-shell"]);
    let number = kept.err().lines().find_map(|line| line.strip_prefix("salloc: Granted job allocation ")).unwrap_or_default().to_owned();
    assert!(kept.code() == 0 && text(&w.status(&number), "state") == "Running", "{}", kept.err());
    w.ok(&["cancel", &number]);
}
