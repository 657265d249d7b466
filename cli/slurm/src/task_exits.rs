//! How `srun` reports ranks that failed: `n1: tasks 0-2: Exited with exit code 2`.

use lattice_api::v1::launch_event::RankExit;
use std::collections::BTreeMap;

/// The lines for ranks that did not end with code 0, without the command's name before them.
pub fn lines(exits: &[RankExit]) -> Vec<String> {
    let mut failed: BTreeMap<(&str, String), Vec<u32>> = BTreeMap::new();
    for exit in exits {
        if let Some(end) = end(exit) {
            failed.entry((exit.node.as_str(), end)).or_default().push(exit.rank);
        }
    }
    let mut lines: Vec<(u32, String)> = Vec::new();
    for ((node, end), mut ranks) in failed {
        ranks.sort_unstable();
        let first = ranks.first().copied().unwrap_or_default();
        lines.push((first, line(node, &ranks, &end)));
    }
    lines.sort();
    lines.into_iter().map(|(_, line)| line).collect()
}

/// One line; `ranks` are in ascending order.
pub fn line(node: &str, ranks: &[u32], end: &str) -> String {
    let tasks = if ranks.len() == 1 { "task" } else { "tasks" };
    format!("{node}: {tasks} {}: {end}", folded(ranks))
}

fn end(exit: &RankExit) -> Option<String> {
    match exit.ended.as_str() {
        "exited" if exit.value == 0 => None,
        "signalled" => Some(signal_text(exit.value)),
        "lost" => Some("Lost with its node".to_owned()),
        _ => Some(end_of_code(exit.value)),
    }
}

/// The text of an exit code as a shell reports it: 128 and a signal for a program that a signal ended.
pub fn end_of_code(code: u32) -> String {
    match code.checked_sub(128) {
        Some(signal @ 1..=64) => signal_text(signal),
        Some(_) | None => format!("Exited with exit code {code}"),
    }
}

/// The text of the C library.
fn signal_text(signal: u32) -> String {
    let text = match signal {
        1 => "Hangup",
        2 => "Interrupt",
        3 => "Quit",
        4 => "Illegal instruction",
        5 => "Trace/breakpoint trap",
        6 => "Aborted",
        7 => "Bus error",
        8 => "Floating point exception",
        9 => "Killed",
        10 => "User defined signal 1",
        11 => "Segmentation fault",
        12 => "User defined signal 2",
        13 => "Broken pipe",
        14 => "Alarm clock",
        15 => "Terminated",
        24 => "CPU time limit exceeded",
        25 => "File size limit exceeded",
        31 => "Bad system call",
        other => return format!("Signal {other}"),
    };
    text.to_owned()
}

/// `0-2,5` for 0, 1, 2 and 5.
fn folded(ranks: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*rank) => *last = *rank,
            Some(_) | None => runs.push((*rank, *rank)),
        }
    }
    let run = |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ends_of_a_node_are_one_line() {
        let exit = |rank, node: &str, ended: &str, value| RankExit { rank, node: node.to_owned(), ended: ended.to_owned(), value };
        let exits = [
            exit(0, "n1", "exited", 0),
            exit(1, "n1", "exited", 2),
            exit(2, "n1", "exited", 2),
            exit(4, "n1", "exited", 2),
            exit(3, "n2", "signalled", 9),
            exit(5, "n2", "not_started", 127),
            exit(6, "n3", "lost", 0),
        ];
        let expected = [
            "n1: tasks 1-2,4: Exited with exit code 2",
            "n2: task 3: Killed",
            "n2: task 5: Exited with exit code 127",
            "n3: task 6: Lost with its node",
        ];
        assert_eq!(lines(&exits), expected);
        assert_eq!(lines(&exits[..1]), Vec::<String>::new());
    }

    #[test]
    fn a_code_above_128_is_a_signal() {
        assert_eq!(
            [1, 139, 200, 128 + 34].map(end_of_code),
            ["Exited with exit code 1", "Segmentation fault", "Exited with exit code 200", "Signal 34"]
        );
    }
}
