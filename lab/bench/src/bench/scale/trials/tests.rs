//! How figures of wide allocations and storms are judged.

use super::super::storm::{Killed, Rolling};
use super::super::wide::Counted;
use super::*;
use crate::bench::Verdict;

fn course(listed: Reached, released: Reached, change_bytes: f64) -> Course {
    let counted =
        Counted { grown_mb: 60.0, entries: 40, change_bytes: Some(change_bytes), own_change_bytes: None, members_s: 1.0, agents_s: 2.0 };
    Course { listed, released, counted: Some(counted), troubles: vec!["3 sessions were lost and opened again".to_owned()] }
}

fn wide(agents: usize, change_bytes: f64) -> Trials {
    let course = || course(Reached::After(3.0), Reached::After(5.0), change_bytes);
    Trials { agents, storm: None, wide: Some(Wide { one: course(), many: course() }) }
}

fn storm(sessions: Reached) -> Storm {
    let commits_ms = (0..200).map(f64::from).collect();
    let rolling =
        Rolling { over: Reached::After(9.0), refused_s: 2.5, failed: 1, why: Some("no leader".into()), sessions: Reached::After(0.0) };
    let (leader, watches) = (Reached::After(0.9), Reached::After(12.0));
    let killed = Killed { leader, sessions, watches, member_mb: 900.0, commits_ms, failed_commits: 2, members_s: 9.0, agents_s: 8.0 };
    Storm { killed, rolling }
}

fn verdict_of(figures: &[Figure], name: &str) -> Verdict {
    figures.iter().find(|figure| figure.name.ends_with(name)).unwrap_or_else(|| panic!("no figure {name}")).verdict
}

#[test]
fn a_follower_may_not_receive_more_for_a_change_than_at_the_smallest_size() {
    const NAME: &str = "received by a follower for one change of a share";
    let figures = figures(&[wide(100, 200.0), wide(1000, 400.0), wide(3000, 401.0)]).unwrap();
    let verdicts: Vec<Verdict> = figures.iter().filter(|figure| figure.name.ends_with(NAME)).map(|figure| figure.verdict).collect();
    let of_size = |verdict| [verdict; 2];
    assert_eq!(verdicts, [of_size(Verdict::NoTarget), of_size(Verdict::Met), of_size(Verdict::Missed)].concat());
    assert_eq!(verdict_of(&figures, "until each has its share"), Verdict::Met);
    assert_eq!(verdict_of(&figures, "log entries until all have released it"), Verdict::Met);
}

#[test]
fn a_course_that_was_given_up_is_no_measure_for_others() {
    assert_eq!(complete_change_bytes(&course(Reached::After(2.0), Reached::After(3.0), 7.0)), Some(7.0));
    assert_eq!(complete_change_bytes(&course(Reached::After(2.0), Reached::Not("not reached in 40 s".into()), 7.0)), None);
}

#[test]
fn what_was_given_up_or_not_begun_misses_each_target() {
    let not = |why: &str| Reached::Not(why.to_owned());
    let part = course_figures(100, "one", &course(Reached::After(2.0), not("not reached in 40 s"), 1.0), None).unwrap();
    assert_eq!(verdict_of(&part, "until each has its share"), Verdict::Met);
    assert_eq!(verdict_of(&part, "growth of the largest member"), Verdict::Missed);
    assert_eq!(part.iter().filter(|figure| figure.incomplete.is_some()).count(), part.len() - 1);
    let none = Course { listed: not("not begun"), released: not("not begun"), counted: None, troubles: vec![] };
    let figures = course_figures(100, "many", &none, None).unwrap();
    assert_eq!(figures.iter().filter(|figure| figure.verdict == Verdict::Missed).count(), 3);
}

#[test]
fn a_storm_is_judged_by_its_sessions_memory_commits_and_pause() {
    let figures = storm_figures(100, &storm(Reached::After(30.0))).unwrap();
    let back = figures.iter().find(|figure| figure.name.ends_with("all sessions are back")).unwrap();
    assert_eq!((back.verdict, back.peers.len(), back.peers[0].samples.median), (Verdict::Met, 1, 12.0));
    let commits = figures.iter().find(|figure| figure.unit == "ms").unwrap();
    assert_eq!((commits.verdict, commits.samples.median, commits.samples.failed), (Verdict::Met, 197.0, 2));
    assert_eq!(verdict_of(&figures, "the largest memory of a member"), Verdict::Met);
    assert_eq!(verdict_of(&figures, "the longest time in which nothing was committed"), Verdict::Missed);
    let late = storm_figures(100, &storm(Reached::Not("not reached in 45 s".into()))).unwrap();
    assert_eq!(verdict_of(&late, "all sessions are back"), Verdict::Missed);
    let mut silent = storm(Reached::After(1.0));
    silent.killed.commits_ms.clear();
    assert_eq!(verdict_of(&storm_figures(100, &silent).unwrap(), "99 % of them"), Verdict::Missed);
}

#[test]
fn troubles_name_the_size() {
    let both = Trials { storm: Some(storm(Reached::After(1.0))), ..wide(100, 1.0) };
    let troubles = troubles(&both);
    assert!(troubles.len() == 3 && troubles.iter().all(|trouble| trouble.starts_with("100 agents")), "{troubles:?}");
    assert!(troubles[0].contains("no leader"), "{troubles:?}");
}

#[test]
fn each_quantity_that_was_reached_is_drawn() {
    let folder = std::env::temp_dir().join(format!("lattice-trials-svg-{}", std::process::id()));
    let given_up = || course(Reached::Not("not reached in 30 s".into()), Reached::Not("not reached in 30 s".into()), 9.0);
    let large = Trials { agents: 3000, storm: Some(storm(Reached::After(4.0))), wide: Some(Wide { one: given_up(), many: given_up() }) };
    let measured = [wide(100, 1.0), large];
    super::super::drawing::write(&folder, drawings(&measured)).unwrap();
    let points = |name: &str| std::fs::read_to_string(folder.join(format!("scale-{name}.svg"))).unwrap().matches("<circle").count();
    assert_eq!(["wide-listed", "wide-memory", "wide-entries", "wide-received"].map(points), [2; 4]);
    assert_eq!(["storm-back", "storm-memory", "storm-commits", "storm-refused"].map(points), [2, 1, 2, 1]);
    std::fs::remove_dir_all(&folder).unwrap();
}
