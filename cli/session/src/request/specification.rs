//! The specification of an allocation, from options, a program and this process's environment.

use super::program::Program;
use super::surroundings::Surroundings;
use crate::failure::Failure;
use crate::last;
use crate::linked;
use crate::local_clock::local_clock;
use crate::settings::Settings;
use lattice_api::v1;
use lattice_cli_syntax::flags::SubmitFlags;
use lattice_cli_syntax::layout;
use lattice_cli_syntax::scaling::ScalingFlags;
use lattice_cli_syntax::specification::{self, Context};
use std::path::Path;

/// Builds the specification. The server validates it: only what the message cannot express is refused here.
pub fn build_specification(
    flags: &SubmitFlags,
    program: Program,
    settings: &Settings,
    around: Surroundings,
) -> Result<v1::AllocationSpec, Failure> {
    if let Some(name) = flags.uenv.as_deref().filter(|uenv| is_registry_name(uenv, &around.dir)) {
        return Err(Failure::usage(format!("--uenv {name}: names in a registry are not built yet"))
            .hint("give the path of a SquashFS file: --uenv ./env.sqfs"));
    }
    // A program in an image cannot be examined here. The launches of a script examine their own programs.
    let pmi = match &program {
        Program::Command(argv) if flags.uenv.is_none() => argv.first().map(|program| linked::wireup(program, &around.dir, &around.env)),
        Program::Command(_) | Program::Script { .. } | Program::Session => None,
    };
    let context = Context {
        tenant: settings.tenant.clone(),
        vcluster: settings.vcluster.clone(),
        env: around.env,
        dir: around.dir,
        nodelist: flags.nodelist.as_deref().map(layout::parse_nodelist).transpose()?.unwrap_or_default(),
        exclude: flags.exclude.as_deref().map(layout::parse_exclude).transpose()?.unwrap_or_default(),
        pmi,
        clock: local_clock(),
    };
    let mut spec = specification::build(flags, program, context)?;
    spec.depends_on = spec.depends_on.iter().map(|named| dependency(named, settings)).collect::<Result<_, _>>()?;
    // If the name cannot be read, it is empty.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().clone_into(&mut spec.submit_host);
    Ok(spec)
}

/// Makes `spec` the specification of a scaled service, if the options say so.
pub fn apply_scaling(spec: &mut v1::AllocationSpec, flags: &SubmitFlags, scaling: &ScalingFlags) -> Result<(), Failure> {
    Ok(specification::apply_scaling(spec, flags, scaling)?)
}

/// The dependency with `@last` replaced by an id, which only this program knows. A singleton names nothing.
fn dependency(named: &v1::Dependency, settings: &Settings) -> Result<v1::Dependency, Failure> {
    Ok(v1::Dependency { r#ref: last::resolve(&named.r#ref, &settings.endpoints)?, condition: named.condition.clone() })
}

/// Whether an environment looks like a name in a registry (`prgenv-gnu/24.11:v1`), and is not a file.
fn is_registry_name(uenv: &str, dir: &Path) -> bool {
    let path = uenv.split_once("@sha256:").map_or(uenv, |(path, _)| path);
    let looks_so = !path.starts_with(['/', '.']) && (path.contains(':') || !path.contains(['/', '.']));
    looks_so && !dir.join(path).exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{Format, Width};
    use clap::Parser;
    use lattice_cli_syntax::flags::NodeCount;
    use lattice_cli_syntax::scaling::ScalingFlags;
    use lattice_model::launch::{PMI_PORT_ASKED, PMI_PORT_VARIABLE};
    use std::collections::HashMap;

    #[derive(Parser)]
    struct ScalingLine {
        #[command(flatten)]
        scaling: ScalingFlags,
    }

    fn specify(flags: &SubmitFlags, program: Program) -> Result<v1::AllocationSpec, Failure> {
        let settings = Settings {
            endpoints: Vec::new(),
            ca: None,
            certificate: None,
            token: None,
            tenant: "t".into(),
            vcluster: "v".into(),
            operator: None,
            format: Format::Table,
            width: Width::Terse,
            color: false,
        };
        let around = Surroundings { env: HashMap::from([("A".into(), "1".into()), ("B".into(), "1".into())]), dir: "/project".into() };
        build_specification(flags, program, &settings, around)
    }

    fn specified(flags: &SubmitFlags, program: Program) -> v1::AllocationSpec {
        specify(flags, program).unwrap()
    }

    fn refused(flags: &SubmitFlags) -> String {
        specify(flags, Program::Session).unwrap_err().text()
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
    fn a_service_that_scales_has_no_walltime_unless_one_is_given_which_is_refused() {
        let ScalingLine { scaling } = ScalingLine::try_parse_from(["x", "--reactive", "--min-nodes=2", "--max-nodes=6"]).unwrap();
        let with = |walltime: Option<u64>| {
            let flags = SubmitFlags { walltime: walltime.map(std::time::Duration::from_secs), ..Default::default() };
            let mut spec = specified(&flags, Program::Command(vec!["true".into()]));
            apply_scaling(&mut spec, &flags, &scaling).unwrap();
            lattice_api::spec::to_model(&spec)
        };
        let model = with(None).unwrap();
        assert_eq!((model.walltime, model.nodes, model.scaling.map(|scaling| scaling.replicas_max)), (None, 1, Some(6)));
        assert!(with(Some(60)).unwrap_err().to_string().contains("leave out --walltime"));
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
    fn names_in_a_registry_are_refused() {
        for name in ["prgenv-gnu/24.11:v1", "prgenv-gnu:v1", "prgenv-gnu"] {
            let flags = SubmitFlags { uenv: Some(name.into()), ..Default::default() };
            let message = refused(&flags);
            assert!(message.contains(name) && message.contains("not built yet") && message.contains("SquashFS"), "{message}");
        }
        for path in ["./a", "/a:b", "a/b.sqfs", "env.sqfs"] {
            assert!(!is_registry_name(path, Path::new("/nowhere")), "{path}");
        }
    }

    #[test]
    fn missing_numbers_of_a_jobs_shape_follow_from_the_given_ones() {
        let script = || Program::Script { name: "a".into(), text: "#!/bin/sh\n".into(), args: vec![] };
        let of = |flags: SubmitFlags| {
            let spec = specified(&flags, script());
            let model = lattice_api::spec::to_model(&spec).unwrap();
            (model.nodes, model.tasks_per_node, model.launch.ranks)
        };
        let nodes = |least| Some(NodeCount { least, most: None });
        assert_eq!(of(SubmitFlags { nodes: nodes(3), ranks: Some(6), ..Default::default() }), (3, 2, 0));
        assert_eq!(of(SubmitFlags { ranks: Some(4), ..Default::default() }), (1, 4, 0));
        assert_eq!(of(SubmitFlags { nodes: nodes(3), ranks: Some(7), ..Default::default() }), (3, 3, 7));
        assert_eq!(of(SubmitFlags { nodelist: Some("n[1-3]".into()), ranks: Some(6), ..Default::default() }), (3, 2, 0));
        let refused = specify(&SubmitFlags { nodes: nodes(3), ranks: Some(2), ..Default::default() }, script()).unwrap_err();
        assert_eq!(refused.exit(), 2);
    }

    #[test]
    fn a_relative_directory_is_resolved_and_exclusive_excludes_a_share() {
        let spec = specified(&SubmitFlags { chdir: Some("sub".into()), ..Default::default() }, Program::Command(vec!["/bin/true".into()]));
        assert_eq!((spec.working_dir.as_str(), spec.submit_dir.as_str()), ("/project/sub", "/project"));
        let model = lattice_api::spec::to_model(&spec).unwrap();
        assert_eq!(model.submit_dir.as_deref(), Some(Path::new("/project")));
        let both = SubmitFlags { exclusive: Some(lattice_cli_syntax::flags::Exclusive::Nodes), mem: Some(1 << 30), ..Default::default() };
        let refused = refused(&both);
        assert!(refused.contains("--exclusive") && refused.contains("--mem"), "{refused}");
    }

    #[test]
    fn no_preempt_means_the_highest_class_and_the_stronger_option_wins() {
        let class = |flags: SubmitFlags| {
            let spec = specified(&flags, Program::Command(vec!["/bin/true".into()]));
            lattice_api::spec::to_model(&spec).unwrap().preemption_class
        };
        let never = || SubmitFlags { no_preempt: true, ..Default::default() };
        let third = || SubmitFlags { preemption_class: Some(3), ..Default::default() };
        assert_eq!([class(never()), class(never().merge_over(third())), class(third().merge_over(never()))], [10, 10, 3]);
    }
}
