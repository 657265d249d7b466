//! Which tenants a submission may name, where granted roles do not count.
//!
//! A closed tenant takes the work of its members and of its admins. The ledger knows the owner of a submission, but not
//! who sends it: work of an allocation has no roles, and neither has a caller for whom they do not count. For these, a
//! tenant is closed if the owner is its admin but not its member.

use super::Api;
use super::caller::Caller;
use lattice_model::access::Standing;
use std::collections::BTreeSet;
use tonic::Status;

impl Api {
    /// Refuses tenants that take the caller's work because of a role alone, if roles do not count for the caller. Done
    /// for every way to submit, also a dry run.
    pub(super) async fn check_tenants(&self, caller: &Caller, mut tenants: BTreeSet<String>) -> Result<(), Status> {
        tenants.remove("");
        let counts = caller.within.is_none() && self.granted_roles_count(caller);
        if counts || tenants.is_empty() {
            return Ok(());
        }
        let standing = self.standing_of_account(caller).await?;
        match closed_without_roles(&tenants, &standing) {
            None => Ok(()),
            Some(tenant) => Err(refused(&caller.principal.name, tenant)),
        }
    }
}

/// The first of the tenants that only a granted role opens.
fn closed_without_roles<'a>(tenants: &'a BTreeSet<String>, standing: &'a Standing) -> Option<&'a str> {
    // Root that acts for everybody needs no grant.
    let by_role = Some(&standing.by_role).filter(|_| !standing.roles.root)?;
    tenants.intersection(by_role).next().map(String::as_str)
}

fn refused(user: &str, tenant: &str) -> Status {
    Status::permission_denied(format!(
        "user {user} is an admin of tenant {tenant:?} and no member, and roles do not count for this submission: it comes from work of an \
         allocation, or from a caller for whom this agent counts no roles\n\
         hint: its admins add members: `lattice admin tenant member add {tenant} user:{user}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::access::Roles;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_tenant_that_a_role_alone_opens_is_closed_without_roles() {
        let standing = Standing { member_of: names(&["biology", "physics"]), by_role: names(&["physics"]), ..Standing::default() };
        assert_eq!(closed_without_roles(&names(&["biology", "open"]), &standing), None);
        assert_eq!(closed_without_roles(&names(&["biology", "physics"]), &standing), Some("physics"));
        let root = Standing { roles: Roles { root: true, ..Roles::default() }, ..standing };
        assert_eq!(closed_without_roles(&names(&["physics"]), &root), None);
        let text = refused("ada", "physics").message().to_owned();
        assert!(text.starts_with("user ada is an admin of tenant \"physics\" and no member"), "{text}");
        assert!(text.ends_with("\nhint: its admins add members: `lattice admin tenant member add physics user:ada`"), "{text}");
    }
}
