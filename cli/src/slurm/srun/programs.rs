//! `srun --multi-prog`: the programs in a file become the programs of one launch.

use lattice_cli_session::failure::Failure;
use lattice_cli_syntax::args::launch::Launch;
use lattice_slurm::multi_prog::{MultiProg, Part};
use std::path::Path;

/// Replaces the command, which is the file and further arguments, by the file's programs.
pub fn read(launch: &mut Launch, dir: &Path) -> Result<(), Failure> {
    let Some((file, more)) = launch.command.split_first() else { return Ok(()) };
    let text = std::fs::read_to_string(dir.join(file))
        .map_err(|error| Failure::usage(format!("cannot read the configuration of --multi-prog, {file}: {error}")))?;
    let wrong = |error: lattice_slurm::multi_prog::MultiProgError| Failure::usage(format!("{file}: {error}"));
    let parts = MultiProg::parse(&text).and_then(|config| config.parts(asked_ranks(launch), more)).map_err(wrong)?;
    launch.flags.ranks = parts.first().map(|part| part.ranks);
    launch.command = command(parts);
    Ok(())
}

/// The number of ranks, if options or the allocation give it.
fn asked_ranks(launch: &Launch) -> Option<u32> {
    let by_nodes = || launch.flags.nodes.map(|nodes| nodes.least.saturating_mul(launch.flags.tasks_per_node.unwrap_or(1)));
    let by_allocation = || std::env::var("SLURM_NTASKS").ok()?.parse::<u32>().ok();
    launch.flags.ranks.or_else(by_nodes).or_else(by_allocation)
}

/// `a : -n 3 b`
fn command(parts: Vec<Part>) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in parts.into_iter().enumerate() {
        if at > 0 {
            words.extend([":".to_owned(), "-n".to_owned(), part.ranks.to_string()]);
        }
        words.extend(part.argv);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_cli_syntax::layout::split_programs;

    #[test]
    fn programs_are_separated_as_a_launch_expects_it() {
        let part = |ranks, program: &str| Part { ranks, argv: vec![program.to_owned(), "x".to_owned()] };
        let words = command(vec![part(1, "a"), part(2, "b")]);
        assert_eq!(words.join(" "), "a x : -n 2 b x");
        assert_eq!(split_programs(words, Some(1)).unwrap().ranks, Some(3));
    }
}
