//! Amounts: memory, GPUs, space on disks, and numbers.

use super::option::{Around, Meaning};
use super::value_error::ValueError;
use crate::memory;
use lattice_model::timing::NICE_MAX;

/// The priority of work that is first in its queue; each place behind it has one less.
pub const PRIORITY_MAX: u64 = 4_294_901_760;

const FIRST: &str = "first in its queue, as by --nice=-10000, which operators may give";
const LAST: &str = "behind all work of its class, as by --nice=10000";

/// `--mem`: of each node; a bare number is MiB. 0 is all memory, which a whole node has.
pub(super) fn memory_of_node(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    if !digits.is_empty() && digits.bytes().all(|b| b == b'0') {
        return Ok(Meaning::word("--mem=0"));
    }
    Ok(Meaning::word(format!("--mem={}", size(value)?)))
}

/// `--mem-per-cpu`.
pub(super) fn memory_of_core(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    Ok(Meaning::word(format!("--mem-per-core={}", size(value)?)))
}

/// `--mem-per-gpu`.
pub(super) fn memory_of_gpu(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    Ok(Meaning::word(format!("--mem-per-gpu={}", size(value)?)))
}

/// `--tmp`: space on the disk of each node.
pub(super) fn scratch(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    Ok(Meaning::word(format!("--scratch-per-node={}", size(value)?)))
}

/// An amount with its unit: a bare number is MiB.
fn size(value: &str) -> Result<String, ValueError> {
    let with_unit = if value.bytes().all(|b| b.is_ascii_digit()) { format!("{value}M") } else { value.to_owned() };
    memory::parse(&with_unit)?;
    Ok(with_unit)
}

/// `--gres`: a list of `gpu`, `gpu:4`, `gpu:a100`, `gpu:a100:4`; of each node.
pub(super) fn generic_resources(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    let mut words = Vec::new();
    for resource in value.split(',') {
        let resource = resource.strip_prefix("gres:").or(resource.strip_prefix("gres/")).unwrap_or(resource);
        let (name, amount) = resource.split_once(':').unwrap_or((resource, "1"));
        match name {
            "none" | "NONE" if value == name => {}
            "gpu" if !words.is_empty() => return Err(ValueError::SeveralKinds),
            "gpu" => words = gpus("--gpus", amount)?,
            _ => return Err(ValueError::NotGpus(resource.to_owned())),
        }
    }
    Ok(Meaning { words, note: None })
}

/// `--gpus-per-node`.
pub(super) fn gpus_of_node(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    Ok(Meaning { words: gpus("--gpus", value)?, note: None })
}

/// `--gpus`: of all nodes together.
pub(super) fn gpus_of_job(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    Ok(Meaning { words: gpus("--gpus-total", value)?, note: None })
}

/// `--gpus-per-task`.
pub(super) fn gpus_of_rank(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    Ok(Meaning { words: gpus("--gpus-per-task", value)?, note: None })
}

/// `4`, `a100` or `a100:4`.
fn gpus(ours: &str, value: &str) -> Result<Vec<String>, ValueError> {
    let wrong = || ValueError::Gpus(value.to_owned());
    if value.contains(',') {
        return Err(ValueError::SeveralKinds);
    }
    let (kind, count) = match value.rsplit_once(':') {
        Some((kind, count)) => (kind, count),
        None if value.bytes().all(|b| b.is_ascii_digit()) => ("", value),
        None => (value, "1"),
    };
    let count: u32 = count.parse().map_err(|_| wrong())?;
    if kind.contains([':', '&', '=']) || (value.contains(':') && kind.is_empty()) {
        return Err(wrong());
    }
    let of_kind = (!kind.is_empty()).then(|| format!("--constraint=gpu_type={kind}"));
    Ok((count > 0).then(|| format!("{ours}={count}")).into_iter().chain(of_kind.filter(|_| count > 0)).collect())
}

/// `--nice`: without a value, 100.
pub(super) fn nice(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    let nice = if value.is_empty() { "100" } else { value };
    let nice: i64 = nice.parse().map_err(|_| ValueError::Number(value.to_owned(), "places that the job gives way, such as 100"))?;
    Ok(Meaning::word(format!("--nice={nice}")))
}

/// `--priority`: first or last in the queue. The place of other priorities would depend on what else waits.
pub(super) fn priority(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    let note = |nice: i32| Some(if nice < 0 { FIRST } else { LAST });
    match nice_of_priority(value) {
        Some(nice) => Ok(Meaning { words: vec![format!("--nice={nice}")], note: note(nice) }),
        None if value == "0" => Err(ValueError::not_honoured(value, "use --hold")),
        None => Err(ValueError::not_honoured(value, "TOP is first, for operators, and 1 is last; --nice=N is N minutes later")),
    }
}

/// The `nice` that a priority means here: that of `TOP`, and of what is above all that squeue shows, puts work first; that
/// of 1 puts it last. `None`: it means no place.
pub fn nice_of_priority(text: &str) -> Option<i32> {
    let is_top = || text.parse().is_ok_and(|priority: u64| (PRIORITY_MAX..=u64::from(u32::MAX)).contains(&priority));
    match text {
        "1" => Some(NICE_MAX),
        _ if text.eq_ignore_ascii_case("TOP") || is_top() => Some(-NICE_MAX),
        _ => None,
    }
}

/// `--ntasks-per-gpu`: the numbers of GPUs are needed too, so this checks the number only.
pub(super) fn ranks_of_gpu(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    whole_number(value, "ranks").map(|_| Meaning::default())
}

/// `--ntasks-per-core`.
pub(super) fn ranks_of_core(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    match whole_number(value, "ranks")? {
        1 => Ok(Meaning::default()),
        _ => Err(ValueError::not_honoured(value, "cores are counted, not their threads: use -n, --ntasks-per-node and -c")),
    }
}

/// `--ntasks-per-socket`: the number of sockets follows from the ranks of a node, so this checks the number only.
pub(super) fn ranks_of_socket(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    whole_number(value, "ranks").map(|_| Meaning::default())
}

/// A number that is not 0.
pub(super) fn whole_number(value: &str, of: &'static str) -> Result<u32, ValueError> {
    value.parse().ok().filter(|number| *number > 0).ok_or_else(|| ValueError::Number(value.to_owned(), of))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(words: Result<Vec<String>, ValueError>) -> Result<String, ValueError> {
        words.map(|words| words.join(" "))
    }

    fn with_names<T>(check: impl FnOnce(Around<'_>) -> T) -> T {
        check(Around { compat: &crate::compat::Compat::default(), environment: &std::collections::BTreeMap::new() })
    }

    #[test]
    fn gpus_are_read_in_every_form() {
        let gres = |text: &str| with_names(|around| joined(generic_resources(text, around).map(|meaning| meaning.words)));
        for (text, ours) in [
            ("gpu", "--gpus=1"),
            ("gpu:4", "--gpus=4"),
            ("gpu:a100:4", "--gpus=4 --constraint=gpu_type=a100"),
            ("gpu:a100", "--gpus=1 --constraint=gpu_type=a100"),
            ("gres/gpu:2", "--gpus=2"),
            ("gpu:0", ""),
            ("none", ""),
        ] {
            assert_eq!(gres(text).as_deref(), Ok(ours), "{text}");
        }
        for bad in
            ["gpu:a:b:1", "gpu:", "gpu:x:", "gpu::1", "shard:2", "gpu:2,nvme:1", "gpu:a:1,gpu:b:1", "", "none,gpu", "gpu:99999999999"]
        {
            assert!(gres(bad).is_err(), "{bad}: {:?}", gres(bad));
        }
        assert_eq!(joined(gpus("--gpus-total", "h100:2")).as_deref(), Ok("--gpus-total=2 --constraint=gpu_type=h100"));
        assert_eq!(gpus("--gpus", "a:1,b:1"), Err(ValueError::SeveralKinds));
    }

    #[test]
    fn memory_without_a_unit_is_in_mib() {
        let of_node = |text: &str| with_names(|around| joined(memory_of_node(text, around).map(|meaning| meaning.words)));
        assert_eq!(of_node("4096").as_deref(), Ok("--mem=4096M"));
        assert_eq!(of_node("16G").as_deref(), Ok("--mem=16G"));
        assert_eq!((of_node("0").as_deref(), of_node("0G").as_deref()), (Ok("--mem=0"), Ok("--mem=0")));
        assert!(of_node("much").is_err() && of_node("").is_err());
    }

    #[test]
    fn a_priority_is_the_first_or_the_last_place() {
        for (text, nice) in [("TOP", -10_000), ("top", -10_000), ("4294901760", -10_000), ("4294967295", -10_000), ("1", 10_000)] {
            let meaning = with_names(|around| priority(text, around)).unwrap();
            assert_eq!(meaning.words, [format!("--nice={nice}")], "{text}");
            assert_eq!(meaning.note, Some(if nice < 0 { FIRST } else { LAST }));
        }
        for refused in ["0", "100", "4294901759", "4294967296", "-1", "high", ""] {
            let why = with_names(|around| priority(refused, around)).unwrap_err();
            assert!(why.remedy().is_some(), "{refused}");
        }
    }

    #[test]
    fn nice_has_a_default() {
        let nice = |text: &str| with_names(|around| joined(nice(text, around).map(|meaning| meaning.words)));
        assert_eq!((nice("").as_deref(), nice("-5").as_deref()), (Ok("--nice=100"), Ok("--nice=-5")));
        assert!(nice("much").is_err());
    }
}
