//! `lattice status --sort` and `--since`.

use lattice_api::allocation::{STATES, state_from_name};
use lattice_api::v1;
use lattice_cli_session::shown::counts::node_number;
use lattice_cli_syntax::args::allocations::{SortColumn, SortKey};
use lattice_model::time::Timestamp;
use std::cmp::Ordering;

/// Sorts by the first key, equal ones by the second, and so on; the order of the others stays. Work without a value in a
/// column, such as a start, comes last in either direction.
pub fn sort(allocations: &mut [v1::Allocation], keys: &[SortKey], now: Timestamp) {
    allocations.sort_by(|a, b| keys.iter().map(|key| compare(a, b, *key, now)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal));
}

fn compare(a: &v1::Allocation, b: &v1::Allocation, key: SortKey, now: Timestamp) -> Ordering {
    let by_text = |a: &String, b: &String| directed(a.cmp(b), key);
    let by_number = |number: fn(&v1::Allocation, Timestamp) -> Option<u64>| match (number(a, now), number(b, now)) {
        (Some(a), Some(b)) => directed(a.cmp(&b), key),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    };
    match key.column {
        SortColumn::Id => by_text(&a.id, &b.id),
        SortColumn::Name => by_text(&a.name, &b.name),
        SortColumn::Owner => by_text(&a.owner, &b.owner),
        SortColumn::Job => by_number(|a, _| positive(a.number)),
        SortColumn::State => by_number(|a, _| state_place(a)),
        SortColumn::Nodes => by_number(|a, _| Some(node_number(a))),
        SortColumn::Submitted => by_number(|a, _| positive(a.submitted_at_ms)),
        SortColumn::Started => by_number(|a, _| positive(a.started_at_ms)),
        SortColumn::Ended => by_number(|a, _| positive(a.ended_at_ms)),
        // A service has no walltime.
        SortColumn::Walltime => by_number(|a, _| positive(a.walltime_seconds)),
        SortColumn::Elapsed => by_number(elapsed_ms),
    }
}

fn directed(order: Ordering, key: SortKey) -> Ordering {
    if key.is_descending { order.reverse() } else { order }
}

fn positive(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}

/// The place of its state in its life.
fn state_place(a: &v1::Allocation) -> Option<u64> {
    let state = state_from_name(&a.state).ok()?;
    STATES.iter().position(|known| *known == state).and_then(|place| u64::try_from(place).ok())
}

fn elapsed_ms(a: &v1::Allocation, now: Timestamp) -> Option<u64> {
    let start = positive(a.started_at_ms)?;
    Some(positive(a.ended_at_ms).unwrap_or(now.0).saturating_sub(start))
}

/// Whether it was submitted or ended at this time or after it.
pub fn is_since(a: &v1::Allocation, since_ms: u64) -> bool {
    a.submitted_at_ms.max(a.ended_at_ms) >= since_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(id: &str, name: &str, submitted_at_ms: u64, started_at_ms: u64, ended_at_ms: u64) -> v1::Allocation {
        let state = if ended_at_ms > 0 { "Completed" } else { "Pending" }.into();
        let (id, name) = (id.into(), name.into());
        v1::Allocation { id, name, state, submitted_at_ms, started_at_ms, ended_at_ms, nodes_requested: 1, ..Default::default() }
    }

    fn sorted(keys: &str) -> Vec<String> {
        let mut all = [
            allocation("1", "b", 10, 20, 50),
            allocation("2", "a", 11, 0, 0),
            allocation("3", "b", 12, 30, 90),
            v1::Allocation { number: 7, nodes_requested: 4, ..allocation("4", "a", 13, 40, 41) },
        ];
        let keys: Vec<SortKey> = keys.split(',').map(|key| key.parse().unwrap()).collect();
        sort(&mut all, &keys, Timestamp(100));
        all.iter().map(|a| a.id.clone()).collect()
    }

    #[test]
    fn a_list_is_sorted_by_several_columns_in_either_direction() {
        assert_eq!(sorted("name,-submitted"), ["4", "2", "3", "1"]);
        assert_eq!(sorted("-elapsed"), ["3", "1", "4", "2"], "what has not started comes last");
        assert_eq!(sorted("elapsed"), ["4", "1", "3", "2"]);
        assert_eq!(sorted("-nodes"), ["4", "1", "2", "3"], "equal ones keep their order");
        assert_eq!(sorted("job"), ["4", "1", "2", "3"]);
        assert_eq!(sorted("state,-id"), ["2", "4", "3", "1"]);
        assert_eq!(sorted("started"), ["1", "3", "4", "2"]);
        assert!("colour".parse::<SortKey>().is_err());
    }

    #[test]
    fn work_is_recent_by_its_submission_or_its_end() {
        let ended = allocation("1", "b", 10, 20, 50);
        assert!(is_since(&ended, 50) && is_since(&ended, 30) && !is_since(&ended, 51));
        assert!(is_since(&allocation("2", "a", 11, 0, 0), 11) && !is_since(&allocation("2", "a", 11, 0, 0), 12));
    }
}
