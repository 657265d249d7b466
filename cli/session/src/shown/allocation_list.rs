//! Lists of allocations, as `status` and the queues show them, and their lines in a watch.

use super::counts::{node_count, nodes_wanted};
use super::folding::{self, Line};
use super::scaling::replicas_text;
use super::state::reason;
use super::values::{filled, folded, job, queue, short, work_name};
use super::walltime::{elapsed, left, walltime};
use crate::output::{TableSize, Width};
use crate::table::{Fit, Table, shortened};
use lattice_api::v1;
use lattice_model::time::Timestamp;

/// Characters of a reason in a list on a screen.
const REASON_CHARS_MAX: usize = 40;

/// How a list of allocations is made narrower.
const ALLOCATIONS_FIT: Fit<'_> = Fit {
    left_out: &["WALLTIME", "JOB", "VCLUSTER", "ELAPSED"],
    shortened: &[("NAME", 8), ("OWNER", 8)],
    wrapped: &[("REASON", 16)],
    left_out_last: &["NODES"],
};

/// The list of allocations, in the given order; wide with all columns, and with tenant, uenv and nodes.
pub fn allocations_table(allocations: &[v1::Allocation], now: Timestamp, owners: bool, size: TableSize) -> String {
    lines_table(&folding::each(allocations), now, owners, size)
}

/// As [`allocations_table`], of lines that may stand for several allocations: `1f0c9a4e ×37`.
pub fn lines_table(lines: &[Line<'_>], now: Timestamp, owners: bool, size: TableSize) -> String {
    let is_wide = size.width == Width::Wide;
    let (first, last) = (["ID", "JOB", "NAME", "OWNER", "STATE", "NODES", "WALLTIME", "ELAPSED", "LEFT", "VCLUSTER"], ["REASON"]);
    let more: &[&str] = if is_wide { &["TENANT", "UENV", "ON"] } else { &[] };
    let mut table = Table::new(&[&first[..], more, &last[..]].concat());
    for Line { first: a, count } in lines {
        let mut cells = vec![
            if *count > 1 { format!("{} ×{count}", short(&a.id)) } else { short(&a.id).to_owned() },
            job(a),
            work_name(a),
            if owners || is_wide { a.owner.clone() } else { String::new() },
            a.state.clone(),
            node_count(a),
            walltime(a),
            elapsed(a, now).unwrap_or_default(),
            left(a, now).unwrap_or_default(),
            queue(&a.vcluster).to_owned(),
        ];
        if is_wide {
            cells.extend([a.tenant.clone(), a.uenv.clone(), folded(&a.nodes)]);
        }
        let why = filled(&a.status_message).map_or_else(|| reason(a), str::to_owned);
        // For ended work the reason may be long; `status ID` shows all of it.
        cells.push(if size.columns.is_some() && !is_wide { shortened(&why, REASON_CHARS_MAX) } else { why });
        table.row(cells);
    }
    table.on_screen(&["JOB", "OWNER", "REASON"], &ALLOCATIONS_FIT, size)
}

/// The columns of [`allocation_row`].
pub const ALLOCATION_HEADING: &[&str] = &["ID", "JOB", "NAME", "OWNER", "STATE", "NODES", "WALLTIME", "VCLUSTER", "REASON"];
/// The columns that a narrow screen does not show.
pub const ALLOCATION_EXTRA: &[&str] = &["WALLTIME", "VCLUSTER"];

/// The cells of an allocation in a watch.
pub fn allocation_row(a: &v1::Allocation) -> Vec<String> {
    let nodes = if a.nodes.is_empty() { nodes_wanted(a) } else { folded(&a.nodes) };
    let queue = queue(&a.vcluster).to_owned();
    let why = Some(reason(a)).filter(|reason| !reason.is_empty()).or_else(|| replicas_text(a)).unwrap_or_default();
    vec![short(&a.id).to_owned(), job(a), work_name(a), a.owner.clone(), a.state.clone(), nodes, walltime(a), queue, why]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{NARROW, assert_fits};
    use lattice_api::test_builders::{NOW, pending, running, service};

    const TERSE: TableSize = TableSize { width: Width::Terse, columns: None };
    const WIDE: TableSize = TableSize { width: Width::Wide, columns: Some(80) };

    #[test]
    fn the_table_of_allocations_is_as_documented() {
        let listed = allocations_table(&[running(), pending()], NOW, false, TERSE);
        let want = "\
ID        NAME          STATE    NODES  WALLTIME  ELAPSED   LEFT      VCLUSTER     REASON
1f0c9a4e  training-run  Running  3      72:00:00  14:23:01  57:36:58  ml-training  —
20000000  eval          Pending  4      02:00:00  —         02:00:00  default      next: wants 4 nodes, 2 are free
";
        assert_eq!(listed, want);
        let failed =
            v1::Allocation { state: "Failed".into(), reason: "walltime_exceeded".into(), ended_at_ms: 1_772_704_813_000, ..running() };
        let completed = v1::Allocation { state: "Completed".into(), reason: "completed".into(), ..failed.clone() };
        let want = "\
ID        NAME          OWNER  STATE      NODES  WALLTIME  ELAPSED   LEFT  VCLUSTER     REASON
1f0c9a4e  training-run  ada    Failed     3      72:00:00  00:00:01  —     ml-training  walltime_exceeded
1f0c9a4e  training-run  ada    Completed  3      72:00:00  00:00:01  —     ml-training  —
";
        assert_eq!(allocations_table(&[failed, completed], NOW, true, TERSE), want);
        let lane = v1::Allocation { lane_of: "2f0c9a4e-5b7d".into(), lane_number: 3, ..running() };
        assert!(allocations_table(&[lane], NOW, false, TERSE).contains("  training-run (lane 3 of 2f0c9a4e)  "));
        let replica = v1::Allocation { replica_of: "2f0c9a4e-5b7d".into(), replica_number: 3, ..running() };
        assert!(allocations_table(&[replica], NOW, false, TERSE).contains("  training-run (replica 3 of 2f0c9a4e)  "));
        let service = v1::Allocation { status_message: "3 of 4 replicas: wants 1 node, 0 are free".into(), ..service() };
        let want = "\
ID        NAME   STATE    NODES  WALLTIME  ELAPSED   LEFT  VCLUSTER     REASON
1f0c9a4e  serve  Running  3      service   14:23:01  —     ml-training  3 of 4 replicas: wants 1 node, 0 are free
";
        assert_eq!(allocations_table(std::slice::from_ref(&service), NOW, false, TERSE), want);
        assert_eq!(allocation_row(&service).last().map(String::as_str), Some("3 of 4 replicas"));
        assert_eq!(allocations_table(&[], NOW, false, TERSE), "ID  NAME  STATE  NODES  WALLTIME  ELAPSED  LEFT  VCLUSTER\n");
    }

    #[test]
    fn lists_fit_on_a_narrow_screen() {
        let lost = v1::Allocation { status_message: "node n3 is Down: confirm-dead".into(), ..running() };
        let failed =
            v1::Allocation { state: "Failed".into(), reason: "prologue_failed on n1: no space left on device".into(), ..running() };
        let want = "\
ID        NAME      OWNER  STATE    NODES  LEFT      REASON
1f0c9a4e  trainin…  ada    Running  3      57:36:58  node n3 is Down:
                                                     confirm-dead
20000000  eval      bob    Pending  4      02:00:00  next: wants 4 nodes, 2 are
                                                     free
1f0c9a4e  trainin…  ada    Failed   3      —         prologue_failed on n1: no
                                                     space left on…
";
        let listed = allocations_table(&[lost, pending(), failed], NOW, true, NARROW);
        assert_eq!(listed, want);
        assert_fits(&listed);
        let wide = v1::Allocation {
            name: "n".repeat(128),
            owner: "o".repeat(64),
            vcluster: "v".repeat(64),
            number: u64::MAX,
            replica_of: "2f0c9a4e-5b7d".into(),
            status_message: "x".repeat(200),
            ..running()
        };
        assert_fits(&allocations_table(&[wide], NOW, true, NARROW));
    }

    #[test]
    fn a_line_says_for_how_many_it_stands() {
        let want = "\
ID           NAME  STATE    NODES  WALLTIME  ELAPSED  LEFT      VCLUSTER  REASON
20000000 ×2  eval  Pending  4      02:00:00  —        02:00:00  default   next: wants 4 nodes, 2 are free
";
        let second = v1::Allocation { queue_position: 2, status_message: "behind 1 submitted before it".into(), ..pending() };
        assert_eq!(lines_table(&folding::fold(&[pending(), second]), NOW, false, TERSE), want);
    }

    #[test]
    fn the_number_of_a_job_is_beside_its_id_where_any_has_one() {
        let job = v1::Allocation { number: 12, ..running() };
        let want = "\
ID        JOB  NAME          STATE    NODES  WALLTIME  ELAPSED   LEFT      VCLUSTER     REASON
1f0c9a4e  12   training-run  Running  3      72:00:00  14:23:01  57:36:58  ml-training  —
20000000  —    eval          Pending  4      02:00:00  —         02:00:00  default      next: wants 4 nodes, 2 are free
";
        assert_eq!(allocations_table(&[job.clone(), pending()], NOW, false, TERSE), want);
        assert_eq!(allocation_row(&job)[..3], ["1f0c9a4e", "12", "training-run"].map(str::to_owned));
        let narrow = allocations_table(&[job.clone(), pending()], NOW, true, NARROW);
        assert!(narrow.starts_with("ID        NAME "), "after WALLTIME it is the first that is left out: {narrow}");
        assert!(allocations_table(&[job], NOW, false, NARROW).starts_with("ID        JOB "));
    }

    #[test]
    fn wide_has_every_column_and_more() {
        let listed = allocations_table(&[v1::Allocation { tenant: "physics".into(), ..running() }], NOW, false, WIDE);
        let want = "\
ID        JOB  NAME          OWNER  STATE    NODES  WALLTIME  ELAPSED   LEFT      VCLUSTER     TENANT   UENV  ON      REASON
1f0c9a4e  —    training-run  ada    Running  3      72:00:00  14:23:01  57:36:58  ml-training  physics  —     n[1-3]  —
";
        assert_eq!(listed, want);
    }
}
