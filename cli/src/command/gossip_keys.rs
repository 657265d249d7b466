//! `lattice gossip keys` and `keys rotate`.

use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::gossip_key::Role;
use lattice_api::v1::{GossipKey, ListGossipKeysResponse};
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::{folded, time};
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::args::gossip::{GossipKeysCommand, RotateKeys};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Interval of progress checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(300);
/// How long the quorum may be unavailable: it may be electing another leader.
const UNAVAILABLE_MAX: Duration = Duration::from_secs(30);
/// Shown as the author of key 0, which is in the agents' configuration.
const CONFIGURED: &str = "agent.yaml";
/// The message after an interruption.
const CONTINUES_HINT: &str = "the rotation continues: `lattice gossip keys` shows its progress, and `rotate` waits for it again";

pub async fn run(session: &Session, what: Option<GossipKeysCommand>) -> Result<(), Failure> {
    let client = session.connect().await?;
    match what {
        None => show(session, &list(&client).await?),
        Some(GossipKeysCommand::Rotate(args)) => rotate(session, &client, &args).await,
    }
}

async fn list(client: &Client) -> Result<ListGossipKeysResponse, Failure> {
    answer(client.admin().list_gossip_keys(v1::ListGossipKeysRequest {})).await
}

async fn rotate(session: &Session, client: &Client, args: &RotateKeys) -> Result<(), Failure> {
    let id = answer(client.admin().rotate_gossip_keys(v1::RotateGossipKeysRequest {})).await?.id;
    let mut noted = String::new();
    let mut unavailable_since: Option<Instant> = None;
    loop {
        match list(client).await {
            Ok(now) if args.no_wait || is_over(&now, id) => return show(session, &now),
            Ok(now) => {
                unavailable_since = None;
                let text = progress(&now);
                if noted != text {
                    session.note(&text);
                    noted = text;
                }
            }
            Err(failure) if failure.exit() == Exit::Unavailable as u8 && !failure.is_lost_connection() => {
                if unavailable_since.get_or_insert_with(Instant::now).elapsed() > UNAVAILABLE_MAX {
                    return Err(failure.hint(CONTINUES_HINT));
                }
            }
            Err(failure) => return Err(failure.hint(CONTINUES_HINT)),
        }
        sleep(CHECK_INTERVAL).await;
    }
}

/// Whether the rotation to this key is done: no older key is left.
fn is_over(now: &ListGossipKeysResponse, id: u32) -> bool {
    now.keys.iter().all(|key| key.id >= id)
}

/// The step of a rotation, and the nodes that it waits for.
fn progress(now: &ListGossipKeysResponse) -> String {
    let Some(newest) = now.keys.last() else { return "the quorum names no gossip key".to_owned() };
    let all = now.nodes;
    let step = match newest.role() {
        Role::Distributing => format!("gossip key {} is being distributed: {} of {all} nodes have it", newest.id, newest.decrypting_nodes),
        Role::Encrypt | Role::Decrypt | Role::Unspecified => {
            format!("gossip key {} is in use: {} of {all} nodes encrypt with it", newest.id, newest.encrypting_nodes)
        }
    };
    if now.awaited.is_empty() {
        return step;
    }
    let more = now.awaited_count.saturating_sub(now.awaited.len() as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{step}; waits for {}{more}", folded(&now.awaited))
}

fn show(session: &Session, now: &ListGossipKeysResponse) -> Result<(), Failure> {
    match session.format() {
        Format::Table => print(&text(now, session.table_size())),
        Format::Data(notation) => notation.print(&json(now)),
        Format::Name => {
            let ids: Vec<String> = now.keys.iter().map(|key| key.id.to_string()).collect();
            print_names(ids.iter().map(String::as_str))
        }
    }
}

fn text(now: &ListGossipKeysResponse, size: TableSize) -> String {
    let mut table = Table::new(&["KEY", "ROLE", "DECRYPTING", "ENCRYPTING", "MADE AT", "BY"]);
    for key in &now.keys {
        let of_all = |count: u64| format!("{count} of {}", now.nodes);
        let made = time(key.created_at_ms).unwrap_or_default();
        let by = if key.id == 0 { CONFIGURED.to_owned() } else { key.created_by.clone() };
        table.row(vec![
            key.id.to_string(),
            role_name(key).to_owned(),
            of_all(key.decrypting_nodes),
            of_all(key.encrypting_nodes),
            made,
            by,
        ]);
    }
    let mut text = table.on_screen(&[], &Fit::default(), size);
    if now.keys.len() > 1 {
        text.push_str(&format!("\n{}\n", progress(now)));
    }
    text
}

fn role_name(key: &GossipKey) -> &'static str {
    match key.role() {
        Role::Distributing => "distributing",
        Role::Encrypt => "encrypt",
        Role::Decrypt => "decrypt",
        Role::Unspecified => "unknown",
    }
}

fn json(now: &ListGossipKeysResponse) -> serde_json::Value {
    let keys = now.keys.iter().map(|key| {
        serde_json::json!({
            "id": key.id, "role": role_name(key), "decrypting_nodes": key.decrypting_nodes, "encrypting_nodes": key.encrypting_nodes, "created_at": time(key.created_at_ms),
            "created_by": (!key.created_by.is_empty()).then_some(&key.created_by),
        })
    });
    serde_json::json!({ "keys": keys.collect::<Vec<_>>(), "nodes": now.nodes, "awaited": now.awaited, "awaited_count": now.awaited_count })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u32, role: Role, decrypting_nodes: u64, encrypting_nodes: u64) -> GossipKey {
        let (created_at_ms, created_by) = if id == 0 { (0, String::new()) } else { (1_772_704_812_034, "root".into()) };
        GossipKey { id, created_at_ms, created_by, role: role.into(), decrypting_nodes, encrypting_nodes }
    }

    #[test]
    fn keys_and_what_a_rotation_waits_for() {
        let mut now = ListGossipKeysResponse {
            keys: vec![key(0, Role::Encrypt, 20, 20), key(1, Role::Distributing, 3, 0)],
            nodes: 20,
            awaited: vec!["n1".into(), "n2".into()],
            awaited_count: 17,
        };
        let want = "\
KEY  ROLE          DECRYPTING  ENCRYPTING  MADE AT                   BY
0    encrypt       20 of 20    20 of 20    —                         agent.yaml
1    distributing  3 of 20     0 of 20     2026-03-05T10:00:12.034Z  root

gossip key 1 is being distributed: 3 of 20 nodes have it; waits for n[1-2] and 15 more
";
        assert_eq!(text(&now, TableSize::default()), want);
        assert!(want.lines().take(3).all(|line| line.chars().count() <= 80), "{want}");
        assert!(!is_over(&now, 1));
        now.keys = vec![key(0, Role::Decrypt, 20, 0), key(1, Role::Encrypt, 20, 20)];
        (now.awaited, now.awaited_count) = (vec![], 0);
        assert_eq!(progress(&now), "gossip key 1 is in use: 20 of 20 nodes encrypt with it");
        assert!(!is_over(&now, 1));
        now.keys.remove(0);
        assert!(is_over(&now, 1) && !is_over(&now, 2));
    }
}
