//! Projects of tenants: which projects work may name, and whose work a project accepts.
//!
//! ```text
//!   the tenant has no project ──▶ any name is a label        work names none ──▶ accepted
//!   it has some: work names a registered one ──▶ open: of all who submit for the tenant; closed: of its members, and root
//! ```
//!
//! Like a tenant, a project is closed from its first member on, and stays closed after its last one has left. Members
//! are accounts. An admin of the tenant is not automatically a member, but may add its own account.
//!
//! Membership is checked when work is submitted, and when its project is changed or corrected: that of the work's owner,
//! whoever makes the change. Root is meant only while it acts for everybody.

use super::roles::{is_well_formed, subject_text};
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::projects::ProjectRecord;
use lattice_ledger_state::refusal::Refusal;
use lattice_model::access::{self, Project, ProjectChange, ProjectStep, SubjectName};
use lattice_model::count::counted;
use lattice_model::{AuditAction, Principal};

/// Largest number of projects of one tenant.
const PROJECTS_OF_TENANT_MAX: usize = if cfg!(test) { 10 } else { 1000 };
/// Largest number of projects of all tenants together.
const PROJECTS_MAX: usize = if cfg!(test) { 12 } else { 10_000 };
/// Largest number of members of one project.
const MEMBERS_MAX: usize = if cfg!(test) { 10 } else { 1000 };
/// Largest number of members of all projects together.
const MEMBERS_OF_ALL_MAX: usize = if cfg!(test) { 15 } else { 100_000 };
/// Largest name of a project, in bytes, as in a specification.
const NAME_BYTES_MAX: usize = 128;

impl Ledger {
    /// The projects of a tenant, by name.
    ///
    /// # Errors
    /// [`Refusal::NoSuchTenant`]
    pub fn projects_of(&self, tenant: &str) -> Result<Vec<Project>, Refusal> {
        if !self.tenants.contains_key(tenant) {
            return Err(self.no_such_tenant(tenant));
        }
        let shown = |(name, record): (&String, &ProjectRecord)| {
            let members = record.members.iter().cloned().collect();
            Project { name: name.clone(), is_closed: record.is_closed, members }
        };
        Ok(self.projects.of_tenant(tenant).into_iter().flatten().map(shown).collect())
    }

    pub(super) fn set_project(&mut self, context: &mut ApplyContext, change: &ProjectChange, by: &str) -> Result<Outcome, Refusal> {
        let ProjectChange { tenant, project, step } = change;
        if !self.tenants.contains_key(tenant) {
            return Err(self.no_such_tenant(tenant));
        }
        let of = (tenant.as_str(), project.as_str());
        match step {
            ProjectStep::Create => self.create_project(context, of, by),
            ProjectStep::Delete => self.delete_project(context, of, by),
            ProjectStep::Add { account } => self.add_project_member(context, of, account, by),
            ProjectStep::Remove { account } => self.remove_project_member(context, of, account, by),
        }
    }

    /// A repetition is a success.
    fn create_project(&mut self, context: &mut ApplyContext, (tenant, project): (&str, &str), by: &str) -> Result<Outcome, Refusal> {
        if project.is_empty() || project.len() > NAME_BYTES_MAX || project.chars().any(|c| c.is_control() || c == '/') {
            let why = format!("the name of a project has 1 to {NAME_BYTES_MAX} bytes without \"/\" and control characters");
            return Err(Refusal::Malformed { why });
        }
        if self.projects.get(tenant, project).is_some() {
            return Ok(Outcome::Done);
        }
        let too_many = |what: String, most: usize| Err(Refusal::TooMany { what, most: most as u64 });
        if self.projects.of_tenant(tenant).is_some_and(|projects| projects.len() >= PROJECTS_OF_TENANT_MAX) {
            return too_many(format!("projects of tenant {tenant:?}"), PROJECTS_OF_TENANT_MAX);
        }
        if self.projects.count() >= PROJECTS_MAX {
            return too_many("projects of tenants".to_owned(), PROJECTS_MAX);
        }
        self.projects.entry(tenant, project);
        self.record(context, by, AuditAction::ProjectCreated, Subject::default(), format!("{tenant}/{project}"));
        Ok(Outcome::Done)
    }

    fn delete_project(&mut self, context: &mut ApplyContext, (tenant, project): (&str, &str), by: &str) -> Result<Outcome, Refusal> {
        let removed = self.projects.remove(tenant, project).ok_or_else(|| no_such_project(tenant, project))?;
        let members = removed.members.len();
        let with = if members == 0 { String::new() } else { format!(", with {}", counted(members, "member")) };
        self.record(context, by, AuditAction::ProjectDeleted, Subject::default(), format!("{tenant}/{project}{with}"));
        Ok(Outcome::Done)
    }

    /// A repetition is a success.
    fn add_project_member(
        &mut self,
        context: &mut ApplyContext,
        (tenant, project): (&str, &str),
        account: &access::Subject,
        by: &str,
    ) -> Result<Outcome, Refusal> {
        is_well_formed(account)?;
        if matches!(account, access::Subject::Group { .. }) {
            return Err(Refusal::Malformed { why: format!("{account} cannot be a member of a project: name an account") });
        }
        let present = self.projects.get(tenant, project).ok_or_else(|| no_such_project(tenant, project))?;
        if present.members.contains(account) {
            return Ok(Outcome::Done);
        }
        let too_many = |what: String, most: usize| Err(Refusal::TooMany { what, most: most as u64 });
        if present.members.len() >= MEMBERS_MAX {
            return too_many(format!("members of project {tenant}/{project}"), MEMBERS_MAX);
        }
        if self.projects.count_members() >= MEMBERS_OF_ALL_MAX {
            return too_many("members of projects".to_owned(), MEMBERS_OF_ALL_MAX);
        }
        let record = self.projects.entry(tenant, project);
        record.is_closed = true;
        record.members.insert(account.clone());
        let detail = format!("{} in {tenant}/{project}", subject_text(account));
        self.record(context, by, AuditAction::ProjectMemberAdded, Subject::default(), detail);
        Ok(Outcome::Done)
    }

    /// Removes all members of this name, whatever their numeric ids.
    fn remove_project_member(
        &mut self,
        context: &mut ApplyContext,
        (tenant, project): (&str, &str),
        account: &SubjectName,
        by: &str,
    ) -> Result<Outcome, Refusal> {
        let present = self.projects.get(tenant, project).ok_or_else(|| no_such_project(tenant, project))?;
        let removed: Vec<access::Subject> = present.members.iter().filter(|member| member.has_name(account)).cloned().collect();
        if removed.is_empty() {
            let (tenant, project) = (tenant.to_owned(), project.to_owned());
            return Err(Refusal::NoSuchProjectMember { tenant, project, subject: account.clone() });
        }
        let record = self.projects.entry(tenant, project);
        for member in &removed {
            record.members.remove(member);
        }
        let rest = if record.members.is_empty() { ", which has none now and takes no work" } else { "" };
        for member in &removed {
            let detail = format!("{} from {tenant}/{project}{rest}", subject_text(member));
            self.record(context, by, AuditAction::ProjectMemberRemoved, Subject::default(), detail);
        }
        Ok(Outcome::Done)
    }

    /// Refuses work of this tenant whose project is not registered, or does not accept work of this owner.
    pub(super) fn admits_to_project(&self, tenant: &str, project: &str, owner: &Principal) -> Result<(), Refusal> {
        let Some(projects) = self.projects.of_tenant(tenant).filter(|_| !project.is_empty()) else { return Ok(()) };
        let record = projects.get(project).ok_or_else(|| no_such_project(tenant, project))?;
        let account = access::Subject::User { name: owner.name.clone(), uid: owner.uid };
        if !record.is_closed || record.members.contains(&account) || self.roles_of(owner).root {
            return Ok(());
        }
        Err(Refusal::NotOfProject { tenant: tenant.to_owned(), project: project.to_owned(), user: owner.name.clone() })
    }
}

fn no_such_project(tenant: &str, project: &str) -> Refusal {
    Refusal::NoSuchProject { tenant: tenant.to_owned(), project: project.to_owned() }
}
