//! The table: how far each role may go with each method of the API.

use super::reach::Reach;

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The method, such as `AllocationService/Cancel`.
    pub method: &'static str,
    /// For everybody whom an agent identifies.
    pub user: Reach,
    /// For admins of tenants.
    pub tenant_admin: Reach,
    /// For operators.
    pub operator: Reach,
    /// For system admins.
    pub system_admin: Reach,
    /// For root of a machine whose agents vouch for users.
    pub root: Reach,
    /// Whether the method changes anything: a refused call is then audited.
    pub changes: bool,
}

/// The row of a method; `None`: there is no such method.
pub fn rule(method: &str) -> Option<&'static Rule> {
    TABLE.binary_search_by(|rule| rule.method.cmp(method)).ok().map(|place| &TABLE[place])
}

/// All rows, by the methods' names.
pub fn methods() -> impl Iterator<Item = &'static Rule> {
    TABLE.iter()
}

macro_rules! table {
    ($($method:literal: $user:ident $tenant_admin:ident $operator:ident $system_admin:ident $root:ident $changes:ident;)*) => {
        const TABLE: &[Rule] = &[$(Rule {
            method: $method,
            user: table!(@reach $user),
            tenant_admin: table!(@reach $tenant_admin),
            operator: table!(@reach $operator),
            system_admin: table!(@reach $system_admin),
            root: table!(@reach $root),
            changes: table!(@changes $changes),
        },)*];
    };
    (@reach no) => { Reach::Nothing };
    (@reach own) => { Reach::Own };
    (@reach tenant) => { Reach::OwnTenant };
    (@reach all) => { Reach::Everything };
    (@changes changes) => { true };
    (@changes reads) => { false };
}

// Sorted by name. A list that everybody may request shows each caller only what it may see.
table! {
    // method                                user tenant-admin operator system-admin root
    "AccountingService/Export":              no tenant all all no reads;
    "AccountingService/History":             own tenant all all own reads;
    "AccountingService/MoveStore":           no no no all no changes;
    "AccountingService/Status":              all all all all all reads;
    "AdminService/AddProjectMember":         no tenant no all no changes;
    "AdminService/AddTenantMember":          no tenant no all no changes;
    "AdminService/ChangeMembers":            no no no all no changes;
    "AdminService/CreateProject":            no tenant no all no changes;
    "AdminService/CreateTenant":             no no no all no changes;
    "AdminService/DeleteProject":            no tenant no all no changes;
    "AdminService/DeleteTenant":             no no no all no changes;
    "AdminService/ExportAudit":              no no no all no reads;
    "AdminService/GetLimits":                all all all all all reads;
    "AdminService/GetTenantUsage":           all all all all all reads;
    "AdminService/GetUserUsage":             all all all all all reads;
    "AdminService/GetVniPool":               all all all all all reads;
    "AdminService/GrantRole":                no no no all no changes;
    "AdminService/IssueToken":               no no no all no changes;
    "AdminService/ListGossipKeys":           all all all all all reads;
    "AdminService/ListNetworkDomains":       all all all all all reads;
    "AdminService/ListProjects":             no tenant all all no reads;
    "AdminService/ListRevocations":          all all all all all reads;
    "AdminService/ListRoles":                own tenant all all own reads;
    "AdminService/ListServices":             all all all all all reads;
    "AdminService/ListTenantMembers":        no tenant all all no reads;
    "AdminService/ListTenants":              all all all all all reads;
    "AdminService/ListTokens":               own own own all own reads;
    "AdminService/ListTracedWork":           no no all all no reads;
    "AdminService/LookupService":            all all all all all reads;
    "AdminService/QueryAudit":               own tenant all all own reads;
    "AdminService/QuorumStatus":             all all all all all reads;
    "AdminService/RemoveProjectMember":      no tenant no all no changes;
    "AdminService/RemoveTenantMember":       no tenant no all no changes;
    "AdminService/RevokeCertificates":       no no no all no changes;
    "AdminService/RevokeRole":               no no no all no changes;
    "AdminService/RevokeToken":              own own own all own changes;
    "AdminService/RotateGossipKeys":         no no no all no changes;
    "AdminService/SetLimits":                no no no all no changes;
    "AdminService/SetNetworkGrace":          no no all all no changes;
    "AdminService/SetVniPool":               no no no all no changes;
    "AdminService/StoreTrace":               no no all all no changes;
    "AdminService/UpdateTenant":             no no no all no changes;
    "AdminService/VerifyAudit":              no no all all no reads;
    "AdminService/WhoAmI":                   all all all all all reads;
    "AllocationService/AbortLaunch":         own tenant all all all changes;
    "AllocationService/Attach":              own tenant own all all changes;
    "AllocationService/Cancel":              own tenant all all all changes;
    "AllocationService/CancelTasks":         own tenant all all all changes;
    "AllocationService/Checkpoint":          own tenant all all all changes;
    "AllocationService/Compare":             own tenant all all all reads;
    "AllocationService/Diagnose":            own tenant all all all reads;
    "AllocationService/Explain":             own tenant all all all reads;
    "AllocationService/Get":                 own tenant all all all reads;
    "AllocationService/GetCheckpoint":       own tenant all all all reads;
    "AllocationService/GetTasks":            own tenant all all all reads;
    "AllocationService/Hold":                own tenant all all all changes;
    "AllocationService/Launch":              own tenant own all all changes;
    "AllocationService/LaunchInput":         own tenant own all all changes;
    "AllocationService/List":                all all all all all reads;
    "AllocationService/ListCheckpoints":     own tenant all all all reads;
    "AllocationService/ListSteps":           own tenant all all all reads;
    "AllocationService/Logs":                own tenant own all all reads;
    "AllocationService/Preempt":             own tenant all all all changes;
    "AllocationService/ReadTelemetry":       own tenant all all all reads;
    "AllocationService/RemoveCheckpoint":    own tenant own all all changes;
    "AllocationService/Requeue":             own tenant all all all changes;
    "AllocationService/Resume":              own tenant all all all changes;
    "AllocationService/RetryTasks":          own own own own own changes;
    "AllocationService/Scale":               own tenant all all all changes;
    "AllocationService/SetTelemetry":        own tenant all all all changes;
    "AllocationService/Signal":              own tenant all all all changes;
    "AllocationService/StreamMetrics":       own tenant all all all reads;
    "AllocationService/Submit":              own own own own own changes;
    "AllocationService/Top":                 own tenant all all all reads;
    "AllocationService/Update":              own tenant all all own changes;
    "AllocationService/VerifyCheckpoint":    own tenant own all all reads;
    "AllocationService/Watch":               own tenant all all all reads;
    "ApplicationService/Defer":              own own own own own changes;
    "ApplicationService/Done":               own own own own own changes;
    "ApplicationService/Fail":               own own own own own changes;
    "ApplicationService/Progress":           own own own own own changes;
    "ApplicationService/Register":           own own own own own changes;
    "DagService/Cancel":                     own tenant all all all changes;
    "DagService/Get":                        own tenant all all all reads;
    "DagService/List":                       all all all all all reads;
    "DagService/Submit":                     own own own own own changes;
    "LeaseService/Grant":                    own own own own own changes;
    "LeaseService/List":                     all all all all all reads;
    "LeaseService/Release":                  own own all all all changes;
    "LeaseService/Renew":                    own own all all all changes;
    "LeaseService/Revoke":                   no no all all no changes;
    "NodeService/AcceptDrift":               no no all all no changes;
    "NodeService/Admit":                     no no no all no changes;
    "NodeService/Boot":                      no no all all no changes;
    "NodeService/ConfirmDead":               no no all all no changes;
    "NodeService/Fact":                      all all all all all reads;
    "NodeService/Fingerprint":               no no all all all changes;
    "NodeService/GossipMembers":             all all all all all reads;
    "NodeService/LiftHold":                  no no all all no changes;
    "NodeService/List":                      all all all all all reads;
    "NodeService/ListAdmissions":            no no all all no reads;
    "NodeService/LocalStatus":               all all all all all reads;
    "NodeService/Remove":                    no no no all no changes;
    "NodeService/SetHold":                   no no all all no changes;
    "NodeService/Waits":                     all all all all all reads;
    "NodeService/WatchGossip":               all all all all all reads;
    "NodeService/Wipe":                      no no all all no changes;
    "NodeService/WithdrawAdmission":         no no no all no changes;
    "ReservationService/Create":             no no all all no changes;
    "ReservationService/Delete":             no no all all no changes;
    "ReservationService/List":               all all all all all reads;
    "ReservationService/Update":             no no all all no changes;
    "SessionService/Create":                 own own own own own changes;
    "SessionService/Delete":                 own tenant all all all changes;
    "SessionService/List":                   all all all all all reads;
    "VClusterService/Create":                no no no all no changes;
    "VClusterService/Delete":                no no no all no changes;
    "VClusterService/List":                  all all all all all reads;
    "VClusterService/Queue":                 all all all all all reads;
    "VClusterService/SetConfig":             no no no all no changes;
    "VClusterService/SetWeights":            no no all all no changes;
    "WatchService/Watch":                    all all all all all reads;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_a_wider_role_never_reaches_less() {
        assert!(TABLE.windows(2).all(|two| two[0].method < two[1].method), "a row is found by binary search");
        for rule in TABLE {
            assert!(rule.system_admin >= rule.user && rule.operator >= rule.user && rule.root >= rule.user, "{}", rule.method);
            assert!(rule.tenant_admin >= rule.user && rule.system_admin >= rule.operator, "{}", rule.method);
            assert!(rule.system_admin >= rule.tenant_admin, "{}", rule.method);
        }
    }

    #[test]
    fn every_method_that_agents_serve_has_a_row_and_no_other_has() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../api/proto/lattice/v1");
        // Served by the work, and by members.
        let others = ["CheckpointEndpoint", "Quorum", "Raft"];
        let mut served = Vec::new();
        for file in std::fs::read_dir(dir).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let mut service = "";
            for line in text.lines().map(str::trim) {
                if let Some(begun) = line.strip_prefix("service ") {
                    service = begun.trim_end_matches(" {");
                }
                if let Some((method, _)) = line.strip_prefix("rpc ").and_then(|rpc| rpc.split_once('('))
                    && !others.contains(&service)
                {
                    served.push(format!("{service}/{method}"));
                }
            }
        }
        served.sort();
        assert_eq!(methods().map(|rule| rule.method.to_owned()).collect::<Vec<_>>(), served);
    }
}
