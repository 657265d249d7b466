//! One vCluster, or all of them, as the agent answers.

use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::session::answer;

/// All of them: `default` first, then by name.
pub async fn all(client: &Client) -> Result<Vec<v1::VCluster>, Failure> {
    Ok(answer(client.vclusters().list(v1::ListVClustersRequest {})).await?.vclusters)
}

/// The vCluster with this name; `hint` says what to do if there is none.
pub async fn find(client: &Client, name: &str, hint: &str) -> Result<v1::VCluster, Failure> {
    let found = all(client).await?.into_iter().find(|v| v.name == name);
    found.ok_or_else(|| Failure::new(Exit::NotFound, format!("vCluster {name:?} not found")).hint(hint))
}
