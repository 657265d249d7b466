//! `/api/v1/reservations`.

use crate::calls::{Calls, Grpc};
use crate::input::{NoParams, Params, Segments};
use crate::problem::Problem;
use axum::routing::get;
use axum::{Json, Router};
use lattice_api::json::ReservationJson;
use lattice_api::v1;
use serde::Serialize;
use utoipa::{OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(list_reservations, get_reservation))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new().route("/api/v1/reservations", get(list_reservations)).route("/api/v1/reservations/{name}", get(get_reservation))
}

/// Nodes that are set aside for a time.
#[derive(Serialize, ToSchema)]
struct Reservations {
    /// By name; those that are over are listed for a week.
    reservations: Vec<ReservationJson>,
}

async fn all(calls: &Calls) -> Result<Vec<v1::Reservation>, Problem> {
    Ok(calls.reservations().list(v1::ListReservationsRequest {}).await?.into_inner().reservations)
}

/// Lists the reservations.
#[utoipa::path(
    get, path = "/api/v1/reservations", tag = "reservations",
    responses((status = 200, description = "All of them", body = Reservations))
)]
async fn list_reservations(calls: Calls, Params(NoParams {}): Params<NoParams>) -> Result<Json<Reservations>, Problem> {
    Ok(Json(Reservations { reservations: all(&calls).await?.iter().map(ReservationJson::from).collect() }))
}

/// One reservation.
#[utoipa::path(
    get, path = "/api/v1/reservations/{name}", tag = "reservations", params(("name" = String, Path, description = "Its name")),
    responses((status = 200, description = "The reservation", body = ReservationJson))
)]
async fn get_reservation(
    calls: Calls,
    Segments(name): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<ReservationJson>, Problem> {
    let found = all(&calls).await?.into_iter().find(|reservation| reservation.name == name);
    let missing = || Problem::not_found(format!("there is no reservation {name:?}")).with_hint("GET /api/v1/reservations lists them");
    found.as_ref().map(|reservation| Json(ReservationJson::from(reservation))).ok_or_else(missing)
}
