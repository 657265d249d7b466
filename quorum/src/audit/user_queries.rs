//! How many users read the audit log at once. An operator's query is not counted.

use super::STEP;
use lattice_quorum_client::wire::Refusal;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Largest number of users' queries that a member answers at once. Anybody may ask, and each query
/// reads the disk for as long as one step.
const QUERIES_MAX: usize = 2;

/// The users' queries that a member answers now.
#[derive(Debug)]
pub struct UserQueries(Arc<Semaphore>);

impl Default for UserQueries {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(QUERIES_MAX)))
    }
}

impl UserQueries {
    /// Counts a query until the returned value is dropped.
    ///
    /// # Errors
    /// [`Refusal::Unavailable`]: the largest number is being answered already. Clients repeat the request.
    pub fn begin(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.0).try_acquire_owned().map_err(|_| {
            let ms = STEP.as_millis();
            Refusal::Unavailable {
                why: format!("{QUERIES_MAX} queries of users read the audit log now, each for {ms} ms or longer: try again"),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_query_is_refused_until_one_of_two_has_ended() {
        let queries = UserQueries::default();
        let (first, _second) = (queries.begin().unwrap(), queries.begin().unwrap());
        let Err(Refusal::Unavailable { why }) = queries.begin() else { panic!("a third query was begun") };
        assert_eq!(why, "2 queries of users read the audit log now, each for 800 ms or longer: try again");
        drop(first);
        let _third = queries.begin().unwrap();
        assert!(queries.begin().is_err());
    }
}
