//! Diagnoses a member and its quorum, and names the command that repairs them. Changes nothing.
//!
//! [`look`] and [`ask`] collect the facts; [`describe`] writes the text from these facts alone.

use super::BackupError;
use super::recover::is_empty;
use super::store::BackupStore;
use crate::config::{MemberAddress, QuorumConfig};
use crate::membership;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::future::join_all;
use lattice_ledger::LEVEL_MAX;
use lattice_model::with_causes;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, QuorumStatus, Request};
use lattice_store::directory::Directory;
use lattice_store::{StoreError, audit, log, snapshot_file};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// Timeout for each question to a member.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// The state of the data directory.
#[derive(Debug)]
enum Files {
    Empty,
    /// A running member uses it.
    InUse,
    Whole,
    Damaged(StoreError),
    /// The files belong to another member or another cluster.
    Foreign(StoreError),
    /// A newer version wrote the files.
    Newer(StoreError),
    /// The member was removed from its cluster.
    Removed,
}

fn look(config: &QuorumConfig) -> Result<Files, BackupError> {
    let dir = &config.data_dir;
    if is_empty(dir)? {
        return Ok(Files::Empty);
    }
    if membership::was_removed(dir) {
        return Ok(Files::Removed);
    }
    let check = || -> Result<(), StoreError> {
        let (_directory, _released) = Directory::open_present(dir, &config.cluster, config.id)?;
        log::check(dir)?;
        audit::check(&dir.join("audit"))?;
        snapshot_file::list(dir)?.iter().try_for_each(|(_, path)| snapshot_file::load(path).map(drop))
    };
    match check() {
        Ok(()) => Ok(Files::Whole),
        Err(StoreError::Locked { .. }) => Ok(Files::InUse),
        Err(error @ StoreError::Foreign { .. }) => Ok(Files::Foreign(error)),
        Err(error @ StoreError::Newer { .. }) => Ok(Files::Newer(error)),
        Err(error @ StoreError::Corrupt { .. }) => Ok(Files::Damaged(error)),
        Err(error) => Err(error.into()),
    }
}

/// The answers of the configured members.
#[derive(Debug, Default)]
struct MemberAnswers {
    /// The members that answered.
    answer: Vec<u64>,
    /// The members' state as seen by a leader with a majority.
    led: Option<QuorumStatus>,
}

async fn ask(config: &QuorumConfig) -> Result<MemberAnswers, BackupError> {
    let credentials = super::credentials(config).map_err(|e| BackupError::Unasked { why: with_causes(&e) })?;
    let questions = config.members.iter().map(|member| {
        let credentials = credentials.clone();
        async move {
            let client = QuorumClient::new(vec![member.service.clone()], credentials).ok()?;
            client.call(&Request::Status, ASK_TIMEOUT).await.ok()?;
            let standing = client.call(&Request::Members, ASK_TIMEOUT).await.ok();
            Some((member.id, standing))
        }
    });
    let mut answers = MemberAnswers::default();
    for (id, standing) in join_all(questions).await.into_iter().flatten() {
        answers.answer.push(id);
        if let Some(Answer::Status(status)) = standing.filter(|_| answers.led.is_none())
            && status.leader.is_some()
        {
            answers.led = Some(status);
        }
    }
    Ok(answers)
}

async fn backups(store: Option<&BackupStore>) -> String {
    let Some(store) = store else { return "No place for backups is configured: give --from URL.".to_owned() };
    match store.list().await {
        Ok(names) => match names.last() {
            Some(newest) => format!("There are {} backups in {}, the newest {newest}.", names.len(), store.url()),
            None => format!("There is no backup in {}.", store.url()),
        },
        Err(error) => format!("The backups cannot be listed: {}.", with_causes(&error)),
    }
}

/// Describes the problem and the repair. `file`: the path of the configuration.
pub fn plan<'a>(config: &'a QuorumConfig, file: &'a Path, store: Option<&'a BackupStore>) -> BoxFuture<'a, Result<String, BackupError>> {
    async move {
        let files = look(config)?;
        let answers = ask(config).await?;
        Ok(describe(config, file, &files, &answers, &backups(store).await))
    }
    .boxed()
}

fn describe(config: &QuorumConfig, file: &Path, files: &Files, answers: &MemberAnswers, backups: &str) -> String {
    let (id, dir, file) = (config.id, config.data_dir.display(), file.display());
    let start = format!("lattice-quorum --config {file}");
    let mut text = format!("Member {id} of cluster {:?}, folder {dir}.\n", config.cluster);
    let all = config.members.len();
    let majority = all / 2 + 1;
    let answering = if answers.answer.is_empty() { "none".to_owned() } else { listed(&answers.answer) };
    let _ = writeln!(text, "Of its {all} members these answer: {answering}. {majority} are a majority.");
    let _ = match &answers.led {
        Some(status) => {
            let leader = status.leader.map_or(0, |l| l.0);
            writeln!(
                text,
                "Member {leader} leads and has a majority: the quorum works (generation {}, level {}).",
                status.generation, status.level
            )
        }
        None => writeln!(text, "No leader with a majority was found: nothing new is agreed upon. Running work goes on."),
    };
    for member in answers.led.iter().flat_map(|status| &status.members) {
        if let Some(shortage) = &member.shortage {
            let _ = writeln!(text, "Member {}: {shortage}. Do: free disk space there; then it continues by itself.", member.id);
        }
    }
    text.push('\n');
    if let Some(status) = answers.led.as_ref().filter(|status| status.level > LEVEL_MAX) {
        let _ = writeln!(
            text,
            "The cluster is at level {}, and this program knows levels up to {LEVEL_MAX}: it is older than the others.\nDo: install the version that the others run, then {start}",
            status.level
        );
        return text;
    }
    match files {
        Files::Newer(error) => {
            let _ = writeln!(text, "{error}.\nDo: install that version, then {start}");
        }
        Files::Foreign(error) => {
            let _ = writeln!(text, "{error}.\nDo: correct id, cluster or data_dir in {file}; do not change the data files.");
        }
        Files::Removed => {
            let _ = writeln!(
                text,
                "This member was taken out of its cluster.\nDo: nothing. To let the machine join again, move {dir} away and add it under a new id (`lattice quorum add`)."
            );
        }
        Files::InUse if answers.led.is_some() => {
            let _ =
                writeln!(text, "This member runs. Nothing needs to be done here: `lattice quorum status` shows the state of the members.");
        }
        Files::InUse => {
            let _ = writeln!(text, "This member runs and waits for a majority.");
            start_others(&mut text, config, answers);
            recover_where_lost(&mut text, config, &file.to_string(), backups, false);
        }
        Files::Whole => {
            let _ = writeln!(text, "Its files are whole: log, snapshots and audit chain have their checksums.\nDo: {start}");
            if answers.led.is_none() {
                start_others(&mut text, config, answers);
            }
        }
        Files::Empty | Files::Damaged(_) if answers.led.is_some() => advise_replacement(&mut text, config, files, answers, &start),
        Files::Empty | Files::Damaged(_) => {
            let damaged = matches!(files, Files::Damaged(_));
            let _ = match files {
                Files::Damaged(error) => writeln!(text, "{}.", error_in_short(error)),
                _ => writeln!(text, "It has no files."),
            };
            start_others(&mut text, config, answers);
            recover_where_lost(&mut text, config, &file.to_string(), backups, damaged);
            if !damaged {
                let _ = writeln!(text, "For a new cluster: {start} --bootstrap, on one member.");
            }
        }
    }
    text
}

/// How to repair a member whose files are missing or damaged, in a cluster that has a leader.
fn advise_replacement(text: &mut String, config: &QuorumConfig, files: &Files, answers: &MemberAnswers, start: &str) {
    let matched = answers.led.iter().flat_map(|s| &s.members).find(|m| m.id.0 == config.id).map(|m| m.matched.unwrap_or(0));
    match (files, matched) {
        (Files::Empty, None) => {
            let _ =
                writeln!(text, "It has no files, and the cluster does not know it.\nDo: {start}\n    lattice quorum add {}", named(config));
        }
        (Files::Empty, Some(0)) => {
            let _ = writeln!(
                text,
                "It has no files, and the leader knows of nothing that it had.\nDo, if it has never run since the cluster was made or recovered: {start}\nDo, if it ran and lost its files:"
            );
            replace(text, config);
        }
        (lost, _) => {
            let _ = match lost {
                Files::Damaged(error) => writeln!(text, "{}. The other members have all of it.", error_in_short(error)),
                _ => writeln!(text, "It lost its files. The other members have all of them."),
            };
            text.push_str("Do:\n");
            replace(text, config);
        }
    }
}

fn listed(ids: &[u64]) -> String {
    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// The damage, without the remedy that a starting member prints.
fn error_in_short(error: &StoreError) -> String {
    match error {
        StoreError::Corrupt { path, offset, what } => format!("{} is damaged at byte {offset}: {what}", path.display()),
        other => with_causes(other),
    }
}

fn named(config: &QuorumConfig) -> String {
    let this = config.this_member().map(|MemberAddress { service, raft, .. }| format!(" --service {service} --raft {raft}"));
    format!("{}{}", config.id, this.unwrap_or_default())
}

/// How to replace this member by one with a new id. A member that lost its files may have voted, so
/// it must not return with the same id.
fn replace(text: &mut String, config: &QuorumConfig) {
    let new = config.members.iter().map(|m| m.id).max().unwrap_or(0) + 1;
    let (service, raft) = config.this_member().map_or(("HOST:PORT", "HOST:PORT"), |m| (&m.service, &m.raft));
    let _ = writeln!(text, "    Do not start it with an empty folder: a member that forgot its votes may vote twice.");
    let _ = writeln!(text, "    Start a new member with a new id (such as {new}), a certificate member-{new} and an empty data_dir, then");
    let _ = writeln!(text, "    lattice quorum replace {} {new} --service {service} --raft {raft}", config.id);
}

fn start_others(text: &mut String, config: &QuorumConfig, answers: &MemberAnswers) {
    let unreachable: Vec<u64> = config.members.iter().map(|m| m.id).filter(|id| *id != config.id && !answers.answer.contains(id)).collect();
    if !unreachable.is_empty() {
        let _ = writeln!(
            text,
            "First start every member whose files are whole; these do not answer: {}. {} together are enough, and nothing is lost.",
            listed(&unreachable),
            config.members.len() / 2 + 1
        );
    }
}

fn recover_where_lost(text: &mut String, config: &QuorumConfig, file: &str, backups: &str, damaged: bool) {
    let dir = config.data_dir.display();
    let majority = config.members.len() / 2 + 1;
    let _ = writeln!(text, "If fewer than {majority} members have their files, the quorum is lost. Stop every member; on one of them:");
    if damaged {
        let _ = writeln!(text, "    mv {dir} {dir}.damaged");
    }
    let _ = writeln!(text, "    lattice quorum recover --config {file}     (shows first what will be lost; then again with --yes)");
    let _ = writeln!(text, "    lattice-quorum --config {file}");
    let _ = writeln!(text, "    and then the other members, each with an empty data_dir.");
    let _ = writeln!(text, "{backups}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{Generation, MemberId, Revision, Timestamp};
    use lattice_quorum_client::wire::MemberStatus;

    fn config() -> QuorumConfig {
        let text = "id: 2\ncluster: c\ndata_dir: /d\nmembers:\n  - {id: 1, service: \"h1:1\", raft: \"h1:2\"}\n  - {id: 2, service: \"h2:1\", raft: \"h2:2\"}\n  - {id: 3, service: \"h3:1\", raft: \"h3:2\"}\n";
        lattice_model::config::parse("q", text).unwrap()
    }

    fn led(level: u32, matched: Option<u64>) -> MemberAnswers {
        let member = MemberStatus {
            id: MemberId(2),
            service: "h2:1".into(),
            raft: "h2:2".into(),
            votes: true,
            matched,
            level: None,
            certificate_until: None,
            shortage: None,
            standing: "unreachable".into(),
        };
        let status = QuorumStatus {
            cluster: "c".into(),
            member: MemberId(1),
            leader: Some(MemberId(1)),
            term: 1,
            generation: Generation(1),
            revision: Revision(9),
            members: vec![member],
            nodes: vec![],
            allocations: vec![],
            audit_records: 1,
            at: Timestamp(1),
            refused: vec![],
            level,
            awaited: vec![],
            notified: vec![],
            held_back: 0,
            clocks: None,
            ended: Default::default(),
        };
        MemberAnswers { answer: vec![1, 3], led: Some(status) }
    }

    fn damaged() -> Files {
        Files::Damaged(StoreError::Corrupt { path: "/d/log/1.log".into(), offset: 77, what: "a record does not have its checksum".into() })
    }

    fn describe(files: &Files, answers: &MemberAnswers) -> String {
        super::describe(&config(), Path::new("/q.yaml"), files, answers, "There is no backup in file:///b.")
    }

    #[test]
    fn a_member_that_lost_or_damaged_its_files_beside_a_quorum_is_replaced() {
        for (files, matched) in [(damaged(), None), (damaged(), Some(9)), (Files::Empty, Some(9))] {
            let text = describe(&files, &led(1, matched));
            assert!(text.contains("lattice quorum replace 2 4 --service h2:1 --raft h2:2"), "{text}");
            assert!(!text.contains("recover"), "{text}");
        }
        assert!(describe(&damaged(), &led(1, None)).contains("/d/log/1.log is damaged at byte 77"));
        let maybe = describe(&Files::Empty, &led(1, None));
        assert!(maybe.contains("if it has never run") && maybe.contains("quorum replace 2 4"), "{maybe}");
    }

    #[test]
    fn without_a_majority_whole_members_come_before_a_recovery() {
        let alone = MemberAnswers { answer: vec![3], led: None };
        let text = describe(&damaged(), &alone);
        let (first, then) = (text.find("these do not answer: 1.").unwrap(), text.find("mv /d /d.damaged").unwrap());
        assert!(first < then && text.contains("lattice quorum recover --config /q.yaml"), "{text}");
        assert!(!text.contains("--bootstrap"), "it was a cluster: {text}");
        assert!(describe(&Files::Empty, &alone).contains("--bootstrap"));
        assert!(describe(&Files::InUse, &MemberAnswers { answer: vec![2], led: None }).contains("waits for a majority"));
        let whole = describe(&Files::Whole, &alone);
        assert!(whole.contains("Do: lattice-quorum --config /q.yaml") && !whole.contains("recover"), "{whole}");
    }

    #[test]
    fn unfit_versions_are_reported() {
        let newer = Files::Newer(StoreError::Newer { path: "/d/member.json".into(), what: "format 2".into() });
        assert!(describe(&newer, &led(1, None)).contains("newer version"));
        let text = describe(&Files::Whole, &led(LEVEL_MAX + 1, Some(9)));
        assert!(text.contains("older than the others"), "{text}");
    }
}
