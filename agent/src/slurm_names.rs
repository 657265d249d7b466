//! The site's names of Slurm, for the variables of work: reads `lattice-compat.yaml`, which Slurm's commands read too.

use lattice_agent_common::environment::slurm::SlurmNames;
use lattice_cli_syntax::compat::Compat;
use lattice_model::preemption::CLASS_MAX;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

/// Reads the file once. Without it, or if it is malformed, names are those of Lattice: a node must not stay away for that.
pub fn read(path: &Path) -> SlurmNames {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return SlurmNames::default(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read the site's names of Slurm; work has those of Lattice");
            return SlurmNames::default();
        }
    };
    match Compat::parse(&text) {
        Ok(compat) => names(&compat),
        Err(error) => {
            tracing::warn!(
                path = %path.display(), %error,
                "the site's names of Slurm are malformed, so work has those of Lattice; correct the file and restart the agent"
            );
            SlurmNames::default()
        }
    }
}

fn names(compat: &Compat) -> SlurmNames {
    let partition = |ours: &String| (ours.clone(), compat.partition_of(ours).to_owned());
    let account = |ours: &String| (ours.clone(), compat.account_of(ours).to_owned());
    SlurmNames {
        partitions: compat.partition_mapping.values().map(partition).collect(),
        accounts: compat.account_mapping.values().map(account).collect(),
        qos: (0..=CLASS_MAX).map(|class| (class, compat.qos_of(class).to_owned())).collect::<BTreeMap<_, _>>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_commands_show() {
        let compat = Compat::parse("partition_mapping: {long: batch, debug: batch}\nqos_mapping: {high: 8}\n").unwrap();
        let names = names(&compat);
        assert_eq!(names.partitions, [("batch".to_owned(), "debug".to_owned())].into());
        assert_eq!((names.qos[&8].as_str(), names.qos[&5].as_str()), ("high", "normal"));
        assert_eq!(read(Path::new("/nonexistent/lattice-compat.yaml")), SlurmNames::default());
    }
}
