//! `AdminService`.

use super::refusal::{status, unexpected};
use super::{Api, api::QUORUM_TIMEOUT, api::Streamed};
use super::{access_tokens, auditing, members, projects, roles, traced};
use lattice_api::v1;
use lattice_api::v1::admin_service_server::AdminService;
use lattice_ledger::keyring::Secret;
use lattice_ledger::{
    Action, EndedLimits, EndedLimitsChange, EndedStatus, QuotaChange, Revocation, SoftLimitsChange, TenantChange, TenantStatus,
    UserLimitsChange,
};
use lattice_model::access::RootMay;
use lattice_model::{Principal, SharePolicy, Timestamp};
use lattice_quorum_client::wire::{Answer, KeyRole, KeyringStatus, MembersChange, MembersOrder, QuorumStatus, Request as Ask};
use rand::TryRngCore;
use rand::rngs::OsRng;
use std::time::Duration;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Timeout of the answer to one step of a change of members.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(8);

#[tonic::async_trait]
impl AdminService for Api {
    async fn quorum_status(&self, request: Request<v1::QuorumStatusRequest>) -> Result<Response<v1::QuorumStatusResponse>, Status> {
        self.caller(&request).await?;
        let ask = if request.get_ref().by_leader { Ask::Members } else { Ask::Status };
        match self.quorum.call(&ask, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Status(now) => Ok(Response::new(to_proto(&now))),
            other => Err(unexpected(&other)),
        }
    }

    async fn query_audit(&self, request: Request<v1::QueryAuditRequest>) -> Result<Response<v1::AuditPage>, Status> {
        auditing::query(self, request).await.map(Response::new)
    }

    type VerifyAuditStream = Streamed<v1::VerifyAuditProgress>;

    async fn verify_audit(&self, request: Request<v1::VerifyAuditRequest>) -> Result<Response<Self::VerifyAuditStream>, Status> {
        let stream = auditing::verify(self, request).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    type ExportAuditStream = Streamed<v1::SignedAuditPage>;

    async fn export_audit(&self, request: Request<v1::ExportAuditRequest>) -> Result<Response<Self::ExportAuditStream>, Status> {
        let stream = auditing::export(self, request).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn change_members(&self, request: Request<v1::ChangeMembersRequest>) -> Result<Response<v1::ChangeMembersResponse>, Status> {
        let operator = self.operator(&request).await?;
        let change = change(request.into_inner())?;
        self.has_member(&change).await?;
        let by = Principal { name: operator.name.clone(), ..operator.account.clone() };
        let ask = operator.asks(Ask::ChangeMembers(MembersOrder { by, change }));
        match self.quorum.call(&ask, CHANGE_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Changed { done, text } => Ok(Response::new(v1::ChangeMembersResponse { done, text })),
            other => Err(unexpected(&other)),
        }
    }

    async fn create_tenant(&self, request: Request<v1::TenantRequest>) -> Result<Response<v1::TenantResponse>, Status> {
        self.set_tenant(request, true).await
    }

    async fn update_tenant(&self, request: Request<v1::TenantRequest>) -> Result<Response<v1::TenantResponse>, Status> {
        self.set_tenant(request, false).await
    }

    async fn delete_tenant(&self, request: Request<v1::DeleteTenantRequest>) -> Result<Response<v1::TenantResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        self.done(&operator.asks(Action::DeleteTenant { name: request.into_inner().name, by })).await?;
        Ok(Response::new(v1::TenantResponse {}))
    }

    async fn list_tenants(&self, request: Request<v1::ListTenantsRequest>) -> Result<Response<v1::ListTenantsResponse>, Status> {
        self.user(&request).await?;
        let tenants = match self.quorum.call(&Ask::ListTenants, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Tenants(tenants) => tenants,
            other => return Err(unexpected(&other)),
        };
        Ok(Response::new(v1::ListTenantsResponse { tenants: tenants.into_iter().map(tenant_to_proto).collect() }))
    }

    async fn get_tenant_usage(&self, request: Request<v1::GetTenantUsageRequest>) -> Result<Response<v1::Usage>, Status> {
        self.tenant_usage(request).await.map(Response::new)
    }

    async fn get_user_usage(&self, request: Request<v1::GetUserUsageRequest>) -> Result<Response<v1::Usage>, Status> {
        self.user_usage(request).await.map(Response::new)
    }

    async fn get_vni_pool(&self, request: Request<v1::GetVniPoolRequest>) -> Result<Response<v1::VniPool>, Status> {
        self.user(&request).await?;
        self.vni_pool().await.map(Response::new)
    }

    async fn set_vni_pool(&self, request: Request<v1::SetVniPoolRequest>) -> Result<Response<v1::VniPool>, Status> {
        Api::set_vni_pool(self, request).await.map(Response::new)
    }

    async fn set_network_grace(
        &self,
        request: Request<v1::SetNetworkGraceRequest>,
    ) -> Result<Response<v1::SetNetworkGraceResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let v1::SetNetworkGraceRequest { tenant, name, grace_ms } = request.into_inner();
        self.done(&operator.asks(Action::SetDomainGrace { domain: (tenant, name), grace_ms, by })).await?;
        Ok(Response::new(v1::SetNetworkGraceResponse {}))
    }

    async fn list_network_domains(
        &self,
        request: Request<v1::ListNetworkDomainsRequest>,
    ) -> Result<Response<v1::ListNetworkDomainsResponse>, Status> {
        self.domains(request).await.map(Response::new)
    }

    async fn list_services(&self, request: Request<v1::ListServicesRequest>) -> Result<Response<v1::ListServicesResponse>, Status> {
        self.services(request).await.map(Response::new)
    }

    async fn lookup_service(&self, request: Request<v1::LookupServiceRequest>) -> Result<Response<v1::LookupServiceResponse>, Status> {
        self.lookup(request).await.map(Response::new)
    }

    async fn get_limits(&self, request: Request<v1::GetLimitsRequest>) -> Result<Response<v1::Limits>, Status> {
        self.user(&request).await?;
        self.limits().await.map(Response::new)
    }

    async fn list_traced_work(&self, request: Request<v1::ListTracedWorkRequest>) -> Result<Response<v1::ListTracedWorkResponse>, Status> {
        traced::list(self, request).await.map(Response::new)
    }

    async fn store_trace(&self, request: Request<Streaming<v1::StoreTraceRequest>>) -> Result<Response<v1::StoreTraceResponse>, Status> {
        traced::store(self, request).await.map(Response::new)
    }

    async fn set_limits(&self, request: Request<v1::SetLimitsRequest>) -> Result<Response<v1::Limits>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let asked = request.into_inner();
        let users = UserLimitsChange {
            user_pending: quota_change(asked.user_pending),
            user_running: quota_change(asked.user_running),
            user_submissions_per_second: quota_change(asked.user_submissions_per_second),
            user_script_bytes: quota_change(asked.user_script_bytes),
            user_history: quota_change(asked.user_history),
            tenant_pending: quota_change(asked.tenant_pending),
        };
        let (sensitive_pool_size, budget_period_days) = (quota_change(asked.sensitive_pool_size), asked.budget_period_days);
        let share_policy = asked.share_policy.as_deref().map(share_policy).transpose()?;
        let ended = EndedLimitsChange { kept_ms: asked.ended_kept_ms, memory_bytes: asked.ended_memory_bytes };
        let (dag_size, root_may) = (asked.dag_size, root_may(&asked.root_acts_for)?);
        let action = Action::SetLimits { sensitive_pool_size, users, budget_period_days, share_policy, ended, dag_size, root_may, by };
        self.done(&operator.asks(action)).await?;
        self.limits().await.map(Response::new)
    }

    async fn list_gossip_keys(&self, request: Request<v1::ListGossipKeysRequest>) -> Result<Response<v1::ListGossipKeysResponse>, Status> {
        self.user(&request).await?;
        match self.quorum.call(&Ask::ListKeys, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Keyring(keyring) => Ok(Response::new(keys_to_proto(keyring))),
            other => Err(unexpected(&other)),
        }
    }

    async fn revoke_certificates(
        &self,
        request: Request<v1::RevokeCertificatesRequest>,
    ) -> Result<Response<v1::RevokeCertificatesResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let v1::RevokeCertificatesRequest { name, reason } = request.into_inner();
        self.done(&operator.asks(Action::Revoke { name: name.clone(), by, reason })).await?;
        let revocations = self.revocations().await?;
        let before = revocations.iter().find(|(of, _)| *of == name).map(|(_, revocation)| revocation.before.0);
        let before_ms = before.ok_or_else(|| Status::internal(format!("the quorum does not list {name} as revoked")))?;
        Ok(Response::new(v1::RevokeCertificatesResponse { before_ms }))
    }

    async fn list_revocations(
        &self,
        request: Request<v1::ListRevocationsRequest>,
    ) -> Result<Response<v1::ListRevocationsResponse>, Status> {
        self.user(&request).await?;
        let to_proto = |(name, Revocation { before, by, reason, .. })| v1::Revocation { name, before_ms: before.0, by, reason };
        let revocations = self.revocations().await?.into_iter().map(to_proto).collect();
        Ok(Response::new(v1::ListRevocationsResponse { revocations }))
    }

    async fn rotate_gossip_keys(
        &self,
        request: Request<v1::RotateGossipKeysRequest>,
    ) -> Result<Response<v1::RotateGossipKeysResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let mut secret = [0; 32];
        let drawn = OsRng.try_fill_bytes(&mut secret);
        drawn.map_err(|e| Status::internal(format!("no random key can be drawn on this machine: {e}")))?;
        match self
            .quorum
            .call(&operator.asks(Action::AddKey { secret: Secret(secret), by }), QUORUM_TIMEOUT)
            .await
            .map_err(|e| status(&e))?
        {
            Answer::KeyAdded { id } => Ok(Response::new(v1::RotateGossipKeysResponse { id })),
            other => Err(unexpected(&other)),
        }
    }

    async fn grant_role(&self, request: Request<v1::RoleRequest>) -> Result<Response<v1::RoleResponse>, Status> {
        roles::grant(self, request).await.map(Response::new)
    }

    async fn revoke_role(&self, request: Request<v1::RoleRequest>) -> Result<Response<v1::RoleResponse>, Status> {
        roles::revoke(self, request).await.map(Response::new)
    }

    async fn list_roles(&self, request: Request<v1::ListRolesRequest>) -> Result<Response<v1::ListRolesResponse>, Status> {
        roles::list(self, request).await.map(Response::new)
    }

    async fn add_tenant_member(&self, request: Request<v1::TenantMemberRequest>) -> Result<Response<v1::TenantMemberResponse>, Status> {
        members::add(self, request).await.map(Response::new)
    }

    async fn remove_tenant_member(&self, request: Request<v1::TenantMemberRequest>) -> Result<Response<v1::TenantMemberResponse>, Status> {
        members::remove(self, request).await.map(Response::new)
    }

    async fn list_tenant_members(
        &self,
        request: Request<v1::ListTenantMembersRequest>,
    ) -> Result<Response<v1::ListTenantMembersResponse>, Status> {
        members::list(self, request).await.map(Response::new)
    }

    async fn create_project(&self, request: Request<v1::ProjectRequest>) -> Result<Response<v1::ProjectResponse>, Status> {
        projects::create(self, request).await.map(Response::new)
    }

    async fn delete_project(&self, request: Request<v1::ProjectRequest>) -> Result<Response<v1::ProjectResponse>, Status> {
        projects::delete(self, request).await.map(Response::new)
    }

    async fn list_projects(&self, request: Request<v1::ListProjectsRequest>) -> Result<Response<v1::ListProjectsResponse>, Status> {
        projects::list(self, request).await.map(Response::new)
    }

    async fn add_project_member(&self, request: Request<v1::ProjectMemberRequest>) -> Result<Response<v1::ProjectMemberResponse>, Status> {
        projects::add_member(self, request).await.map(Response::new)
    }

    async fn remove_project_member(
        &self,
        request: Request<v1::ProjectMemberRequest>,
    ) -> Result<Response<v1::ProjectMemberResponse>, Status> {
        projects::remove_member(self, request).await.map(Response::new)
    }

    async fn issue_token(&self, request: Request<v1::IssueTokenRequest>) -> Result<Response<v1::IssueTokenResponse>, Status> {
        access_tokens::issue(self, request).await.map(Response::new)
    }

    async fn revoke_token(&self, request: Request<v1::RevokeTokenRequest>) -> Result<Response<v1::AccessToken>, Status> {
        access_tokens::revoke(self, request).await.map(Response::new)
    }

    async fn list_tokens(&self, request: Request<v1::ListTokensRequest>) -> Result<Response<v1::ListTokensResponse>, Status> {
        access_tokens::list(self, request).await.map(Response::new)
    }

    async fn who_am_i(&self, request: Request<v1::WhoAmIRequest>) -> Result<Response<v1::WhoAmIResponse>, Status> {
        roles::who_am_i(self, request).await.map(Response::new)
    }
}

fn keys_to_proto(keyring: KeyringStatus) -> v1::ListGossipKeysResponse {
    use v1::gossip_key::Role;
    let keys = keyring.keys.into_iter().map(|key| v1::GossipKey {
        id: key.id,
        created_at_ms: key.created_at.map_or(0, |at| at.0),
        created_by: key.created_by.unwrap_or_default(),
        role: match key.role {
            KeyRole::Distributing => Role::Distributing,
            KeyRole::Encrypt => Role::Encrypt,
            KeyRole::Decrypt => Role::Decrypt,
        }
        .into(),
        decrypting_nodes: key.decrypting_nodes,
        encrypting_nodes: key.encrypting_nodes,
    });
    v1::ListGossipKeysResponse {
        keys: keys.collect(),
        nodes: keyring.nodes,
        awaited: keyring.awaited.iter().map(ToString::to_string).collect(),
        awaited_count: keyring.awaited_count,
    }
}

impl Api {
    /// Refuses to remove a member that does not exist. The quorum itself accepts that: after a lost
    /// answer the client repeats the command, and finds the member gone.
    async fn has_member(&self, change: &MembersChange) -> Result<(), Status> {
        let MembersChange::Remove { id } = change else { return Ok(()) };
        let now = match self.quorum.call(&Ask::Status, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Status(now) => now,
            other => return Err(unexpected(&other)),
        };
        if now.members.iter().any(|member| member.id.0 == *id) {
            return Ok(());
        }
        let members: Vec<String> = now.members.iter().map(|member| member.id.0.to_string()).collect();
        Err(Status::not_found(format!("there is no member {id} to remove: the members are {}", members.join(", "))))
    }

    async fn revocations(&self) -> Result<Vec<(String, Revocation)>, Status> {
        match self.quorum.call(&Ask::ListRevocations, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Revocations { revoked, .. } => Ok(revoked),
            other => Err(unexpected(&other)),
        }
    }

    async fn limits(&self) -> Result<v1::Limits, Status> {
        match self.quorum.call(&Ask::GetLimits, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Limits(now) => {
                let users = now.limits.users;
                Ok(v1::Limits {
                    sensitive_pool_size: now.limits.sensitive_pool_size,
                    sensitive_nodes: now.sensitive_nodes,
                    user_pending: users.user_pending,
                    user_running: users.user_running,
                    user_submissions_per_second: users.user_submissions_per_second,
                    user_script_bytes: users.user_script_bytes,
                    user_history: users.user_history,
                    tenant_pending: users.tenant_pending,
                    budget_period_days: now.limits.budget_period.days(),
                    share_policy: now.limits.share_policy.name().to_owned(),
                    ended: Some(ended_to_proto(&now.ended)),
                    dag_size: now.limits.dag_size.steps(),
                    root_acts_for: now.limits.root_may.name().to_owned(),
                })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn set_tenant(&self, request: Request<v1::TenantRequest>, create: bool) -> Result<Response<v1::TenantResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let asked = request.into_inner();
        let soft = SoftLimitsChange {
            fair_share_target_ppm: quota_change(asked.fair_share_target_ppm),
            burst_allowance_percent: quota_change(asked.burst_allowance_percent),
            gpu_hours_budget: hours_change(asked.gpu_hours_budget),
            node_hours_budget: hours_change(asked.node_hours_budget),
            class_max: class_change(asked.class_max),
        };
        let change = TenantChange {
            name: asked.name,
            create,
            max_nodes: quota_change(asked.max_nodes),
            max_concurrent_allocations: quota_change(asked.max_concurrent_allocations),
            soft,
            expected_version: asked.expected_version,
        };
        self.done(&operator.asks(Action::SetTenant { change, by })).await?;
        Ok(Response::new(v1::TenantResponse {}))
    }
}

fn share_policy(name: &str) -> Result<SharePolicy, Status> {
    let unknown = || {
        let name: String = name.chars().take(40).collect();
        Status::invalid_argument(format!("share_policy {name:?} is not one of {}", SharePolicy::NAMES.join(", ")))
    };
    SharePolicy::from_name(name).ok_or_else(unknown)
}

/// An empty text: the setting stays.
fn root_may(text: &str) -> Result<Option<RootMay>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse::<RootMay>().map(Some).map_err(|why| Status::invalid_argument(format!("root_acts_for: {why}; write everybody or itself")))
}

fn quota_change(wire: Option<v1::QuotaChange>) -> QuotaChange {
    use v1::quota_change::To;
    match wire.and_then(|change| change.to) {
        Some(To::AtMost(limit)) => QuotaChange::AtMost(limit),
        Some(To::Unlimited(true)) => QuotaChange::Unlimited,
        Some(To::Unlimited(false)) | None => QuotaChange::Keep,
    }
}

fn hours_change(wire: Option<v1::HoursChange>) -> QuotaChange<u64> {
    use v1::hours_change::To;
    match wire.and_then(|change| change.to) {
        Some(To::AtMost(hours)) => QuotaChange::AtMost(hours),
        Some(To::Unlimited(true)) => QuotaChange::Unlimited,
        Some(To::Unlimited(false)) | None => QuotaChange::Keep,
    }
}

/// A number that is no class becomes one that the quorum refuses.
fn class_change(wire: Option<v1::QuotaChange>) -> QuotaChange<u8> {
    match quota_change(wire) {
        QuotaChange::AtMost(class) => QuotaChange::AtMost(u8::try_from(class).unwrap_or(u8::MAX)),
        QuotaChange::Unlimited => QuotaChange::Unlimited,
        QuotaChange::Keep => QuotaChange::Keep,
    }
}

fn tenant_to_proto(status: TenantStatus) -> v1::Tenant {
    let TenantStatus { tenant, nodes, allocations } = status;
    v1::Tenant {
        name: tenant.name,
        max_nodes: tenant.max_nodes,
        max_concurrent_allocations: tenant.max_concurrent_allocations,
        nodes,
        allocations,
        fair_share_target_ppm: tenant.fair_share_target_ppm,
        burst_allowance_percent: tenant.burst_allowance_percent,
        gpu_hours_budget: tenant.gpu_hours_budget,
        node_hours_budget: tenant.node_hours_budget,
        class_max: tenant.class_max.map(u32::from),
        version: tenant.revision.0,
    }
}

fn change(request: v1::ChangeMembersRequest) -> Result<MembersChange, Status> {
    use v1::change_members_request::Change;
    let address = |what: &str, text: String| {
        let well = lattice_model::config::is_address(&text);
        if well { Ok(text) } else { Err(Status::invalid_argument(format!("{what} {text:?}: host:port is needed"))) }
    };
    let member = |m: v1::AddMember| Ok::<_, Status>((m.id, address("service", m.service)?, address("raft", m.raft)?));
    let change = match request.change.ok_or_else(|| Status::invalid_argument("the request names no change"))? {
        Change::Add(m) => member(m).map(|(id, service, raft)| MembersChange::Add { id, service, raft })?,
        Change::Remove(m) => MembersChange::Remove { id: m.id },
        Change::Replace(m) => {
            let (id, service, raft) = member(m.replacement.unwrap_or_default())?;
            MembersChange::Replace { old: m.old, id, service, raft }
        }
        Change::Transfer(m) => MembersChange::Transfer { to: m.to },
    };
    match &change {
        MembersChange::Add { id: 0, .. } | MembersChange::Replace { id: 0, .. } => {
            Err(Status::invalid_argument("members are counted from 1"))
        }
        _ => Ok(change),
    }
}

fn to_proto(now: &QuorumStatus) -> v1::QuorumStatusResponse {
    use v1::quorum_status_response::{Count, Member, Notified, Refused};
    v1::QuorumStatusResponse {
        cluster: now.cluster.clone(),
        answered_by: now.member.0,
        leader: now.leader.map(|l| l.0),
        term: now.term,
        revision: now.revision.0,
        generation: now.generation.0,
        members: now
            .members
            .iter()
            .map(|m| Member {
                id: m.id.0,
                service: m.service.clone(),
                raft: m.raft.clone(),
                role: m.standing.clone(),
                match_index: m.matched,
                votes: m.votes,
                level: m.level,
                certificate_until_ms: m.certificate_until.map_or(0, |until| until.0),
                disk: m.shortage.as_ref().map(ToString::to_string).unwrap_or_default(),
            })
            .collect(),
        audit_records: now.audit_records,
        level: now.level,
        notified: now
            .notified
            .iter()
            .map(|n| Notified {
                channel: n.channel.clone(),
                delivered_seq: n.delivered_seq,
                last_error: n.last_error.clone().unwrap_or_default(),
            })
            .collect(),
        held_back: now.held_back,
        clocks: now.clocks.as_ref().map(ToString::to_string).unwrap_or_default(),
        awaited: now.awaited.iter().map(ToString::to_string).collect(),
        nodes: now.nodes.iter().map(|(s, count)| Count { state: s.to_string(), count: *count }).collect(),
        allocations: now.allocations.iter().map(|(s, count)| Count { state: s.to_string(), count: *count }).collect(),
        refused: now.refused.iter().map(|(kind, count)| Refused { kind: kind.clone(), count: *count }).collect(),
        ended: Some(ended_to_proto(&now.ended)),
    }
}

fn ended_to_proto(ended: &EndedStatus) -> v1::EndedWork {
    let EndedStatus { at, limits: EndedLimits { kept_ms, memory_bytes }, count, bytes, oldest, forgotten } = *ended;
    let ms = |time: Option<Timestamp>| time.map_or(0, |time| time.0);
    v1::EndedWork {
        kept_ms,
        memory_bytes,
        count,
        bytes,
        at_ms: at.0,
        oldest_ended_at_ms: ms(oldest),
        forgotten_until_ms: ms(forgotten.until),
        cut_short: ended.is_cut_short(),
    }
}
