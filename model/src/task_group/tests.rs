use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn run(first: u32, last: u32, step: u32) -> IndexRun {
    IndexRun { first, last, step }
}

fn indices(text: &str) -> TaskIndices {
    TaskIndices::parse(text).unwrap()
}

fn set(ranges: &[(u32, u32)]) -> TaskSet {
    ranges.to_vec().into()
}

/// All indices, one by one.
fn each(indices: &TaskIndices) -> Vec<u32> {
    (0..indices.count()).map(|ordinal| indices.index_of(ordinal).unwrap()).collect()
}

#[test]
fn indices_are_read_and_shown_as_few_runs() {
    for (text, shown, each_of_them) in [
        ("7", "7", &[7][..]),
        ("0-3", "0-3", &[0, 1, 2, 3]),
        ("0-7:3", "0-6:3", &[0, 3, 6]),
        ("5-5:9", "5", &[5]),
        ("2-8:6", "2,8", &[2, 8]),
        ("1,5,9", "1,5,9", &[1, 5, 9]),
        ("9,1,5", "1-9:4", &[1, 5, 9]),
        ("3,10,11,12,1", "1,3,10-12", &[1, 3, 10, 11, 12]),
        ("0-4,2-6", "0-6", &[0, 1, 2, 3, 4, 5, 6]),
        ("2147483647", "2147483647", &[2_147_483_647]),
    ] {
        let read = indices(text);
        assert_eq!((read.to_string().as_str(), each(&read).as_slice()), (shown, each_of_them), "{text}");
        assert_eq!((read.first(), read.last()), (each_of_them[0], each_of_them[each_of_them.len() - 1]));
    }
}

#[test]
fn the_step_is_the_distance_between_all_indices() {
    let steps = ["4", "0-9", "0-98:2", "1,5,9", "2-8:6", "0-4:2,6-8:2", "0-4:2,7", "1,2,4"].map(|text| indices(text).step());
    assert_eq!(steps, [1, 1, 2, 4, 6, 2, 1, 1]);
}

#[test]
fn what_is_no_set_of_indices_is_refused_with_the_part_that_is_wrong() {
    let malformed = |part: &str| NoSuchIndices::Malformed(part.to_owned());
    for (text, error) in [
        ("", malformed("")),
        ("1,,2", malformed("")),
        ("a", malformed("a")),
        ("-1", malformed("-1")),
        ("1--2", malformed("1--2")),
        ("1-2-3", malformed("1-2-3")),
        ("1-", malformed("1-")),
        ("1:", malformed("1:")),
        ("1-5:0", malformed("1-5:0")),
        ("+1", malformed("+1")),
        (" 1", malformed(" 1")),
        ("٣", malformed("٣")),
        ("1,5-3", NoSuchIndices::Backwards("5-3".to_owned())),
        ("0-4294967295", NoSuchIndices::TooLarge("4294967295".to_owned())),
        ("2147483648", NoSuchIndices::TooLarge("2147483648".to_owned())),
        ("9999999999999999999999", NoSuchIndices::TooLarge("9999999999999999999999".to_owned())),
        ("0-2147483647", NoSuchIndices::TooMany),
        ("0-999999,0", NoSuchIndices::TooMany),
    ] {
        assert_eq!(TaskIndices::parse(text), Err(error), "{text}");
    }
    let long = "x".repeat(100_000);
    assert_eq!(TaskIndices::parse(&long), Err(malformed(&long[..40])), "an error does not repeat all of it");
}

#[test]
fn long_lists_are_few_runs_or_refused() {
    let list = |step: u32, count: u32| (0..count).map(|number| (number * step).to_string()).collect::<Vec<_>>().join(",");
    assert_eq!(indices(&list(1, 100_000)).runs(), [run(0, 99_999, 1)]);
    assert_eq!(indices(&list(3, 100_000)).runs(), [run(0, 299_997, 3)]);
    // The distances grow, so that no three are a run.
    let squares = |count: u32| (0..count).map(|number| (number * number).to_string()).collect::<Vec<_>>().join(",");
    assert_eq!(indices(&squares(2000)).count(), 2000);
    assert_eq!(TaskIndices::parse(&squares(40_000)), Err(NoSuchIndices::TooManyRuns));
    let repeated = "7,".repeat(TASKS_MAX as usize) + "7";
    assert_eq!(TaskIndices::parse(&repeated), Err(NoSuchIndices::TooMany));
}

#[test]
fn a_group_is_indices_and_a_limit() {
    let group = TaskGroup::parse("0-99%20").unwrap();
    assert_eq!((group.indices.count(), group.concurrent_max, group.failures_max), (100, Some(20), None));
    assert_eq!(group.to_string(), "0-99%20");
    assert_eq!(TaskGroup::parse("3").unwrap().to_string(), "3");
    for limit in ["", "0", "-1", "x", "4294967296", "1%2"] {
        let text = format!("0-9%{limit}");
        assert_eq!(TaskGroup::parse(&text), Err(NoSuchIndices::Concurrency(limit.to_owned())), "{text}");
    }
    assert_eq!(TaskGroup::parse("%0"), Err(NoSuchIndices::Concurrency("0".to_owned())));
    assert_eq!(TaskGroup::parse("%1"), Err(NoSuchIndices::Malformed(String::new())));
}

#[test]
fn a_message_with_invalid_indices_is_refused() {
    let read = |runs: &[(u32, u32, u32)]| {
        let runs: Vec<_> = runs.iter().map(|(first, last, step)| run(*first, *last, *step)).collect();
        serde_json::from_str::<TaskIndices>(&serde_json::to_string(&runs).unwrap()).map_err(|error| error.to_string())
    };
    assert_eq!(read(&[(0, 98, 2)]), Ok(indices("0-98:2")));
    assert_eq!(read(&[(5, 6, 1), (1, 2, 1)]), Ok(indices("1-2,5-6")));
    for (runs, why) in [
        (&[][..], "is no index"),
        (&[(0, 1, 0)], "is no index"),
        (&[(0, 5, 2)], "is no index"),
        (&[(5, 0, 1)], "is no index"),
        (&[(0, u32::MAX, 1)], "larger than the largest index"),
        (&[(u32::MAX, u32::MAX, 1)], "larger than the largest index"),
        (&[(0, 999_999, 1), (0, 999_999, 1)], "more than 1000000 tasks"),
    ] {
        let error = read(runs).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    let squares: Vec<_> = (0..40_000).map(|number| (number * number, number * number, 1)).collect();
    assert!(read(&squares).unwrap_err().contains("separate ranges"));
}

#[test]
fn a_message_with_a_hostile_set_gives_a_set() {
    let read = |text: &str| serde_json::from_str::<TaskSet>(text).unwrap();
    assert_eq!(read("[[5,3],[0,4294967295]]"), TaskSet::first(TASKS_MAX));
    assert_eq!(read("[[4294967295,4294967295],[1000000,1000001]]"), TaskSet::default());
    assert_eq!(read("[[7,9],[0,3],[4,4],[8,20],[0,0]]"), set(&[(0, 4), (7, 20)]));
    assert_eq!(serde_json::to_string(&read("[[7,9],[0,3]]")).unwrap(), "[[0,3],[7,9]]");
}

#[test]
fn a_set_may_reach_the_largest_number() {
    let mut all = TaskSet::default();
    all.insert(0..=u32::MAX);
    assert_eq!((all.len(), all.range_count(), all.contains(u32::MAX)), (u32::MAX, 1, true));
    assert_eq!(all.take_first(2), set(&[(0, 1)]));
    all.remove(3..=u32::MAX - 1);
    assert_eq!(all.ranges().collect::<Vec<_>>(), [2..=2, u32::MAX..=u32::MAX]);
    all.insert(u32::MAX..=u32::MAX);
    all.remove(0..=u32::MAX);
    assert_eq!((all.is_empty(), all.len()), (true, 0));
}

#[test]
fn ordinals_are_found_by_index_and_indices_by_ordinal() {
    let all = indices("10-18:2,100-104,7");
    assert_eq!(all.to_string(), "7,10-18:2,100-104");
    assert_eq!(all.ordinals_of(&indices("0-12")), set(&[(0, 2)]));
    assert_eq!(all.ordinals_of(&indices("11,13,19-99")), TaskSet::default());
    assert_eq!(all.ordinals_of(&indices("16-102:2")), set(&[(4, 6), (8, 8)]));
    assert_eq!(all.indices_of(&set(&[(0, 1), (5, 7)])).unwrap().to_string(), "7,10,18,100-101");
    assert_eq!(all.indices_of(&set(&[(1, 3), (10, 99)])).unwrap().to_string(), "10-14:2,104");
    assert_eq!((all.indices_of(&set(&[(11, 99)])), all.indices_of(&TaskSet::default())), (None, None));
    assert_eq!((all.index_of(11), all.ordinal_of(8), all.ordinal_of(105), all.ordinal_of(u32::MAX)), (None, None, None, None));
    // More runs than a submission may have.
    let sparse: TaskSet = (0..100_000).map(|number| number * 3).collect();
    assert_eq!(indices("0-299999").indices_of(&sparse).unwrap().count(), 100_000);
}

#[test]
fn the_outcome_of_a_task_is_one_of_success_failure_and_cancelled() {
    use TaskOutcome::{Cancelled, Exited, Lost, Unmet, WalltimeExceeded};
    let all = [Exited(0), Exited(1), Exited(137), WalltimeExceeded, Lost, Cancelled, Unmet];
    assert_eq!(all.map(TaskOutcome::is_success), [true, false, false, false, false, false, false]);
    assert_eq!(all.map(TaskOutcome::is_failure), [false, true, true, true, true, false, false]);
    let shown = ["completed", "exit_code 1", "exit_code 137", "walltime_exceeded", "node_lost", "cancelled", "dependency_unmet"];
    assert_eq!(all.map(|outcome| outcome.to_string()), shown);
}

fn any_run() -> impl Strategy<Value = IndexRun> {
    let first = prop_oneof![0..40u32, Just(INDEX_MAX - 200)];
    (first, 0..9u32, 1..5u32).prop_map(|(first, more, step)| run(first, first + more * step, step))
}

fn any_indices() -> impl Strategy<Value = (TaskIndices, BTreeSet<u32>)> {
    prop::collection::vec(any_run(), 1..8).prop_map(|runs| {
        let each: BTreeSet<u32> = runs.iter().flat_map(|run| (run.first..=run.last).step_by(run.step as usize)).collect();
        (TaskIndices::new(runs).unwrap(), each)
    })
}

#[derive(Clone, Debug)]
enum Change {
    Insert(u32, u32),
    Remove(u32, u32),
    InsertAll(Vec<(u32, u32)>),
    RemoveAll(Vec<(u32, u32)>),
    And(Vec<(u32, u32)>),
    TakeFirst(u32),
}

fn change() -> impl Strategy<Value = Change> {
    let range = || (0..60u32, 0..60u32);
    let ranges = || prop::collection::vec(range(), 0..5);
    prop_oneof![
        4 => range().prop_map(|(first, last)| Change::Insert(first, last)),
        4 => range().prop_map(|(first, last)| Change::Remove(first, last)),
        1 => ranges().prop_map(Change::InsertAll),
        1 => ranges().prop_map(Change::RemoveAll),
        1 => ranges().prop_map(Change::And),
        1 => (0..20u32).prop_map(Change::TakeFirst),
    ]
}

/// All numbers in these ranges; one that ends before it begins has none.
fn plain(ranges: &[(u32, u32)]) -> BTreeSet<u32> {
    ranges.iter().flat_map(|(first, last)| *first..=*last).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_set_of_ordinals_is_a_set(changes in prop::collection::vec(change(), 0..40)) {
        let (mut set, mut model) = (TaskSet::default(), BTreeSet::new());
        for change in changes {
            match change {
                Change::Insert(first, last) => {
                    set.insert(first..=last);
                    model.extend(first..=last);
                }
                Change::Remove(first, last) => {
                    set.remove(first..=last);
                    model.retain(|one| !(first..=last).contains(one));
                }
                Change::InsertAll(ranges) => {
                    model.extend(plain(&ranges));
                    set.insert_all(&ranges.into());
                }
                Change::RemoveAll(ranges) => {
                    let other = plain(&ranges);
                    model.retain(|one| !other.contains(one));
                    set.remove_all(&ranges.into());
                }
                Change::And(ranges) => {
                    let other = plain(&ranges);
                    model.retain(|one| other.contains(one));
                    set = set.and(&ranges.into());
                }
                Change::TakeFirst(count) => {
                    let taken: BTreeSet<u32> = model.iter().copied().take(count as usize).collect();
                    model.retain(|one| !taken.contains(one));
                    prop_assert_eq!(set.take_first(count).iter().collect::<BTreeSet<_>>(), taken);
                }
            }
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!((set.len() as usize, set.is_empty()), (model.len(), model.is_empty()));
            prop_assert!((0..61).all(|one| set.contains(one) == model.contains(&one)));
            let ranges: Vec<_> = set.ranges().collect();
            prop_assert!(ranges.windows(2).all(|two| two[1].start() - two[0].end() > 1), "they touch: {:?}", ranges);
            prop_assert_eq!(set.range_count(), ranges.len());
            prop_assert_eq!(TaskSet::from(Vec::<(u32, u32)>::from(set.clone())), set.clone());
            prop_assert_eq!(set.iter().collect::<TaskSet>(), set.clone());
        }
    }

    #[test]
    fn indices_are_read_as_they_were_written_and_numbered_in_order((indices, model) in any_indices(), more in any_indices()) {
        prop_assert_eq!(each(&indices), model.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!((Some(indices.first()), Some(indices.last())), (model.first().copied(), model.last().copied()));
        prop_assert_eq!(&TaskIndices::parse(&indices.to_string()).unwrap(), &indices);
        prop_assert_eq!(&TaskIndices::new(indices.runs().to_vec()).unwrap(), &indices);
        for index in (0..100).chain(INDEX_MAX - 210..=INDEX_MAX) {
            prop_assert_eq!(indices.ordinal_of(index), model.iter().position(|one| *one == index).map(|at| at as u32));
        }
        let (other, named) = more;
        let both = indices.ordinals_of(&other);
        let want: Vec<u32> = model.intersection(&named).copied().collect();
        prop_assert_eq!(both.iter().filter_map(|ordinal| indices.index_of(ordinal)).collect::<Vec<_>>(), want.clone());
        prop_assert_eq!(indices.indices_of(&both).map(|found| each(&found)).unwrap_or_default(), want.clone());
        let back = indices.corresponding_in(&other, &TaskSet::first(indices.count()));
        prop_assert_eq!(other.indices_of(&back).map(|found| each(&found)).unwrap_or_default(), want);
        prop_assert_eq!(indices.corresponding_in(&indices, &both), both.clone());
        prop_assert_eq!(indices.indices_of(&TaskSet::first(indices.count())).map(|found| each(&found)), Some(each(&indices)));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[0-9,:%-]{0,30}|.{0,30}") {
        if let Ok(group) = TaskGroup::parse(&text) {
            prop_assert_eq!(TaskGroup::parse(&group.to_string()), Ok(group));
        }
    }
}

#[test]
fn the_walltime_of_a_lane_is_that_of_two_tasks_and_a_minute() {
    let seconds = [1, 60, 86_400].map(Duration::from_secs);
    assert_eq!(seconds.map(lane_walltime), [62, 180, 172_860].map(Duration::from_secs));
    assert_eq!(seconds.map(lane_walltime).map(task_walltime), seconds);
    assert_eq!(task_walltime(Duration::from_secs(59)), Duration::ZERO);
}
