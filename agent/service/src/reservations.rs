//! `ReservationService`: nodes that operators set aside for a time.

use super::Api;
use super::accounts::ACCOUNTS;
use super::api::QUORUM_TIMEOUT;
use super::refusal::{status, unexpected};
use super::roles::{number, subject_name};
use lattice_api::v1;
use lattice_api::v1::reservation_service_server::ReservationService;
use lattice_api::v1::set_reservation_request::Names;
use lattice_ledger::{Action, ReservationChange};
use lattice_membership::cluster::Cluster;
use lattice_model::reservation::SUBJECTS_MAX;
use lattice_model::{NodeId, Reservation, Timestamp, hostlist};
use lattice_quorum_client::wire::{Answer, Request as Ask};
use std::collections::{BTreeMap, BTreeSet};
use tonic::{Request, Response, Status};

/// How many allocations name a reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WorkCount {
    waiting: u32,
    /// Those with nodes.
    running: u32,
}

/// The allocations that name a reservation, by its name: one pass over all work, however many reservations there are.
fn count_work(cluster: &Cluster) -> BTreeMap<String, WorkCount> {
    let mut counts: BTreeMap<String, WorkCount> = BTreeMap::new();
    for allocation in cluster.allocations.values() {
        let Some(name) = &allocation.spec.reservation else { continue };
        let is_running = !allocation.state.is_without_nodes() && !allocation.state.is_terminal() && !allocation.shares.is_empty();
        let count = counts.entry(name.clone()).or_default();
        count.waiting += u32::from(allocation.waits());
        count.running += u32::from(is_running);
    }
    counts
}

/// A reservation for a response. `viewer`: the name of an account that sees no other accounts' names; `None`: it sees all.
fn shown(reservation: Reservation, work: WorkCount, viewer: Option<&str>, now: Timestamp) -> v1::Reservation {
    let state = match (reservation.is_over(now), reservation.is_open(now)) {
        (true, _) => "Over",
        (false, true) => "Open",
        (false, false) => "Pending",
    };
    let Reservation { name, nodes, start, end, tenants, users, maintenance, comment, created_by, created_at, revision } = reservation;
    let sees = |account: &str| viewer.is_none_or(|viewer| viewer == account);
    v1::Reservation {
        name,
        nodes: hostlist::fold(&nodes),
        node_count: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
        start_ms: start.0,
        end_ms: end.0,
        tenants: tenants.into_iter().collect(),
        users: users.into_keys().filter(|user| sees(user)).collect(),
        maintenance,
        comment,
        created_by: if sees(&created_by) { created_by } else { String::new() },
        created_at_ms: created_at.0,
        state: state.to_owned(),
        waiting: work.waiting,
        running: work.running,
        version: revision.0,
    }
}

/// The accounts of these names, by name, as this machine knows them: like roles, a reservation is for an account with its
/// number, and not for a namesake on a machine with other numbers. `me`: this node.
async fn numbered(users: Option<&Names>, me: &NodeId) -> Result<Option<BTreeMap<String, u32>>, Status> {
    let Some(Names { names }) = users else { return Ok(None) };
    if names.len() > SUBJECTS_MAX {
        return Err(Status::invalid_argument(format!("a reservation is for at most {SUBJECTS_MAX} users")));
    }
    let mut numbered = BTreeMap::new();
    for name in names {
        let account = ACCOUNTS.subject(&subject_name(&format!("user:{name}"))?, me).await?;
        // As the machine writes it: a directory may find `Anna` under `anna`, and work is `anna`'s.
        numbered.insert(account.name().name, number(&account));
    }
    Ok(Some(numbered))
}

/// The change that a request asks for. `users`: [`numbered`].
fn change(request: v1::SetReservationRequest, users: Option<BTreeMap<String, u32>>, create: bool) -> Result<ReservationChange, Status> {
    let v1::SetReservationRequest { name, nodes, start_ms, end_ms, tenants, users: _, maintenance, comment, expected_version } = request;
    let read = |text: String| -> Result<BTreeSet<NodeId>, Status> {
        hostlist::expand(&text).map_err(|error| Status::invalid_argument(format!("nodes: {error}")))
    };
    Ok(ReservationChange {
        name,
        create,
        nodes: nodes.map(read).transpose()?,
        start: start_ms.map(Timestamp),
        end: end_ms.map(Timestamp),
        tenants: tenants.map(|given| given.names.into_iter().collect()),
        users,
        maintenance,
        comment,
        expected_version,
    })
}

impl Api {
    async fn set_reservation(
        &self,
        request: Request<v1::SetReservationRequest>,
        create: bool,
    ) -> Result<Response<v1::ReservationResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let request = request.into_inner();
        let users = numbered(request.users.as_ref(), &self.context.setup.me).await?;
        let change = change(request, users, create)?;
        self.done(&operator.asks(Action::SetReservation { change, by })).await?;
        Ok(Response::new(v1::ReservationResponse {}))
    }
}

#[tonic::async_trait]
impl ReservationService for Api {
    async fn list(&self, request: Request<v1::ListReservationsRequest>) -> Result<Response<v1::ListReservationsResponse>, Status> {
        let caller = self.caller(&request).await?;
        self.user(&request).await?;
        let all = match self.quorum.call(&Ask::ListReservations, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Reservations(all) => all,
            other => return Err(unexpected(&other)),
        };
        let viewer = self.viewer_if(&caller, !all.is_empty()).await;
        let viewer = (!viewer.sees_all()).then_some(caller.principal.name.as_str());
        let (work, now) = (count_work(&self.cluster.borrow()), lattice_agent_common::clock::now());
        let of_it = |name: &str| work.get(name).copied().unwrap_or_default();
        let reservations = all.into_iter().map(|reservation| {
            let work = of_it(&reservation.name);
            shown(reservation, work, viewer, now)
        });
        let reservations = reservations.collect();
        Ok(Response::new(v1::ListReservationsResponse { reservations }))
    }

    async fn create(&self, request: Request<v1::SetReservationRequest>) -> Result<Response<v1::ReservationResponse>, Status> {
        self.set_reservation(request, true).await
    }

    async fn update(&self, request: Request<v1::SetReservationRequest>) -> Result<Response<v1::ReservationResponse>, Status> {
        self.set_reservation(request, false).await
    }

    async fn delete(&self, request: Request<v1::DeleteReservationRequest>) -> Result<Response<v1::DeleteReservationResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let name = request.into_inner().name;
        let waiting = count_work(&self.cluster.borrow()).get(&name).map_or(0, |work| work.waiting);
        self.done(&operator.asks(Action::DeleteReservation { name, by })).await?;
        Ok(Response::new(v1::DeleteReservationResponse { waiting }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_changes_what_it_has_and_nothing_else() {
        let name = || "course".to_owned();
        let nothing = change(v1::SetReservationRequest { name: name(), ..Default::default() }, None, false).unwrap();
        assert_eq!(nothing, ReservationChange { name: name(), ..ReservationChange::default() });
        let some = v1::SetReservationRequest {
            name: name(),
            nodes: Some("n[1-2]".into()),
            users: Some(Names { names: vec!["anna".into()] }),
            ..Default::default()
        };
        let some = change(some, Some([("anna".to_owned(), 7)].into()), true).unwrap();
        assert_eq!((some.nodes.map(|nodes| nodes.len()), some.users.map(|users| users.len()), some.create), (Some(2), Some(1), true));
        let bad = v1::SetReservationRequest { name: name(), nodes: Some("n[1-".into()), ..Default::default() };
        assert!(change(bad, None, true).unwrap_err().message().starts_with("nodes: "));
    }

    #[tokio::test]
    async fn users_are_accounts_of_this_machine_with_their_numbers() {
        let of = async |names: &[&str]| {
            let names = Names { names: names.iter().map(|name| (*name).to_owned()).collect() };
            numbered(Some(&names), &"n1".parse().unwrap()).await.map_err(|status| (status.code(), status.message().to_owned()))
        };
        assert_eq!(of(&["root"]).await, Ok(Some([("root".to_owned(), 0)].into())));
        assert_eq!(numbered(None, &"n1".parse().unwrap()).await.unwrap(), None, "they stay as they are");
        let (code, text) = of(&["root", "no-such-name-here"]).await.unwrap_err();
        assert!(code == tonic::Code::NotFound && text.starts_with("no account no-such-name-here is known on n1"), "{text}");
        assert_eq!(of(&[""]).await.unwrap_err().0, tonic::Code::InvalidArgument);
        assert_eq!(of(&["root"; SUBJECTS_MAX + 1]).await.unwrap_err().0, tonic::Code::InvalidArgument);
    }

    #[test]
    fn where_names_are_hidden_an_account_sees_its_own_alone() {
        let reservation = || Reservation {
            name: "course".into(),
            nodes: hostlist::expand("n[1-2]").unwrap(),
            start: Timestamp(1000),
            end: Timestamp(2000),
            tenants: ["physics".to_owned()].into(),
            users: [("anna".to_owned(), 1), ("bob".to_owned(), 2)].into(),
            maintenance: false,
            comment: String::new(),
            created_by: "olga".into(),
            created_at: Timestamp(1),
            revision: lattice_model::Revision(1),
        };
        let names = |viewer: Option<&str>| {
            let shown = shown(reservation(), WorkCount { waiting: 2, running: 1 }, viewer, Timestamp(1000));
            assert_eq!((shown.state.as_str(), shown.waiting, shown.running, shown.tenants), ("Open", 2, 1, vec!["physics".to_owned()]));
            [shown.users, vec![shown.created_by]].concat()
        };
        assert_eq!(names(None), ["anna", "bob", "olga"]);
        assert_eq!(names(Some("bob")), ["bob", ""]);
        assert_eq!(names(Some("carl")), [""]);
    }
}
