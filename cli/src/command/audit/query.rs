//! `lattice audit query`: lists records, the oldest first.

use super::filter::filter;
use lattice_api::audit::record_to_model;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::short;
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::args::audit::AuditQuery;
use lattice_model::AuditRecord;
use lattice_model::time::Timestamp;

pub async fn run(session: &Session, args: AuditQuery) -> Result<(), Failure> {
    let filter = filter(session, args.filter)?;
    let client = session.connect().await?;
    let limit = args.limit as usize;
    let mut records: Vec<v1::AuditRecord> = Vec::new();
    let mut after = args.after;
    let mut elsewhere = None;
    let more = loop {
        let left = args.limit - u32::try_from(records.len()).unwrap_or(u32::MAX).min(args.limit);
        let page = answer(client.admin().query_audit(v1::QueryAuditRequest { filter: Some(filter.clone()), after, limit: left })).await?;
        if page.upto < after || (page.upto == after && page.upto < page.end) {
            return Err(Failure::other("the agent's answer is incomplete: repeat the command"));
        }
        elsewhere = elsewhere.or_else(|| archived(&page, args.after));
        after = page.upto;
        records.extend(page.records);
        if after >= page.end || records.len() >= limit {
            break after < page.end;
        }
    };
    match session.format() {
        Format::Table => print(&table(&records, session.table_size()))?,
        Format::Data(notation) => {
            let whole: Result<Vec<AuditRecord>, _> = records.iter().map(record_to_model).collect();
            notation.print(&whole.map_err(|bad| Failure::other(format!("the agent sent an invalid record: {bad}")))?)?;
        }
        Format::Name => {
            let numbers: Vec<String> = records.iter().map(|r| r.seq.to_string()).collect();
            print_names(numbers.iter().map(String::as_str))?;
        }
    }
    if let Some(elsewhere) = elsewhere {
        session.note(&elsewhere);
    }
    if more {
        session.note(&format!("there may be more: --after {after} shows the next ones, --limit N shows more at once"));
    }
    Ok(())
}

/// The note about records after `after` that are only in the archive, if there are any.
pub fn archived(page: &v1::AuditPage, after: u64) -> Option<String> {
    let last = page.begins.saturating_sub(1);
    (last > after).then(|| format!("records {} to {last} are only in the archive, {}", after + 1, page.archive))
}

/// How the list is made narrower.
const FIT: Fit<'_> = Fit {
    left_out: &["OWNER"],
    shortened: &[("TIME", 20), ("NODE", 10), ("BY", 10)],
    wrapped: &[("DETAIL", 16)],
    left_out_last: &["NODE", "ALLOCATION"],
};

fn table(records: &[v1::AuditRecord], size: TableSize) -> String {
    let mut table = Table::new(&["SEQ", "TIME", "BY", "TYPE", "ALLOCATION", "OWNER", "NODE", "DETAIL"]);
    for r in records {
        table.row(vec![
            r.seq.to_string(),
            Timestamp(r.at_ms).to_string(),
            r.actor.clone(),
            r.action.clone(),
            short(&r.allocation).to_owned(),
            r.owner.clone(),
            r.node.clone(),
            r.detail.clone(),
        ]);
    }
    table.on_screen(&["ALLOCATION", "OWNER", "NODE"], &FIT, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_are_only_in_the_archive_are_named() {
        let page = |begins| v1::AuditPage { begins, archive: "s3://audit/site".into(), ..Default::default() };
        for (begins, after) in [(0, 0), (1, 0), (32_769, 32_768), (32_769, 40_000)] {
            assert_eq!(archived(&page(begins), after), None, "{begins}, {after}");
        }
        let note = archived(&page(32_769), 7).unwrap();
        assert_eq!(note, "records 8 to 32768 are only in the archive, s3://audit/site");
    }

    #[test]
    fn a_record_is_a_line() {
        let record = v1::AuditRecord {
            seq: 12,
            at_ms: 1_772_704_812_034,
            actor: "root".into(),
            action: "AttachStarted".into(),
            allocation: "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".into(),
            owner: "alice".into(),
            detail: "by way of n1: /bin/bash".into(),
            ..Default::default()
        };
        let want = "\
SEQ  TIME                      BY    TYPE           ALLOCATION  OWNER  DETAIL
12   2026-03-05T10:00:12.034Z  root  AttachStarted  1f0c9a4e    alice  by way of n1: /bin/bash
";
        assert_eq!(table(std::slice::from_ref(&record), TableSize::default()), want);
        let wide = v1::AuditRecord { node: "x1000c0s0b0n3".into(), detail: "a long story ".repeat(20), actor: "a".repeat(64), ..record };
        lattice_cli_session::table::assert_fits(&table(&[wide], lattice_cli_session::table::NARROW));
    }
}
