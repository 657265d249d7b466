use super::*;
use crate::flags::{Export, NodeCount, Requeue};
use lattice_api::v1;
use std::time::Duration;

/// Reads a script as `lattice submit` does, at a site without mapped names.
fn read(name: &str, script: &str) -> Result<Directives, UsageError> {
    super::read(name, script, &Compat::default())
}

fn flags(lines: &str) -> SubmitFlags {
    let read = read("job.sh", lines).unwrap();
    assert_eq!(read.warnings, Vec::<String>::new());
    read.flags
}

fn text(error: &UsageError) -> String {
    let hint = error.hint.as_ref().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    format!("{}{hint}", error.what)
}

fn nodes(least: u32) -> Option<NodeCount> {
    Some(NodeCount { least, most: None })
}

#[test]
fn options_may_have_dashes_an_equals_sign_or_neither() {
    for line in ["--nodes=4", "nodes=4", "-N 4", "--nodes 4", "-N4", "nodes 4", "  --nodes=4   # four", "--nodes=\"4\""] {
        assert_eq!(flags(&format!("#!/bin/sh\n#LATTICE {line}\n")).nodes, nodes(4), "{line}");
    }
    let many = flags("#LATTICE nodes=2 walltime=30m env=A=B requeue=always\n");
    assert_eq!((many.nodes, many.walltime, many.requeue), (nodes(2), Some(Duration::from_secs(1800)), Some(Requeue::Always)));
    assert_eq!(many.env, [("A".into(), "B".into())]);
    assert_eq!(flags("#LATTICE --env A=B\n#LATTICE requeue\n").requeue, Some(Requeue::OnNodeFailure));
}

#[test]
fn a_whole_script_of_slurm_is_translated() {
    let script = "#!/bin/bash -l
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=4
#SBATCH --time=72:00:00

# A comment, and one that is switched off:
##SBATCH --nodes=1
#SBATCH --uenv=/images/prgenv.sqfs
#SBATCH -A ml-team -p debug
#SBATCH --job-name=\"training run\"
#SBATCH --requeue
#SBATCH --export=NONE
torchrun train.py
#SBATCH --nodes=99
";
    let read = flags(script);
    assert_eq!((read.nodes, read.tasks_per_node, read.walltime), (nodes(64), Some(4), Some(Duration::from_secs(259_200))));
    assert_eq!(read.uenv.as_deref(), Some("/images/prgenv.sqfs"));
    assert_eq!((read.tenant.as_deref(), read.vcluster.as_deref()), (Some("ml-team"), Some("debug")));
    assert_eq!((read.name.as_deref(), read.requeue, read.export), (Some("training run"), Some(Requeue::OnNodeFailure), Some(Export::None)));
}

#[test]
fn constraints_and_memory_policies_are_options_like_the_others() {
    let read = flags("#LATTICE memory_policy=interleave constraint=nvme_scratch\n#LATTICE --memory-policy=bind -C gpu_type=GH200\n");
    assert_eq!(read.binding.memory_policy.as_deref(), Some("bind"));
    assert_eq!(read.constraint, ["nvme_scratch", "gpu_type=GH200"]);
    assert_eq!(flags("#SBATCH --constraint=GH200\n#SBATCH -C fast&gpu\n").constraint, ["fast&gpu"], "the last one counts, as in Slurm");
}

#[test]
fn a_number_without_a_unit_is_minutes() {
    for (text, seconds) in [("90", 5400), ("90:30", 5430), ("1:00:00", 3600), ("1-0", 86_400), ("2-12:30", 217_800)] {
        for line in [format!("--time={text}"), format!("-t {text}"), format!("-t{text}")] {
            assert_eq!(flags(&format!("#SBATCH {line}\n")).walltime, Some(Duration::from_secs(seconds)), "{line}");
        }
    }
    assert_eq!(flags("#LATTICE --time=90\n").walltime, Some(Duration::from_secs(5400)), "the same number is the same time everywhere");
}

#[test]
fn lattice_wins_over_sbatch_and_later_lines_over_earlier_ones() {
    let read = flags("#LATTICE --nodes=2\n#SBATCH --nodes=3\n#SBATCH --requeue\n#SBATCH --no-requeue\n#LATTICE name=a\n#LATTICE name=b\n");
    assert_eq!((read.nodes, read.requeue, read.name.as_deref()), (nodes(2), Some(Requeue::Never), Some("b")));
}

#[test]
fn reading_stops_at_the_first_command() {
    assert_eq!(flags("#!/bin/sh\n\n  # indented\n\t\nset -e\n#LATTICE --nodes=4\n").nodes, None);
    assert_eq!(flags("#LATTICEX --nodes=4\n# LATTICE --nodes=4\n #LATTICE --nodes=4\n#LATTICE\n"), SubmitFlags::default());
    assert_eq!(flags("#!/bin/sh\r\n#LATTICE --nodes=4\r\n").nodes, nodes(4));
}

#[test]
fn options_of_the_submitting_command_are_refused_with_their_equivalent() {
    for (line, remedy) in [
        ("-H", "`lattice submit --hold`"),
        ("--wait", "`lattice submit --wait`"),
        ("--parsable", "`lattice submit -o name`"),
        ("--test-only", "`lattice submit --dry-run`"),
        ("--wrap=ls", "`lattice submit -- sh -c COMMAND`"),
    ] {
        let failure = read("job.sh", &format!("#!/bin/sh\n#SBATCH {line}\n")).unwrap_err();
        assert!(failure.what.starts_with(&format!("job.sh line 2: #SBATCH {line}: it is an option of")), "{}", text(&failure));
        assert!(failure.hint.as_ref().is_some_and(|hint| hint.contains(remedy)), "{}", text(&failure));
    }
    for line in ["--quiet", "-v", "--acctg-freq=30", "--ignore-pbs"] {
        let read = read("job.sh", &format!("#!/bin/sh\n#SBATCH {line} -N 2\n")).unwrap();
        assert_eq!(read.flags.nodes, nodes(2), "{line}");
        assert_eq!(read.warnings, [format!("job.sh line 2: #SBATCH {line} does not change the job, and is ignored")]);
    }
}

/// The result of `sbatch` for these arguments, variables and script.
fn submitted(args: &str, variables: &[(&str, &str)], script: &str, compat: &Compat) -> (Directives, OwnOptions) {
    let environment = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let words: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
    let given = slurm::read_arguments(slurm::Command::Sbatch, "", &words).unwrap().given;
    read_for_sbatch("job.sh", script, &given, &environment, compat).unwrap()
}

#[test]
fn sbatch_takes_its_command_line_over_variables_over_lines() {
    let script = "#!/bin/sh\n#SBATCH -p of-line -A of-line -J of-line -C gpu --hold\n";
    let variables = [("SBATCH_PARTITION", "of-variable"), ("SBATCH_ACCOUNT", "of-variable"), ("SBATCH_WAIT", "1")];
    let (read, own) = submitted("-p of-args -C nvme --parsable", &variables, script, &Compat::default());
    let names = (read.flags.vcluster.as_deref(), read.flags.tenant.as_deref(), read.flags.name.as_deref());
    assert_eq!(names, (Some("of-args"), Some("of-variable"), Some("of-line")));
    assert_eq!(read.flags.constraint, ["nvme"], "a repeated option counts once");
    assert!(own.hold && own.wait && own.parsable && read.flags.layout.slurm_env);
    let (read, _) =
        submitted("-J of-args", &variables, "#!/bin/sh\n#LATTICE vcluster=ours name=ours\n#SBATCH -p theirs\n", &Compat::default());
    assert_eq!((read.flags.vcluster.as_deref(), read.flags.name.as_deref()), (Some("ours"), Some("of-args")));
    let mixed = "#!/bin/sh\n#LATTICE name=ours\n#SBATCH --gpus-per-node=4\n";
    let (read, _) = submitted("--ntasks-per-gpu=2", &[], mixed, &Compat::default());
    let shape = (read.flags.gpus, read.flags.amounts.tasks_per_gpu, read.flags.cores);
    assert_eq!(shape, (Some(4), Some(2), Some(8)), "options of both places make the shape");
}

#[test]
fn sbatch_has_the_sites_default_partition() {
    let compat = Compat::parse("partition_mapping: {long: batch}\ndefault_partition: long\n").unwrap();
    let vcluster = |args: &str| submitted(args, &[], "#!/bin/sh\n", &compat).0.flags.vcluster;
    assert_eq!((vcluster("").as_deref(), vcluster("-p other").as_deref()), (Some("batch"), Some("other")));
}

#[test]
fn short_options_equal_their_long_forms() {
    let read = flags("#SBATCH -N 2 -n 8 -c 4 -t 90 -J x -p debug -A ml -D sub -w n1,n2 -m cyclic -C gpu -d afterok:1f0c\n");
    let long = flags(
        "#SBATCH --nodes=2 --ntasks=8 --cpus-per-task=4 --time=90 --job-name=x --partition=debug --account=ml --chdir=sub\n#SBATCH --nodelist=n1,n2 --distribution=cyclic --constraint=gpu --dependency=afterok:1f0c\n",
    );
    assert_eq!(read, long);
    assert_eq!((read.ranks, read.layout.cpus_per_task, read.chdir.as_deref()), (Some(8), Some(4), Some("sub")));
    assert!(read.layout.slurm_env, "Slurm's variables are set");
    for letter in ["-B 2:8", "-S 1", "-L m"] {
        let failure = read_script(letter).unwrap_err();
        assert!(text(&failure).contains(" is not supported"), "{}", text(&failure));
    }
}

fn read_script(options: &str) -> Result<Directives, UsageError> {
    read("job.sh", &format!("#SBATCH {options}\n"))
}

#[test]
fn a_script_may_be_a_task_group() {
    let tasks = |lines: &str| read("job.sh", lines).unwrap().tasks.to_message().unwrap();
    let group = |last, concurrency, max_failures| {
        Some(v1::TaskGroup { indices: vec![v1::IndexRun { first: 0, last, step: 1 }], concurrency, max_failures })
    };
    assert_eq!(tasks("#!/bin/sh\n#SBATCH -N 2\n"), None);
    for line in ["#SBATCH --array=0-9%2", "#SBATCH -a 0-9%2", "#LATTICE --task-group=0-9%2", "#LATTICE array=0-9%2"] {
        assert_eq!(tasks(&format!("#!/bin/sh\n{line}\n")), group(9, 2, None), "{line}");
    }
    assert_eq!(tasks("#SBATCH --array=0-9\n#LATTICE max-failures=1\n#LATTICE task-group=0-4\n"), group(4, 0, Some(1)));
    let refused = read("job.sh", "#!/bin/sh\n#SBATCH --array=9-0\n").unwrap_err();
    assert_eq!(
        refused.what,
        "job.sh line 2: #SBATCH --array=9-0: invalid value '9-0' for '--array <LIST[%N]>': \"9-0\" ends before it begins"
    );
    assert_eq!(read("job.sh", "#SBATCH --array\n").unwrap_err().what, "job.sh line 1: #SBATCH --array: a value is needed");
}

#[test]
fn a_script_may_be_a_service_that_scales_unless_it_gets_a_walltime() {
    let bounds = |scaling: &ScalingFlags| scaling.to_message(false).unwrap().map(|scaling| (scaling.replicas_min, scaling.replicas_max));
    let read = |lines: &str| read("job.sh", lines).unwrap();
    let script = || read("#LATTICE reactive\n#LATTICE min-nodes=1 max-nodes=4\n");
    let under = |script: Directives, over: SubmitFlags| script.under(over, TaskFlags::default(), ScalingFlags::default());
    let both = under(script(), SubmitFlags { nodes: nodes(1), ..Default::default() });
    assert_eq!((both.flags.nodes, bounds(&both.scaling), both.warnings), (nodes(1), Some((1, 4)), Vec::new()));
    let walltime = Some(Duration::from_secs(60));
    let timed = under(script(), SubmitFlags { walltime, ..Default::default() });
    assert_eq!((timed.flags.walltime, timed.scaling), (walltime, ScalingFlags::default()));
    assert_eq!(timed.warnings, ["--walltime is given: --reactive of job.sh, with its options, is left out"]);
    let single = under(script(), SubmitFlags { service: true, ..Default::default() });
    assert_eq!((single.flags.service, single.scaling), (true, ScalingFlags::default()));
    assert_eq!(single.warnings, ["--service is given: --reactive of job.sh, with its options, is left out"]);
    let reactive = || parse("here", "", vec!["--reactive".to_owned()]).unwrap().scaling;
    for (line, left_out) in [("walltime=1h", "--walltime"), ("service", "--service")] {
        let script = read(&format!("#LATTICE {line}\n"));
        let Directives { flags, scaling, warnings, .. } = script.under(SubmitFlags::default(), TaskFlags::default(), reactive());
        assert_eq!((flags, scaling), (SubmitFlags::default(), reactive()), "{line}");
        assert_eq!(warnings, [format!("--reactive is given: {left_out} of job.sh is left out")]);
    }
    let of_both = read("#SBATCH --time=60\n#LATTICE reactive\n#LATTICE min-nodes=1 max-nodes=4\n");
    assert_eq!((of_both.flags.walltime, bounds(&of_both.scaling)), (None, Some((1, 4))));
    assert_eq!(of_both.warnings, ["--reactive is given: --walltime of the #SBATCH lines of job.sh is left out"]);
}

#[test]
fn lines_that_contradict_each_other_are_refused_with_the_numbers_of_both() {
    for (lines, expected) in [
        ("walltime=1h\n#LATTICE nodes=2\n#LATTICE reactive", "lines 2 and 4: #LATTICE: --walltime ends the work, --reactive has no end"),
        ("service\n#LATTICE walltime=1h", "lines 2 and 3: #LATTICE: --walltime ends the work, --service has no end"),
        ("reactive\n#LATTICE service", "lines 2 and 3: #LATTICE: --service is one allocation, --reactive has replicas"),
        ("--service --reactive", "line 2: #LATTICE: --service is one allocation, --reactive has replicas"),
    ] {
        let failure = read("job.sh", &format!("#!/bin/sh\n#LATTICE {lines}\n")).unwrap_err();
        assert_eq!(text(&failure), format!("job.sh {expected}\nhint: leave one of them out"));
    }
    assert_eq!(flags("#LATTICE walltime=1h\n#LATTICE walltime=2h\n").walltime, Some(Duration::from_secs(7200)));
}

#[test]
fn unknown_options_and_values_are_refused_with_their_line() {
    for (line, expected) in [
        ("--gibberish=1", "job.sh line 2: #SBATCH --gibberish=1: there is no such option"),
        ("gibberish", "job.sh line 2: #SBATCH gibberish: there is no such option"),
        ("-Z", "job.sh line 2: #SBATCH -Z: there is no such option"),
        ("--exclusive=mcs", "job.sh line 2: #SBATCH --exclusive=mcs: \"mcs\" is not supported"),
        ("--gres=nvme:1", "job.sh line 2: #SBATCH --gres=nvme:1: \"nvme:1\" is not supported"),
        ("--mem=0 --gres=gpu:1", "job.sh line 2: #SBATCH --mem=0: \"0\" is not supported"),
        ("hetjob", "job.sh line 2: #SBATCH hetjob: it is not supported"),
        ("--jobid=1", "job.sh line 2: #SBATCH --jobid=1: it is an option of srun, not of this command"),
        ("--mem-per=1G", "job.sh line 2: #SBATCH --mem-per=1G: several options begin so"),
        (
            "--dependency=after:1f0c+x",
            "job.sh line 2: #SBATCH --dependency=after:1f0c+x: \"after:1f0c+x\": the delay must be a number of minutes",
        ),
        ("--dependency=after:a?after:b", "job.sh line 2: #SBATCH --dependency=after:a?after:b: `?` is not supported: all jobs of the list"),
    ] {
        let failure = read("job.sh", &format!("#!/bin/sh\n#SBATCH {line}\n")).unwrap_err();
        assert!(failure.what.starts_with(expected), "{}", text(&failure));
    }
}

#[test]
fn errors_name_their_line() {
    for (script, expected) in [
        ("#!/bin/sh\n#LATTICE --noodes=4\n", "job.sh line 2: #LATTICE --noodes: there is no such option\nhint: did you mean --nodes?"),
        ("\n\n#LATTICE noodes=4\n", "job.sh line 3: #LATTICE --noodes: there is no such option\nhint: did you mean --nodes?"),
        ("#LATTICE --nodes=0\n", "job.sh line 1: #LATTICE: invalid value '0' for '--nodes <N[-MAX]>': at least 1 node is needed"),
        (
            "#SBATCH -N many\n",
            "job.sh line 1: #SBATCH -N: invalid value 'many' for '--nodes <N[-MAX]>': \"many\" is not a number of nodes such as 4",
        ),
        ("#SBATCH --nodes\n", "job.sh line 1: #SBATCH --nodes: a value is needed"),
        ("#LATTICE name='x\n", "job.sh line 1: #LATTICE: a ' is not closed"),
    ] {
        let failure = read("job.sh", script).unwrap_err();
        assert_eq!(text(&failure), expected);
    }
    assert!(read("job.sh", "#SBATCH --time=soon\n").unwrap_err().what.contains("--time=soon: \"soon\" is not a duration"));
    assert!(text(&read("job.sh", "#LATTICE zzz=4\n").unwrap_err()).contains("lattice submit --help"));
}
