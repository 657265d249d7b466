//! Agents that vanish, agents that violate the protocol, and the end of the shim itself.

use crate::bed::{Agent, Bed, PATIENCE, Setting, eventually};
use lattice_model::RankOutcome;
use lattice_runtime::exits::{self, ExitRecord};
use lattice_runtime::shim::{
    FRAME_BYTES_MAX, FromShim, LogStream, PROTOCOL_MAJOR, StartError, StopReason, ToShim, connect_shim, encode, start_shim,
};
use std::io::Write;
use std::path::Path;

pub fn killed_agent() {
    let mut bed = Bed::ready(Setting::default());
    bed.agent.send(&ToShim::Go { walltime_ms: 3_600_000 });
    let done = bed.start_sh(1, 2, "exit $PMI_RANK");
    bed.agent.outcomes(&done);
    let script = "echo up; i=0; while [ ! -e $GO ]; do i=$((i+1)); echo $i; sleep 0.005; done; echo whole; exit 4";
    let mut running = bed.launch(2, 1, &["sh", "-c", script]);
    running.env.insert("GO".into(), bed.scratch.join("go").display().to_string());
    // The agent's last complete frame, and half of the next.
    let half = encode(&ToShim::StartScript { text: "echo never\n".into(), args: vec![], env: vec![], working_dir: "/".into() }).unwrap();
    bed.agent.send(&ToShim::StartLaunch { launch: running.clone() });
    bed.agent.send_bytes(&half[..half.len() - 3]);
    bed.reconnect();
    bed.wait_log(2, 0, "up");
    let replay = bed.agent.synced();
    let expected = [
        FromShim::Ready { failed: None },
        FromShim::Going,
        FromShim::LaunchStarted { launch: done.clone() },
        FromShim::RankEnded { launch: done.id, rank: 0, outcome: RankOutcome::Exited { code: 0 } },
        FromShim::RankEnded { launch: done.id, rank: 1, outcome: RankOutcome::Exited { code: 1 } },
        FromShim::LaunchStarted { launch: running.clone() },
        FromShim::Synced,
    ];
    let hello =
        FromShim::Hello { protocol: PROTOCOL_MAJOR, allocation: bed.config.allocation, epoch: bed.config.epoch, pid: bed.pid as u32 };
    assert_eq!(replay[0], hello);
    assert_eq!(replay[1..], expected);

    // A rank ends while no agent is connected, and its end is not lost.
    drop(connect_shim(&bed.dir).unwrap());
    std::fs::write(bed.scratch.join("go"), "").unwrap();
    let outcome = RankOutcome::Exited { code: 4 };
    let record = ExitRecord::Rank { launch: running.id, rank: 0, outcome };
    eventually("the end on disk", || exits::read(&bed.dir).unwrap().contains(&record));
    bed.reconnect();
    assert!(bed.agent.synced().contains(&FromShim::RankEnded { launch: running.id, rank: 0, outcome }));
    let log = bed.log(2, 0, LogStream::Out);
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!((lines[0], lines[lines.len() - 1]), ("up", "whole"));
    assert!((1..).zip(&lines[1..lines.len() - 1]).all(|(i, line): (u32, _)| *line == i.to_string()), "every line is there");
    bed.end();
}

pub fn away_during_walltime() {
    let mut bed = Bed::ready(Setting::default());
    let launch = bed.start_sh(1, 1, "echo up; exec sleep 1000");
    bed.wait_log(1, 0, "up");
    bed.agent.send(&ToShim::Go { walltime_ms: 100 });
    bed.agent.until("Going", |m| *m == FromShim::Going);
    // A connection that is closed at once replaces the agent: there is none now.
    drop(connect_shim(&bed.dir).unwrap());
    eventually("the stop on disk", || exits::read(&bed.dir).unwrap().contains(&ExitRecord::Stopped { why: StopReason::Walltime }));
    bed.reconnect();
    let replay = bed.agent.synced();
    let outcome = RankOutcome::Signalled { signal: 15 };
    assert!(replay.contains(&FromShim::RankEnded { launch: launch.id, rank: 0, outcome }), "{replay:?}");
    assert!(replay.contains(&FromShim::Stopped { why: StopReason::Walltime }));
    bed.quit();
}

pub fn last_frame() {
    let mut bed = Bed::ready(Setting::default());
    for number in 1..=20 {
        // At the same moment the shim has something to report, but no agent.
        let running = bed.start_sh(number * 2, 1, "exec sleep 1000");
        bed.agent.until("LaunchStarted", |m| matches!(m, FromShim::LaunchStarted { .. }));
        bed.scope().launch(running.number).signal(libc::SIGKILL);
        let launch = bed.start_sh(number * 2 + 1, 1, "exit 5");
        bed.agent.vanish();
        let record = ExitRecord::Rank { launch: launch.id, rank: 0, outcome: RankOutcome::Exited { code: 5 } };
        eventually("what it said last to be done", || exits::read(&bed.dir).unwrap().contains(&record));
        bed.reconnect();
        bed.agent.synced();
    }
    bed.end();
}

fn dropped(agent: &mut Agent) -> bool {
    loop {
        match agent.next() {
            Some(_) => {}
            None => return true,
        }
    }
}

pub fn hostile_agent() {
    let mut bed = Bed::ready(Setting::default());
    let launch = bed.start_sh(1, 1, "echo up; exec sleep 1000");
    bed.wait_log(1, 0, "up");
    let too_long = u32::try_from(FRAME_BYTES_MAX + 1).unwrap().to_le_bytes();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &too_long, b"\x03\0\0\0\xc1\xc1\xc1", b"\x04\0\0\0\x81\xa2Go\xc0\0\0"] {
        bed.agent.send_bytes(garbage);
        assert!(dropped(&mut bed.agent), "{garbage:x?}");
        bed.reconnect();
    }
    bed.agent.synced();
    bed.agent.send(&ToShim::Hello { protocol: PROTOCOL_MAJOR + 1 });
    assert!(dropped(&mut bed.agent));
    // A peer that does not begin with Hello gets nothing.
    let mut rude = connect_shim(&bed.dir).unwrap();
    std::io::Write::write_all(&mut rude, &encode(&ToShim::Quit).unwrap()).unwrap();
    rude.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(std::io::Read::read(&mut rude, &mut [0; 16]), Ok(0) | Err(_)));
    // Unknown messages of a later agent beside known ones: {"Teleport": nil} and "Hum".
    bed.reconnect();
    bed.agent.send_bytes(b"\x0b\0\0\0\x81\xa8Teleport\xc0\x04\0\0\0\xa3Hum");
    bed.scope().launch(launch.number).signal(libc::SIGTERM);
    assert_eq!(bed.agent.outcomes(&launch).0, [RankOutcome::Signalled { signal: 15 }]);
    bed.end();
}

pub fn newer_agent() {
    let mut bed = Bed::ready(Setting::default());
    let older = connect_shim(&bed.dir).unwrap();
    older.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(dropped(&mut bed.agent), "a newer one is there");
    bed.reconnect();
    bed.agent.synced();
    assert!(matches!(std::io::Read::read(&mut &older, &mut [0; 16]), Ok(0) | Err(_)));
    let launch = bed.start_sh(1, 1, "exit 2");
    assert_eq!(bed.agent.outcomes(&launch).0, [RankOutcome::Exited { code: 2 }]);
    bed.end();
}

pub fn no_descriptors() {
    let mut bed = Bed::ready(Setting::default());
    let open_files = |soft: Option<u64>| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: of our own child, which is not reaped yet; both structures are ours.
        unsafe {
            assert_eq!(libc::prlimit(bed.pid, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut limit), 0);
            let hard = limit.rlim_max;
            limit.rlim_cur = soft.unwrap_or(hard);
            assert_eq!(libc::prlimit(bed.pid, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut()), 0);
        }
    };
    let failures_logged = || std::fs::read_to_string(bed.dir.shim_log()).unwrap_or_default().matches("no agent can be accepted").count();
    let busy_ns = || -> u64 {
        let times = std::fs::read_to_string(format!("/proc/{}/schedstat", bed.pid)).unwrap();
        times.split_whitespace().next().unwrap().parse().unwrap()
    };
    open_files(Some(0));
    let newer = connect_shim(&bed.dir).unwrap();
    eventually("the shim to say so", || failures_logged() > 0);
    let before = busy_ns();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let busy = busy_ns() - before;
    assert!(busy < 100_000_000, "it was busy for {busy} ns of 1.5 s");
    open_files(None);
    eventually("the newer agent to be let in", || dropped(&mut bed.agent));
    assert_eq!(failures_logged(), 1, "once, however often it was tried");
    drop(newer);
    bed.reconnect();
    bed.agent.synced();
    bed.end();
}

pub fn killed_shim() {
    let mut bed = Bed::ready(Setting::default());
    let done = bed.start_sh(1, 1, "exit 6");
    bed.agent.outcomes(&done);
    bed.start_sh(2, 1, "echo up; exec sleep 1000");
    bed.wait_log(2, 0, "up");
    // SAFETY: our own child, not reaped yet.
    unsafe { libc::kill(bed.pid, libc::SIGKILL) };
    assert_eq!(bed.wait_shim(), RankOutcome::Signalled { signal: 9 });
    assert!(connect_shim(&bed.dir).is_err());
    assert_eq!(exits::read(&bed.dir).unwrap(), [ExitRecord::Rank { launch: done.id, rank: 0, outcome: RankOutcome::Exited { code: 6 } }]);
    assert_eq!(bed.scope().work().processes().len(), 1, "the stray");
    bed.scope().whole().kill().unwrap();
    assert!(bed.scope().whole().wait_empty(PATIENCE).unwrap());
    bed.scope().whole().remove().unwrap();
}

pub fn deep_directory() {
    let deep = ["long-state-directory-name"; 8].join("/");
    let bed = Bed::ready(Setting { deep, ..Setting::default() });
    assert!(bed.dir.socket().as_os_str().len() > 200);
    let again = start_shim(Path::new(env!("CARGO_BIN_EXE_lattice-shim")), &bed.dir, &bed.config);
    assert!(matches!(again, Err(StartError::AlreadyRunning { .. })), "{again:?}");
    // The failed start connected and so replaced our connection.
    let mut bed = bed;
    bed.reconnect();
    bed.agent.synced();
    bed.end();

    let mut bed = Bed::ready(Setting::default());
    bed.agent.send(&ToShim::Quit);
    bed.wait_shim();
    let missing = start_shim(Path::new("/no/such/shim"), &bed.dir, &bed.config);
    assert!(matches!(missing, Err(StartError::NotStarted(n)) if n.code == 127));
    assert!(!bed.dir.socket().exists());
}

pub fn full_disk() {
    let mut bed = Bed::ready(Setting { deep: "small".into(), disk_kib: Some(512), ..Setting::default() });
    let script = "head -c 2000000 /dev/zero; head -c 2000000 /dev/zero >&2; touch $UP; trap '' TERM; sleep 1000; sleep 1000";
    let mut launch = bed.launch(1, 2, &["sh", "-c", script]);
    let up = bed.scratch.join("up");
    std::fs::set_permissions(&bed.scratch, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    launch.env.insert("UP".into(), up.display().to_string());
    bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
    eventually("the disk to be full", || up.exists());
    let late = bed.start_sh(2, 1, "echo lost; exit 3");
    assert_eq!(bed.agent.outcomes(&late).0, [RankOutcome::Exited { code: 3 }]);
    bed.agent.send(&ToShim::Go { walltime_ms: 50 });
    bed.agent.until("Stopped", |m| *m == FromShim::Stopped { why: StopReason::Walltime });
    let killed = |rank| ExitRecord::Rank { launch: launch.id, rank, outcome: RankOutcome::Signalled { signal: 9 } };
    let records = exits::read(&bed.dir).unwrap();
    assert_eq!(records.len(), 4, "what was reserved is there for all of them: {records:?}");
    assert!(records.contains(&killed(0)) && records.contains(&killed(1)));
    bed.quit();
}

pub fn full_before_the_script() {
    const SCRIPT: &str = "#!/bin/sh\nexit 5\n";
    let mut bed = Bed::ready(Setting { deep: "small".into(), disk_kib: Some(512), script: Some(SCRIPT), ..Setting::default() });
    let mut filler = std::fs::File::create(bed.dir.0.join("filler")).unwrap();
    while filler.write_all(&[0; 4096]).is_ok() {}
    let env = vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())];
    bed.agent.send(&ToShim::StartScript { text: SCRIPT.into(), args: vec![], env, working_dir: "/".into() });
    let seen = bed.agent.until("ScriptEnded", |m| matches!(m, FromShim::ScriptEnded { .. }));
    assert_eq!(seen.last(), Some(&FromShim::ScriptEnded { outcome: RankOutcome::Exited { code: 5 } }));
    bed.quit();
}

pub fn small() {
    let mut bed = Bed::ready(Setting::default());
    let launch = bed.start_sh(1, 64, "read x <&3");
    bed.agent.until("LaunchStarted", |m| matches!(m, FromShim::LaunchStarted { .. }));
    let status = std::fs::read_to_string(format!("/proc/{}/status", bed.pid)).unwrap();
    let value = |name: &str| -> u64 {
        let line = status.lines().find(|l| l.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    println!("the shim with 64 ranks: {} kB resident, {} kB its own", value("VmRSS:"), value("RssAnon:"));
    assert!(value("VmRSS:") < 12 * 1024 && value("RssAnon:") < 4 * 1024, "{status}");
    assert_eq!(value("Threads:"), 1);
    // Without events the shim is idle: it is not scheduled again.
    let runs = || std::fs::read_to_string(format!("/proc/{}/schedstat", bed.pid)).unwrap().split_whitespace().nth(2).map(str::to_owned);
    eventually("an idle shim to sleep", || {
        let before = runs();
        std::thread::sleep(std::time::Duration::from_millis(200));
        before == runs()
    });
    bed.agent.send(&ToShim::Abort { launch: launch.id, code: 1, why: "enough".into() });
    bed.agent.outcomes(&launch);
    bed.end();
}
