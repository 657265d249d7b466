//! Values that are names or lists: the site's names, variables, other jobs, mail, signals and files.

use super::option::{Around, Meaning};
use super::value_error::ValueError;
use lattice_model::DependencyCondition;
use lattice_model::dependency::SINGLETON;

/// The formats of `-o` in `lattice`: a file with such a name needs a directory before it.
const FORMATS: [&str; 7] = ["table", "wide", "json", "yaml", "name", "per-rank", "dot"];
const INVALID_DEPEND_MAIL: &str = "a job that waits in vain is cancelled; of that you get the mail of FAIL, if your site sends it";
const STAGE_OUT_MAIL: &str = "there are no burst buffers, so STAGE_OUT has nothing to report";

/// `--account`.
pub(super) fn account(value: &str, around: Around<'_>) -> Result<Meaning, ValueError> {
    Ok(Meaning::word(format!("--tenant={}", around.compat.tenant_of(value))))
}

/// `--partition`: one; a job waits in one queue.
pub(super) fn partition(value: &str, around: Around<'_>) -> Result<Meaning, ValueError> {
    if value.contains(',') {
        return Err(ValueError::not_honoured(value, "name one partition: a job waits in one queue"));
    }
    Ok(Meaning::word(format!("--vcluster={}", around.compat.vcluster_of(value))))
}

/// `--qos`.
pub(super) fn qos(value: &str, around: Around<'_>) -> Result<Meaning, ValueError> {
    // Programs without a QOS give an empty one.
    if value.is_empty() {
        return Ok(Meaning::default());
    }
    let class = around.compat.class_of(value).ok_or_else(|| ValueError::Qos(value.to_owned()))?;
    Ok(Meaning::word(format!("--preemption-class={class}")))
}

/// `--clusters`: this one.
pub(super) fn clusters(value: &str, around: Around<'_>) -> Result<Meaning, ValueError> {
    let here = around.compat.cluster();
    if value == here { Ok(Meaning::default()) } else { Err(ValueError::Cluster(here.to_owned())) }
}

/// `--wckey`: a label by which `lattice status` and accounting find the job.
pub(super) fn wckey(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    match value.trim_start_matches('*') {
        "" => Ok(Meaning::default()),
        list if list.contains(',') => Err(ValueError::not_honoured(value, "give one key, without a comma")),
        key => Ok(Meaning::word(format!("--tag=wckey={key}"))),
    }
}

/// `--export`: `ALL`, `NONE`, variables with values, and names of variables of the submitting process; without `ALL` the
/// job gets only those.
pub(super) fn export(value: &str, around: Around<'_>) -> Result<Meaning, ValueError> {
    let mut words = Vec::new();
    let mut what = "none";
    for part in value.split(',').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some((name, _)) if !name.is_empty() => words.push(format!("--env={part}")),
            None if part.eq_ignore_ascii_case("ALL") => what = "all",
            None if part.eq_ignore_ascii_case("NONE") || part.eq_ignore_ascii_case("NIL") => {}
            // As in Slurm, a variable that is not set is not exported.
            None if !around.environment.is_empty() => words.extend(around.environment.get(part).map(|set| format!("--env={part}={set}"))),
            Some(_) | None => return Err(ValueError::Unassigned(part.to_owned())),
        }
    }
    words.insert(0, format!("--export={what}"));
    Ok(Meaning { words, note: None })
}

/// `--propagate`: limits are those of the nodes.
pub(super) fn propagate(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    match value {
        "NONE" => Ok(Meaning::default()),
        other => Err(ValueError::not_honoured(if other.is_empty() { "ALL" } else { other }, "set limits in the script with `ulimit`")),
    }
}

/// `--no-kill`: only `off`, which is the default.
pub(super) fn no_kill(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    match value {
        "off" | "no" => Ok(Meaning::default()),
        other => Err(ValueError::not_honoured(
            if other.is_empty() { "--no-kill" } else { other },
            "use --requeue; or --no-kill-on-bad-exit in a #LATTICE line for ranks that fail",
        )),
    }
}

/// `--wait` of `srun`: how many seconds after the end of the first rank the others are ended. Only 0, never, is possible.
pub(super) fn wait_for_ranks(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    match value {
        "0" => Ok(Meaning::default()),
        other => Err(ValueError::not_honoured(other, "leave it out: a rank that fails ends the others at once, -K0 prevents that")),
    }
}

/// `--kill-on-invalid-dep`: a job whose dependency can never be satisfied is always cancelled.
pub(super) fn kill_on_invalid_dependency(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    match value {
        "yes" => Ok(Meaning::default()),
        other => Err(ValueError::not_honoured(other, "a job that waits in vain is always cancelled: leave it out")),
    }
}

/// `--mail-type`: END is sent at every end, as in Slurm.
pub(super) fn mail_type(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    let mut events: Vec<&str> = Vec::new();
    let mut note = None;
    for kind in value.split(',') {
        let ours: &[&str] = match kind.to_ascii_uppercase().as_str() {
            "NONE" => return Ok(Meaning::word("--mail-type=none")),
            "BEGIN" => &["begin"],
            "END" => &["end", "fail"],
            "FAIL" => &["fail"],
            "INVALID_DEPEND" => {
                note = Some(INVALID_DEPEND_MAIL);
                &["fail"]
            }
            "REQUEUE" => &["requeue"],
            "ALL" => &["begin", "end", "fail", "requeue"],
            "TIME_LIMIT" => &["time_limit"],
            "TIME_LIMIT_50" => &["time_limit_50"],
            "TIME_LIMIT_80" => &["time_limit_80"],
            "TIME_LIMIT_90" => &["time_limit_90"],
            "STAGE_OUT" => {
                note = Some(STAGE_OUT_MAIL);
                &[]
            }
            "ARRAY_TASKS" => &["array_tasks"],
            _ => return Err(ValueError::not_honoured(kind, "write BEGIN, END, FAIL, REQUEUE, ALL, NONE or TIME_LIMIT_80")),
        };
        events.extend(ours.iter().filter(|event| !events.contains(*event)).copied().collect::<Vec<_>>());
    }
    let events = if events.is_empty() { "none".to_owned() } else { events.join(",") };
    Ok(Meaning { words: vec![format!("--mail-type={events}")], note })
}

/// `--signal`: `[B:]SIGNAL[@SECONDS]`. `R:` is ignored: it concerns a delay of reservations that Lattice does not have.
pub(super) fn signal(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    let (letters, signal) = value.split_once(':').unwrap_or(("", value));
    let mut to_script = "";
    for letter in letters.chars() {
        match letter.to_ascii_uppercase() {
            'B' => to_script = "B:",
            'R' => {}
            _ => return Err(ValueError::not_honoured(value, "write [B:]SIGNAL[@SECONDS], such as B:USR1@120")),
        }
    }
    Ok(Meaning::word(format!("--signal={to_script}{signal}")))
}

/// `--output`: a file, even if it has the name of a format.
pub(super) fn output(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
    let here = if FORMATS.contains(&value) { "./" } else { "" };
    Ok(Meaning::word(format!("--output={here}{value}")))
}

/// `--dependency`: a list of `afterok:ID[:ID...]`, `afternotok:ID`, `afterany:ID`, `after:ID[+MINUTES]`, `aftercorr:ID`
/// and `singleton`. An `ID` may be a job's number, or `N_7` for a task.
pub(super) fn dependency(value: &str, _: Around<'_>) -> Result<Meaning, ValueError> {
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
            named.push(match id.split_once('_') {
                Some((job, task)) => format!("{job}[{task}]:{condition}"),
                None => format!("{id}:{condition}"),
            });
        }
    }
    Ok(Meaning::word(format!("--depends-on={}", named.join(","))))
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
    use crate::compat::Compat;
    use lattice_model::dependency::NoSuchCondition;
    use std::collections::BTreeMap;

    type Translator = fn(&str, Around<'_>) -> Result<Meaning, ValueError>;

    fn joined(translate: Translator, value: &str, variables: &[(&str, &str)]) -> Result<String, ValueError> {
        let environment: BTreeMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let compat = Compat::parse("partition_mapping: {long: batch}\naccount_mapping: {phys: physics}\nqos_mapping: {high: 7}\n").unwrap();
        translate(value, Around { compat: &compat, environment: &environment }).map(|meaning| meaning.words.join(" "))
    }

    #[test]
    fn dependencies_are_translated_where_they_mean_the_same() {
        for (value, ours) in [
            ("afterok:1f0c", "1f0c:success"),
            ("afterok:12:13,afternotok:14,afterany:15", "12:success,13:success,14:failure,15:any"),
            ("singleton,after:1f0c:2f0c,aftercorr:3f0c", "singleton,1f0c:after,2f0c:after,3f0c:corresponding"),
            ("after:1f0c+5:2f0c:3f0c+90,after:4f0c+0", "1f0c:after+5m,2f0c:after,3f0c:after+90m,4f0c:after"),
            ("afterok:12_7", "12[7]:success"),
        ] {
            assert_eq!(joined(dependency, value, &[]), Ok(format!("--depends-on={ours}")));
        }
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
            assert_eq!(joined(dependency, value, &[]), Err(refused), "{value}");
        }
    }

    #[test]
    fn exported_variables_are_those_that_are_named() {
        assert_eq!(joined(export, "ALL,A=1,B=x=y", &[]).as_deref(), Ok("--export=all --env=A=1 --env=B=x=y"));
        assert_eq!(joined(export, "A=1", &[]).as_deref(), Ok("--export=none --env=A=1"));
        assert_eq!(joined(export, "NONE", &[]).as_deref(), Ok("--export=none"));
        assert_eq!(joined(export, "ALL,PATH", &[]), Err(ValueError::Unassigned("PATH".into())));
        assert_eq!(joined(export, "PATH,GONE", &[("PATH", "/bin")]).as_deref(), Ok("--export=none --env=PATH=/bin"));
        assert!(joined(export, "=1", &[]).is_err());
    }

    #[test]
    fn the_sites_names_are_translated() {
        assert_eq!(joined(partition, "long", &[]).as_deref(), Ok("--vcluster=batch"));
        assert_eq!(joined(account, "phys", &[]).as_deref(), Ok("--tenant=physics"));
        assert_eq!(joined(qos, "high", &[]).as_deref(), Ok("--preemption-class=7"));
        assert_eq!(joined(qos, "low", &[]), Err(ValueError::Qos("low".into())));
        assert_eq!(joined(qos, "", &[]).as_deref(), Ok(""));
        assert_eq!(joined(clusters, "lattice", &[]).as_deref(), Ok(""));
        assert!(joined(clusters, "other", &[]).is_err() && joined(partition, "a,b", &[]).is_err());
    }

    #[test]
    fn mail_signals_and_files_keep_their_meaning() {
        assert_eq!(joined(mail_type, "END,FAIL", &[]).as_deref(), Ok("--mail-type=end,fail"));
        assert_eq!(joined(mail_type, "all", &[]).as_deref(), Ok("--mail-type=begin,end,fail,requeue"));
        assert_eq!(joined(mail_type, "NONE", &[]).as_deref(), Ok("--mail-type=none"));
        assert_eq!(joined(mail_type, "END,ARRAY_TASKS", &[]).as_deref(), Ok("--mail-type=end,fail,array_tasks"));
        assert_eq!(joined(mail_type, "STAGE_OUT", &[]).as_deref(), Ok("--mail-type=none"));
        assert!(joined(mail_type, "SOMETIMES", &[]).is_err());
        assert_eq!(joined(signal, "B:USR1@120", &[]).as_deref(), Ok("--signal=B:USR1@120"));
        assert_eq!(joined(signal, "R:10", &[]).as_deref(), Ok("--signal=10"));
        assert_eq!(joined(output, "json", &[]).as_deref(), Ok("--output=./json"));
        assert_eq!(joined(output, "slurm-%j.out", &[]).as_deref(), Ok("--output=slurm-%j.out"));
    }
}
