//! Translates values of Slurm's options.

use crate::memory::{self, MemoryError};
use lattice_model::DependencyCondition;
use lattice_model::dependency::{NoSuchCondition, SINGLETON};
use lattice_model::duration::DurationError;
use thiserror::Error;

/// Why a value is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ValueError {
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("all memory of a node comes with the whole node; leave it out")]
    AllMemory,
    #[error("{0:?} is not supported: the only generic resources are GPUs, such as gpu:4 or gpu:a100:4")]
    NotGpus(String),
    #[error("{0:?} is not a number of GPUs, such as 4 or a100:4")]
    Gpus(String),
    #[error("only one kind of GPU can be requested")]
    SeveralKinds,
    #[error("{0}: write {0}=VALUE; a script's line may have only ALL, NONE and variables with their values")]
    Unassigned(String),
    #[error(
        "{0:?} is not supported: write afterok:ID, afternotok:ID, afterany:ID, after:ID, after:ID+MINUTES or aftercorr:ID, with ids of \
         Lattice, or singleton"
    )]
    Dependency(String),
    #[error(
        "`?` is not supported: all jobs of the list count, with commas between them; for one of several, submit the job with --hold, \
         and let each of the others run `lattice resume ID || true`"
    )]
    AnyDependency,
    #[error("{0:?}: the delay is no number of minutes, such as after:ID+10")]
    Delay(String),
    #[error(transparent)]
    Condition(#[from] NoSuchCondition),
}

/// `--mem`: per node; a bare number is MiB.
pub fn translate_memory(value: &str) -> Result<Vec<String>, ValueError> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    if !digits.is_empty() && digits.bytes().all(|b| b == b'0') {
        return Err(ValueError::AllMemory);
    }
    let with_unit = if value.bytes().all(|b| b.is_ascii_digit()) { format!("{value}M") } else { value.to_owned() };
    memory::parse(&with_unit)?;
    Ok(vec![format!("--mem={with_unit}")])
}

/// `--gres`: a list of `gpu`, `gpu:4`, `gpu:a100`, `gpu:a100:4`; per node.
pub fn translate_gres(value: &str) -> Result<Vec<String>, ValueError> {
    let mut asked = Vec::new();
    for resource in value.split(',') {
        let (name, amount) = resource.split_once(':').unwrap_or((resource, "1"));
        match name {
            "none" if value == "none" => {}
            "gpu" if !asked.is_empty() => return Err(ValueError::SeveralKinds),
            "gpu" => asked = translate_gpus(amount)?,
            _ => return Err(ValueError::NotGpus(resource.to_owned())),
        }
    }
    Ok(asked)
}

/// `4`, `a100` or `a100:4`: per node.
pub fn translate_gpus(value: &str) -> Result<Vec<String>, ValueError> {
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
    Ok((count > 0).then(|| format!("--gpus={count}")).into_iter().chain(of_kind.filter(|_| count > 0)).collect())
}

/// `--export`: `ALL`, `NONE`, and variables with values; without `ALL` the job gets only those.
pub fn translate_export(value: &str) -> Result<Vec<String>, ValueError> {
    let mut words = Vec::new();
    let mut what = "none";
    for part in value.split(',').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some((name, _)) if !name.is_empty() => words.push(format!("--env={part}")),
            None if part.eq_ignore_ascii_case("ALL") => what = "all",
            None if part.eq_ignore_ascii_case("NONE") || part.eq_ignore_ascii_case("NIL") => {}
            Some(_) | None => return Err(ValueError::Unassigned(part.to_owned())),
        }
    }
    words.insert(0, format!("--export={what}"));
    Ok(words)
}

/// `--dependency`: a list of `afterok:ID[:ID...]`, `afternotok:ID`, `afterany:ID`, `after:ID[+MINUTES]`, `aftercorr:ID`
/// and `singleton`.
pub fn translate_dependency(value: &str) -> Result<Vec<String>, ValueError> {
    if value.contains('?') {
        return Err(ValueError::AnyDependency);
    }
    let mut named = Vec::new();
    for part in value.split(',') {
        let unknown = || ValueError::Dependency(part.to_owned());
        if part == SINGLETON {
            named.push(part.to_owned());
            continue;
        }
        let (kind, ids) = part.split_once(':').unwrap_or((part, ""));
        let condition = match kind {
            "afterok" => DependencyCondition::Success,
            "afternotok" => DependencyCondition::Failure,
            "afterany" => DependencyCondition::Any,
            "aftercorr" => DependencyCondition::Corresponding,
            "after" => DependencyCondition::After,
            _ => return Err(unknown()),
        };
        for id in ids.split(':') {
            let (id, condition) = match id.split_once('+') {
                Some((id, minutes)) if condition == DependencyCondition::After => (id, delayed(minutes, part)?),
                Some(_) | None => (id, condition),
            };
            if id.is_empty() || id.contains('+') {
                return Err(unknown());
            }
            named.push(format!("{id}:{condition}"));
        }
    }
    Ok(vec![format!("--depends-on={}", named.join(","))])
}

/// `after` with this number of minutes, of the dependency `part`.
fn delayed(minutes: &str, part: &str) -> Result<DependencyCondition, ValueError> {
    if minutes.is_empty() || !minutes.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ValueError::Delay(part.to_owned()));
    }
    Ok(format!("{}+{minutes}m", DependencyCondition::After).parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(words: Result<Vec<String>, ValueError>) -> Result<String, ValueError> {
        words.map(|words| words.join(" "))
    }

    #[test]
    fn gpus_are_read_in_every_form() {
        for (text, ours) in [
            ("gpu", "--gpus=1"),
            ("gpu:4", "--gpus=4"),
            ("gpu:a100:4", "--gpus=4 --constraint=gpu_type=a100"),
            ("gpu:a100", "--gpus=1 --constraint=gpu_type=a100"),
            ("gpu:0", ""),
            ("none", ""),
        ] {
            assert_eq!(joined(translate_gres(text)).as_deref(), Ok(ours), "{text}");
        }
        for bad in
            ["gpu:a:b:1", "gpu:", "gpu:x:", "gpu::1", "shard:2", "gpu:2,nvme:1", "gpu:a:1,gpu:b:1", "", "none,gpu", "gpu:99999999999"]
        {
            assert!(translate_gres(bad).is_err(), "{bad}: {:?}", translate_gres(bad));
        }
        assert_eq!(joined(translate_gpus("h100:2")).as_deref(), Ok("--gpus=2 --constraint=gpu_type=h100"));
        assert_eq!(translate_gpus("a:1,b:1"), Err(ValueError::SeveralKinds));
    }

    #[test]
    fn memory_without_a_unit_is_in_mib() {
        assert_eq!(joined(translate_memory("4096")).as_deref(), Ok("--mem=4096M"));
        assert_eq!(joined(translate_memory("16G")).as_deref(), Ok("--mem=16G"));
        assert_eq!(translate_memory("0"), Err(ValueError::AllMemory));
        assert_eq!(translate_memory("0G"), Err(ValueError::AllMemory));
        assert!(translate_memory("much").is_err() && translate_memory("").is_err());
    }

    #[test]
    fn dependencies_are_translated_where_they_mean_the_same() {
        assert_eq!(joined(translate_dependency("afterok:1f0c")).as_deref(), Ok("--depends-on=1f0c:success"));
        assert_eq!(
            joined(translate_dependency("afterok:1f0c:2f0c,afternotok:3f0c,afterany:4f0c")).as_deref(),
            Ok("--depends-on=1f0c:success,2f0c:success,3f0c:failure,4f0c:any")
        );
        assert_eq!(
            joined(translate_dependency("singleton,after:1f0c:2f0c,aftercorr:3f0c")).as_deref(),
            Ok("--depends-on=singleton,1f0c:after,2f0c:after,3f0c:corresponding")
        );
        assert_eq!(
            joined(translate_dependency("after:1f0c+5:2f0c:3f0c+90,after:4f0c+0")).as_deref(),
            Ok("--depends-on=1f0c:after+5m,2f0c:after,3f0c:after+90m,4f0c:after")
        );
        for (value, refused) in [
            ("afterok:1f0c?afterok:2f0c", ValueError::AnyDependency),
            ("after:1f0c+", ValueError::Delay("after:1f0c+".into())),
            ("after:1f0c+5s", ValueError::Delay("after:1f0c+5s".into())),
            ("after:1f0c+600000", ValueError::Condition(NoSuchCondition::DelayTooLong("after+600000m".into()))),
            ("after:+5", ValueError::Dependency("after:+5".into())),
            ("afterok:1f0c+5", ValueError::Dependency("afterok:1f0c+5".into())),
            ("singleton:1f0c", ValueError::Dependency("singleton:1f0c".into())),
            ("expand:1f0c", ValueError::Dependency("expand:1f0c".into())),
            ("1f0c", ValueError::Dependency("1f0c".into())),
            ("afterok", ValueError::Dependency("afterok".into())),
            ("afterok:1f0c,", ValueError::Dependency(String::new())),
            ("afterok:1f0c:", ValueError::Dependency("afterok:1f0c:".into())),
        ] {
            assert_eq!(translate_dependency(value), Err(refused), "{value}");
        }
    }

    #[test]
    fn exported_variables_are_those_that_are_named() {
        assert_eq!(joined(translate_export("ALL,A=1,B=x=y")).as_deref(), Ok("--export=all --env=A=1 --env=B=x=y"));
        assert_eq!(joined(translate_export("A=1")).as_deref(), Ok("--export=none --env=A=1"));
        assert_eq!(joined(translate_export("NONE")).as_deref(), Ok("--export=none"));
        assert_eq!(translate_export("ALL,PATH"), Err(ValueError::Unassigned("PATH".into())));
        assert!(translate_export("=1").is_err());
    }
}
