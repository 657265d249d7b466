//! `/api/v1/reservations`.

use crate::calls::{Calls, Grpc};
use crate::etag::{IfMatch, Tag};
use crate::input::{Body, NoParams, Params, Segments};
use crate::problem::Problem;
use crate::time::now;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use lattice_api::json::ReservationJson;
use lattice_api::v1;
use lattice_api::v1::set_reservation_request::Names;
use lattice_cli_syntax::civil::Clock;
use lattice_cli_syntax::start_times::StartTime;
use serde::{Deserialize, Serialize};
use utoipa::{OpenApi, ToSchema};

#[derive(OpenApi)]
#[openapi(paths(list_reservations, get_reservation, create_reservation, update_reservation, delete_reservation))]
struct Paths;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    Paths::openapi()
}

pub(super) fn routes() -> Router<Grpc> {
    Router::new()
        .route("/api/v1/reservations", get(list_reservations).post(create_reservation))
        .route("/api/v1/reservations/{name}", get(get_reservation).patch(update_reservation).delete(delete_reservation))
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

async fn find(calls: &Calls, name: &str) -> Result<v1::Reservation, Problem> {
    let missing = || Problem::not_found(format!("there is no reservation {name:?}")).with_hint("GET /api/v1/reservations lists them");
    all(calls).await?.into_iter().find(|reservation| reservation.name == name).ok_or_else(missing)
}

/// The tag of what PATCH changes, not of the state and the work.
fn tag_of(reservation: &v1::Reservation) -> Result<Tag, Problem> {
    Tag::of(&(&reservation.name, reservation.created_at_ms, reservation.version))
}

/// The reservation of this name, with its tag.
async fn show(calls: &Calls, name: &str) -> Result<Response, Problem> {
    let reservation = find(calls, name).await?;
    Ok(tag_of(&reservation)?.on(&ReservationJson::from(&reservation)))
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
    responses((status = 200, description = "The reservation", body = ReservationJson,
               headers(("ETag" = String, description = "Of its settings"))))
)]
async fn get_reservation(
    calls: Calls,
    Segments(name): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Response, Problem> {
    show(&calls, &name).await
}

/// A new reservation. It is for the tenants and users, or for maintenance.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewReservation {
    /// What work names to use it.
    name: String,
    /// A hostlist.
    nodes: String,
    /// As the `begin` of a submission: RFC 3339, or from now on, such as `2h`. Not given: now.
    start: Option<String>,
    /// As `start`; needed unless `duration_seconds` is given.
    end: Option<String>,
    /// From the start on, in place of `end`.
    duration_seconds: Option<u64>,
    /// Tenants whose work may use it.
    tenants: Option<Vec<String>>,
    /// Accounts whose work may use it.
    users: Option<Vec<String>>,
    /// Nobody's work begins on its nodes.
    maintenance: Option<bool>,
    /// For people.
    comment: Option<String>,
}

/// A change of a reservation. What is left out stays as it is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ReservationSettings {
    /// All of its nodes: a hostlist.
    nodes: Option<String>,
    /// As the `begin` of a submission: RFC 3339, or from now on, such as `2h`.
    start: Option<String>,
    /// As `start`.
    end: Option<String>,
    /// From the start on, in place of `end`.
    duration_seconds: Option<u64>,
    /// All tenants whose work may use it.
    tenants: Option<Vec<String>>,
    /// All accounts whose work may use it.
    users: Option<Vec<String>>,
    /// Nobody's work begins on its nodes: then it has no tenants and users any more.
    maintenance: Option<bool>,
    /// For people.
    comment: Option<String>,
}

/// The window of a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Window {
    start_ms: Option<u64>,
    end_ms: Option<u64>,
}

impl Window {
    /// `start_ms`: where a duration counts from if the request gives no start.
    fn read(start: Option<&str>, end: Option<&str>, duration_seconds: Option<u64>, start_ms: u64, clock: &Clock) -> Result<Self, Problem> {
        let given = Self { start_ms: at("start", start, clock)?, end_ms: at("end", end, clock)? };
        let Some(seconds) = duration_seconds else { return Ok(given) };
        if given.end_ms.is_some() {
            return Err(Problem::invalid("give end or duration_seconds, not both"));
        }
        let start_ms = given.start_ms.unwrap_or(start_ms);
        Ok(Self { end_ms: Some(start_ms.saturating_add(seconds.saturating_mul(1000))), ..given })
    }
}

/// A time in milliseconds since 1970.
fn at(field: &str, text: Option<&str>, clock: &Clock) -> Result<Option<u64>, Problem> {
    let read = |text: &str| -> Result<u64, Problem> {
        let time = text.parse::<StartTime>().map_err(|error| Problem::invalid(format!("{field}: {error}")))?;
        Ok(time.resolve(field, clock)?.0)
    };
    text.map(read).transpose()
}

fn names(given: Option<Vec<String>>) -> Option<Names> {
    given.map(|names| Names { names })
}

/// Sets nodes aside for a time. For operators.
///
/// The same request again, with times that are not counted from now on, is a success and changes nothing.
#[utoipa::path(
    post, path = "/api/v1/reservations", tag = "reservations", request_body = NewReservation,
    responses((status = 201, description = "The reservation", body = ReservationJson, headers(("Location" = String, description = "Its path"))))
)]
async fn create_reservation(
    calls: Calls,
    Params(NoParams {}): Params<NoParams>,
    Body(new): Body<NewReservation>,
) -> Result<Response, Problem> {
    let clock = Clock { now: now(), ..Clock::default() };
    let window = Window::read(new.start.as_deref(), new.end.as_deref(), new.duration_seconds, clock.now.0, &clock)?;
    let request = v1::SetReservationRequest {
        name: new.name.clone(),
        nodes: Some(new.nodes),
        start_ms: window.start_ms,
        end_ms: window.end_ms,
        tenants: names(new.tenants),
        users: names(new.users),
        maintenance: new.maintenance,
        comment: new.comment,
        expected_version: None,
    };
    calls.reservations().create(request).await?;
    let location = format!("/api/v1/reservations/{}", new.name);
    Ok((StatusCode::CREATED, [(LOCATION, location)], show(&calls, &new.name).await?).into_response())
}

/// Changes a reservation; what has its nodes keeps them. For operators.
///
/// With `If-Match`, only if it has that tag.
#[utoipa::path(
    patch, path = "/api/v1/reservations/{name}", tag = "reservations",
    params(("name" = String, Path, description = "Its name"),
           ("If-Match" = Option<String>, Header, description = "The ETag of what was read")),
    request_body = ReservationSettings,
    responses((status = 200, description = "The reservation as it is now", body = ReservationJson))
)]
async fn update_reservation(
    calls: Calls,
    if_match: IfMatch,
    Segments(name): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
    Body(change): Body<ReservationSettings>,
) -> Result<Response, Problem> {
    let before = find(&calls, &name).await?;
    if_match.check(Some(&tag_of(&before)?))?;
    let clock = Clock { now: now(), ..Clock::default() };
    let window = Window::read(change.start.as_deref(), change.end.as_deref(), change.duration_seconds, before.start_ms, &clock)?;
    // As on the command line: maintenance is for nobody, and whoever is named ends it.
    let becomes_maintenance = change.maintenance == Some(true);
    let has_subjects = change.tenants.is_some() || change.users.is_some();
    let subjects = |given: Option<Vec<String>>| names(given.or_else(|| becomes_maintenance.then(Vec::new)));
    let request = v1::SetReservationRequest {
        name: name.clone(),
        nodes: change.nodes,
        start_ms: window.start_ms,
        end_ms: window.end_ms,
        tenants: subjects(change.tenants),
        users: subjects(change.users),
        maintenance: change.maintenance.or(has_subjects.then_some(false)),
        comment: change.comment,
        expected_version: if_match.names_a_tag().then_some(before.version),
    };
    if_match.made(calls.reservations().update(request).await)?;
    show(&calls, &name).await
}

/// A reservation that was deleted.
#[derive(Serialize, ToSchema)]
struct DeletedReservation {
    name: String,
    /// Allocations that waited for it, and get no nodes any more.
    waiting: u32,
}

/// Deletes a reservation: its nodes are everybody's again, and work that waits for it gets none. For operators.
#[utoipa::path(
    delete, path = "/api/v1/reservations/{name}", tag = "reservations", params(("name" = String, Path, description = "Its name")),
    responses((status = 200, description = "It is deleted", body = DeletedReservation))
)]
async fn delete_reservation(
    calls: Calls,
    Segments(name): Segments<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<DeletedReservation>, Problem> {
    let waiting = calls.reservations().delete(v1::DeleteReservationRequest { name: name.clone() }).await?.into_inner().waiting;
    Ok(Json(DeletedReservation { name, waiting }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::time::Timestamp;

    #[test]
    fn a_window_has_an_end_or_a_duration_from_its_start_on() {
        let clock = Clock { now: Timestamp(1_772_668_800_000), ..Clock::default() };
        let read = |start: Option<&str>, end: Option<&str>, seconds| Window::read(start, end, seconds, 5000, &clock);
        let start = 1_772_672_400_000;
        let hour = Window { start_ms: Some(start), end_ms: Some(start + 3_600_000) };
        assert_eq!(read(Some("2026-03-05T01:00:00Z"), None, Some(3600)), Ok(hour));
        assert_eq!(read(Some("1h"), Some("2026-03-05T02:00:00Z"), None), read(Some("1h"), None, Some(3600)));
        assert_eq!(read(None, None, Some(1)), Ok(Window { start_ms: None, end_ms: Some(6000) }));
        assert_eq!(read(None, None, None), Ok(Window::default()));
        assert!(read(None, Some("2h"), Some(1)).is_err() && read(Some("soon"), None, None).is_err());
    }

    #[test]
    fn the_tag_is_of_the_version_and_not_of_the_work() {
        let course = v1::Reservation { name: "course".into(), version: 7, created_at_ms: 3, ..Default::default() };
        let open = v1::Reservation { state: "Open".into(), waiting: 2, running: 1, ..course.clone() };
        assert_eq!(tag_of(&course).unwrap(), tag_of(&open).unwrap());
        assert_ne!(tag_of(&course).unwrap(), tag_of(&v1::Reservation { version: 8, ..course.clone() }).unwrap());
    }
}
