//! `lattice quorum status` and `members`.

use lattice_api::json::QuorumStatusJson;
use lattice_api::v1;
use lattice_api::v1::quorum_status_response::{Count, Refused};
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::{ended_work, folded, time};
use lattice_cli_session::table::{Fit, Table, block};

/// Only the members, from the leader.
pub async fn members(session: &Session) -> Result<(), Failure> {
    let client = session.connect().await?;
    let status = answer(client.admin().quorum_status(v1::QuorumStatusRequest { by_leader: true })).await?;
    match session.format() {
        Format::Table => print(&table(&status, session.table_size())),
        Format::Data(notation) => notation.print(&QuorumStatusJson::from(&status).members),
        Format::Name => {
            let ids: Vec<String> = status.members.iter().map(|m| m.id.to_string()).collect();
            print_names(ids.iter().map(String::as_str))
        }
    }
}

pub async fn status(session: &Session) -> Result<(), Failure> {
    let client = session.connect().await?;
    let status = answer(client.admin().quorum_status(v1::QuorumStatusRequest { by_leader: false })).await?;
    match session.format() {
        Format::Table => print(&text(&status, session.table_size())),
        Format::Data(notation) => notation.print(&QuorumStatusJson::from(&status)),
        Format::Name => {
            let ids: Vec<String> = status.members.iter().map(|m| m.id.to_string()).collect();
            print_names(ids.iter().map(String::as_str))
        }
    }
}

fn text(status: &v1::QuorumStatusResponse, size: TableSize) -> String {
    let leader = status.leader.map_or("none is known".to_owned(), |id| format!("member {id} in term {}", status.term));
    let mut text = block(&[
        ("Cluster", status.cluster.clone()),
        ("Leader", leader),
        ("Answered by", format!("member {}", status.answered_by)),
        ("Revision", format!("{} (generation {})", status.revision, status.generation)),
        ("Level", status.level.to_string()),
        ("Audit", format!("{} records", status.audit_records)),
        ("Nodes", counts(&status.nodes)),
        ("Allocations", counts(&status.allocations)),
        ("Ended work", ended_work(&status.ended.unwrap_or_default())),
        ("Refused", refused(&status.refused)),
        ("Disk", disks(&status.members)),
    ]);
    if !status.awaited.is_empty() {
        let nodes = folded(&status.awaited);
        text.push_str(&block(&[(
            "Recovery",
            format!("waiting work is placed when these nodes have reported what they run, or are Down: {nodes}"),
        )]));
    }
    if status.held_back > 0 {
        let held = format!(
            "{} nodes fell silent at once: none is declared Down, and their work is not started elsewhere, before `lattice node confirm-dead NODES`",
            status.held_back
        );
        text.push_str(&block(&[("Silent", held)]));
    }
    if !status.clocks.is_empty() {
        text.push_str(&block(&[("Clocks", status.clocks.clone())]));
    }
    for channel in &status.notified {
        let progress =
            format!("{} has received all audit records up to {} of {}", channel.channel, channel.delivered_seq, status.audit_records);
        let last_error = if channel.last_error.is_empty() { String::new() } else { format!("; {}", channel.last_error) };
        text.push_str(&block(&[("Notified", progress + &last_error)]));
    }
    text.push('\n');
    text.push_str(&table(status, size));
    text
}

/// How the list of members is made narrower.
const MEMBERS_FIT: Fit<'_> =
    Fit { left_out: &["RAFT", "LEVEL", "VOTES"], shortened: &[("SERVICE", 16)], wrapped: &[], left_out_last: &["CERTIFICATE UNTIL"] };

fn table(status: &v1::QuorumStatusResponse, size: TableSize) -> String {
    let mut table = Table::new(&["MEMBER", "ROLE", "VOTES", "MATCHED", "LEVEL", "CERTIFICATE UNTIL", "SERVICE", "RAFT"]);
    for m in &status.members {
        let matched = m.match_index.map(|index| index.to_string()).unwrap_or_default();
        let level = m.level.map(|level| level.to_string()).unwrap_or_default();
        let votes = if m.votes { "yes" } else { "no" };
        let until = time(m.certificate_until_ms).map(|t| t.chars().take("2026-03-05T10:00".len()).collect()).unwrap_or_default();
        let (service, raft) = (m.service.clone(), m.raft.clone());
        table.row(vec![m.id.to_string(), m.role.clone(), votes.to_owned(), matched, level, until, service, raft]);
    }
    table.on_screen(&[], &MEMBERS_FIT, size)
}

/// Members with a full disk.
fn disks(members: &[v1::quorum_status_response::Member]) -> String {
    let short: Vec<String> = members.iter().filter(|m| !m.disk.is_empty()).map(|m| format!("member {}: {}", m.id, m.disk)).collect();
    short.join("; ")
}

/// Callers that were refused for their certificates.
fn refused(counts: &[Refused]) -> String {
    let counts: Vec<String> = counts.iter().map(|c| format!("{} {}", c.count, c.kind)).collect();
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
}

fn counts(counts: &[Count]) -> String {
    let counts: Vec<String> = counts.iter().filter(|c| c.count > 0).map(|c| format!("{} {}", c.count, c.state)).collect();
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_who_leads() {
        let member = |id, role: &str, matched| v1::quorum_status_response::Member {
            id,
            service: format!("h{id}:50051"),
            raft: format!("h{id}:9000"),
            role: role.into(),
            match_index: matched,
            votes: true,
            level: matched.map(|_| 2),
            certificate_until_ms: matched.map_or(0, |_| 1_772_704_812_034),
            disk: matched.map_or("the disk of /d is full: nothing new is accepted".into(), |_| String::new()),
        };
        let status = v1::QuorumStatusResponse {
            cluster: "lattice".into(),
            answered_by: 1,
            leader: Some(2),
            term: 5,
            revision: 120,
            generation: 1,
            members: vec![member(1, "follower", None), member(2, "leader", Some(120))],
            audit_records: 40,
            level: 2,
            notified: vec![],
            awaited: vec![],
            held_back: 3,
            clocks: "the clock of member 2 is 7 s ahead of those of the majority: set it right (NTP)".into(),
            nodes: vec![Count { state: "Ready".into(), count: 3 }, Count { state: "Down".into(), count: 0 }],
            allocations: vec![],
            refused: vec![Refused { kind: "certificates of another role".into(), count: 2 }],
            ended: Some(v1::EndedWork { memory_bytes: 256 << 20, count: 2, bytes: 3 << 10, ..Default::default() }),
        };
        let want = "\
Cluster:      lattice
Leader:       member 2 in term 5
Answered by:  member 1
Revision:     120 (generation 1)
Level:        2
Audit:        40 records
Nodes:        3 Ready
Allocations:  none
Ended work:   2 kept, 3 KiB of 256 MiB
Refused:      2 certificates of another role
Disk:         member 1: the disk of /d is full: nothing new is accepted
Silent:  3 nodes fell silent at once: none is declared Down, and their work is not started elsewhere, before `lattice node confirm-dead NODES`
Clocks:  the clock of member 2 is 7 s ahead of those of the majority: set it right (NTP)

MEMBER  ROLE      VOTES  MATCHED  LEVEL  CERTIFICATE UNTIL  SERVICE   RAFT
1       follower  yes    —        —      —                  h1:50051  h1:9000
2       leader    yes    120      2      2026-03-05T10:00   h2:50051  h2:9000
";
        assert_eq!(text(&status, TableSize::default()), want);
        let mut wide = status.clone();
        for member in &mut wide.members {
            (member.service, member.raft) = ("member-1.long.example.com:9400".into(), "member-1.long.example.com:9401".into());
            member.match_index = Some(u64::from(u32::MAX));
        }
        lattice_cli_session::table::assert_fits(&table(&wide, lattice_cli_session::table::NARROW));
    }
}
