use super::*;
use crate::directives::parse;
use std::collections::BTreeSet;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn site() -> Compat {
    Compat::parse("partition_mapping: {long: batch}\nqos_mapping: {high: 7}\n").unwrap()
}

fn translated(command: Command, args: &str) -> Result<Translated, UsageError> {
    translate(command, &words(args), &site())
}

/// What `sbatch` makes of options, as one text.
fn ours(args: &str) -> String {
    translated(Command::Sbatch, args).unwrap_or_else(|error| panic!("{args}: {error}")).words.join(" ")
}

/// An option as its row's example has it.
fn written(option: &SlurmOption) -> String {
    match option.takes {
        Takes::Nothing => format!("--{}", option.long),
        Takes::Perhaps if option.sample.is_empty() => format!("--{}", option.long),
        Takes::Value | Takes::Perhaps => format!("--{}={}", option.long, option.sample),
    }
}

/// What an option is for use with.
pub(super) fn beside(option: &SlurmOption) -> &'static str {
    match option.long {
        "ntasks-per-gpu" => "--gpus-per-node=2",
        "mail-user" => "--mail-type=END",
        "use-min-nodes" => "--nodes=2-4",
        _ => "",
    }
}

fn command_of(option: &SlurmOption) -> Command {
    Command::ALL.into_iter().find(|command| option.is_of(*command)).expect("each option has a command")
}

#[test]
fn the_table_is_sorted_and_each_name_and_letter_has_one_meaning_for_a_command() {
    for pair in OPTIONS.windows(2) {
        assert!(pair[0].long <= pair[1].long, "{} comes before {}", pair[1].long, pair[0].long);
    }
    for command in Command::ALL {
        let (mut names, mut letters) = (BTreeSet::new(), BTreeSet::new());
        for option in OPTIONS.iter().filter(|option| option.is_of(command)) {
            assert!(names.insert(option.long), "{}: --{} is there twice", command.name(), option.long);
            assert!(option.short.is_none_or(|letter| letters.insert(letter)), "{}: -{:?} is there twice", command.name(), option.short);
        }
    }
    for option in OPTIONS {
        let is_missing = option.takes == Takes::Value && option.sample.is_empty();
        assert!(!is_missing && (option.takes != Takes::Nothing || option.sample.is_empty()), "{}: its sample", option.long);
    }
}

/// Each row does what the guide says: it is honoured by options that `lattice submit` really has, done by the command
/// itself, ignored with a note, or refused with its remedy.
#[test]
fn each_row_of_the_table_is_honoured_ignored_or_refused() {
    for option in OPTIONS {
        let (command, written) = (command_of(option), written(option));
        let done = translated(command, &format!("{} {written}", beside(option)));
        match option.rule {
            Rule::Refused(remedy) => {
                let refused = done.unwrap_err();
                assert_eq!(refused.what, format!("{written}: it is not supported, and the job would be different without it"));
                assert_eq!(refused.hint.as_deref(), Some(remedy));
            }
            Rule::Harmless(_) => {
                let done = done.unwrap();
                assert_eq!(done.notes, [format!("{written} does not change the job, and is ignored")]);
                assert_eq!((done.words, done.own), (Vec::new(), OwnOptions::default()), "{written}");
            }
            Rule::Own(..) => {
                let done = done.unwrap();
                let is_default = option.long == "no-bell";
                assert!(done.words.is_empty() && (is_default || done.own != OwnOptions::default()), "{written}: {done:?}");
            }
            Rule::Word(_) | Rule::Plain(_) | Rule::By(_) => {
                let done = done.unwrap_or_else(|error| panic!("{written}: {error}"));
                let line = parse("here", "", done.words.clone()).unwrap_or_else(|error| panic!("{written} is {:?}: {error}", done.words));
                let is_nothing = line.flags == crate::flags::SubmitFlags::default() && line.tasks == crate::tasks::TaskFlags::default();
                assert_eq!(is_nothing, done.words.is_empty(), "{written}: {:?}", done.words);
            }
        }
    }
}

#[test]
fn options_are_read_as_getopt_reads_them() {
    assert_eq!(ours("--cpus-per-t=2"), "--cpus-per-task=2", "no other option begins so");
    for args in ["-N4 -n8", "--nodes 4 --ntasks 8", "-N 4 -n 8", "-vQN4 -n8"] {
        assert_eq!(ours(args), "--nodes=4 --ntasks=8", "{args}");
    }
    let done = translated(Command::Sbatch, "-N 1 job.sh -N 9 --x").unwrap();
    assert_eq!((done.words, done.rest), (words("--nodes=1"), words("job.sh -N 9 --x")));
    let done = translated(Command::Srun, "-n2 -- -x y").unwrap();
    assert_eq!(done.rest, words("-x y"));
    assert_eq!(
        translated(Command::Srun, "-vvl --pty -K0 x").unwrap().own,
        OwnOptions { verbose: 2, label: true, pty: true, kill_on_bad_exit: Some(false), ..Default::default() }
    );
    assert_eq!(ours("--nice -J x"), "--nice=100 --name=x", "an optional value is joined to its option");
    for (args, why) in [
        ("--mem-p=1G", "--mem-p=1G: several options begin so"),
        ("--gibberish", "--gibberish: there is no such option"),
        ("-N", "-N: a value is needed"),
        ("--hold=1", "--hold=1: this option has no value"),
        ("--pty", "--pty: it is an option of srun, not of this command"),
    ] {
        assert_eq!(translated(Command::Sbatch, args).unwrap_err().what, why);
    }
}

#[test]
fn the_last_of_an_option_counts_and_some_exclude_others() {
    assert_eq!(ours("-C a -C b -d afterok:1 -d afterany:2"), "--constraint=b --depends-on=2:any");
    assert_eq!(ours("--mem=4G --mem-per-gpu=1G --mem=8G"), "--mem=8G");
    assert_eq!(ours("--gres=gpu:2 --gpus-per-node=4"), "--gpus=4");
    assert_eq!((ours("--nice=5 --priority=TOP"), ours("--priority=TOP --nice=5")), ("--nice=-10000".into(), "--nice=5".into()));
}

#[test]
fn shares_have_the_cores_of_their_ranks() {
    assert_eq!(ours("-n 4 -c 2"), "--ntasks=4 --cpus-per-task=2 --spread", "whole nodes");
    assert_eq!(ours("-n 4 --mem-per-cpu=1G"), "--ntasks=4 --mem-per-core=1G --spread");
    assert_eq!(ours("-n 4 --gpus-per-task=1"), "--ntasks=4 --gpus-per-task=1 --shared --spread");
    assert_eq!(ours("-n 4 --gpus-per-node=2"), "--ntasks=4 --gpus=2 --spread");
    assert_eq!(ours("-N 1 -n 4 -c 2 --mem=4G"), "--nodes=1 --ntasks=4 --cpus-per-task=2 --mem=4G --cores=8");
    assert_eq!(ours("-N 2 -n 6 --gres=gpu:1"), "--nodes=2 --ntasks=6 --gpus=1 --cores=3");
    assert_eq!(ours("--mem-per-cpu=2G -c 4"), "--mem-per-core=2G --cpus-per-task=4 --cores=4");
    assert_eq!(ours("--mem-per-cpu=2G"), "--mem-per-core=2G --cores=1");
    assert_eq!(ours("--gres=gpu:1"), "--gpus=1");
    assert_eq!(ours("-N 1 -n 8 -O --mem=1G"), "--nodes=1 --ntasks=8 --mem=1G --cores=1");
    assert_eq!(ours("-N 2 --ntasks-per-node=4 --gpus-per-task=1"), "--nodes=2 --tasks-per-node=4 --gpus-per-task=1 --gpus=4 --cores=4");
    assert_eq!(ours("-G 8 --gpus-per-task=1 -c 4"), "--gpus-total=8 --gpus-per-task=1 --cpus-per-task=4 --cores=32");
    assert_eq!(ours("-G 8 --gpus-per-node=4 -n 16"), "--gpus-total=8 --gpus=4 --ntasks=16 --cores=8");
    assert_eq!(ours("--gpus-per-node=4 --ntasks-per-gpu=2"), "--gpus=4 --tasks-per-gpu=2 --cores=8");
    assert_eq!(ours("-G 4 -N 2 --ntasks-per-gpu=2 -c 2"), "--gpus-total=4 --nodes=2 --cpus-per-task=2 --tasks-per-gpu=2 --cores=8");
    assert_eq!(ours("-G 4 --cpus-per-gpu=8 --ntasks-per-gpu=2"), "--gpus-total=4 --cpus-per-gpu=8 --tasks-per-gpu=2");
    assert_eq!(ours("-G 4 --ntasks-per-gpu=1"), "--gpus-total=4 --tasks-per-gpu=1 --gpus-per-task=1 --cores=4", "one GPU for each rank");
    assert_eq!(ours("-G 8 --gpus-per-node=4 -n 8"), "--gpus-total=8 --gpus=4 --ntasks=8 --cores=4", "on two nodes");
    assert_eq!(
        ours("-G 8 -N 2 --gpus-per-task=1 -c 4"),
        "--gpus-total=8 --nodes=2 --gpus-per-task=1 --cpus-per-task=4 --cores=16",
        "four ranks on each of two nodes"
    );
    assert_eq!(
        ours("-G 8 --gpus-per-task=1 --ntasks-per-node=4"),
        "--gpus-total=8 --gpus-per-task=1 --tasks-per-node=4 --cores=4",
        "eight ranks on two nodes"
    );
    assert_eq!(ours("-N 1 -n 2 --ntasks-per-core=1"), "--nodes=1 --ntasks=2 --cpus-per-task=1");
    assert_eq!(
        ours("-N 2 -n 12 --ntasks-per-socket=2"),
        "--nodes=2 --ntasks=12 --constraint=socket_count>=3 --cpu-bind=sockets",
        "six ranks on each node"
    );
    assert_eq!(
        ours("--exclusive --ntasks-per-node=3 --ntasks-per-socket=2 --mem=1G"),
        "--exclusive --tasks-per-node=3 --constraint=memory_gb>=1 --constraint=socket_count>=2 --cpu-bind=sockets"
    );
    assert_eq!(
        ours("-N 1 -n 2 --ntasks-per-socket=2 --sockets-per-node=4"),
        "--nodes=1 --ntasks=2 --constraint=socket_count>=4 --constraint=socket_count>=4 --cpu-bind=sockets",
        "the later constraint does not ask for less"
    );
    for sockets in ["--sockets-per-node=2", "-B 2", "-C socket_count>=2"] {
        assert_eq!(
            ours(&format!("-n 9 --ntasks-per-socket=2 {sockets}")),
            "--ntasks=9 --constraint=socket_count>=2 --nodes=3 --constraint=socket_count>=2 --cpu-bind=sockets",
            "three ranks on each of three nodes, with {sockets}"
        );
    }
    let of_srun = |args: &str| translated(Command::Srun, args).unwrap();
    let step = of_srun("-N 2 -n 12 --ntasks-per-socket=2");
    assert_eq!((step.words, step.of_job), (words("--nodes=2 --ntasks=12"), words("--constraint=socket_count>=3 --cpu-bind=sockets")));
    let whole = of_srun("--exclusive -N 1 -n 2 --mem=1G --ntasks-per-socket=1");
    assert_eq!(whole.of_job, words("--constraint=memory_gb>=1 --constraint=socket_count>=2 --cpu-bind=sockets"));
    assert!(translated(Command::Srun, "-N 1 -n 2 --mem=1G --ntasks-per-socket=1").is_err(), "the cores of a share may be of one socket");
    for (args, remedy) in [
        ("-n 8 --ntasks-per-socket=2", "--ntasks-per-node or --sockets-per-node"),
        ("-N 1 -n 8 --mem=1G --ntasks-per-socket=2", "add --exclusive"),
        ("-N 1 --ntasks-per-socket=2 --cpu-bind=cores", "leave --cpu-bind out"),
        ("-N 1 --ntasks-per-socket=2 -m block:cyclic", "with one part"),
    ] {
        let refused = translated(Command::Sbatch, args).unwrap_err();
        assert!(refused.hint.as_deref().unwrap_or_default().contains(remedy), "{args}: {refused}");
    }
    assert_eq!(
        (ours("-B 2:*:1"), ours("--sockets-per-node=4")),
        ("--constraint=socket_count>=2".into(), "--constraint=socket_count>=4".into())
    );
    assert!(translated(Command::Sbatch, "-B 2:8").is_err() && translated(Command::Sbatch, "-B 1:*:2").is_err());
    let step = translated(Command::Srun, "-n 4 --gpus-per-task=1").unwrap();
    assert_eq!((step.words, step.of_job), (words("--ntasks=4 --gpus-per-task=1"), words("--shared --spread")));
    let step = translated(Command::Srun, "--gpus-per-node=4 --ntasks-per-gpu=2").unwrap();
    assert_eq!((step.words, step.of_job), (words("--gpus=4 --tasks-per-node=8"), words("--cores=8 --tasks-per-gpu=2")));
    let step = translated(Command::Srun, "--gpus-per-node=4 --ntasks-per-gpu=1").unwrap();
    let of_step = words("--gpus=4 --tasks-per-node=4 --gpus-per-task=1");
    assert_eq!((step.words, step.of_job), (of_step, words("--cores=4 --tasks-per-gpu=1")));
}

#[test]
fn ranks_of_each_gpu_that_see_all_of_them_are_pointed_out() {
    let seen = "each rank sees all GPUs of the job on its node, not one as in Slurm: choose one by SLURM_LOCALID";
    for command in Command::ALL {
        for (args, notes) in [
            ("-G 4 --ntasks-per-gpu=2", vec![format!("--ntasks-per-gpu=2: {seen}")]),
            ("-G 4 --ntasks-per-gpu=1", vec![]),
            ("-G 4 --ntasks-per-gpu=2 --gpu-bind=none", vec![]),
        ] {
            assert_eq!(translated(command, args).unwrap().notes, notes, "{} {args}", command.name());
        }
    }
}

#[test]
fn a_number_that_contradicts_the_ranks_of_each_gpu_is_refused() {
    for (command, args, what) in [
        (Command::Srun, "-n 3 -G 4 --ntasks-per-gpu=2", "--ntasks-per-gpu=2: on 4 GPUs that is 8 ranks, and -n asks for 3"),
        (
            Command::Sbatch,
            "--exclusive --gpus-per-node=1 --ntasks-per-gpu=1 --ntasks-per-node=3",
            "--ntasks-per-gpu=1: on 1 GPU that is 1 rank, and --ntasks-per-node=3 asks for 3",
        ),
    ] {
        let refused = translated(command, args).unwrap_err();
        assert_eq!((refused.what.as_str(), refused.hint.as_deref()), (what, Some("leave one of them out")));
    }
    assert!(translated(Command::Srun, "-n 8 -G 4 --ntasks-per-gpu=2").is_ok(), "the same number");
}

#[test]
fn whole_nodes_have_at_least_the_amounts() {
    let done = translated(Command::Sbatch, "--exclusive --mem=64G --gres=gpu:4").unwrap();
    assert_eq!(done.words.join(" "), "--exclusive --constraint=memory_gb>=64 --constraint=gpu_count=4");
    assert_eq!(done.notes, ["--exclusive: the job gets all memory and GPUs of nodes that have at least the given amounts"]);
    assert_eq!(
        ours("--exclusive -N 1 -n 8 -c 2 --mem-per-cpu=2G"),
        "--exclusive --nodes=1 --ntasks=8 --cpus-per-task=2 --constraint=memory_gb>=32"
    );
    let each_gpu = "--exclusive --gpus-per-node=4 --ntasks-per-gpu=2";
    assert_eq!(ours(each_gpu), "--exclusive --tasks-per-node=8 --constraint=gpu_count=4", "a whole node may have more GPUs");
    assert_eq!((ours("--exclusive --mem=0").as_str(), ours("--mem=0").as_str()), ("--exclusive", "--mem=0"));
    let step = translated(Command::Srun, "--exclusive -n 2 --mem=64G").unwrap();
    assert_eq!((step.words, step.of_job), (words("--ntasks=2 --mem=64G"), words("--constraint=memory_gb>=64 --spread")));
    assert!(translated(Command::Sbatch, "--exclusive -G 4").is_err() && translated(Command::Sbatch, "--mem=0 --gres=gpu:1").is_err());
}

#[test]
fn ranks_without_a_number_of_nodes_are_spread_or_pointed_out() {
    let notes = |args: &str| translated(Command::Sbatch, args).unwrap().notes;
    for one_node in ["-n 8 -O", "-n 8 -m plane=4"] {
        assert_eq!(notes(one_node), ["-n 8 without -N: all 8 ranks are on one node; -N or --ntasks-per-node spreads them"]);
    }
    for (args, words) in [
        ("-n 8", "--ntasks=8 --spread"),
        ("-n 8 -O", "--ntasks=8"),
        ("-n 8 -c 2", "--ntasks=8 --cpus-per-task=2 --spread"),
        ("-n 8 --mem=1G", "--ntasks=8 --mem=1G --spread"),
        ("-n 8 -m plane=4", "--ntasks=8 --distribution=plane=4 --constraint=core_count>=8"),
        ("--exclusive -n 8 --mem=1G", "--exclusive --ntasks=8 --constraint=memory_gb>=1 --spread"),
        (
            "--exclusive -n 8 --gpus-per-task=1",
            "--exclusive --ntasks=8 --gpus-per-task=1 --constraint=gpu_count=8 --constraint=core_count>=8",
        ),
    ] {
        assert_eq!(ours(args), words, "{args}");
    }
    for quiet in ["-n 1", "-n 8", "-n 8 -N 1", "-n 8 --ntasks-per-node=4", "-n 2 -w n[1-2]", "-N 2"] {
        assert_eq!(notes(quiet), Vec::<String>::new(), "{quiet}");
    }
}

#[test]
fn distributions_and_bindings_are_honoured_where_they_mean_the_same() {
    for (args, words) in [
        ("-m block:cyclic", "--distribution=block"),
        ("-m *,NoPack", ""),
        ("-m plane=4", "--distribution=plane=4"),
        ("--cpu-bind=verbose,ldoms", "--cpu-bind=numa"),
        ("--mem-bind=prefer,local", "--memory-policy=preferred"),
        ("--gpu-bind=per_task:2", "--gpus-per-task=2 --gpus=2"),
        ("--switches=1", "--topology=1"),
        ("--switches=1@10", "--topology=1 --topology-wait=600s"),
        ("--switches=2@1:00:00", "--topology=2 --topology-wait=3600s"),
        ("--switches=1@0", ""),
        ("--contiguous", "--topology=contiguous"),
        ("--exclusive=user --mem=1G", "--exclusive=user --mem=1G"),
        ("--mincpus=16 -C gpu", "--constraint=core_count>=16 --constraint=gpu"),
        ("--constraint= --qos=", ""),
        ("-N 2-4 --use-min-nodes", "--nodes=2"),
        ("-x n1 -G 4 --cpus-per-gpu=8", "--exclude=n1 --gpus-total=4 --cpus-per-gpu=8"),
        ("-F list", "--nodelist=./list"),
        ("--hint=nomultithread", ""),
    ] {
        assert_eq!(ours(args), words, "{args}");
    }
    for refused in [
        "-m arbitrary",
        "-m block,Pack",
        "-m block:cyclic --cpu-bind=cores",
        "--cpu-bind=map_cpu:0,1",
        "--mem-bind=rank",
        "--gpu-bind=map_gpu:0",
        "--switches=1 --contiguous",
        "--exclusive=mcs",
        "--hint=memory_bound",
        "--threads-per-core=2",
        "-t 0",
        "-t UNLIMITED",
        "--no-kill",
        "--propagate",
        "-M other",
        "-q low",
    ] {
        let error = translated(Command::Sbatch, refused).unwrap_err();
        assert!(error.hint.is_some(), "{refused}: {error}");
    }
    let soon = translated(Command::Sbatch, "--switches=1@soon").unwrap_err();
    assert!(soon.to_string().contains("HH:MM:SS"), "{soon}");
}

#[test]
fn an_address_alone_is_for_nothing() {
    let done = translated(Command::Sbatch, "--mail-user=ada").unwrap();
    assert_eq!((done.words, done.notes), (Vec::new(), vec!["--mail-user=ada: without --mail-type nobody gets mail".to_owned()]));
    assert_eq!(ours("--mail-user=ada --mail-type=END"), "--mail-user=ada --mail-type=end,fail");
}

#[test]
fn variables_set_options_of_their_command() {
    let environment = BTreeMap::from(
        [
            ("SBATCH_PARTITION", "long"),
            ("SBATCH_EXCLUSIVE", "1"),
            ("SBATCH_REQUEUE", "0"),
            ("SALLOC_ACCOUNT", "ml"),
            ("SLURM_NTASKS", "4"),
            ("SRUN_CPUS_PER_TASK", "2"),
            ("SLURM_LABELIO", "1"),
            ("SLURM_MPI_TYPE", "pmix"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    let of = |command, args: &str| translate_with(command, &words(args), &environment, &site()).unwrap();
    assert_eq!(of(Command::Sbatch, "").words, words("--exclusive --vcluster=batch"));
    assert_eq!(of(Command::Sbatch, "-p debug").words, words("--exclusive --vcluster=debug"));
    assert_eq!(of(Command::Salloc, "").words, words("--tenant=ml"));
    let step = of(Command::Srun, "-n 2 x");
    assert_eq!((step.words, step.own.label, step.own.mpi.as_deref()), (words("--cpus-per-task=2 --ntasks=2"), true, Some("pmix")));
    let wrong = BTreeMap::from([("SBATCH_QOS".to_owned(), "low".to_owned())]);
    let refused = translate_with(Command::Sbatch, &[], &wrong, &site()).unwrap_err();
    assert_eq!(refused.what, "SBATCH_QOS=low: the site has no QOS \"low\"");
}

#[test]
fn each_variable_sets_an_option_that_its_command_has() {
    for (name, long, commands) in environment::VARIABLES.iter().chain(environment::WHOLE_NAMES) {
        for command in Command::ALL.into_iter().filter(|command| commands & command.bit() != 0) {
            assert!(arguments::find_exactly(command, long).is_some(), "{name}: {} has no --{long}", command.name());
        }
    }
}
