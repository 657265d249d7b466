//! Starting and ending work.

use crate::bed::{Bed, Setting, eventually};
use lattice_model::{Epoch, NodeRanks, RankOutcome};
use lattice_runtime::exits::{self, ExitRecord};
use lattice_runtime::identity;
use lattice_runtime::shim::{FromShim, LogStream, StopReason, ToShim};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

const fn exited(code: u8) -> RankOutcome {
    RankOutcome::Exited { code }
}

pub fn exit_codes() {
    let mut bed = Bed::ready(Setting::default());
    let launch = bed.launch(1, 32, &["/bin/true"]);
    bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
    let (outcomes, seen) = bed.agent.outcomes(&launch);
    assert_eq!(outcomes, vec![exited(0); 32]);
    assert_eq!(seen[0], FromShim::LaunchStarted { launch: launch.clone() });
    let mixed = bed.start_sh(
        2,
        6,
        "case $PMI_RANK in 0) exit 3;; 1) kill -9 $$;; 2) kill -15 $$;; 3) kill -34 $$;; 4) kill -64 $$;; *) exit 255;; esac",
    );
    let outcomes = bed.agent.outcomes(&mixed).0;
    let killed = |signal| RankOutcome::Signalled { signal };
    assert_eq!(outcomes, [exited(3), killed(9), killed(15), killed(34), killed(64), exited(255)]);
    // On disk by now, because they were reported.
    let records = exits::read(&bed.dir).unwrap();
    assert_eq!(records.len(), 38);
    assert!(records.contains(&ExitRecord::Rank { launch: mixed.id, rank: 0, outcome: exited(3) }));
    // The launches' groups were removed with them.
    assert!(!bed.scope().launch(1).path().exists());
    bed.end();
}

pub fn not_started() {
    let mut bed = Bed::ready(Setting::default());
    let cases: [(&[&str], &str, u8, &str); 4] = [
        (&["no-such-program"], "/tmp", 127, "no-such-program: command not found"),
        (&["/etc/passwd"], "/tmp", 126, "/etc/passwd"),
        (&["true"], "/no/such/dir", 127, "/no/such/dir"),
        (&["true"], "/root", 126, "/root"),
    ];
    for (number, (argv, dir, code, why)) in (1..).zip(cases) {
        let mut launch = bed.launch(number, 2, argv);
        launch.working_dir = dir.into();
        bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
        assert_eq!(bed.agent.outcomes(&launch).0, [RankOutcome::NotStarted { code }; 2], "{argv:?} in {dir}");
        for rank in 0..2 {
            let log = bed.log(number, rank, LogStream::Err);
            assert!(log.contains(why), "{argv:?}: {log:?}");
        }
    }
    let mut launch = bed.launch(9, 1, &["true"]);
    launch.env.insert("A".into(), "b\0c".into());
    bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
    assert_eq!(bed.agent.outcomes(&launch).0, [RankOutcome::NotStarted { code: 126 }]);
    bed.end();
}

pub fn environment_and_logs() {
    let mut bed = Bed::ready(Setting::default());
    let script = "echo $LATTICE_RANK $LATTICE_LOCAL_RANK $LATTICE_LOCAL_SIZE $PMI_RANK/$PMI_SIZE $PMI_JOBID $A $(id -u) $(pwd); \
                  echo e$PMI_RANK >&2; [ -S /proc/self/fd/$PMI_FD ] && echo socket; read x || echo eof; \
                  ls /proc/self/fd | wc -l; echo again >> /dev/stdout; cut -d' ' -f6 /proc/$$/stat | grep -qx $$ && echo leader";
    let mut launch = bed.launch(3, 2, &["sh", "-c", script]);
    launch.env.insert("A".into(), "b c".into());
    launch.env.insert("PMI_RANK".into(), "99".into());
    launch.nodes =
        vec![NodeRanks { node: "n0".parse().unwrap(), first: 0, count: 3 }, NodeRanks { node: "n1".parse().unwrap(), first: 3, count: 2 }];
    bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
    assert_eq!(bed.agent.outcomes(&launch).0, [exited(0); 2]);
    let uid = bed.config.owner.uid;
    // ls itself opens the directory: 0, 1, 2, 3 and its own descriptor.
    assert_eq!(bed.log(3, 4, LogStream::Out), format!("4 1 2 4/5 3 b c {uid} /tmp\nsocket\neof\n5\nagain\nleader\n"));
    assert_eq!(bed.log(3, 3, LogStream::Err), "e3\n");
    let log = fs::metadata(bed.dir.log(3, 3, LogStream::Out)).unwrap();
    assert_eq!((log.uid(), log.mode() & 0o777), (uid, 0o600));
    for path in [&bed.dir.0, &bed.dir.logs()] {
        let dir = fs::metadata(path).unwrap();
        assert_eq!((dir.uid(), dir.mode() & 0o777), (0, 0o700));
    }
    bed.end();
}

fn start_script(bed: &mut Bed, text: &str, args: &[&str]) {
    let env = vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned()), ("WHO".to_owned(), "world".to_owned())];
    let args = args.iter().map(|a| (*a).to_owned()).collect();
    bed.agent.send(&ToShim::StartScript { text: text.into(), args, env, working_dir: "/tmp".into() });
}

fn script_ended(bed: &mut Bed) -> RankOutcome {
    let seen = bed.agent.until("ScriptEnded", |m| matches!(m, FromShim::ScriptEnded { .. }));
    assert_eq!(seen[0], FromShim::ScriptStarted);
    match seen.last() {
        Some(FromShim::ScriptEnded { outcome }) => *outcome,
        other => panic!("{other:?}"),
    }
}

pub fn script() {
    for (text, outcome, out, err) in [
        ("#!/bin/sh -e\necho hello $WHO $1 $(id -u) $(pwd)\nexit 5\n", exited(5), "hello world a b 65534 /tmp\n", ""),
        ("echo no interpreter line\nfalse\ncat < /dev/null\n", exited(0), "no interpreter line\n", ""),
        ("#!/usr/bin/env -S bash -u\n[[ x == x ]] && echo bash; echo $NOPE\n", exited(1), "bash\n", "NOPE: unbound variable"),
        ("#!/no/such/interpreter\n", RankOutcome::NotStarted { code: 127 }, "", "/no/such/interpreter"),
        ("#!/etc/passwd\n", RankOutcome::NotStarted { code: 126 }, "", "/etc/passwd"),
    ] {
        let mut bed = Bed::ready(Setting::default());
        start_script(&mut bed, text, &["a b"]);
        assert_eq!(script_ended(&mut bed), outcome, "{text}");
        assert_eq!(bed.log(0, 0, LogStream::Out), out);
        let log = bed.log(0, 0, LogStream::Err);
        assert!(log.contains(err) && log.is_empty() == err.is_empty(), "{text}: {log}");
        assert_eq!(exits::read(&bed.dir).unwrap(), [ExitRecord::Script { outcome }]);
        bed.end();
    }
}

pub fn script_once() {
    let mut bed = Bed::ready(Setting::default());
    for _ in 0..3 {
        start_script(&mut bed, "echo once\n", &[]);
    }
    assert_eq!(script_ended(&mut bed), exited(0));
    start_script(&mut bed, "echo once\n", &[]);
    bed.agent.until("ScriptEnded again", |m| matches!(m, FromShim::ScriptEnded { .. }));
    assert_eq!(bed.log(0, 0, LogStream::Out), "once\n");
    bed.end();
}

pub fn launch_once() {
    let mut bed = Bed::ready(Setting::default());
    let launch = bed.start_sh(1, 1, "echo once; read x <&3");
    bed.wait_log(1, 0, "once");
    bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
    // The launch lives, so this has no effect.
    bed.agent.send(&ToShim::Forget { launch: launch.id });
    bed.scope().launch(launch.number).signal(libc::SIGKILL);
    assert_eq!(bed.agent.outcomes(&launch).0, [RankOutcome::Signalled { signal: 9 }]);
    bed.reconnect();
    assert!(bed.agent.synced().contains(&FromShim::LaunchStarted { launch: launch.clone() }));
    bed.agent.send(&ToShim::Forget { launch: launch.id });
    bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
    bed.reconnect();
    assert_eq!(bed.agent.synced().len(), 3, "Hello, Ready, Synced");
    assert_eq!(bed.log(1, 0, LogStream::Out), "once\n");
    bed.end();
}

pub fn refused() {
    let mut bed = Bed::ready(Setting::default());
    let good = bed.start_sh(1, 1, "read x <&3");
    let ranks = |first, count| vec![NodeRanks { node: "n1".parse().unwrap(), first, count }];
    let mut bad = vec![bed.launch(1, 1, &["true"]), bed.launch(0, 1, &["true"])];
    for nodes in [ranks(0, 0), ranks(0, 5000), ranks(u32::MAX, 2), ranks(7, 1), vec![]] {
        let mut launch = bed.launch(2, 1, &["true"]);
        launch.nodes = nodes;
        bad.push(launch);
    }
    let mut stale = bed.launch(2, 1, &["true"]);
    stale.epoch = Epoch(6);
    bad.push(stale);
    for launch in bad {
        bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
        let seen = bed.agent.until("a refusal", |m| matches!(m, FromShim::Aborted { .. }));
        assert!(matches!(seen.last(), Some(FromShim::Aborted { launch: id, code: 125, .. }) if *id == launch.id), "{launch:?}: {seen:?}");
    }
    assert!(!bed.scope().launch(1).processes().is_empty(), "the good one lives");
    bed.agent.send(&ToShim::Stop { why: StopReason::Requested, grace_ms: 200 });
    let late = bed.start_sh(9, 1, "true");
    let seen = bed.agent.until("a refusal", |m| matches!(m, FromShim::Aborted { .. }));
    assert!(matches!(seen.last(), Some(FromShim::Aborted { launch, .. }) if *launch == late.id && late.id != good.id));
    bed.end();
}

/// Ignores SIGTERM, and so does its child, which has left its session.
const STUBBORN: &str = "trap '' TERM; setsid sh -c \"trap '' TERM; sleep 1000\" & echo up; sleep 1000; sleep 1000";

fn ends_by_walltime(mut bed: Bed) {
    let launch = bed.start_sh(1, 2, STUBBORN);
    (0..2).for_each(|rank| bed.wait_log(1, rank, "up"));
    let begin = Instant::now();
    bed.agent.send(&ToShim::Go { walltime_ms: 200_000 });
    std::thread::sleep(Duration::from_millis(100));
    // The walltime runs already: the last Go counts, from the beginning.
    bed.agent.send(&ToShim::Go { walltime_ms: 200 });
    let (outcomes, seen) = bed.agent.outcomes(&launch);
    assert_eq!(outcomes, [RankOutcome::Signalled { signal: 9 }; 2]);
    assert!(seen.contains(&FromShim::Going));
    bed.agent.until("Stopped", |m| *m == FromShim::Stopped { why: StopReason::Walltime });
    assert!(begin.elapsed().as_millis() >= 500, "200 ms of walltime and 300 ms of grace");
    assert_eq!(exits::read(&bed.dir).unwrap().last(), Some(&ExitRecord::Stopped { why: StopReason::Walltime }));
    assert_eq!(identity::descendants(bed.pid), []);
    bed.quit();
}

pub fn walltime() {
    ends_by_walltime(Bed::ready(Setting::default()));
}

pub fn walltime_without_scope() {
    ends_by_walltime(Bed::ready(Setting { without_scope: true, ..Setting::default() }));
}

fn ends_daemons(mut bed: Bed) {
    let launch = bed.start_sh(1, 2, "setsid sh -c 'echo up; sleep 1000' & exit 0");
    assert_eq!(bed.agent.outcomes(&launch).0, [exited(0); 2]);
    (0..2).for_each(|rank| bed.wait_log(1, rank, "up"));
    assert!(identity::descendants(bed.pid).len() >= 2, "they outlive their ranks");
    bed.agent.send(&ToShim::Stop { why: StopReason::Requested, grace_ms: 60_000 });
    bed.agent.until("Stopped", |m| *m == FromShim::Stopped { why: StopReason::Requested });
    assert_eq!(identity::descendants(bed.pid), []);
    // A Stop is final.
    bed.agent.send(&ToShim::Stop { why: StopReason::Walltime, grace_ms: 0 });
    bed.agent.until("Stopped", |m| *m == FromShim::Stopped { why: StopReason::Requested });
    bed.quit();
}

pub fn daemons() {
    ends_daemons(Bed::ready(Setting::default()));
    // Quit alone leaves no process either.
    let mut bed = Bed::ready(Setting::default());
    bed.start_sh(1, 1, STUBBORN);
    bed.wait_log(1, 0, "up");
    bed.quit();
}

pub fn daemons_without_scope() {
    ends_daemons(Bed::ready(Setting { without_scope: true, ..Setting::default() }));
}

/// Ending all work includes a `lattice launch` in a script, which then aborts its own ranks.
pub fn grace_of_an_abort() {
    let mut bed = Bed::ready(Setting::default());
    // The signal of the abort must be ignored once the rank saves: it would restart the save.
    let saves = "trap 'trap \"\" TERM; sleep 2.5; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    let launch = bed.start_sh(1, 1, saves);
    bed.wait_log(1, 0, "up");
    bed.agent.send(&ToShim::Stop { why: StopReason::Walltime, grace_ms: 20_000 });
    bed.agent.until("Stopping", |m| *m == FromShim::Stopping { why: StopReason::Walltime });
    bed.agent.send(&ToShim::Abort { launch: launch.id, code: 143, why: "interrupted".into() });
    assert_eq!(bed.agent.outcomes(&launch).0, [exited(0)]);
    assert_eq!(bed.log(1, 0, LogStream::Out), "up\nsaved\n");
    bed.agent.until("Stopped", |m| matches!(m, FromShim::Stopped { .. }));
    bed.quit();
}

pub fn image() {
    let mut bed = Bed::ready(Setting { image: Some("in the image\n"), ..Setting::default() });
    let at = bed.config.image.clone().unwrap().1;
    let launch = bed.start_sh(1, 2, &format!("cat {0}/hello; echo no > {0}/hello; grep {0} /proc/self/mounts; read x <&3", at.display()));
    for rank in 0..2 {
        bed.wait_log(1, rank, "squashfs");
        let log = bed.log(1, rank, LogStream::Out);
        assert!(log.starts_with("in the image\n") && log.contains("ro,nosuid,nodev"), "{log}");
        assert!(bed.log(1, rank, LogStream::Err).contains("Read-only file system"));
    }
    assert_eq!(fs::read_dir(&at).unwrap().count(), 0, "seen inside only");
    bed.agent.send(&ToShim::Stop { why: StopReason::Requested, grace_ms: 100 });
    assert_eq!(bed.agent.outcomes(&launch).0, [RankOutcome::Signalled { signal: 15 }; 2]);
    bed.agent.until("Stopped", |m| matches!(m, FromShim::Stopped { .. }));
    bed.quit();

    // A shim that is killed leaves no loop device either.
    let mut bed = Bed::ready(Setting { image: Some("x"), ..Setting::default() });
    let image = bed.config.image.clone().unwrap().0;
    assert_eq!(lattice_runtime::mounts::loops_of(&image).unwrap().len(), 1);
    bed.scope().whole().kill().unwrap();
    assert_eq!(bed.wait_shim(), RankOutcome::Signalled { signal: 9 });
    eventually("the loop device to free itself", || lattice_runtime::mounts::loops_of(&image).unwrap().is_empty());
}

pub fn damaged_image() {
    let path = std::env::temp_dir().join(format!("lattice-damaged-{}.sqfs", std::process::id()));
    fs::write(&path, [b"hsqs".as_slice(), &[0xff; 8192]].concat()).unwrap();
    let mut bed = Bed::new(Setting { image_file: Some(path.clone()), ..Setting::default() });
    let replay = bed.agent.synced();
    fs::remove_file(path).unwrap();
    assert!(matches!(&replay[1], FromShim::Ready { failed: Some(why) } if why.contains("could not be mounted")), "{replay:?}");
    let launch = bed.start_sh(1, 1, "true");
    let seen = bed.agent.until("a refusal", |m| matches!(m, FromShim::Aborted { .. }));
    assert!(matches!(seen.last(), Some(FromShim::Aborted { launch: id, .. }) if *id == launch.id));
    start_script(&mut bed, "true\n", &[]);
    assert_eq!(script_ended(&mut bed), RankOutcome::NotStarted { code: 126 });
    assert!(bed.log(0, 0, LogStream::Err).contains("could not be mounted"));
    bed.end();
}

pub fn sixteen_images() {
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut bed = Bed::ready(Setting { image: Some("one of many\n"), ..Setting::default() });
                let at = bed.config.image.clone().unwrap().1;
                let launch = bed.start_sh(1, 1, &format!("cat {}/hello", at.display()));
                assert_eq!(bed.agent.outcomes(&launch).0, [exited(0)]);
                assert_eq!(bed.log(1, 0, LogStream::Out), "one of many\n");
                bed.end();
            });
        }
    });
}
