//! Projects of tenants: `AdminService.CreateProject`, `DeleteProject`, `ListProjects`, `AddProjectMember` and
//! `RemoveProjectMember`.

use super::Api;
use super::accounts::ACCOUNTS;
use super::api::QUORUM_TIMEOUT;
use super::refusal::{status, unexpected};
use super::roles::subject_name;
use lattice_api::v1;
use lattice_ledger::Action;
use lattice_model::access::{Project, ProjectChange, ProjectStep, SubjectName};
use lattice_quorum_client::wire::{Answer, Request as Ask};
use tonic::{Request, Status};

pub(super) async fn create(api: &Api, request: Request<v1::ProjectRequest>) -> Result<v1::ProjectResponse, Status> {
    change(api, request, ProjectStep::Create).await
}

pub(super) async fn delete(api: &Api, request: Request<v1::ProjectRequest>) -> Result<v1::ProjectResponse, Status> {
    change(api, request, ProjectStep::Delete).await
}

async fn change(api: &Api, request: Request<v1::ProjectRequest>, step: ProjectStep) -> Result<v1::ProjectResponse, Status> {
    let operator = api.operator(&request).await?;
    let by = operator.name.clone();
    let v1::ProjectRequest { tenant, project } = request.into_inner();
    let change = ProjectChange { tenant: tenant.clone(), project: project.clone(), step };
    api.done(&operator.asks(Action::SetProject { change, by })).await?;
    Ok(v1::ProjectResponse { tenant, project })
}

pub(super) async fn add_member(api: &Api, request: Request<v1::ProjectMemberRequest>) -> Result<v1::ProjectMemberResponse, Status> {
    let operator = api.operator(&request).await?;
    let by = operator.name.clone();
    let v1::ProjectMemberRequest { tenant, project, subject } = request.into_inner();
    let account = ACCOUNTS.subject(&account_name(&subject)?, &api.context.setup.me).await?;
    let subject = account.to_string();
    let change = ProjectChange { tenant: tenant.clone(), project: project.clone(), step: ProjectStep::Add { account } };
    api.done(&operator.asks(Action::SetProject { change, by })).await?;
    Ok(v1::ProjectMemberResponse { tenant, project, subject })
}

/// The account need not be known on this machine any more.
pub(super) async fn remove_member(api: &Api, request: Request<v1::ProjectMemberRequest>) -> Result<v1::ProjectMemberResponse, Status> {
    let operator = api.operator(&request).await?;
    let by = operator.name.clone();
    let v1::ProjectMemberRequest { tenant, project, subject } = request.into_inner();
    let account = account_name(&subject)?;
    let subject = account.to_string();
    let change = ProjectChange { tenant: tenant.clone(), project: project.clone(), step: ProjectStep::Remove { account } };
    api.done(&operator.asks(Action::SetProject { change, by })).await?;
    Ok(v1::ProjectMemberResponse { tenant, project, subject })
}

pub(super) async fn list(api: &Api, request: Request<v1::ListProjectsRequest>) -> Result<v1::ListProjectsResponse, Status> {
    let by_token = api.operator_by_token(&request).await?;
    let caller = api.caller(&request).await?;
    let v1::ListProjectsRequest { tenant } = request.into_inner();
    if by_token.is_none() {
        let roles = api.standing(&caller).await?.roles;
        if !roles.may(&caller.method, roles.relation_to_tenant(&tenant)) {
            let text = format!("{} is neither an admin of tenant {tenant:?} nor an operator", caller.principal.name);
            return Err(Status::permission_denied(text + &api.roles_hint(&caller)));
        }
    }
    match api.quorum.call(&Ask::ListProjects { tenant }, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
        Answer::Projects(projects) => Ok(v1::ListProjectsResponse { projects: projects.iter().map(to_proto).collect() }),
        other => Err(unexpected(&other)),
    }
}

/// The account that a request names. Groups are members of tenants alone.
fn account_name(text: &str) -> Result<SubjectName, Status> {
    let name = subject_name(text)?;
    if name.is_group {
        return Err(Status::invalid_argument(format!("{name} cannot be a member of a project: write user:NAME")));
    }
    Ok(name)
}

fn to_proto(project: &Project) -> v1::Project {
    let members = project.members.iter().map(ToString::to_string).collect();
    v1::Project { name: project.name.clone(), closed: project.is_closed, members }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::access::Subject;

    #[test]
    fn members_of_projects_are_accounts() {
        assert_eq!(account_name("alice").unwrap().to_string(), "user:alice");
        let refused = account_name("group:phys").unwrap_err();
        assert!(refused.message().ends_with("write user:NAME"), "{refused}");
    }

    #[test]
    fn a_project_is_shown_with_its_members() {
        let alice = Subject::User { name: "alice".to_owned(), uid: 7 };
        let project = Project { name: "higgs".to_owned(), is_closed: true, members: vec![alice] };
        let shown = v1::Project { name: "higgs".to_owned(), closed: true, members: vec!["user:alice".to_owned()] };
        assert_eq!(to_proto(&project), shown);
    }
}
