//! From options, a program and this process's surroundings to a specification.

use crate::failure::Failure;
use crate::flags::{Export, SubmitFlags};
use crate::linked;
use crate::settings::Settings;
use lattice_api::v1;
use lattice_model::spec::{SCRIPT_BYTES_MAX, is_wireup_variable};
use std::collections::HashMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Walltime of a submission that names none.
const WALLTIME_SECONDS_DEFAULT: u64 = 3600;
/// Bytes a name may have.
const NAME_BYTES_MAX: usize = 128;

/// What is to run.
pub enum Program {
    /// A script with the name of its file.
    Script {
        /// The file's name, for people.
        name: String,
        /// The script itself.
        text: String,
        /// Its arguments.
        args: Vec<String>,
    },
    /// Program and arguments.
    Command(Vec<String>),
    /// Nothing: a user's terminal, when it is there.
    Session,
}

/// Reads a script.
///
/// # Errors
/// A file that cannot be read, that is too large, or that is no script.
pub fn read_script(path: &OsStr, args: Vec<String>) -> Result<Program, Failure> {
    let path = Path::new(path);
    let shown = path.display();
    let cannot = |error: std::io::Error| Failure::usage(format!("cannot read the script {shown}: {error}"));
    let mut bytes = Vec::new();
    let most = u64::try_from(SCRIPT_BYTES_MAX).unwrap_or(u64::MAX);
    File::open(path).map_err(cannot)?.take(most + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() > SCRIPT_BYTES_MAX {
        return Err(Failure::usage(format!("the script {shown} has more than {SCRIPT_BYTES_MAX} bytes"))
            .hint("a program is submitted as `lattice submit -- PROGRAM`"));
    }
    let no_script = |what: &str| {
        Failure::usage(format!("{shown} is no script: {what}")).hint(format!("a program is submitted as `lattice submit -- {shown}`"))
    };
    let text = String::from_utf8(bytes).map_err(|_| no_script("it is not text in UTF-8"))?;
    if !text.starts_with("#!") {
        return Err(Failure::usage(format!("{shown} does not begin with an interpreter line such as #!/bin/bash"))
            .hint(format!("add one, or submit a program as `lattice submit -- {shown}`")));
    }
    if text.contains('\0') {
        return Err(no_script("it has NUL bytes"));
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(Program::Script { name, text, args })
}

/// This process's environment and working directory.
pub struct Surroundings {
    /// Variables that are text.
    pub env: HashMap<String, String>,
    /// Where it runs.
    pub dir: PathBuf,
}

impl Surroundings {
    /// Looks around; variables of a wire-up, Lattice's own and those that are not UTF-8 stay behind.
    pub fn look(export: Option<Export>) -> Result<Self, Failure> {
        let dir = env::current_dir().map_err(|error| Failure::other(format!("cannot tell the working directory: {error}")))?;
        let env = match export {
            None | Some(Export::All) => exported(env::vars_os()),
            Some(Export::None) => HashMap::new(),
        };
        Ok(Self { env, dir })
    }
}

fn exported(variables: impl Iterator<Item = (OsString, OsString)>) -> HashMap<String, String> {
    let texts = variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    texts.filter(|(name, _)| !name.is_empty() && !is_wireup_variable(name) && !name.starts_with("LATTICE_")).collect()
}

/// The specification. The server checks it; only what cannot be said in it is refused here.
pub fn specification(
    flags: &SubmitFlags,
    program: Program,
    settings: &Settings,
    around: Surroundings,
) -> Result<v1::AllocationSpec, Failure> {
    let working_dir = around.dir.to_str().ok_or_else(|| Failure::usage("the working directory's name is not UTF-8"))?.to_owned();
    let default_name = match &program {
        Program::Script { name, .. } => name.clone(),
        Program::Command(argv) => {
            let program = argv.first().map(String::as_str).unwrap_or_default();
            Path::new(program).file_name().map_or_else(|| program.to_owned(), |name| name.to_string_lossy().into_owned())
        }
        Program::Session => "session".to_owned(),
    };
    let session = matches!(program, Program::Session);
    // What is in an image is not seen from here, and a script's launches look by themselves.
    let pmi = match &program {
        Program::Command(argv) if flags.uenv.is_none() => argv.first().map(|program| linked::wireup(program, &around.dir, &around.env)),
        Program::Command(_) | Program::Script { .. } | Program::Session => None,
    };
    let what = match program {
        Program::Script { name: _, text, args } => Some(v1::entrypoint::What::Script(v1::entrypoint::Script { text, args })),
        Program::Command(argv) => Some(v1::entrypoint::What::Command(v1::entrypoint::Command { argv })),
        Program::Session => None,
    };
    let mut env = around.env;
    env.extend(flags.variables(pmi));
    let nodes = flags.nodes;
    let uenv = flags.uenv.as_ref().map(|uenv| around.dir.join(uenv).to_string_lossy().into_owned());
    let or = |given: &Option<String>, default: &str| given.clone().unwrap_or_else(|| default.to_owned());
    let mut spec = v1::AllocationSpec {
        name: flags.name.clone().unwrap_or_else(|| presentable(&default_name)),
        tenant: or(&flags.tenant, &settings.tenant),
        project: or(&flags.project, ""),
        vcluster: or(&flags.vcluster, &settings.vcluster),
        environment: uenv.map(|uenv| v1::Environment { uenv, ..Default::default() }),
        entrypoint: what.map(|what| v1::Entrypoint { what: Some(what) }),
        session,
        resources: Some(v1::ResourceRequest {
            nodes: nodes.map_or(1, |n| n.least),
            nodes_max: nodes.and_then(|n| n.most).unwrap_or_default(),
            constraints: flags.constraints().flat_map(constraints).collect(),
            shared: flags.shared,
            cpus: flags.cores.unwrap_or_default(),
            memory_bytes: flags.mem.unwrap_or_default(),
            memory_gb: flags.memory_gb.unwrap_or_default(),
            gpus: flags.gpus.unwrap_or_default(),
            ..Default::default()
        }),
        lifecycle: Some(v1::Lifecycle {
            r#type: if flags.service { "unbounded" } else { "bounded" }.to_owned(),
            walltime_seconds: flags.walltime.map_or(if flags.service { 0 } else { WALLTIME_SECONDS_DEFAULT }, |time| time.as_secs()),
            preemption_class: flags.class().unwrap_or_default(),
            preemption_class_set: flags.class().is_some(),
        }),
        tasks_per_node: flags.tasks_per_node.unwrap_or_default(),
        binding: flags.binding.message(),
        launch: Some(flags.layout.message()).filter(|shape| *shape != v1::LaunchShape::default()),
        working_dir,
        env,
        data: Some(flags.data.data(&around.dir)),
        liveness_probe: flags.data.liveness_probe.clone(),
        connectivity: flags.network.message(),
        requeue: (flags.requeue.is_some() || flags.max_requeues.is_some()).then(|| v1::Requeue {
            policy: flags.requeue.map_or(String::new(), |policy| policy.name().to_owned()),
            max: flags.max_requeues.unwrap_or_default(),
        }),
        checkpoint: flags.checkpointing(),
        on_isolation: flags.on_isolation.map_or(String::new(), |choice| choice.name().to_owned()),
        ..Default::default()
    };
    flags.unbuilt.apply(&mut spec);
    Ok(spec)
}

/// `gpu_type=GH200,memory_gb>=512,nvme_scratch`, also with `:` and, as Slurm has it, `&`: from what to how.
fn constraints(list: &str) -> impl Iterator<Item = (String, String)> {
    list.split([',', '&']).map(str::trim).filter(|part| !part.is_empty()).map(|part| {
        let halves = part.split_once(">=").or_else(|| part.split_once(['=', ':']));
        let (key, value) = halves.unwrap_or((part, ""));
        (key.trim().to_owned(), value.trim().to_owned())
    })
}

/// A file's name as a name for people: bounded, without control characters, never empty.
fn presentable(name: &str) -> String {
    let mut shown = String::new();
    for c in name.chars().map(|c| if c.is_control() { '?' } else { c }) {
        if shown.len() + c.len_utf8() > NAME_BYTES_MAX {
            break;
        }
        shown.push(c);
    }
    if shown.is_empty() { "unnamed".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{Format, Width};
    use lattice_model::launch::{PMI_PORT_ASKED, PMI_PORT_VARIABLE};

    fn specified(flags: &SubmitFlags, program: Program) -> v1::AllocationSpec {
        let settings =
            Settings { endpoint: String::new(), tenant: "t".into(), vcluster: "v".into(), format: Format::Table, width: Width::Terse };
        let around = Surroundings { env: HashMap::from([("A".into(), "1".into()), ("B".into(), "1".into())]), dir: "/project".into() };
        specification(flags, program, &settings, around).unwrap()
    }

    #[test]
    fn a_bare_command_gets_the_defaults_and_is_valid() {
        let spec = specified(&SubmitFlags::default(), Program::Command(vec!["/bin/hostname".into(), "-f".into()]));
        assert_eq!((spec.name.as_str(), spec.tenant.as_str(), spec.vcluster.as_str()), ("hostname", "t", "v"));
        let model = lattice_api::spec::to_model(&spec).unwrap();
        assert_eq!(
            (model.nodes, model.tasks_per_node, model.walltime.map(|time| time.as_secs()), model.preemption_class),
            (1, 1, Some(3600), 5)
        );
        assert_eq!(model.working_dir, Path::new("/project"));
    }

    #[test]
    fn flags_win_and_a_relative_image_is_made_absolute() {
        let flags = SubmitFlags {
            uenv: Some("./env.sqfs@sha256:ab".into()),
            env: vec![("B".into(), "2".into()), ("B".into(), "3".into())],
            tenant: Some("u".into()),
            preemption_class: Some(0),
            pmi_port: true,
            ..Default::default()
        };
        let spec = specified(&flags, Program::Script { name: "a\nb.sh".into(), text: "#!/bin/sh\n".into(), args: vec!["x".into()] });
        assert_eq!(spec.environment.unwrap().uenv, "/project/./env.sqfs@sha256:ab");
        assert_eq!((spec.env["A"].as_str(), spec.env["B"].as_str()), ("1", "3"));
        assert_eq!(spec.env[PMI_PORT_VARIABLE], PMI_PORT_ASKED);
        assert_eq!((spec.name.as_str(), spec.tenant.as_str()), ("a?b.sh", "u"));
        assert!(spec.lifecycle.unwrap().preemption_class_set);
    }

    #[test]
    fn what_nobody_preempts_is_of_the_highest_class_unless_another_is_said_above_it() {
        let class = |flags: SubmitFlags| {
            let spec = specified(&flags, Program::Command(vec!["/bin/true".into()]));
            lattice_api::spec::to_model(&spec).unwrap().preemption_class
        };
        let never = || SubmitFlags { no_preempt: true, ..Default::default() };
        let third = || SubmitFlags { preemption_class: Some(3), ..Default::default() };
        assert_eq!([class(never()), class(never().over(third())), class(third().over(never()))], [10, 10, 3]);
    }

    #[test]
    fn a_launchers_variables_stay_behind() {
        let variables = ["PATH", "PMI_RANK", "SLURM_JOB_ID", "LATTICE_ALLOC_ID", "PMIX_RANK", "HOME"].map(|n| (n.into(), "x".into()));
        let mut kept: Vec<_> = exported(variables.into_iter()).into_keys().collect();
        kept.sort();
        assert_eq!(kept, ["HOME", "PATH"]);
    }

    #[test]
    fn what_is_no_script_is_told_apart() {
        for (contents, told) in [(&b"\x7fELF\xff"[..], "is no script"), (b"echo", "interpreter line"), (b"#!/bin/sh\n\0", "NUL")] {
            let path = env::temp_dir().join(format!("lattice-script-{}", uuid::Uuid::new_v4()));
            std::fs::write(&path, contents).unwrap();
            let refused = read_script(path.as_os_str(), vec![]);
            std::fs::remove_file(&path).unwrap();
            match refused {
                Err(failure) => assert!(failure.text().contains(told) && failure.exit() == 2, "{}", failure.text()),
                Ok(_) => panic!("{told}"),
            }
        }
        assert!(read_script(OsStr::new("/nonexistent/job.sh"), vec![]).is_err());
    }
}
