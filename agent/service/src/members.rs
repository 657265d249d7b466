//! Members of tenants: `AdminService.AddTenantMember`, `RemoveTenantMember` and `ListTenantMembers`.

use super::Api;
use super::accounts::ACCOUNTS;
use super::api::QUORUM_TIMEOUT;
use super::refusal::{status, unexpected};
use super::roles::{number, subject_name};
use lattice_api::v1;
use lattice_ledger::Action;
use lattice_model::access::{MemberChange, MemberStep, TenantMember};
use lattice_quorum_client::wire::{Answer, Request as Ask};
use tonic::{Request, Status};

pub(super) async fn add(api: &Api, request: Request<v1::TenantMemberRequest>) -> Result<v1::TenantMemberResponse, Status> {
    let operator = api.operator(&request).await?;
    let by = operator.name.clone();
    let v1::TenantMemberRequest { tenant, subject, is_default } = request.into_inner();
    let subject = ACCOUNTS.subject(&subject_name(&subject)?, &api.context.setup.me).await?;
    // As requested: if `is_default` is not set, an earlier default stays.
    let added = to_proto(&TenantMember { subject: subject.clone(), is_default });
    let change = MemberChange { tenant: tenant.clone(), step: MemberStep::Add { subject, is_default } };
    api.done(&operator.asks(Action::SetTenantMember { change, by })).await?;
    Ok(v1::TenantMemberResponse { tenant, member: Some(added) })
}

/// The subject need not be known on this machine any more.
pub(super) async fn remove(api: &Api, request: Request<v1::TenantMemberRequest>) -> Result<v1::TenantMemberResponse, Status> {
    let operator = api.operator(&request).await?;
    let by = operator.name.clone();
    let v1::TenantMemberRequest { tenant, subject, is_default } = request.into_inner();
    if is_default {
        return Err(Status::invalid_argument("is_default: a member that is removed has no default here any more"));
    }
    let subject = subject_name(&subject)?;
    let removed = v1::TenantMember { subject: subject.to_string(), id: 0, is_default: false };
    let change = MemberChange { tenant: tenant.clone(), step: MemberStep::Remove { subject } };
    api.done(&operator.asks(Action::SetTenantMember { change, by })).await?;
    Ok(v1::TenantMemberResponse { tenant, member: Some(removed) })
}

pub(super) async fn list(api: &Api, request: Request<v1::ListTenantMembersRequest>) -> Result<v1::ListTenantMembersResponse, Status> {
    let by_token = api.operator_by_token(&request).await?;
    let caller = api.caller(&request).await?;
    let v1::ListTenantMembersRequest { tenant } = request.into_inner();
    if by_token.is_none() {
        let roles = api.standing(&caller).await?.roles;
        if !roles.may(&caller.method, roles.relation_to_tenant(&tenant)) {
            let text = format!("{} is neither an admin of tenant {tenant:?} nor an operator", caller.principal.name);
            return Err(Status::permission_denied(text + &api.roles_hint(&caller)));
        }
    }
    let ask = Ask::ListTenantMembers { tenant };
    match api.quorum.call(&ask, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
        Answer::TenantMembers(members) => Ok(v1::ListTenantMembersResponse { members: members.iter().map(to_proto).collect() }),
        other => Err(unexpected(&other)),
    }
}

fn to_proto(member: &TenantMember) -> v1::TenantMember {
    v1::TenantMember { subject: member.subject.to_string(), id: number(&member.subject), is_default: member.is_default }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::access::Subject;

    #[test]
    fn a_member_is_shown_with_its_kind_its_number_and_whether_the_tenant_is_its_default() {
        let group = TenantMember { subject: Subject::Group { name: "physics".to_owned(), gid: 50 }, is_default: true };
        assert_eq!(to_proto(&group), v1::TenantMember { subject: "group:physics".to_owned(), id: 50, is_default: true });
        let user = TenantMember { subject: Subject::User { name: "alice".to_owned(), uid: 7 }, is_default: false };
        assert_eq!(to_proto(&user), v1::TenantMember { subject: "user:alice".to_owned(), id: 7, is_default: false });
    }
}
