//! The registered projects of tenants. A tenant without projects has no entry.

use lattice_model::access::Subject;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectRecord {
    /// Whether it accepts work only from its members. It stays closed when its last member has left.
    pub is_closed: bool,
    /// The accounts that are members.
    pub members: BTreeSet<Subject>,
}

/// The projects of one tenant, by name.
pub type TenantProjects = BTreeMap<String, ProjectRecord>;

/// All projects, by tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Projects(BTreeMap<String, Arc<TenantProjects>>);

impl Projects {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The projects of a tenant; `None`: it has none, and its work may name any project.
    pub fn of_tenant(&self, tenant: &str) -> Option<&TenantProjects> {
        self.0.get(tenant).map(Arc::as_ref)
    }

    /// One project.
    pub fn get(&self, tenant: &str, project: &str) -> Option<&ProjectRecord> {
        self.of_tenant(tenant)?.get(project)
    }

    /// The number of projects of all tenants.
    pub fn count(&self) -> usize {
        self.0.values().map(|projects| projects.len()).sum()
    }

    /// The number of members of all projects.
    pub fn count_members(&self) -> usize {
        self.0.values().flat_map(|projects| projects.values()).map(|project| project.members.len()).sum()
    }

    /// The project, to be changed; registers it if it was not.
    pub fn entry(&mut self, tenant: &str, project: &str) -> &mut ProjectRecord {
        let projects = Arc::make_mut(self.0.entry(tenant.to_owned()).or_default());
        projects.entry(project.to_owned()).or_default()
    }

    /// Removes a project and returns its record.
    pub fn remove(&mut self, tenant: &str, project: &str) -> Option<ProjectRecord> {
        let projects = Arc::make_mut(self.0.get_mut(tenant)?);
        let removed = projects.remove(project);
        if projects.is_empty() {
            self.0.remove(tenant);
        }
        removed
    }

    /// Removes all projects of a tenant; returns how many there were.
    pub fn remove_tenant(&mut self, tenant: &str) -> usize {
        self.0.remove(tenant).map_or(0, |projects| projects.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_an_entry_while_it_has_projects_and_a_snapshot_has_everything() {
        let alice = Subject::User { name: "alice".to_owned(), uid: 7 };
        let mut projects = Projects::default();
        projects.entry("physics", "higgs").members.insert(alice);
        projects.entry("physics", "higgs").is_closed = true;
        projects.entry("physics", "open");
        projects.entry("biology", "cells");
        assert_eq!((projects.count(), projects.count_members()), (3, 1));
        let restored: Projects = rmp_serde::from_slice(&rmp_serde::to_vec_named(&projects).unwrap()).unwrap();
        assert_eq!(restored, projects);
        assert!(projects.remove("physics", "higgs").unwrap().is_closed);
        assert!(projects.remove("physics", "higgs").is_none() && projects.of_tenant("physics").is_some());
        assert!(projects.remove("physics", "open").is_some() && projects.of_tenant("physics").is_none());
        assert_eq!((projects.remove_tenant("biology"), projects.remove_tenant("biology"), projects.is_empty()), (1, 0, true));
    }
}
