//! How the site's names of Slurm map to names of Lattice: `lattice-compat.yaml`.

use serde::Deserialize;
use std::collections::BTreeMap;
use thiserror::Error;

/// The file, by default `/etc/lattice/lattice-compat.yaml`; `LATTICE_COMPAT` names another one.
///
/// A name that is not in a map is the same in both systems.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Compat {
    /// The vCluster of each of Slurm's partitions. Several partitions may have one vCluster.
    pub partition_mapping: BTreeMap<String, String>,
    /// The tenant of each of Slurm's accounts.
    pub account_mapping: BTreeMap<String, String>,
    /// The preemption class, 0 to 10, of each of Slurm's QOS. A QOS that is not there is refused.
    pub qos_mapping: BTreeMap<String, u8>,
    /// The partition of work that names none; unset: the vCluster `default`.
    pub default_partition: Option<String>,
    /// The name of the cluster that Slurm's commands print; unset: `lattice`.
    pub cluster_name: Option<String>,
}

/// The file cannot be used.
#[derive(Debug, Error)]
pub enum CompatError {
    /// It is not YAML of this form.
    #[error("{0}")]
    Malformed(String),
    /// A class is larger than 10.
    #[error("qos_mapping: {qos}: {class} is no preemption class: 0 to 10 are possible")]
    Class {
        /// The QOS.
        qos: String,
        /// Its class.
        class: u8,
    },
}

impl Compat {
    /// Parses the file's text.
    ///
    /// # Errors
    /// It has another form, or a class that does not exist.
    pub fn parse(text: &str) -> Result<Self, CompatError> {
        let compat: Self = serde_saphyr::from_str(text).map_err(|error| CompatError::Malformed(error.to_string()))?;
        match compat.qos_mapping.iter().find(|(_, class)| **class > lattice_model::preemption::CLASS_MAX) {
            Some((qos, class)) => Err(CompatError::Class { qos: qos.clone(), class: *class }),
            None => Ok(compat),
        }
    }

    /// The vCluster of a partition.
    pub fn vcluster_of<'a>(&'a self, partition: &'a str) -> &'a str {
        self.partition_mapping.get(partition).map_or(partition, String::as_str)
    }

    /// The partition by which a vCluster is shown: the first that maps to it, else its own name.
    pub fn partition_of<'a>(&'a self, vcluster: &'a str) -> &'a str {
        name_of(&self.partition_mapping, vcluster)
    }

    /// The tenant of an account.
    pub fn tenant_of<'a>(&'a self, account: &'a str) -> &'a str {
        self.account_mapping.get(account).map_or(account, String::as_str)
    }

    /// The account by which a tenant is shown: the first that maps to it, else its own name.
    pub fn account_of<'a>(&'a self, tenant: &'a str) -> &'a str {
        name_of(&self.account_mapping, tenant)
    }

    /// The preemption class of a QOS; `None`: the site has not named it.
    pub fn class_of(&self, qos: &str) -> Option<u8> {
        self.qos_mapping.get(qos).copied()
    }

    /// The QOS by which a preemption class is shown: the first that maps to it, else `normal`.
    pub fn qos_of(&self, class: u8) -> &str {
        self.qos_mapping.iter().find(|(_, of)| **of == class).map_or("normal", |(qos, _)| qos)
    }

    /// The name of the cluster.
    pub fn cluster(&self) -> &str {
        self.cluster_name.as_deref().unwrap_or("lattice")
    }
}

fn name_of<'a>(names: &'a BTreeMap<String, String>, ours: &'a str) -> &'a str {
    names.iter().find(|(_, of)| *of == ours).map_or(ours, |(theirs, _)| theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_map_both_ways_and_others_stay() {
        let compat = Compat::parse(
            "partition_mapping: {normal: batch, long: batch}\naccount_mapping: {phys: physics}\nqos_mapping: {low: 1, high: 7}\n",
        )
        .unwrap();
        assert_eq!([compat.vcluster_of("long"), compat.vcluster_of("x"), compat.partition_of("batch")], ["batch", "x", "long"]);
        assert_eq!([compat.tenant_of("phys"), compat.account_of("physics"), compat.account_of("y")], ["physics", "phys", "y"]);
        assert_eq!((compat.class_of("high"), compat.class_of("z"), compat.qos_of(1), compat.qos_of(5)), (Some(7), None, "low", "normal"));
        assert_eq!(Compat::default().cluster(), "lattice");
    }

    #[test]
    fn a_wrong_file_is_refused() {
        for wrong in ["partitions: {}", "qos_mapping: {a: 11}", "qos_mapping: [1]", "- a"] {
            assert!(Compat::parse(wrong).is_err(), "{wrong}");
        }
    }
}
