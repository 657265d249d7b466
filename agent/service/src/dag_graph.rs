//! The graph of a DAG as its author wrote it: the order of its steps, and every fault of it.

use lattice_model::config::nearest;
use lattice_model::dag::{DAG_NAME_BYTES_MAX, is_dag_name};
use lattice_model::dependency::DEPENDENCIES_MAX;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// How many steps of a cycle a text names.
const NAMED_MAX: usize = 12;
/// How many cycles are looked for: a graph with one is refused anyway, and each search takes time.
const CYCLES_MAX: usize = 20;
/// How many pairs of characters are compared for a similar name, which takes milliseconds.
const COMPARED_MAX: usize = 1 << 18;

/// A step as its author wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedStep<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it depends on: names of steps, or ids of other allocations.
    pub depends_on: Vec<&'a str>,
}

/// What is wrong with a graph.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GraphFault {
    /// There is no step.
    #[error("it has no steps")]
    Empty,
    /// The text cannot name a step.
    #[error("step {number}: a name has 1 to 128 bytes without control characters")]
    Name {
        /// Which step, from 1.
        number: usize,
    },
    /// No step has a name of this size, and no allocation has such an id.
    #[error("step {number} depends on a text of {bytes} bytes; names and ids have 1 to 128 bytes")]
    Reference {
        /// Which step, from 1.
        number: usize,
        /// The size of the text.
        bytes: usize,
    },
    /// A step depends on too many others.
    #[error("step {number} depends on {count} others; at most {DEPENDENCIES_MAX} are possible")]
    Dependencies {
        /// Which step, from 1.
        number: usize,
        /// On how many.
        count: usize,
    },
    /// Several steps have the same name.
    #[error("{count} steps are named {name:?}: give each a name of its own")]
    Duplicate {
        /// The name.
        name: String,
        /// How many have it.
        count: usize,
    },
    /// A step depends on something that does not exist.
    #[error(
        "step {step:?} depends on {on:?}, which is no step of this DAG and no known allocation{}",
        meant.as_ref().map(|meant| format!("; did you mean {meant:?}?")).unwrap_or_default()
    )]
    Unknown {
        /// The step.
        step: String,
        /// What it names.
        on: String,
        /// A step with a similar name.
        meant: Option<String>,
    },
    /// Steps depend on each other.
    #[error("these steps depend on each other: {}", path(steps))]
    Cycle {
        /// Their names; each depends on the one before, and the first one on the last one.
        steps: Vec<String>,
    },
}

impl GraphFault {
    /// A step depends on something that does not exist.
    pub fn unknown(step: &str, on: &str, steps: &[NamedStep<'_>]) -> Self {
        let meant = similar(on, steps).map(str::to_owned);
        Self::Unknown { step: step.to_owned(), on: on.chars().take(80).collect(), meant }
    }
}

/// The name of a step that is similar to this text, among as many as are compared.
fn similar<'a>(text: &str, steps: &[NamedStep<'a>]) -> Option<&'a str> {
    let mut left = COMPARED_MAX;
    let is_compared = |name: &&str| match left.checked_sub(text.len().saturating_mul(name.len())) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    nearest(text, steps.iter().map(|step| step.name).take_while(is_compared))
}

/// Checks the sizes of names and references: a graph is examined as a whole only if all are
/// allowed.
///
/// # Errors
/// A step's name, or a text that it depends on, is too long; or it depends on too many.
pub fn check_sizes(steps: &[NamedStep<'_>]) -> Result<(), GraphFault> {
    for (number, step) in (1..).zip(steps) {
        if step.name.len() > DAG_NAME_BYTES_MAX {
            return Err(GraphFault::Name { number });
        }
        let count = step.depends_on.len();
        if count > DEPENDENCIES_MAX {
            return Err(GraphFault::Dependencies { number, count });
        }
        if let Some(long) = step.depends_on.iter().find(|on| on.len() > DAG_NAME_BYTES_MAX) {
            return Err(GraphFault::Reference { number, bytes: long.len() });
        }
    }
    Ok(())
}

/// `a -> b -> a`.
fn path(steps: &[String]) -> String {
    let mut shown: Vec<&str> = steps.iter().take(NAMED_MAX).map(String::as_str).collect();
    if steps.len() > NAMED_MAX {
        shown.push("...");
    }
    shown.extend(steps.first().map(String::as_str));
    shown.join(" -> ")
}

/// Orders the steps so that each follows those that it depends on, and otherwise as written. A
/// reference to something that is no step is ignored.
///
/// # Errors
/// All faults: bad names, names of several steps, and the steps of each of the first cycles.
pub fn order(steps: &[NamedStep<'_>]) -> Result<Vec<usize>, Vec<GraphFault>> {
    if steps.is_empty() {
        return Err(vec![GraphFault::Empty]);
    }
    let mut numbers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut faults = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        if is_dag_name(step.name) {
            numbers.entry(step.name).or_default().push(number);
        } else {
            faults.push(GraphFault::Name { number: number + 1 });
        }
    }
    let twice = numbers.iter().filter(|(_, all)| all.len() > 1);
    faults.extend(twice.map(|(name, all)| GraphFault::Duplicate { name: (*name).to_owned(), count: all.len() }));
    // A name of several steps means the first of them here: the graph is refused anyway.
    let number_of = |name: &&str| numbers.get(*name).and_then(|all| all.first()).copied();
    let parents: Vec<BTreeSet<usize>> = steps.iter().map(|step| step.depends_on.iter().filter_map(number_of).collect()).collect();
    let (order, cycles) = sort(&parents);
    let names = |cycle: Vec<usize>| cycle.into_iter().filter_map(|number| steps.get(number)).map(|step| step.name.to_owned()).collect();
    faults.extend(cycles.into_iter().map(|cycle| GraphFault::Cycle { steps: names(cycle) }));
    if faults.is_empty() { Ok(order) } else { Err(faults) }
}

/// Orders the numbers so that each follows its parents, the smallest first. Also returns cycles,
/// each from its smallest number on; at most [`CYCLES_MAX`], and none that shares numbers with an
/// earlier one.
fn sort(parents: &[BTreeSet<usize>]) -> (Vec<usize>, Vec<Vec<usize>>) {
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); parents.len()];
    let mut missing: Vec<usize> = parents.iter().map(BTreeSet::len).collect();
    for (child, of) in parents.iter().enumerate() {
        of.iter().for_each(|parent| children[*parent].push(child));
    }
    let mut left: BTreeSet<usize> = (0..parents.len()).collect();
    let mut ready: BTreeSet<usize> = left.iter().copied().filter(|number| missing[*number] == 0).collect();
    let (mut order, mut cycles) = (Vec::with_capacity(parents.len()), Vec::new());
    loop {
        let Some(next) = ready.pop_first() else {
            let Some(first) = left.first().copied().filter(|_| cycles.len() < CYCLES_MAX) else { return (order, cycles) };
            let cycle = cycle_before(first, parents, &left);
            // Continue as if its steps did not depend on each other: there may be more cycles.
            ready.extend(cycle.iter().copied());
            cycles.push(cycle);
            continue;
        };
        if !left.remove(&next) {
            continue;
        }
        order.push(next);
        for child in &children[next] {
            missing[*child] = missing[*child].saturating_sub(1);
            if missing[*child] == 0 && left.contains(child) {
                ready.insert(*child);
            }
        }
    }
}

/// A cycle among the numbers `left`, each of which has a parent among them: walks from `from` to
/// such a parent, again and again.
fn cycle_before(from: usize, parents: &[BTreeSet<usize>], left: &BTreeSet<usize>) -> Vec<usize> {
    let (mut walked, mut places) = (Vec::new(), BTreeMap::new());
    let mut now = from;
    while !places.contains_key(&now) {
        places.insert(now, walked.len());
        walked.push(now);
        match parents[now].iter().find(|parent| left.contains(*parent)) {
            Some(parent) => now = *parent,
            None => break,
        }
    }
    let begin = places.get(&now).copied().unwrap_or_default();
    let mut cycle: Vec<usize> = walked.split_off(begin);
    // From parent to child, and from the smallest on.
    cycle.reverse();
    let smallest = cycle.iter().enumerate().min_by_key(|(_, number)| **number).map_or(0, |(place, _)| place);
    cycle.rotate_left(smallest);
    cycle
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps<'a>(of: &[(&'a str, &[&'a str])]) -> Vec<NamedStep<'a>> {
        of.iter().map(|&(name, depends_on)| NamedStep { name, depends_on: depends_on.to_vec() }).collect()
    }

    fn faults(of: &[(&str, &[&str])]) -> Vec<String> {
        order(&steps(of)).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn steps_come_after_what_they_depend_on_and_otherwise_as_written() {
        let ordered = |of: &[(&str, &[&str])]| order(&steps(of)).unwrap();
        assert_eq!(ordered(&[("a", &[]), ("b", &[]), ("c", &[])]), [0, 1, 2]);
        assert_eq!(ordered(&[("d", &["b", "c"]), ("c", &["a"]), ("b", &["a"]), ("a", &[])]), [3, 1, 2, 0]);
        assert_eq!(ordered(&[("a", &["1f0c9a4e"]), ("b", &["a", "a"])]), [0, 1], "other allocations are looked up elsewhere");
    }

    #[test]
    fn every_fault_is_named() {
        assert_eq!(faults(&[]), ["it has no steps"]);
        let bad: [(&str, &[&str]); 6] = [("", &[]), ("a", &["c"]), ("b", &["a"]), ("b", &[]), ("c", &["b"]), ("e", &["e"])];
        assert_eq!(
            faults(&bad),
            [
                "step 1: a name has 1 to 128 bytes without control characters",
                "2 steps are named \"b\": give each a name of its own",
                "these steps depend on each other: a -> b -> c -> a",
                "these steps depend on each other: e -> e",
            ]
        );
        let known = steps(&[("train", &[])]);
        let unknown = |on| GraphFault::unknown("eval", on, &known).to_string();
        assert_eq!(
            unknown("trian"),
            "step \"eval\" depends on \"trian\", which is no step of this DAG and no known allocation; did you mean \"train\"?"
        );
        assert_eq!(unknown("1f0c9a4e"), "step \"eval\" depends on \"1f0c9a4e\", which is no step of this DAG and no known allocation");
    }

    #[test]
    fn a_cycle_behind_other_steps_is_found_and_what_follows_it_is_no_fault() {
        let of: [(&str, &[&str]); 5] = [("after", &["y"]), ("x", &["begin", "y"]), ("y", &["x"]), ("begin", &[]), ("last", &["after"])];
        assert_eq!(faults(&of), ["these steps depend on each other: x -> y -> x"]);
    }

    #[test]
    fn sizes_beyond_the_limits_are_refused() {
        let checked = |of: &[(&str, &[&str])]| check_sizes(&steps(of)).map_err(|fault| fault.to_string());
        let (long, longer) = ("x".repeat(128), "x".repeat(129));
        let most = vec!["a"; DEPENDENCIES_MAX];
        assert_eq!(checked(&[("", &[]), (&long, &[&long, ""]), ("b", &most)]), Ok(()));
        let refused = |text: &str| Err(text.to_owned());
        assert_eq!(checked(&[("a", &[]), (&longer, &[])]), refused("step 2: a name has 1 to 128 bytes without control characters"));
        assert_eq!(checked(&[("a", &["b", &longer])]), refused("step 1 depends on a text of 129 bytes; names and ids have 1 to 128 bytes"));
        let more = vec!["a"; DEPENDENCIES_MAX + 1];
        assert_eq!(checked(&[("a", &more)]), refused("step 1 depends on 257 others; at most 256 are possible"));
    }

    #[test]
    fn a_similar_name_is_looked_for_among_a_bounded_number() {
        let names: Vec<String> = (0..10_000).map(|number| format!("{number:0>128}")).collect();
        let filled = |count: usize| {
            let mut of: Vec<NamedStep<'_>> = names.iter().take(count).map(|name| NamedStep { name, depends_on: vec![] }).collect();
            of.push(NamedStep { name: "train", depends_on: vec![] });
            of
        };
        assert_eq!(similar("trian", &filled(400)), Some("train"));
        assert_eq!(similar("trian", &filled(10_000)), None, "it is behind more than is compared");
    }

    #[test]
    fn of_many_cycles_the_first_are_found() {
        let names: Vec<String> = (0..60).map(|number| format!("s{number}")).collect();
        // Each of two depends on the other.
        let of: Vec<NamedStep<'_>> =
            (0..60_usize).map(|number| NamedStep { name: &names[number], depends_on: vec![names[number ^ 1].as_str()] }).collect();
        let found = order(&of).unwrap_err();
        assert_eq!(found.len(), CYCLES_MAX);
        assert_eq!(found[19].to_string(), "these steps depend on each other: s38 -> s39 -> s38");
    }

    #[test]
    fn a_long_cycle_is_shortened_in_its_text() {
        let names: Vec<String> = (0..20).map(|number| format!("s{number}")).collect();
        let of: Vec<NamedStep<'_>> =
            (0..20_usize).map(|number| NamedStep { name: &names[number], depends_on: vec![names[(number + 19) % 20].as_str()] }).collect();
        let shown = order(&of).unwrap_err()[0].to_string();
        assert!(shown.ends_with("s0 -> s1 -> s2 -> s3 -> s4 -> s5 -> s6 -> s7 -> s8 -> s9 -> s10 -> s11 -> ... -> s0"), "{shown}");
    }
}
