//! Mail about allocations: whether the site sends any.

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::refusal::{status, unexpected};
use lattice_ledger::MAIL_CHANNEL;
use lattice_model::AllocationSpec;
use lattice_quorum_client::wire::{Answer, Request as Ask};
use tonic::Status;

/// The warning for work with `--mail-type` where the site sends no mail.
const NO_MAIL: &str = "this site sends no mail: its quorum has no mail_hook, so --mail-type has no effect";

/// The warning to the submitter; empty: there is none.
pub(super) async fn warning(api: &Api, spec: &AllocationSpec) -> Result<String, Status> {
    if spec.mail.is_none() {
        return Ok(String::new());
    }
    match api.quorum.call(&Ask::Status, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
        Answer::Status(now) if now.notified.iter().any(|known| known.channel == MAIL_CHANNEL) => Ok(String::new()),
        Answer::Status(_) => Ok(NO_MAIL.to_owned()),
        other => Err(unexpected(&other)),
    }
}

/// Several warnings as one; empty ones are left out.
pub(super) fn joined<const N: usize>(warnings: [String; N]) -> String {
    let given: Vec<String> = warnings.into_iter().filter(|warning| !warning.is_empty()).collect();
    given.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_warnings_are_left_out() {
        assert_eq!(joined([String::new(), "a".to_owned()]), "a");
        assert_eq!(joined(["b".to_owned(), "a".to_owned()]), "b; a");
        assert_eq!(joined([String::new(), String::new()]), "");
    }
}
