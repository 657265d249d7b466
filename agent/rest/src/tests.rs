//! The router over services that answer as each test says.

use super::*;
use axum::body::{Body, to_bytes};
use axum::http::header::{ALLOW, ETAG, IF_MATCH, IF_NONE_MATCH, LINK, LOCATION};
use axum::http::{HeaderMap, Request};
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use lattice_api::v1;
use prost::Message;
use serde_json::{Value, json};
use std::convert::Infallible;
use tonic::Status;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

/// What the edge puts into the extensions of a request.
#[derive(Clone)]
struct Caller;

/// The bytes before a message of gRPC: whether it is compressed, and its length.
const FRAME_HEAD_BYTES: usize = 5;

/// Services that answer each call by this function of its path and its message, for identified callers alone.
fn services(answer: fn(&str, &[u8]) -> Result<Vec<u8>, Status>) -> Grpc {
    BoxCloneSyncService::new(tower::service_fn(move |request: axum::http::Request<tonic::body::Body>| async move {
        let (parts, body) = request.into_parts();
        let message = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let answered = match parts.extensions.get::<Caller>() {
            Some(Caller) => answer(parts.uri.path(), message.get(FRAME_HEAD_BYTES..).unwrap_or_default()),
            None => Err(Status::unauthenticated("nobody calls")),
        };
        Ok::<_, Infallible>(answered.map_or_else(|status| status.into_http(), framed))
    }))
}

fn framed(message: Vec<u8>) -> axum::http::Response<tonic::body::Body> {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.put_slice(&message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(Bytes::from(frame)).with_trailers(async move { Some(Ok::<_, Infallible>(trailers)) });
    axum::http::Response::new(tonic::body::Body::new(body))
}

/// Allocations and tenants, as little as the tests need.
fn cluster(path: &str, message: &[u8]) -> Result<Vec<u8>, Status> {
    let (id, name, owner, state) = ("1f0c".to_owned(), "sim".to_owned(), "ada".to_owned(), "Pending".to_owned());
    let found = v1::Allocation { id, name, owner, state, ..Default::default() };
    match path.strip_prefix("/lattice.v1.").unwrap_or(path) {
        "AllocationService/Submit" => {
            let v1::SubmitRequest { id, spec, .. } = v1::SubmitRequest::decode(message).unwrap();
            assert_eq!(spec.unwrap().resources.unwrap().nodes, 2);
            Ok(v1::SubmitResponse { id, ..Default::default() }.encode_to_vec())
        }
        "AllocationService/List" => {
            let request = v1::ListAllocationsRequest::decode(message).unwrap();
            assert_eq!((request.states.join("+"), request.limit), ("Running+Pending".to_owned(), 1));
            let page = v1::ListAllocationsResponse { allocations: vec![found], next_page_token: "a/b".into(), age_ms: None };
            Ok(page.encode_to_vec())
        }
        "AllocationService/Get" => Ok(found.encode_to_vec()),
        "AllocationService/Update" => {
            let request = v1::UpdateAllocationRequest::decode(message).unwrap();
            assert_eq!((request.name.as_deref(), request.tags["old"].as_str()), (Some("run"), ""));
            Ok(v1::UpdateAllocationResponse { id: request.key, ..Default::default() }.encode_to_vec())
        }
        "SessionService/Create" => {
            let v1::CreateSessionRequest { id, allocation } = v1::CreateSessionRequest::decode(message).unwrap();
            Ok(v1::InteractiveSession { id, allocation, ..Default::default() }.encode_to_vec())
        }
        "AllocationService/Cancel" => Err(Status::permission_denied("it is ada's\nhint: ask ada")),
        "AdminService/WhoAmI" => Ok(v1::WhoAmIResponse { account: "ada".into(), ..Default::default() }.encode_to_vec()),
        other => Err(Status::unimplemented(other)),
    }
}

/// The status, the headers and the JSON of the answer to an identified caller.
async fn answer(request: axum::http::request::Builder, body: impl Into<Body>) -> (StatusCode, HeaderMap, Value) {
    let request: Request<Body> = request.extension(Caller).body(body.into()).unwrap();
    let response = router(services(cluster)).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.unwrap();
    (parts.status, parts.headers, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

fn request(method: &str, path: &str) -> axum::http::request::Builder {
    Request::builder().method(method).uri(path)
}

fn with_json(method: &str, path: &str) -> axum::http::request::Builder {
    request(method, path).header(CONTENT_TYPE, "application/json")
}

#[tokio::test]
async fn a_submission_has_the_id_of_its_key_and_reaches_the_services_as_its_caller() {
    let id = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88";
    let post = || with_json("POST", "/api/v1/allocations");
    let body = json!({ "entrypoint": ["/bin/true"], "nodes": 2 }).to_string();
    let (status, headers, submitted) = answer(post().header("Idempotency-Key", id), body.clone()).await;
    assert_eq!((status, &submitted["id"], &submitted["warnings"]), (StatusCode::CREATED, &id.into(), &json!([])), "{submitted}");
    assert_eq!(headers[LOCATION], format!("/api/v1/allocations/{id}"));
    assert_eq!((&headers[CACHE_CONTROL], &headers[X_CONTENT_TYPE_OPTIONS]), (&"no-store".parse().unwrap(), &"nosniff".parse().unwrap()));
    let named = || answer(post().header("Idempotency-Key", "night run"), body.clone());
    let (first, again) = (named().await.2, named().await.2);
    assert_eq!(first["id"], again["id"], "a text is the same id each time");
    let other = answer(post(), body.clone()).await.2;
    assert_ne!(first["id"], other["id"]);
    let (status, ..) = answer(post().header("Idempotency-Key", "x".repeat(256)), body.clone()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    // Without a caller in the extensions of the request there is none in those of the call.
    let nobody: Request<Body> = post().body(body.into()).unwrap();
    let refused = router(services(cluster)).oneshot(nobody).await.unwrap();
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_key_is_of_one_request_for_one_allocation() {
    let open = async |allocation: &str, key: &str| {
        let body = json!({ "allocation": allocation }).to_string();
        let (status, _, session) = answer(with_json("POST", "/api/v1/sessions").header("Idempotency-Key", key), body).await;
        assert_eq!(status, StatusCode::CREATED, "{session}");
        session["id"].as_str().unwrap().to_owned()
    };
    assert_eq!(open("1f0c", "desk").await, open("1f0c", "desk").await);
    assert_ne!(open("1f0c", "desk").await, open("2f0c", "desk").await, "each allocation has its own session");
}

#[tokio::test]
async fn a_list_has_a_link_to_its_next_page() {
    let (status, headers, page) = answer(request("GET", "/api/v1/allocations?state=Running,Pending&limit=1"), "").await;
    assert_eq!((status, &page["allocations"][0]["name"], &page["next_page_token"]), (StatusCode::OK, &"sim".into(), &"a/b".into()));
    let link = "</api/v1/allocations?state=Running,Pending&limit=1&page_token=a%2Fb>; rel=\"next\"";
    assert_eq!(headers[LINK], link);
}

#[tokio::test]
async fn a_change_is_made_to_what_was_read_or_not_at_all() {
    let (_, headers, _) = answer(request("GET", "/api/v1/allocations/1f0c"), "").await;
    let change = json!({ "name": "run", "tags": { "old": null } }).to_string();
    let patch = || with_json("PATCH", "/api/v1/allocations/1f0c");
    let (status, after, _) = answer(patch().header(IF_MATCH, &headers[ETAG]), change.clone()).await;
    assert_eq!((status, &after[ETAG]), (StatusCode::OK, &headers[ETAG]));
    assert_eq!(answer(patch(), change.clone()).await.0, StatusCode::OK, "without a tag, too");
    let (status, _, problem) = answer(patch().header(IF_MATCH, "\"other\""), change).await;
    assert_eq!((status, &problem["code"]), (StatusCode::PRECONDITION_FAILED, &"failed_precondition".into()));
    let exists = answer(patch().header(IF_NONE_MATCH, "*"), "{}").await;
    assert_eq!((exists.0, &exists.2["hint"]), (StatusCode::PRECONDITION_FAILED, &"send If-Match to change it".into()));
    assert_eq!(answer(patch().header(IF_NONE_MATCH, "\"other\""), "{}").await.0, StatusCode::BAD_REQUEST);
    let both = json!({ "walltime_seconds": 1, "walltime_more_seconds": 1 }).to_string();
    assert_eq!(answer(patch(), both).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_refusal_is_a_problem() {
    let (status, headers, problem) = answer(request("DELETE", "/api/v1/allocations/1f0c"), "").await;
    assert_eq!((status, &headers[CONTENT_TYPE]), (StatusCode::FORBIDDEN, &"application/problem+json".parse().unwrap()));
    let wanted = json!({
        "type": "about:blank", "title": "Forbidden", "status": 403, "code": "permission_denied", "detail": "it is ada's", "hint": "ask ada",
    });
    assert_eq!(problem, wanted);
}

#[tokio::test]
async fn what_is_not_known_is_refused() {
    let post = || with_json("POST", "/api/v1/allocations");
    for (request, body, wanted, text) in [
        (request("GET", "/api/v1/allocations?stat=Running"), "", 400, "unknown field `stat`"),
        (request("GET", "/api/v1/allocations?limit=many"), "", 400, "limit"),
        (request("GET", "/api/v1/whoami?x=1"), "", 400, "unknown field `x`"),
        (request("GET", "/api/v1/nothing"), "", 404, "there is nothing at /api/v1/nothing"),
        (request("GET", "/api/v1/allocations/"), "", 404, "there is nothing at"),
        (request("GET", "/api/v1/allocations/../whoami"), "", 404, "there is nothing at"),
        (request("GET", "/api/v1/allocations/%ff"), "", 400, "UTF-8"),
        (request("DELETE", "/api/v1/allocations"), "", 405, "DELETE is not possible"),
        (post(), "{", 400, "EOF"),
        (post(), "[]", 400, "map"),
        (post(), "{\"nodse\": 2, \"entrypoint\": \"x\"}", 400, "--nodse: there is no such option"),
        (request("POST", "/api/v1/allocations"), "{}", 415, "Content-Type"),
        (request("POST", "/api/v1/allocations/1f0c/requeue"), "{}", 415, "Content-Type"),
        (with_json("POST", "/api/v1/allocations/1f0c/requeue"), "{\"why\": \"x\"}", 400, "unknown field `why`"),
        (with_json("PATCH", "/api/v1/allocations/1f0c"), "{\"nam\": \"x\"}", 400, "unknown field `nam`"),
    ] {
        let (status, headers, problem) = answer(request, body).await;
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(status == wanted && detail.contains(text), "{text}: {status} {problem}");
        assert_eq!(headers[CONTENT_TYPE], "application/problem+json");
        assert_eq!(headers.contains_key(ALLOW), wanted == 405, "{text}");
    }
}

#[tokio::test]
async fn a_body_without_end_is_not_read_to_its_end() {
    let endless = futures::stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[b' '; 4096])));
    let (status, _, problem) = answer(with_json("POST", "/api/v1/allocations"), Body::from_stream(endless)).await;
    assert_eq!((status, &problem["code"]), (StatusCode::PAYLOAD_TOO_LARGE, &"out_of_range".into()), "{problem}");
}

#[tokio::test]
async fn the_description_needs_no_call() {
    let described: Request<Body> = request("GET", OPENAPI_PATH).body(Body::empty()).unwrap();
    let response = router(services(|_, _| Err(Status::internal("nobody asks")))).oneshot(described).await.unwrap();
    let description: Value = serde_json::from_slice(&to_bytes(response.into_body(), usize::MAX).await.unwrap()).unwrap();
    assert_eq!(description["openapi"], "3.1.0");
    assert!(description["paths"]["/api/v1/allocations"]["post"].is_object());
}
