//! `ReservationService`: nodes that operators set aside for a time.

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::refusal::{status, unexpected};
use lattice_api::v1;
use lattice_api::v1::reservation_service_server::ReservationService;
use lattice_api::v1::set_reservation_request::Names;
use lattice_ledger::{Action, ReservationChange};
use lattice_membership::cluster::Cluster;
use lattice_model::{Allocation, NodeId, Reservation, Timestamp, hostlist};
use lattice_quorum_client::wire::{Answer, Request as Ask};
use std::collections::BTreeSet;
use tonic::{Request, Response, Status};

/// How many allocations that name this reservation wait, and how many have nodes.
fn count_work(cluster: &Cluster, name: &str) -> (u32, u32) {
    let of_it = || cluster.allocations.values().filter(|a| a.spec.reservation.as_deref() == Some(name));
    let count = |is_counted: fn(&Allocation) -> bool| u32::try_from(of_it().filter(|a| is_counted(a)).count()).unwrap_or(u32::MAX);
    let waiting = count(Allocation::waits);
    (waiting, count(|a| !a.state.is_without_nodes() && !a.state.is_terminal() && !a.shares.is_empty()))
}

/// A reservation for a response.
fn shown(reservation: Reservation, cluster: &Cluster, now: Timestamp) -> v1::Reservation {
    let (waiting, running) = count_work(cluster, &reservation.name);
    let state = match (reservation.is_over(now), reservation.is_open(now)) {
        (true, _) => "Over",
        (false, true) => "Open",
        (false, false) => "Pending",
    };
    let Reservation { name, nodes, start, end, tenants, users, maintenance, comment, created_by, created_at, revision: _ } = reservation;
    v1::Reservation {
        name,
        nodes: hostlist::fold(&nodes),
        node_count: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
        start_ms: start.0,
        end_ms: end.0,
        tenants: tenants.into_iter().collect(),
        users: users.into_iter().collect(),
        maintenance,
        comment,
        created_by,
        created_at_ms: created_at.0,
        state: state.to_owned(),
        waiting,
        running,
    }
}

/// The change that a request asks for.
fn change(request: v1::SetReservationRequest, create: bool) -> Result<ReservationChange, Status> {
    let v1::SetReservationRequest { name, nodes, start_ms, end_ms, tenants, users, maintenance, comment } = request;
    let read = |text: String| -> Result<BTreeSet<NodeId>, Status> {
        hostlist::expand(&text).map_err(|error| Status::invalid_argument(format!("nodes: {error}")))
    };
    let names = |given: Option<Names>| given.map(|given| given.names.into_iter().collect::<BTreeSet<String>>());
    Ok(ReservationChange {
        name,
        create,
        nodes: nodes.map(read).transpose()?,
        start: start_ms.map(Timestamp),
        end: end_ms.map(Timestamp),
        tenants: names(tenants),
        users: names(users),
        maintenance,
        comment,
    })
}

#[tonic::async_trait]
impl ReservationService for Api {
    async fn list(&self, request: Request<v1::ListReservationsRequest>) -> Result<Response<v1::ListReservationsResponse>, Status> {
        self.user(&request).await?;
        let all = match self.quorum.call(&Ask::ListReservations, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Reservations(all) => all,
            other => return Err(unexpected(&other)),
        };
        let (cluster, now) = (self.cluster.borrow().clone(), lattice_agent_common::clock::now());
        let reservations = all.into_iter().map(|reservation| shown(reservation, &cluster, now)).collect();
        Ok(Response::new(v1::ListReservationsResponse { reservations }))
    }

    async fn create(&self, request: Request<v1::SetReservationRequest>) -> Result<Response<v1::ReservationResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let change = change(request.into_inner(), true)?;
        self.done(&operator.asks(Action::SetReservation { change, by })).await?;
        Ok(Response::new(v1::ReservationResponse {}))
    }

    async fn update(&self, request: Request<v1::SetReservationRequest>) -> Result<Response<v1::ReservationResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let change = change(request.into_inner(), false)?;
        self.done(&operator.asks(Action::SetReservation { change, by })).await?;
        Ok(Response::new(v1::ReservationResponse {}))
    }

    async fn delete(&self, request: Request<v1::DeleteReservationRequest>) -> Result<Response<v1::DeleteReservationResponse>, Status> {
        let operator = self.operator(&request).await?;
        let by = operator.name.clone();
        let name = request.into_inner().name;
        let (waiting, _) = count_work(&self.cluster.borrow(), &name);
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
        let nothing = change(v1::SetReservationRequest { name: name(), ..Default::default() }, false).unwrap();
        assert_eq!(nothing, ReservationChange { name: name(), ..ReservationChange::default() });
        let some = v1::SetReservationRequest {
            name: name(),
            nodes: Some("n[1-2]".into()),
            users: Some(Names { names: vec!["anna".into()] }),
            ..Default::default()
        };
        let some = change(some, true).unwrap();
        assert_eq!((some.nodes.map(|nodes| nodes.len()), some.users.map(|users| users.len()), some.create), (Some(2), Some(1), true));
        let bad = v1::SetReservationRequest { name: name(), nodes: Some("n[1-".into()), ..Default::default() };
        assert!(change(bad, true).unwrap_err().message().starts_with("nodes: "));
    }
}
