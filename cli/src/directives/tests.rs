use super::*;
use crate::flags::{Export, Nodes, Requeue};
use std::time::Duration;

fn flags(lines: &str) -> SubmitFlags {
    let read = read("job.sh", lines).unwrap();
    assert_eq!(read.warnings, Vec::<String>::new());
    read.flags
}

fn nodes(least: u32) -> Option<Nodes> {
    Some(Nodes { least, most: None })
}

#[test]
fn three_ways_to_say_it() {
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
fn constraints_and_memory_policies_stand_where_the_other_options_do() {
    let read = flags("#LATTICE memory_policy=interleave constraint=nvme_scratch\n#LATTICE --memory-policy=bind -C gpu_type=GH200\n");
    assert_eq!(read.binding.memory_policy.as_deref(), Some("bind"));
    assert_eq!(read.constraint, ["nvme_scratch", "gpu_type=GH200"]);
    assert_eq!(flags("#SBATCH --constraint=GH200\n#SBATCH -C fast&gpu\n").constraint, ["GH200", "fast&gpu"]);
}

#[test]
fn slurms_times_count_in_minutes() {
    for (text, seconds) in [("90", 5400), ("90:30", 5430), ("1:00:00", 3600), ("1-0", 86_400), ("2-12:30", 217_800)] {
        for line in [format!("--time={text}"), format!("-t {text}"), format!("-t{text}")] {
            assert_eq!(flags(&format!("#SBATCH {line}\n")).walltime, Some(Duration::from_secs(seconds)), "{line}");
        }
    }
    assert_eq!(flags("#LATTICE --time=90\n").walltime, Some(Duration::from_secs(90)));
}

#[test]
fn lattice_wins_over_sbatch_and_later_lines_over_earlier_ones() {
    let read = flags("#LATTICE --nodes=2\n#SBATCH --nodes=3\n#SBATCH --requeue\n#SBATCH --no-requeue\n#LATTICE name=a\n#LATTICE name=b\n");
    assert_eq!((read.nodes, read.requeue, read.name.as_deref()), (nodes(2), Some(Requeue::Never), Some("b")));
}

#[test]
fn lines_stop_at_the_first_command() {
    assert_eq!(flags("#!/bin/sh\n\n  # indented\n\t\nset -e\n#LATTICE --nodes=4\n").nodes, None);
    assert_eq!(flags("#LATTICEX --nodes=4\n# LATTICE --nodes=4\n #LATTICE --nodes=4\n#LATTICE\n"), SubmitFlags::default());
    assert_eq!(flags("#!/bin/sh\r\n#LATTICE --nodes=4\r\n").nodes, nodes(4));
}

#[test]
fn what_slurm_alone_knows_is_warned_about() {
    let read = read("job.sh", "#!/bin/sh\n#SBATCH --gres=gpu:4 -N 2\n#SBATCH --mem 4G --nodes=3 -c 8\n#SBATCH gibberish\n").unwrap();
    assert_eq!(read.flags.nodes, nodes(3));
    assert_eq!(
        read.warnings,
        [
            "job.sh line 2: #SBATCH --gres=gpu:4 is not known here and left out",
            "job.sh line 3: #SBATCH --mem is not known here and left out",
            "job.sh line 3: #SBATCH -c is not known here and left out",
            "job.sh line 4: #SBATCH gibberish is not known here and left out",
        ]
    );
}

#[test]
fn what_changes_the_work_is_not_left_out() {
    assert_eq!(flags("#SBATCH --array=0-9%2\n").unbuilt.first(), Some("--task-group"));
    assert_eq!(flags("#SBATCH -d afterok:12\n").unbuilt.first(), Some("--depends-on"));
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    for (script, told) in [
        (
            "#!/bin/sh\n#LATTICE --noodes=4\n",
            "error: job.sh line 2: #LATTICE --noodes: there is no such option\nhint: did you mean --nodes?\n",
        ),
        ("\n\n#LATTICE noodes=4\n", "error: job.sh line 3: #LATTICE --noodes: there is no such option\nhint: did you mean --nodes?\n"),
        ("#LATTICE --nodes=0\n", "error: job.sh line 1: #LATTICE: invalid value '0' for '--nodes <N>': at least 1 node is needed\n"),
        (
            "#SBATCH -N many\n",
            "error: job.sh line 1: #SBATCH: invalid value 'many' for '--nodes <N>': \"many\" is not a number of nodes such as 4\n",
        ),
        ("#SBATCH --nodes\n", "error: job.sh line 1: #SBATCH --nodes: a value is needed\n"),
        ("#LATTICE name='x\n", "error: job.sh line 1: #LATTICE: a ' is not closed\n"),
    ] {
        let failure = read("job.sh", script).unwrap_err();
        assert_eq!(failure.text(), told);
        assert_eq!(failure.exit(), 2);
    }
    assert!(read("job.sh", "#SBATCH --time=soon\n").unwrap_err().text().contains("--time=soon: \"soon\" is not a duration"));
    assert!(read("job.sh", "#LATTICE zzz=4\n").unwrap_err().text().contains("lattice submit --help"));
}
