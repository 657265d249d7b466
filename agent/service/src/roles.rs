//! Roles: `AdminService.GrantRole`, `RevokeRole` and `ListRoles`; and who a caller is and what it may do, `WhoAmI`.

use super::Api;
use super::accounts::ACCOUNTS;
use super::api::QUORUM_TIMEOUT;
use super::connections::{Authentication, NetworkPeer};
use super::refusal::{status, unexpected};
use lattice_api::v1;
use lattice_ledger::Action;
use lattice_model::Principal;
use lattice_model::access::{Reach, Role, RoleBinding, RoleError, Roles, Standing, Subject, SubjectName, SubjectNameError, methods, rule};
use lattice_quorum_client::wire::{Answer, Request as Ask};
use tonic::{Request, Status};

pub(super) async fn grant(api: &Api, request: Request<v1::RoleRequest>) -> Result<v1::RoleResponse, Status> {
    let operator = api.operator(&request).await?;
    let by = operator.name.clone();
    let Named { role, subject, tenant } = named(request.into_inner())?;
    let subject = ACCOUNTS.subject(&subject, &api.context.setup.me).await?;
    let binding = RoleBinding { subject, role, tenant };
    let granted = to_proto(&binding);
    api.done(&operator.asks(Action::GrantRole { binding, by })).await?;
    Ok(v1::RoleResponse { binding: Some(granted) })
}

/// The subject need not be known on this machine any more.
pub(super) async fn revoke(api: &Api, request: Request<v1::RoleRequest>) -> Result<v1::RoleResponse, Status> {
    let operator = api.operator(&request).await?;
    let by = operator.name.clone();
    let Named { role, subject, tenant } = named(request.into_inner())?;
    let revoked =
        v1::RoleBinding { role: role.name().to_owned(), subject: subject.to_string(), id: 0, tenant: tenant.clone().unwrap_or_default() };
    api.done(&operator.asks(Action::RevokeRole { subject, role, tenant, by })).await?;
    Ok(v1::RoleResponse { binding: Some(revoked) })
}

/// Shows each caller what it may see. Roles do not count for work of an allocation.
pub(super) async fn list(api: &Api, request: Request<v1::ListRolesRequest>) -> Result<v1::ListRolesResponse, Status> {
    let user = api.user(&request).await?;
    let caller = api.caller(&request).await?;
    let seen = if caller.within.is_some() {
        Seen { reach: Reach::Own, roles: Roles::default() }
    } else if api.operator_by_token(&request).await?.is_some() {
        Seen { reach: Reach::Everything, roles: Roles::default() }
    } else {
        let roles = api.standing(&caller).await?.roles;
        Seen { reach: rule(&caller.method).map_or(Reach::Nothing, |rule| roles.reach(rule)), roles }
    };
    match api.quorum.call(&Ask::ListRoles, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
        Answer::Roles(bindings) => {
            let bindings = bindings.iter().filter(|binding| seen.shows(binding, &user)).map(to_proto).collect();
            Ok(v1::ListRolesResponse { bindings })
        }
        other => Err(unexpected(&other)),
    }
}

/// Which bindings a caller sees.
struct Seen {
    reach: Reach,
    roles: Roles,
}

impl Seen {
    fn shows(&self, binding: &RoleBinding, user: &Principal) -> bool {
        let is_own = || binding.subject.includes(user);
        match self.reach {
            Reach::Nothing => false,
            Reach::Own => is_own(),
            Reach::OwnTenant => is_own() || binding.tenant.as_ref().is_some_and(|tenant| self.roles.admin_of.contains(tenant)),
            Reach::Everything => true,
        }
    }
}

/// Work of an allocation may ask, too: it then learns that roles do not count for it.
pub(super) async fn who_am_i(api: &Api, request: Request<v1::WhoAmIRequest>) -> Result<v1::WhoAmIResponse, Status> {
    let caller = api.caller(&request).await?;
    api.vouches_for_users()?;
    let standing = api.standing(&caller).await?;
    let within = caller.within.map(|id| id.to_string()).unwrap_or_default();
    let authentication = Some(authentication(caller.network.as_deref()));
    Ok(v1::WhoAmIResponse { authentication, ..described(caller.principal, standing, within) })
}

/// How a caller proved who it is. `peer`: a caller on the network; `None`: the kernel identified a process.
fn authentication(peer: Option<&NetworkPeer>) -> v1::Authentication {
    let Some(peer) = peer else { return v1::Authentication { kind: "socket".to_owned(), ..Default::default() } };
    let (scopes, expires_at_ms) = (peer.scopes.to_string(), peer.expires_at.0);
    match &peer.authentication {
        Authentication::Oidc { issuer, subject } => {
            let (issuer, subject) = (issuer.clone(), subject.clone());
            v1::Authentication { kind: "oidc".to_owned(), issuer, subject, token: String::new(), scopes, expires_at_ms }
        }
        Authentication::Token { id, .. } => {
            let token = id.to_string();
            v1::Authentication { kind: "token".to_owned(), token, scopes, expires_at_ms, ..Default::default() }
        }
        Authentication::Certificate { name } => {
            let subject = name.clone();
            v1::Authentication { kind: "certificate".to_owned(), subject, scopes, expires_at_ms, ..Default::default() }
        }
    }
}

fn described(account: Principal, standing: Standing, within: String) -> v1::WhoAmIResponse {
    let Standing { roles, member_of, default_tenant, .. } = standing;
    let roles = if within.is_empty() { roles } else { Roles::default() };
    let may = methods().map(|rule| v1::Permission {
        method: rule.method.to_owned(),
        reach: roles.reach(rule).name().to_owned(),
        changes: rule.changes,
    });
    let may = may.collect();
    v1::WhoAmIResponse {
        account: account.name,
        uid: account.uid,
        roles: names(&roles).into_iter().map(str::to_owned).collect(),
        admin_of: roles.admin_of.into_iter().collect(),
        member_of: member_of.into_iter().collect(),
        default_tenant: default_tenant.unwrap_or_default(),
        within,
        may,
        authentication: None,
    }
}

/// The names of the roles, without their tenants. `root`: the machine's superuser, where it acts for everybody.
fn names(roles: &Roles) -> Vec<&'static str> {
    let granted = Role::ALL.into_iter().filter(|role| match role {
        Role::TenantAdmin => !roles.admin_of.is_empty(),
        Role::Operator => roles.operator,
        Role::SystemAdmin => roles.system_admin,
    });
    std::iter::once("user").chain(granted.map(Role::name)).chain(roles.root.then_some("root")).collect()
}

/// What a request names.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    role: Role,
    subject: SubjectName,
    tenant: Option<String>,
}

fn named(request: v1::RoleRequest) -> Result<Named, Status> {
    let v1::RoleRequest { role, subject, tenant } = request;
    let role: Role = role.parse().map_err(|error: RoleError| Status::invalid_argument(error.to_string()))?;
    let subject = subject_name(&subject)?;
    match (role.is_of_tenant(), tenant.is_empty()) {
        (true, true) => Err(Status::invalid_argument(format!("the role {role} is granted for one tenant: name it with --tenant"))),
        (false, false) => Err(Status::invalid_argument(format!("the role {role} is of no tenant: leave --tenant out"))),
        (true, false) => Ok(Named { role, subject, tenant: Some(tenant) }),
        (false, true) => Ok(Named { role, subject, tenant: None }),
    }
}

/// The account or group that a request names.
pub(super) fn subject_name(text: &str) -> Result<SubjectName, Status> {
    text.parse().map_err(|error: SubjectNameError| Status::invalid_argument(error.to_string()))
}

/// The number of an account or group.
pub(super) fn number(subject: &Subject) -> u32 {
    match subject {
        Subject::User { uid, .. } => *uid,
        Subject::Group { gid, .. } => *gid,
    }
}

fn to_proto(binding: &RoleBinding) -> v1::RoleBinding {
    v1::RoleBinding {
        role: binding.role.name().to_owned(),
        subject: binding.subject.to_string(),
        id: number(&binding.subject),
        tenant: binding.tenant.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::Timestamp;
    use lattice_model::access::Scopes;
    use lattice_model::access_token::TokenId;

    fn principal(name: &str, uid: u32, groups: &[u32]) -> Principal {
        Principal { name: name.to_owned(), uid, gid: uid, groups: groups.to_vec() }
    }

    fn bindings() -> [RoleBinding; 3] {
        let alice = Subject::User { name: "alice".to_owned(), uid: 7 };
        let physics = Subject::Group { name: "physics".to_owned(), gid: 50 };
        let of_tenant = |tenant: &str| RoleBinding { subject: physics.clone(), role: Role::TenantAdmin, tenant: Some(tenant.to_owned()) };
        [RoleBinding { subject: alice, role: Role::Operator, tenant: None }, of_tenant("physics"), of_tenant("chemistry")]
    }

    fn shown(reach: Reach, admin_of: &str, user: &Principal) -> Vec<String> {
        let seen = Seen { reach, roles: Roles { admin_of: [admin_of.to_owned()].into(), ..Roles::default() } };
        let line = |binding: &RoleBinding| format!("{} {}", binding.subject, binding.tenant.as_deref().unwrap_or("-"));
        bindings().iter().filter(|binding| seen.shows(binding, user)).map(line).collect()
    }

    #[test]
    fn a_caller_sees_the_bindings_that_its_roles_reach() {
        let (alice, bob, eve) = (principal("alice", 7, &[]), principal("bob", 8, &[50]), principal("eve", 9, &[]));
        assert_eq!(shown(Reach::Own, "physics", &alice), ["user:alice -"]);
        assert_eq!(shown(Reach::Own, "physics", &bob), ["group:physics physics", "group:physics chemistry"]);
        assert_eq!(shown(Reach::Own, "physics", &eve), Vec::<String>::new());
        assert_eq!(shown(Reach::OwnTenant, "physics", &eve), ["group:physics physics"]);
        assert_eq!(shown(Reach::Everything, "", &eve).len(), 3);
        assert_eq!(shown(Reach::Nothing, "physics", &alice), Vec::<String>::new());
    }

    #[test]
    fn a_caller_learns_its_roles_and_work_that_it_has_none() {
        let roles = Roles { operator: true, admin_of: ["physics".to_owned()].into(), ..Roles::default() };
        let member_of = ["chemistry".to_owned(), "physics".to_owned()].into();
        let standing = Standing { roles, member_of, default_tenant: Some("physics".to_owned()), ..Standing::default() };
        let reach = |response: &v1::WhoAmIResponse, method: &str| {
            response.may.iter().find(|may| may.method == method).map(|may| (may.reach.clone(), may.changes)).unwrap()
        };
        let outside = described(principal("alice", 7, &[]), standing.clone(), String::new());
        assert_eq!((outside.account.as_str(), outside.uid), ("alice", 7));
        assert_eq!(outside.roles, ["user", "tenant-admin", "operator"]);
        assert_eq!((outside.admin_of.len(), outside.member_of.len(), outside.default_tenant.as_str()), (1, 2, "physics"));
        assert_eq!(reach(&outside, "NodeService/SetHold"), ("all".to_owned(), true));
        assert_eq!(reach(&outside, "AllocationService/Logs"), ("tenant".to_owned(), false));
        let work = described(principal("alice", 7, &[]), standing, "an-id".to_owned());
        assert_eq!((work.within.as_str(), work.roles.as_slice(), work.admin_of.len()), ("an-id", &["user".to_owned()][..], 0));
        assert_eq!(reach(&work, "NodeService/SetHold"), ("no".to_owned(), true));
        assert_eq!(reach(&work, "AllocationService/Logs"), ("own".to_owned(), false));
        let root = Standing { roles: Roles { root: true, ..Roles::default() }, ..Standing::default() };
        assert_eq!(described(principal("root", 0, &[]), root, String::new()).roles, ["user", "root"]);
    }

    #[test]
    fn a_caller_learns_how_it_proved_who_it_is() {
        assert_eq!(authentication(None), v1::Authentication { kind: "socket".to_owned(), ..Default::default() });
        let by = |proof: Authentication| {
            let principal = principal("alice", 7, &[]);
            let (scopes, tenants, expires_at) = (Scopes::all(), [].into(), Timestamp(5));
            let peer = NetworkPeer { principal, scopes, tenants, authentication: proof, expires_at };
            authentication(Some(&peer))
        };
        let token = by(Authentication::Token { id: TokenId(0xab), name: "ci".to_owned() });
        assert_eq!((token.kind.as_str(), token.token.as_str(), token.expires_at_ms), ("token", "00000000000000ab", 5));
        assert_eq!(token.scopes, "read,work,admin");
        let certificate = by(Authentication::Certificate { name: "account-ci".to_owned() });
        assert_eq!((certificate.kind.as_str(), certificate.subject.as_str()), ("certificate", "account-ci"));
        let oidc = by(Authentication::Oidc { issuer: "https://idp".to_owned(), subject: "s1".to_owned() });
        assert_eq!((oidc.kind.as_str(), oidc.issuer.as_str(), oidc.subject.as_str()), ("oidc", "https://idp", "s1"));
    }

    #[test]
    fn the_admin_of_a_tenant_needs_the_tenant_and_the_other_roles_refuse_one() {
        let of = |role: &str, subject: &str, tenant: &str| {
            let request = v1::RoleRequest { role: role.to_owned(), subject: subject.to_owned(), tenant: tenant.to_owned() };
            named(request).map_err(|status| (status.code(), status.message().to_owned()))
        };
        let alice = SubjectName { is_group: false, name: "alice".to_owned() };
        let physics = SubjectName { is_group: true, name: "physics".to_owned() };
        assert_eq!(of("operator", "alice", ""), Ok(Named { role: Role::Operator, subject: alice, tenant: None }));
        let admin = Named { role: Role::TenantAdmin, subject: physics, tenant: Some("t".to_owned()) };
        assert_eq!(of("tenant-admin", "group:physics", "t"), Ok(admin));
        for (role, subject, tenant, why) in [
            ("tenant-admin", "alice", "", "the role tenant-admin is granted for one tenant: name it with --tenant"),
            ("operator", "alice", "t", "the role operator is of no tenant: leave --tenant out"),
            ("user", "alice", "", "everybody has the role user: it is not granted"),
        ] {
            assert_eq!(of(role, subject, tenant), Err((tonic::Code::InvalidArgument, why.to_owned())));
        }
        assert!(of("operator", "a:b", "").is_err());
    }
}
