//! Files of the user for the output of work, and the signal before the walltime ends.

use crate::bed::{Bed, Setting, eventually};
use crate::hung::HungMount;
use lattice_model::{EndWarning, OutputFiles, RankOutcome};
use lattice_runtime::shim::{FromShim, LogStream, ToShim};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::Duration;

fn bed(output_files: OutputFiles) -> Bed {
    Bed::ready(Setting { script: Some("#!/bin/sh\n"), output_files: Some(output_files), ..Setting::default() })
}

fn open_scratch(bed: &Bed) {
    fs::set_permissions(&bed.scratch, Permissions::from_mode(0o777)).unwrap();
}

/// Starts a script that finds the scratch directory in `DIR`.
fn start(bed: &mut Bed, text: &str) {
    let env = [("PATH", "/usr/bin:/bin".to_owned()), ("DIR", bed.scratch.display().to_string())];
    let env = env.map(|(name, value)| (name.to_owned(), value)).into();
    bed.agent.send(&ToShim::StartScript { text: text.into(), args: vec![], env, working_dir: "/tmp".into() });
}

fn ended(bed: &mut Bed) -> (RankOutcome, Vec<FromShim>) {
    let seen = bed.agent.until("ScriptEnded", |m| matches!(m, FromShim::ScriptEnded { .. }));
    match seen.last() {
        Some(FromShim::ScriptEnded { outcome }) => (*outcome, seen),
        other => panic!("{other:?}"),
    }
}

fn file(bed: &Bed, name: &str) -> PathBuf {
    bed.scratch.join(name)
}

pub fn written_as_it_comes() {
    let stdin = "DIR/in".to_owned();
    let mut bed = bed(OutputFiles { stdout: "DIR/%x.%t.out".into(), stdin, ..OutputFiles::default() });
    open_scratch(&bed);
    fs::write(file(&bed, "in"), "given\n").unwrap();
    start(&mut bed, "cat; echo error >&2; while [ ! -e $DIR/go ]; do sleep 0.02; done; seq 20000; echo last");
    let out = file(&bed, "a.0.out");
    let text = || fs::read_to_string(&out).unwrap_or_default();
    eventually("the output of a script that runs", || text().contains("given\n") && text().contains("error\n"));
    // The shim continues without an agent.
    bed.agent.vanish();
    fs::write(file(&bed, "go"), "").unwrap();
    eventually("the output of a script without an agent", || text().ends_with("20000\nlast\n"));
    bed.reconnect();
    assert_eq!(ended(&mut bed).0, RankOutcome::Exited { code: 0 });
    let metadata = fs::metadata(&out).unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o777), (bed.config.owner.uid, 0o644));
    assert_eq!(bed.log(0, 0, LogStream::Err), "error\n", "the log stays as it was");
    bed.end();
}

pub fn whole_at_the_end() {
    for append in [false, true] {
        let mut bed = bed(OutputFiles { stdout: "DIR/out".into(), append, ..OutputFiles::default() });
        open_scratch(&bed);
        fs::write(file(&bed, "out"), "before\n").unwrap();
        fs::set_permissions(file(&bed, "out"), Permissions::from_mode(0o666)).unwrap();
        start(&mut bed, "seq 100000");
        assert_eq!(ended(&mut bed).0, RankOutcome::Exited { code: 0 });
        let text = fs::read_to_string(file(&bed, "out")).unwrap();
        assert_eq!((text.starts_with("before\n"), text.ends_with("\n100000\n")), (append, true));
        bed.end();
    }
}

pub fn refused() {
    let cases = [
        ("DIR/no/out", "No such file or directory (os error 2)"),
        ("DIR/mine", "Permission denied (os error 13)"),
        // Root's as well, but the kernel decides by the effective user there.
        ("/proc/sys/kernel/core_pattern", "Permission denied (os error 13)"),
    ];
    for (stdout, why) in cases {
        let mut bed = bed(OutputFiles { stdout: stdout.into(), ..OutputFiles::default() });
        open_scratch(&bed);
        // A file of root's, in a directory where the user may write.
        fs::write(file(&bed, "mine"), "root's").unwrap();
        fs::set_permissions(file(&bed, "mine"), Permissions::from_mode(0o600)).unwrap();
        start(&mut bed, "touch $DIR/ran");
        assert_eq!(ended(&mut bed).0, RankOutcome::NotStarted { code: 126 });
        let log = bed.log(0, 0, LogStream::Err);
        assert!(log.starts_with("lattice: --output /") && log.trim_end().ends_with(why), "{log}");
        assert!(!file(&bed, "ran").exists());
        assert_eq!(fs::read_to_string(file(&bed, "mine")).unwrap(), "root's");
        bed.end();
    }
}

pub fn full_disk() {
    let mut bed = bed(OutputFiles { stdout: "/dev/full".into(), stderr: "DIR/err".into(), ..OutputFiles::default() });
    open_scratch(&bed);
    start(&mut bed, "seq 1000; echo error >&2; exit 3");
    let (outcome, seen) = ended(&mut bed);
    assert_eq!(outcome, RankOutcome::Exited { code: 3 });
    assert_eq!(seen.iter().filter(|message| matches!(message, FromShim::FileFailed { .. })).count(), 1, "{seen:?}");
    assert!(bed.log(0, 0, LogStream::Out).ends_with("\n1000\n"));
    let log = bed.log(0, 0, LogStream::Err);
    assert!(log.contains("lattice: some of its output may be missing in /dev/full: No space left on device"), "{log}");
    assert!(fs::read_to_string(file(&bed, "err")).unwrap().starts_with("error\n"));
    bed.end();
}

pub fn late() {
    let mut bed;
    // Dropped before the shim, which cannot end while its write hangs.
    let hung = HungMount::new(&std::env::temp_dir().join(format!("lattice-shim-hung-{}", std::process::id())));
    let path = hung.dir.join("data");
    bed = self::bed(OutputFiles { stdout: path.display().to_string(), append: true, ..OutputFiles::default() });
    open_scratch(&bed);
    start(&mut bed, "echo first; while [ ! -e $DIR/go ]; do sleep 0.02; done");
    let late = bed.agent.until("FilesLate", |m| matches!(m, FromShim::FilesLate { .. })).pop();
    let Some(FromShim::FilesLate { why: Some(why) }) = &late else { panic!("{late:?}") };
    assert!(why.contains(&format!("does not answer: 6 bytes in {} are not written yet", path.display())), "{why}");
    bed.reconnect();
    assert_eq!(bed.agent.synced().into_iter().find(|m| matches!(m, FromShim::FilesLate { .. })), late);
    let dir = hung.dir.clone();
    drop(hung);
    bed.agent.until("the end of the wait", |m| *m == FromShim::FilesLate { why: None });
    fs::write(file(&bed, "go"), "").unwrap();
    assert_eq!(ended(&mut bed).0, RankOutcome::Exited { code: 0 });
    bed.end();
    fs::remove_dir(dir).unwrap();
}

pub fn warned() {
    for (script_only, want) in [(true, "warned\n"), (false, "ended\n")] {
        let before = Duration::from_secs(58);
        let end_warning = Some(EndWarning { signal: libc::SIGUSR1, before, script_only });
        let mut bed = Bed::ready(Setting { script: Some("#!/bin/sh\n"), end_warning, ..Setting::default() });
        bed.agent.send(&ToShim::Go { walltime_ms: 60_000 });
        start(&mut bed, "trap 'echo warned; exit 0' USR1; trap 'echo ended; exit 0' TERM; while :; do sleep 0.05; done");
        if !script_only {
            let ready = "trap 'echo warned; exit 0' USR1; while :; do sleep 0.05; done";
            let launch = bed.start_sh(1, 1, ready);
            assert_eq!(bed.agent.outcomes(&launch).0, [RankOutcome::Exited { code: 0 }]);
            assert_eq!(bed.log(1, 0, LogStream::Out), "warned\n");
            bed.agent.send(&ToShim::Signal { request: 1, signal: libc::SIGTERM, to: lattice_runtime::shim::SignalTarget::Script });
        }
        assert_eq!(ended(&mut bed).0, RankOutcome::Exited { code: 0 });
        assert_eq!(bed.log(0, 0, LogStream::Out), want);
        bed.end();
    }
}
