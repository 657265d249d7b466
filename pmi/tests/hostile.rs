//! Ranks and heads that send arbitrary data: nothing panics, memory stays bounded, and only the
//! launch itself is affected.

use lattice_pmi::{Action, BLOB_BYTES_MAX, Event, Job, LINE_BYTES_MAX, MAPPING_BYTES_MAX, MESSAGE_BYTES_MAX, Server};
use proptest::prelude::*;

fn server(size: u32, first: u32, count: u32) -> Server {
    Server::new(Job {
        number: 1,
        kvsname: "kvs".into(),
        size,
        first,
        count,
        ranks: vec![],
        appnums: vec![],
        mapping: "(vector,(0,1,2))".into(),
        part: u32::from(first > 0),
        nodes: vec![],
        runs: vec![],
    })
}

fn send(server: &mut Server, local: u32, data: &[u8]) -> Vec<Action> {
    let mut out = Vec::new();
    server.handle(Event::Bytes { local, data }, &mut out);
    out
}

fn replies(out: &[Action]) -> String {
    let sent = out.iter().filter_map(|action| match action {
        Action::Send { bytes, .. } => Some(String::from_utf8_lossy(bytes).into_owned()),
        Action::LastCommand { .. } | Action::Fence { .. } | Action::Call(_) | Action::Abort { .. } => None,
    });
    sent.collect()
}

const INIT: &[u8] = b"cmd=init pmi_version=1 pmi_subversion=1\n";
const INIT_2: &[u8] = b"cmd=init pmi_version=2 pmi_subversion=0\n";

/// A PMI-2 message with its length prefix.
fn message(body: &str) -> Vec<u8> {
    format!("{:6}{body}", body.len()).into_bytes()
}

#[derive(Clone, Debug)]
enum Happening {
    Bytes(u32, Vec<u8>),
    Closed(u32),
    Exited(u32, i32),
    FenceDone(u32, Vec<u8>),
}

fn words() -> impl Strategy<Value = Vec<u8>> {
    let word = prop::sample::select(vec![
        "cmd=",
        "mcmd=",
        "init",
        "get_maxes",
        "put",
        "get",
        "barrier_in",
        "finalize",
        "abort",
        "spawn",
        "endcmd",
        "publish_name",
        " ",
        " ",
        "\n",
        "\n",
        "\n",
        "key=",
        "k",
        "kvsname=kvs",
        "value=",
        "pmi_version=1",
        "pmi_version=2",
        "pmi_subversion=1",
        "exitcode=",
        "99999999999",
        "-1",
        "=",
        "\0",
        "totspawns=2",
        "initack",
        "idx=0",
        "getbyidx",
        "PMI_process_mapping",
        "10    ",
        "    24",
        ";",
        ";",
        "cmd=kvs-put;",
        "thrid=",
        "wait=TRUE",
        "ring-left=x",
    ]);
    prop::collection::vec(word, 0..30).prop_map(|words| words.concat().into_bytes())
}

fn good_lines() -> impl Strategy<Value = Vec<u8>> {
    let line = prop::sample::select(vec![
        "cmd=init pmi_version=1 pmi_subversion=1\n",
        "cmd=get_maxes\n",
        "cmd=put kvsname=kvs key=k value=v\n",
        "cmd=get kvsname=kvs key=k\n",
        "cmd=barrier_in\n",
        "cmd=finalize\n",
        "mcmd=spawn\n",
        "endcmd\n",
    ]);
    prop::collection::vec(line, 0..5).prop_map(|lines| lines.concat().into_bytes())
}

fn good_messages() -> impl Strategy<Value = Vec<u8>> {
    let body = prop::sample::select(vec![
        "cmd=fullinit;pmijobid=1;threaded=FALSE;",
        "cmd=kvs-put;key=k;value=v;",
        "cmd=kvs-get;jobid=;srcid=-1;key=k;",
        "cmd=kvs-fence;",
        "cmd=kvs-fence;thrid=1;",
        "cmd=ring;ring-count=1;ring-left=x;ring-right=x;",
        "cmd=info-putnodeattr;key=k;value=v;",
        "cmd=info-getnodeattr;key=k;wait=TRUE;",
        "cmd=info-getnodeattr;key=other;wait=TRUE;thrid=2;",
        "cmd=name-publish;name=n;port=p;",
        "cmd=name-lookup;name=n;",
        "cmd=abort;isworld=TRUE;msg=m;",
        "cmd=abort;exitcode=3;",
        "cmd=finalize;",
    ]);
    let messages = prop::collection::vec(body, 0..5).prop_map(|bodies| bodies.into_iter().flat_map(message).collect::<Vec<_>>());
    (any::<bool>(), messages).prop_map(|(init, messages)| if init { [INIT_2, &messages].concat() } else { messages })
}

fn happening() -> impl Strategy<Value = Happening> {
    let bytes = prop_oneof![
        3 => good_lines(),
        3 => good_messages(),
        2 => words(),
        1 => prop::collection::vec(any::<u8>(), 0..200),
        1 => (0..3 * LINE_BYTES_MAX).prop_map(|len| vec![b'x'; len]),
    ];
    prop_oneof![
        8 => (0..4u32, bytes).prop_map(|(local, bytes)| Happening::Bytes(local, bytes)),
        1 => (0..4u32).prop_map(Happening::Closed),
        1 => (0..4u32, any::<i32>()).prop_map(|(local, code)| Happening::Exited(local, code)),
        2 => (0..3u32, prop_oneof![Just(vec![]), prop::collection::vec(any::<u8>(), 0..20)]).prop_map(|(n, b)| Happening::FenceDone(n, b)),
    ]
}

fn event(happening: &Happening) -> Event<'_> {
    match happening {
        Happening::Bytes(local, data) => Event::Bytes { local: *local, data },
        Happening::Closed(local) => Event::Closed { local: *local },
        Happening::Exited(local, code) => Event::Exited { local: *local, code: *code },
        Happening::FenceDone(number, blob) => Event::FenceDone { number: *number, blob },
    }
}

proptest! {
    #[test]
    fn an_abort_is_emitted_once_and_last(happenings in prop::collection::vec(happening(), 0..40), nodes in 1..3u32) {
        let mut server = server(3 * nodes, 0, 3);
        let mut out = Vec::new();
        for happening in &happenings {
            server.handle(event(happening), &mut out);
        }
        let aborts = out.iter().filter(|action| matches!(action, Action::Abort { .. })).count();
        prop_assert!(aborts <= 1);
        if aborts == 1 {
            let abort_is_last = matches!(out.last(), Some(Action::Abort { .. }));
            prop_assert!(abort_is_last);
            prop_assert_eq!(server.replay().pop(), out.last().cloned());
        }
        let fences: Vec<&Action> = out.iter().filter(|action| matches!(action, Action::Fence { .. })).collect();
        for (i, fence) in fences.iter().enumerate() {
            let Action::Fence { number, .. } = fence else { unreachable!() };
            prop_assert_eq!(*number as usize, i + 1);
        }
        let replayed: Vec<Action> = server.replay().into_iter().filter(|action| matches!(action, Action::Fence { .. })).collect();
        prop_assert!(fences.ends_with(&replayed.iter().collect::<Vec<_>>()), "a replay repeats what was emitted");
        prop_assert!(nodes > 1 || fences.is_empty());
    }

    #[test]
    fn a_rank_that_dies_in_mpi_fails_its_launch_with_its_code(code in 0..256i32, sent in prop::sample::select(vec!["", "cmd=barrier_in\n", "mcmd=spawn\n"])) {
        let mut server = server(2, 0, 2);
        send(&mut server, 1, &[INIT, sent.as_bytes()].concat());
        let mut out = Vec::new();
        server.handle(Event::Exited { local: 1, code }, &mut out);
        let [Action::Abort { code: exit_code, why }] = &out[..] else { panic!("{out:?}") };
        prop_assert_eq!(*exit_code, if code == 0 { 1 } else { code });
        let named = why.contains(&format!(" code {code} "));
        prop_assert!(named, "{}", why);
        prop_assert_eq!(why.contains("signal"), (129..=192).contains(&code), "{}", why);
    }

    #[test]
    fn where_bytes_are_cut_does_not_matter(data in prop_oneof![good_lines(), good_messages(), words(), prop::collection::vec(any::<u8>(), 0..100)], two in any::<bool>(), cut in any::<prop::sample::Index>()) {
        let (mut whole, mut cut_in_two) = (server(2, 0, 1), server(2, 0, 1));
        let init = if two { INIT_2 } else { INIT };
        let mut expected = send(&mut whole, 0, init);
        expected.extend(send(&mut whole, 0, &data));
        let mut got = send(&mut cut_in_two, 0, init);
        let (a, b) = data.split_at(cut.index(data.len() + 1));
        got.extend(send(&mut cut_in_two, 0, a));
        got.extend(send(&mut cut_in_two, 0, b));
        prop_assert_eq!(got, expected);
    }
}

#[test]
fn a_line_has_a_length_limit_wherever_it_is_cut() {
    let too_long = vec![b'x'; LINE_BYTES_MAX + 1];
    let expected = [Action::Abort { code: 1, why: "rank 5 sent a line of more than 8192 bytes, which is not PMI".into() }];
    assert_eq!(send(&mut server(8, 4, 2), 1, &too_long), expected, "before its end");
    assert_eq!(send(&mut server(8, 4, 2), 1, &[&too_long[..], b"\n"].concat()), expected, "with its end");
    let mut cut = server(8, 4, 2);
    assert_eq!(send(&mut cut, 1, &too_long[1..]), []);
    assert_eq!(send(&mut cut, 1, b"x"), expected, "in pieces");

    let mut at_the_limit = server(8, 4, 2);
    assert_eq!(send(&mut at_the_limit, 1, INIT).len(), 1);
    assert_eq!(send(&mut at_the_limit, 1, &vec![b' '; LINE_BYTES_MAX - 13]), []);
    assert_eq!(replies(&send(&mut at_the_limit, 1, b"cmd=get_maxes\n")).lines().count(), 1);
}

#[test]
fn a_message_has_a_length_limit_and_holds_nothing_before_it_is_whole() {
    let mut server = server(8, 4, 2);
    send(&mut server, 1, INIT_2);
    let body = |len: usize| format!("cmd=job-getid;x={};", "v".repeat(len - 17));
    assert_eq!(send(&mut server, 1, &message(&body(MESSAGE_BYTES_MAX))).len(), 1);
    assert_eq!(send(&mut server, 1, b" 65536cmd=kvs-fen"), []);
    let why = "rank 4 sent a message of 65537 bytes, and PMI-2 has at most 65536";
    send(&mut server, 0, INIT_2);
    assert_eq!(send(&mut server, 0, b" 65537"), [Action::Abort { code: 1, why: why.into() }]);
}

#[test]
fn a_message_that_counts_six_bytes_too_many_is_read() {
    let mut server = server(2, 0, 1);
    send(&mut server, 0, INIT_2);
    let body = b"cmd=job-getid;\0\xff\x01=ab";
    let sent = [format!("{:6}", body.len()).as_bytes(), body].concat();
    assert_eq!(replies(&send(&mut server, 0, &sent)), "38    cmd=job-getid-response;rc=0;jobid=kvs;");
}

#[test]
fn a_rank_cannot_fill_memory_by_waiting_attributes_or_names() {
    let mut server = server(1, 0, 1);
    send(&mut server, 0, INIT_2);
    let mut until = |what: &str, body: &dyn Fn(u32) -> String| {
        let refused = (0..100_000).find(|n| replies(&send(&mut server, 0, &message(&body(*n)))).contains("rc=2;"));
        assert!(refused.is_some(), "{what} has no limit");
    };
    until("waiting", &|n| format!("cmd=info-getnodeattr;thrid={n};key=never;wait=TRUE;"));
    until("attributes", &|n| format!("cmd=info-putnodeattr;thrid=1;key=k{n};value=v;"));
    until("names", &|n| format!("cmd=name-publish;thrid=1;name=k{n};port=p;"));
}

/// On a node whose request to another node is not answered.
#[test]
fn a_rank_that_waits_for_a_name_asks_no_more_than_its_version_lets_it() {
    let mut server = server(2, 1, 1);
    send(&mut server, 0, INIT_2);
    let ask = |n: usize| message(&format!("cmd=name-lookup;thrid={n};name=k;"));
    let refused = (0..100_000).find(|n| replies(&send(&mut server, 0, &ask(*n))).contains("rc=2;"));
    assert!(refused.is_some() && server.unanswered().is_some(), "{refused:?}");
    let mut server = self::server(2, 1, 1);
    let commands = [INIT, b"cmd=lookup_name service=k\n"].concat();
    assert!(matches!(send(&mut server, 0, &commands).as_slice(), [Action::Send { .. }, Action::Call(_)]));
    let why = "rank 1 sent a PMI command while it waited for the answer about a name";
    assert_eq!(send(&mut server, 0, b"cmd=get_maxes\n"), [Action::Abort { code: 1, why: why.into() }]);
    assert_eq!(server.unanswered(), None);
}

#[test]
fn no_rank_can_put_the_keys_of_a_ring() {
    let mut server = server(1, 0, 1);
    send(&mut server, 0, INIT_2);
    let answer = replies(&send(&mut server, 0, &message("cmd=kvs-put;key=\0ring 1 0;value=mine;")));
    assert!(answer.ends_with("cmd=kvs-put-response;rc=4;errmsg=key_is_reserved;"), "{answer}");
}

#[test]
fn values_have_a_length_limit() {
    let mut server = server(2, 0, 1);
    send(&mut server, 0, INIT);
    let put = |len: usize| [b"cmd=put key=k value=", &vec![b'v'; len][..], b"\n"].concat();
    assert_eq!(replies(&send(&mut server, 0, &put(1024))), "cmd=put_result rc=0\n");
    assert_eq!(replies(&send(&mut server, 0, &put(1025))), "cmd=put_result rc=-1 msg=value_longer_than_vallen_max\n");
}

#[test]
fn a_node_cannot_fill_memory_by_putting() {
    let mut server = server(2, 0, 1);
    send(&mut server, 0, INIT);
    let put = [b"cmd=put key=k value=", &[b'v'; 1024][..], b"\n"].concat().repeat(1000);
    let most = BLOB_BYTES_MAX / (1000 * (4 + 1 + 1024)) + 1;
    for _ in 0..most {
        let out = send(&mut server, 0, &put);
        if replies(&out).contains("rc=-1 msg=key_value_space_is_full") {
            let Some(Action::Fence { blob, .. }) = send(&mut server, 0, b"cmd=barrier_in\n").pop() else { panic!("no fence") };
            assert!(blob.len() <= BLOB_BYTES_MAX);
            return;
        }
    }
    panic!("more was taken than a blob may hold");
}

#[test]
fn corrupt_fence_data_aborts_the_launch() {
    let mut server = server(4, 2, 2);
    send(&mut server, 0, &[INIT, b"cmd=barrier_in\n"].concat());
    send(&mut server, 1, &[INIT, b"cmd=barrier_in\n"].concat());
    let mut out = Vec::new();
    server.handle(Event::FenceDone { number: 2, blob: &[1] }, &mut out);
    assert_eq!(out, [], "not the pending fence");
    server.handle(Event::FenceDone { number: 1, blob: &[1] }, &mut out);
    let why = "fence 1 failed for ranks 2 to 3: the fence data is corrupt at byte 0";
    assert_eq!(out, [Action::Abort { code: 1, why: why.into() }]);
}

#[test]
fn a_mapping_too_long_for_mpich_is_not_found() {
    for (length, found) in [(MAPPING_BYTES_MAX, true), (MAPPING_BYTES_MAX + 1, false)] {
        let mapping = "m".repeat(length);
        let mut server = Server::new(Job {
            number: 1,
            kvsname: "kvs".into(),
            size: 2,
            first: 0,
            count: 1,
            ranks: vec![],
            appnums: vec![],
            mapping,
            part: 0,
            nodes: vec![],
            runs: vec![],
        });
        send(&mut server, 0, INIT);
        let answer = replies(&send(&mut server, 0, b"cmd=get kvsname=kvs key=PMI_process_mapping\n"));
        assert_eq!(answer.starts_with("cmd=get_result rc=0 "), found, "{answer}");
    }
}
