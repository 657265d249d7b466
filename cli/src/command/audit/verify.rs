//! `lattice audit verify`: verifies every link of the chain and every signature.

use super::part::next_part;
use lattice_api::v1;
use lattice_api::v1::verify_audit_progress::Key;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::table::Table;
use lattice_cli_syntax::args::audit::AuditVerify;
use std::time::{Duration, Instant};

/// Interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// The agent reports a broken chain as an error of the call. This function checks the keys.
pub async fn run(session: &Session, args: AuditVerify) -> Result<(), Failure> {
    let client = session.connect().await?;
    let mut progress = answer(client.admin().verify_audit(v1::VerifyAuditRequest {})).await?;
    let mut noted_at = Instant::now();
    let verified = loop {
        match next_part(progress.message()).await? {
            Some(now) if now.done => break now,
            Some(now) => {
                if noted_at.elapsed() >= PROGRESS_INTERVAL {
                    session.note(&progress_text(&now));
                    noted_at = Instant::now();
                }
            }
            None => return Err(Failure::other("the agent ended its answer before the end of the chain")),
        }
    };
    check_keys(&verified.keys, &args.key)?;
    match session.format() {
        Format::Table => print(&text(&verified)),
        Format::Data(notation) => notation.print(&json(&verified)),
        Format::Name => print_names([verified.head.as_str()]),
    }
}

/// How far the verification is. Records that are only in the archive do not count.
fn progress_text(now: &v1::VerifyAuditProgress) -> String {
    let archived = now.begins.saturating_sub(1);
    let (done, all) = (now.records.saturating_sub(archived), now.records_all.saturating_sub(archived));
    let percent = done.min(all).saturating_mul(100) / all.max(1);
    format!("{} records are valid so far, {percent} %", now.records)
}

fn check_keys(keys: &[Key], trusted: &[String]) -> Result<(), Failure> {
    let untrusted = keys.iter().find(|k| !trusted.is_empty() && !trusted.iter().any(|t| t.eq_ignore_ascii_case(&k.key)));
    match untrusted {
        None => Ok(()),
        Some(key) => {
            let what = format!("the chain is valid, but record {} introduces a key that was not given with --key: {}", key.since, key.key);
            Err(Failure::other(what)
                .hint("compare it with the key file of that member; if they differ, somebody else has signed this chain"))
        }
    }
}

fn text(v: &v1::VerifyAuditProgress) -> String {
    let mut text = format!("The audit log of member {} is valid: {} records, head {}\n", v.member, v.records, v.head);
    if v.begins > 1 {
        text += &format!("It begins with record {} here; the archive has the records before (docs/audit.md)\n", v.begins);
    }
    text += &match v.signatures {
        0 => "No record is signed yet\n".to_owned(),
        n => format!("{n} signatures are valid; the last one covers record {}\n\n", v.signed),
    };
    if v.keys.is_empty() {
        return text;
    }
    let mut table = Table::new(&["MEMBER", "KEY", "FROM", "UNTIL"]);
    for key in &v.keys {
        let until = key.until.map(|seq| seq.to_string()).unwrap_or_default();
        table.row(vec![key.member.to_string(), key.key.clone(), key.since.to_string(), until]);
    }
    text + &table.text(&[])
}

fn json(v: &v1::VerifyAuditProgress) -> serde_json::Value {
    let key = |k: &Key| serde_json::json!({ "member": k.member, "key": k.key, "since": k.since, "until": k.until });
    serde_json::json!({
        "member": v.member,
        "records": v.records,
        "head": v.head,
        "signatures": v.signatures,
        "signed": v.signed,
        "begins": v.begins,
        "keys": v.keys.iter().map(key).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_is_a_part_of_the_records_that_are_not_archived() {
        let at = |records, begins| v1::VerifyAuditProgress { records, begins, records_all: 2000, ..Default::default() };
        assert_eq!(progress_text(&at(500, 1)), "500 records are valid so far, 25 %");
        assert_eq!(progress_text(&at(1500, 1001)), "1500 records are valid so far, 50 %");
        assert!(progress_text(&at(2100, 1)).ends_with(", 100 %"), "it has grown since");
        assert!(progress_text(&v1::VerifyAuditProgress::default()).ends_with(", 0 %"));
    }

    #[test]
    fn keys_that_are_not_trusted_are_named() {
        let key = |key: &str, since| Key { member: 1, key: key.into(), since, until: None };
        let keys = [key("aa", 2), key("bb", 9)];
        assert!(check_keys(&keys, &[]).is_ok());
        assert!(check_keys(&keys, &["AA".into(), "bb".into()]).is_ok());
        let failure = check_keys(&keys, &["aa".into()]).unwrap_err();
        assert!(failure.exit() == 1 && failure.text().contains("record 9") && failure.text().contains("bb"), "{}", failure.text());
    }
}
