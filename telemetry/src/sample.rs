//! The values of one moment: the content of a scrape or a push.

use crate::catalogue::{Family, Kind};
use crate::histogram::Counts;
use std::collections::BTreeMap;

/// One value, with its labels' values in the family's order.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub labels: Vec<String>,
    pub value: Value,
}

/// See [`Kind`].
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Number(f64),
    Counts(Counts),
}

/// Collects samples by family, sorted by name.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    common: Vec<(&'static str, String)>,
    families: BTreeMap<&'static str, (&'static Family, Vec<Sample>)>,
}

impl Samples {
    /// `common`: labels of every series of this process, such as its node.
    pub fn new(common: Vec<(&'static str, String)>) -> Self {
        Self { common, families: BTreeMap::new() }
    }

    /// Adds a value. `labels`: one value for each of the family's labels.
    pub fn add(&mut self, family: &'static Family, labels: &[&str], value: impl Into<f64>) {
        assert_ne!(family.kind, Kind::Histogram, "{} is a histogram", family.name);
        self.put(family, labels, Value::Number(value.into()));
    }

    /// Adds a counter or a size. Beyond 2^53 it loses precision, as every number of Prometheus does.
    pub fn count(&mut self, family: &'static Family, labels: &[&str], value: u64) {
        self.add(family, labels, value as f64);
    }

    /// Adds a histogram.
    pub fn histogram(&mut self, family: &'static Family, labels: &[&str], counts: Counts) {
        assert_eq!(family.kind, Kind::Histogram, "{} is no histogram", family.name);
        self.put(family, labels, Value::Counts(counts));
    }

    fn put(&mut self, family: &'static Family, labels: &[&str], value: Value) {
        assert_eq!(family.labels.len(), labels.len(), "{} has the labels {:?}", family.name, family.labels);
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        self.families.entry(family.name).or_insert_with(|| (family, Vec::new())).1.push(Sample { labels, value });
    }

    /// Labels of every series.
    pub fn common(&self) -> &[(&'static str, String)] {
        &self.common
    }

    /// The collected samples, by name.
    pub fn families(&self) -> impl Iterator<Item = (&'static Family, &[Sample])> {
        self.families.values().map(|(family, samples)| (*family, samples.as_slice()))
    }
}

/// A part of the process with metrics. It must answer at any time and without waiting.
pub trait Collect: Send + Sync {
    /// Adds its values. `whose`: whether the values of allocations, which only authorised scrapers see, are included.
    fn collect(&self, samples: &mut Samples, whose: Whose);
}

/// Which values are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The values of the process and its node.
    Ours,
    /// The values of each allocation as well.
    Everybodys,
}
