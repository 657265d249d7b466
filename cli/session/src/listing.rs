//! Lists of allocations, page by page.

use crate::failure::Failure;
use crate::session::{Session, answer};
use lattice_api::client::Client;
use lattice_api::v1;
use std::time::Duration;

/// Allocations of one page.
const PAGE_LEN_MAX: usize = 1000;

/// The result of a list.
#[derive(Default)]
pub struct Listing {
    pub allocations: Vec<v1::Allocation>,
    /// Whether there are more than were requested.
    pub more: bool,
    /// The greatest age of a page, if stale answers were allowed.
    pub age_ms: Option<u64>,
}

/// The newest allocations that match `request`, at most this many. Its limit is the length of a page; 0: 1,000.
pub async fn fetch_all(client: &Client, mut request: v1::ListAllocationsRequest, most: usize) -> Result<Listing, Failure> {
    let page_len = if request.limit == 0 { PAGE_LEN_MAX } else { request.limit as usize };
    let mut found = Listing { allocations: Vec::new(), more: false, age_ms: None };
    loop {
        // One more than requested shows whether there are more.
        let left = most.saturating_sub(found.allocations.len()).saturating_add(1);
        request.limit = u32::try_from(left.min(page_len)).unwrap_or(u32::MAX);
        let page = answer(client.allocations().list(request.clone())).await?;
        found.age_ms = found.age_ms.max(page.age_ms);
        let is_last = page.allocations.is_empty() || page.next_page_token.is_empty();
        found.allocations.extend(page.allocations);
        if found.allocations.len() > most {
            found.allocations.truncate(most);
            found.more = true;
            return Ok(found);
        }
        if is_last {
            return Ok(found);
        }
        request.page_token = page.next_page_token;
    }
}

/// Reports the age of an answer that came from a single member.
pub fn report_age(session: &Session, age_ms: Option<u64>) {
    if let Some(age_ms) = age_ms {
        let age = Duration::from_millis(age_ms).as_secs_f64();
        session.note(&format!("this is the state of one member of the quorum, which reached the others {age:.1} s ago"));
    }
}
