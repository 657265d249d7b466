use super::*;

fn event(kind: u32, number: u32, result: i64) -> Event {
    // SAFETY: an event consists of numbers, for which every pattern of bits is a value.
    let mut event: Event = unsafe { std::mem::zeroed() };
    (event.kind, event.number, event.result, event.descriptor) = (kind, number, result, libc::AT_FDCWD);
    (event.at_ns, event.pid_tid, event.gid_uid) = (1_500_000_000, 7 << 32 | 8, 100 << 32 | 1000);
    event.command[..4].copy_from_slice(b"a.ou");
    event
}

fn parsed(event: &Event, data: &[u8]) -> Value {
    let owner = Owner { uid: 1000, name: "ada".to_owned() };
    let line = of(event, data, Clocks { now_ms: 1_000_000, boottime_ms: 2000 }, &owner);
    let text = String::from_utf8(line).unwrap();
    assert!(text.starts_with("{\"at_ms\":") && text.ends_with("}\n") && text.matches('\n').count() == 1, "{text}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn an_opened_file_is_reported_with_its_user_and_result() {
    let mut opened = event(CALL_OPENAT, call_number("openat"), 3);
    opened.flags = (libc::O_WRONLY | libc::O_CREAT | libc::O_CLOEXEC) as u64;
    let want = json!({
        "at_ms": 999_500, "event": "open", "call": "openat", "pid": 7, "tid": 8, "uid": 1000, "user": "ada", "gid": 100, "command": "a.ou",
        "path": "/data/x", "flags": "O_WRONLY|O_CREAT|O_CLOEXEC", "result": 3,
    });
    assert_eq!(parsed(&opened, b"/data/x\0"), want);
    let mut missing = event(CALL_OPENAT, call_number("openat"), -2);
    (missing.gid_uid, missing.descriptor, missing.flags) = (5, 9, 1 << 40);
    let line = parsed(&missing, b"x\xff\0");
    assert_eq!((&line["error"], &line["user"], &line["directory_fd"]), (&"ENOENT".into(), &Value::Null, &9.into()));
    assert_eq!((&line["path"], &line["path_hex"]), (&"x\u{fffd}".into(), &"78ff".into()));
    assert_eq!(line["flags"], "O_RDONLY|0x10000000000");
    missing.unread = 1;
    assert_eq!(parsed(&missing, b"")["path"], Value::Null);
    for (result, error) in [(-512, "interrupted"), (-4095, "4095")] {
        assert_eq!(parsed(&Event { result, ..missing }, b"")["error"], error);
    }
}

#[test]
fn connections_are_reported_with_addresses_of_every_family() {
    let mut connect = event(CALL_CONNECT, call_number("connect"), -111);
    (connect.family, connect.socket_type, connect.protocol) = (2, 1, 6);
    let address = |of: u16, rest: &[u8]| [&of.to_ne_bytes()[..], rest].concat();
    let line = parsed(&connect, &address(2, &[0, 80, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!((&line["address"], &line["port"], &line["protocol"]), (&"10.0.0.1".into(), &80.into(), &"tcp".into()));
    assert_eq!((&line["error"], &line["family"]), (&"ECONNREFUSED".into(), &"inet".into()));
    let six = [&[1, 187, 0, 0, 0, 0][..], &Ipv6Addr::LOCALHOST.octets(), &[0; 4]].concat();
    let line = parsed(&connect, &address(10, &six));
    assert_eq!((&line["address"], &line["port"]), (&"::1".into(), &443.into()));
    assert_eq!(parsed(&connect, &address(1, b"/run/x\0\0"))["address"], "/run/x");
    assert_eq!(parsed(&connect, &address(1, b"\0hidden"))["address"], "@hidden");
    assert_eq!(parsed(&connect, &address(44, b"ab"))["address_hex"], "6162");
    // An address that is too short is given as it is.
    for short in [&b""[..], b"\x02", b"\x02\0\0", b"\x0a\0\0\x50\0\0\0\0\x01"] {
        assert!(parsed(&connect, short)["port"].is_null(), "{short:?}");
    }
    let mut accept = event(CALL_ACCEPT, call_number("accept4"), 5);
    (accept.family, accept.socket_type, accept.protocol) = (2, 1, 6);
    (accept.remote_port, accept.local_port) = (40_000u16.to_be(), 22);
    accept.remote[..4].copy_from_slice(&[192, 168, 0, 9]);
    let line = parsed(&accept, b"");
    assert_eq!((&line["address"], &line["port"], &line["local_port"]), (&"192.168.0.9".into(), &40_000.into(), &22.into()));
}

#[test]
fn partial_events_and_gaps_are_recorded_as_such() {
    let line = parsed(&event(CALL_URING, URING_OPENAT, 0), b"/data/y\0");
    assert_eq!((&line["event"], &line["call"], &line["path"]), (&"io_uring".into(), &"openat".into(), &"/data/y".into()));
    assert!(line.get("result").is_none());
    let line = parsed(&event(CALL_COMPAT, 5, 3), b"");
    assert_eq!((&line["event"], &line["call"], &line["result"]), (&"call_32".into(), &"open".into(), &3.into()));
    let lines = [begun(5), gap(3, 9), lost(9, 4)].map(|line| serde_json::from_slice::<Value>(&line).unwrap());
    assert_eq!(lines[1], json!({ "at_ms": 9, "event": "gap", "from_ms": 3, "to_ms": 9 }));
    assert_eq!((&lines[0]["at_ms"], &lines[2]["count"]), (&5.into(), &4.into()));
}

fn call_number(name: &str) -> u32 {
    (0..500).find(|number| call_name(CALL_OPEN, *number) == Some(name)).unwrap()
}
