//! Files of weights: for each vCluster the weights that it would have, as `lattice admin vcluster set-weights` sets them.
//!
//! ```text
//!   batch:                    vCluster
//!     profile: ml-training    first all weights of this profile, or of its scheduler (`default`)
//!     fair-share: 0.35        then these; the others stay as they are
//! ```
//!
//! `fair_share`, as the documents write it, is the same as `fair-share`. vClusters that are not named keep their weights.

use super::site::Site;
use anyhow::{Context, Result, bail, ensure};
use lattice_model::config;
use lattice_model::{Factor, Profile, VCluster, Weight};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The largest file, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// The key that takes all weights of a profile.
const PROFILE: &str = "profile";
/// The profile of a vCluster's scheduler.
const OF_SCHEDULER: &str = "default";

/// A file, as it was read.
#[derive(Clone, Debug)]
pub struct WeightFile {
    pub name: String,
    /// For each vCluster, the values of its keys.
    changes: BTreeMap<String, BTreeMap<String, String>>,
}

impl WeightFile {
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let mut text = String::new();
        let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).with_context(|| format!("cannot read {name}"))?;
        ensure!(text.len() as u64 <= FILE_BYTES_MAX, "{name} is larger than {FILE_BYTES_MAX} bytes");
        Self::parse(&name, &text)
    }

    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let changes: BTreeMap<String, BTreeMap<String, String>> = config::parse(name, text)?;
        ensure!(!changes.is_empty(), "{name} names no vCluster: write `default:`, and below it weights such as `fair-share: 0.35`");
        Ok(Self { name: name.to_owned(), changes })
    }

    /// The site with these weights. An error names the file and the key.
    pub fn apply(&self, site: &Site) -> Result<Site> {
        let mut changed = site.clone();
        for (name, values) in &self.changes {
            let at = || format!("{}: {name}", self.name);
            let known = site.vcluster(name).with_context(|| {
                let mut names: Vec<&str> = site.vclusters.iter().map(|vcluster| vcluster.name.as_str()).collect();
                names.push(lattice_model::DEFAULT_VCLUSTER);
                names.sort_unstable();
                names.dedup();
                format!("{}: the trace has no such vCluster; it has {}", at(), names.join(", "))
            })?;
            changed.set_vcluster(weighed(known, values).with_context(at)?);
        }
        Ok(changed)
    }
}

/// The vCluster with these weights.
fn weighed(mut vcluster: VCluster, values: &BTreeMap<String, String>) -> Result<VCluster> {
    let scheduler = vcluster.scheduler;
    let of_scheduler = scheduler.profile().with_context(|| format!("{scheduler} serves in the order of submission, without weights"))?;
    let mut weights = match values.get(PROFILE).map(String::as_str) {
        None => vcluster.weights.unwrap_or_else(|| of_scheduler.weights()),
        Some(OF_SCHEDULER) => of_scheduler.weights(),
        Some(named) => named.parse::<Profile>().context(PROFILE)?.weights(),
    };
    ensure!(!values.is_empty(), "no weight is given");
    for (key, value) in values.iter().filter(|(key, _)| *key != PROFILE) {
        let Some(factor) = factor(key) else {
            let names: Vec<&str> = Factor::ALL.iter().map(|factor| factor.name()).collect();
            bail!("{key}: there is no such weight; there are {}, and {PROFILE}", names.join(", "));
        };
        ensure!(key == factor.name() || !values.contains_key(factor.name()), "{key}: {} is given as well", factor.name());
        let number: f64 = value.parse().with_context(|| format!("{key}: {value:?} is not a number"))?;
        weights.set(factor, Weight::new(number).with_context(|| key.clone())?);
    }
    ensure!(!weights.are_zero(), "all weights are 0: no work would come before other work");
    vcluster.weights = Some(weights);
    Ok(vcluster)
}

fn factor(key: &str) -> Option<Factor> {
    let name = key.replace('_', "-");
    Factor::ALL.into_iter().find(|factor| factor.name() == name)
}

#[cfg(test)]
mod tests {
    use super::super::site::vcluster;
    use super::*;
    use lattice_model::{SchedulerKind, Weights};

    fn site() -> Site {
        let mut site = Site::alike(1);
        site.vclusters = vec![vcluster("batch", SchedulerKind::HpcBackfill), vcluster("debug", SchedulerKind::InteractiveFifo)];
        site
    }

    fn applied(text: &str) -> Result<Site> {
        WeightFile::parse("a.yaml", text)?.apply(&site())
    }

    fn weights(site: &Site, name: &str) -> Option<Weights> {
        site.vcluster(name).unwrap().weights
    }

    #[test]
    fn given_weights_are_set_and_the_others_stay() {
        let changed = applied("batch:\n  fair-share: 0.35 # more\n  wait_time: 1\n").unwrap();
        let mut want = Profile::HpcBatch.weights();
        want.set(Factor::FairShare, Weight::new(0.35).unwrap());
        want.set(Factor::WaitTime, Weight::new(1.0).unwrap());
        assert_eq!((weights(&changed, "batch"), weights(&changed, "default")), (Some(want), None));
        let profile = applied("default: {profile: ml-training, energy: 0}\n").unwrap();
        let mut want = Profile::MlTraining.weights();
        want.set(Factor::Energy, Weight::default());
        assert_eq!((weights(&profile, "default"), weights(&profile, "batch")), (Some(want), None));
        let reset = applied("batch:\n  profile: default\n").unwrap();
        assert_eq!(weights(&reset, "batch"), Some(Profile::HpcBatch.weights()));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_file_and_key() {
        let zeros = format!("batch:\n{}", Factor::ALL.map(|factor| format!("  {}: 0\n", factor.name())).concat());
        for (text, want) in [
            ("batch:\n  fair-share: -0.1\n", "a.yaml: batch: fair-share: a weight is a number from 0 to 1000"),
            ("batch:\n  fair-share: NaN\n", "a.yaml: batch: fair-share: a weight is a number from 0 to 1000"),
            ("batch:\n  fair-share: .nan\n", "a.yaml: batch: fair-share: \".nan\" is not a number"),
            ("batch:\n  fair-share: much\n", "a.yaml: batch: fair-share: \"much\" is not a number"),
            ("batch:\n  luck: 1\n", "a.yaml: batch: luck: there is no such weight; there are priority, wait-time"),
            ("batch:\n  profile: lottery\n", "a.yaml: batch: profile: \"lottery\" is not a weight profile"),
            ("batch:\n  fair-share: 1\n  fair_share: 2\n", "a.yaml: batch: fair_share: fair-share is given as well"),
            ("batch: {}\n", "a.yaml: batch: no weight is given"),
            ("other:\n  fair-share: 1\n", "a.yaml: other: the trace has no such vCluster; it has batch, debug, default"),
            ("debug:\n  fair-share: 1\n", "a.yaml: debug: interactive-fifo serves in the order of submission"),
            ("", "a.yaml names no vCluster"),
            (zeros.as_str(), "a.yaml: batch: all weights are 0"),
        ] {
            let got = format!("{:#}", applied(text).unwrap_err());
            assert!(got.contains(want), "{text:?}: {got:?} does not have {want:?}");
        }
        for broken in ["batch: 3\n", "batch:\n  fair-share: [1]\n", "batch:\n  fair-share: 1\nbatch:\n  fair-share: 2\n", "- batch\n"] {
            let got = format!("{:#}", applied(broken).unwrap_err());
            assert!(got.starts_with("a.yaml: "), "{broken:?}: {got:?}");
        }
    }
}
