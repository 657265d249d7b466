//! What work cannot ask of its nodes together.

use super::{AllocationSpec, WALLTIME_MAX, invalid};
use crate::constraint::Topology;
use crate::count::{counted, is_or_are};
use crate::spec_error::SpecError;

impl AllocationSpec {
    pub(super) fn validate_node_choice(&self) -> Result<(), SpecError> {
        if let Some(wait) = self.topology_wait {
            let refuse = |why: &str| Err(invalid("topology-wait", why));
            if wait.is_zero() || wait > WALLTIME_MAX {
                return refuse("more than 0 and at most 365 days");
            }
            if self.constraints.topology == Topology::Any {
                return refuse("there is no topology to wait for: give --topology too");
            }
            if self.spread.is_some() {
                return refuse("the number of nodes is not known before it begins: leave it or --spread out");
            }
        }
        let refuse = |why: String| Err(invalid("constraint", why));
        let is_contiguous = self.constraints.topology == Topology::Contiguous;
        if is_contiguous && (self.constraints.conformance || self.constraints.together().is_some()) {
            let why = "contiguous nodes go neither with require_conformance nor with [...] and numbers of nodes: leave these out";
            return refuse(why.to_owned());
        }
        let Some(together) = self.constraints.together() else { return Ok(()) };
        if self.scaling.is_some() {
            return refuse("each replica gets its node by itself: leave [...] and numbers of nodes (a*2) out".to_owned());
        }
        let wanted = together.counted_nodes();
        if wanted > self.nodes {
            let (wanted, are, has) = (counted(wanted, "node"), is_or_are(wanted), counted(self.nodes, "node"));
            return refuse(format!("{together} {are} {wanted}, and it asks for {has}: give -N at least as many"));
        }
        if wanted > 0 && self.constraints.topology != Topology::Any {
            return refuse(format!("{together}, and nodes of few topology groups: leave --topology out, or the numbers"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::feature_expression::parse;
    use crate::test_builders::spec;
    use crate::{SpecError, Topology};
    use std::time::Duration;

    #[test]
    fn a_wait_for_topology_groups_has_bounds_and_groups() {
        let checked = |topology: Topology, wait_s: u64| {
            let mut spec = spec();
            (spec.nodes, spec.constraints.topology, spec.topology_wait) = (2, topology, Some(Duration::from_secs(wait_s)));
            spec.validate().is_ok()
        };
        assert!(checked(Topology::AtMost(1), 60) && checked(Topology::Contiguous, 1));
        assert!(!checked(Topology::Any, 60) && !checked(Topology::Tight, 0) && !checked(Topology::Tight, 366 * 86_400));
    }

    #[test]
    fn numbers_of_nodes_must_fit() {
        let checked = |text: &str, nodes: u32, topology: Topology| {
            let mut spec = spec();
            (spec.nodes, spec.constraints.topology) = (nodes, topology);
            spec.constraints.choice = parse(text).unwrap().choice.map(Box::new);
            spec.validate().map_err(|error| match error {
                SpecError::Invalid { field, why } => format!("{field}: {why}"),
                SpecError::NotBuilt { field } => field.to_owned(),
            })
        };
        assert_eq!(checked("a*2&b*4", 6, Topology::Any), Ok(()));
        assert_eq!(checked("[a|b]", 2, Topology::Tight), Ok(()));
        let why = "constraint: 2 with a and 4 with b are 6 nodes, and it asks for 5 nodes: give -N at least as many";
        assert_eq!(checked("a*2&b*4", 5, Topology::Any), Err(why.to_owned()));
        let why = "constraint: contiguous nodes go neither with require_conformance nor with [...] and numbers of nodes: leave these out";
        assert_eq!(checked("[a|b]", 2, Topology::Contiguous), Err(why.to_owned()));
        assert_eq!(checked("a|b", 2, Topology::Contiguous), Ok(()));
        let why = "constraint: 1 with a, and nodes of few topology groups: leave --topology out, or the numbers";
        assert_eq!(checked("a*1", 2, Topology::Tight), Err(why.to_owned()));
    }
}
