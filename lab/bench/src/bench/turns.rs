//! Measurement in turns: everything once in each round. Whatever was last in a round is first in the next.

use super::figures::{Figure, Samples, Target};
use anyhow::{Context, Result};
use lattice_lab::interrupt;

/// Measures each subject once in each round; `measure` also gets the round's name. The result has the measurements of
/// each subject, in the order of `subjects`.
///
/// # Errors
/// The first measurement that fails: there is no figure of a part of the rounds.
pub(super) fn in_turn<S: Copy, T>(
    subjects: &[S],
    rounds: usize,
    what: &str,
    mut measure: impl FnMut(S, &str) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut measured: Vec<Vec<T>> = subjects.iter().map(|_| Vec::new()).collect();
    for round in 1..=rounds {
        let mut turns: Vec<(&S, &mut Vec<T>)> = subjects.iter().zip(&mut measured).collect();
        if round % 2 == 0 {
            turns.reverse();
        }
        for (subject, values) in turns {
            interrupt::check()?;
            values.push(measure(*subject, &format!("round-{round}"))?);
        }
        eprintln!("bench: {what}: round {round} of {rounds}");
    }
    Ok(measured)
}

/// A figure beside those of its peers that were measured; all values are by round. The ratio in each round becomes a
/// note.
pub(super) fn compared(
    name: &str,
    unit: &'static str,
    ours: &[f64],
    peers: &[(&str, Option<&[f64]>)],
    target: Option<Target>,
    notes: &mut Vec<String>,
) -> Result<Figure> {
    for (peer, theirs) in peers {
        let Some(theirs) = theirs else { continue };
        let ratios: Vec<f64> = ours.iter().zip(*theirs).map(|(ours, theirs)| ours / theirs).collect();
        let ratio = Samples::of(ratios, 0).context("no round was measured")?;
        notes.push(format!("{name}: {:.2} of {peer} ({:.2}–{:.2} by round)", ratio.median, ratio.min, ratio.max));
    }
    let samples = Samples::of(ours.to_vec(), 0).context("no round was measured")?;
    let peers = peers.iter().map(|(peer, theirs)| (*peer, theirs.and_then(|theirs| Samples::of(theirs.to_vec(), 0)))).collect();
    Ok(Figure::new(name, unit, samples, peers, target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_take_turns_and_each_keeps_its_own_values() {
        let mut order = Vec::new();
        let measured = in_turn(&["a", "b"], 3, "nothing", |subject, round| {
            order.push(format!("{subject} {round}"));
            Ok(order.len())
        });
        assert_eq!(measured.unwrap(), [vec![1, 4, 5], vec![2, 3, 6]]);
        assert_eq!(order, ["a round-1", "b round-1", "b round-2", "a round-2", "a round-3", "b round-3"]);
    }

    #[test]
    fn a_measurement_that_fails_ends_all_rounds() {
        let mut begun = 0;
        let failed = in_turn(&[1, 2], 3, "nothing", |subject, _| {
            begun += 1;
            anyhow::ensure!(subject == 1, "subject {subject} fails");
            Ok(())
        });
        assert_eq!((failed.unwrap_err().to_string().as_str(), begun), ("subject 2 fails", 2));
    }

    #[test]
    fn ratios_are_those_of_each_round_and_a_peer_that_is_absent_has_none() {
        let mut notes = Vec::new();
        let figure = compared("tasks", "/s", &[20.0, 30.0], &[("x", Some(&[10.0, 10.0][..])), ("y", None)], None, &mut notes).unwrap();
        assert_eq!(figure.peers.iter().map(|peer| peer.name.as_str()).collect::<Vec<_>>(), ["x"]);
        assert_eq!(notes, ["tasks: 2.50 of x (2.00–3.00 by round)"]);
    }
}
