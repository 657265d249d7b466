use super::*;
use crate::log_store::Place;
use crate::output_index::{Chunk, Cut};
use crate::spool::{Settings, Spools};
use lattice_agent_common::config::logs::StoreSettings;
use lattice_model::{AllocationId, Epoch};
use std::io::Write;
use std::path::PathBuf;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

struct Dir(ShimDir);

impl Dir {
    fn new(name: &str) -> Self {
        let path: PathBuf = std::env::temp_dir().join(format!("lattice-logs-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("logs")).unwrap();
        Self(ShimDir(path))
    }

    fn append(&self, file: &str, text: &str) {
        let path = self.0.logs().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn truncate(&self, file: &str) {
        std::fs::OpenOptions::new().write(true).truncate(true).open(self.0.logs().join(file)).unwrap();
    }

    fn spool(&self) -> Arc<Spool> {
        let settings = Settings { state_dir: self.0.0.clone(), flush: Duration::from_secs(1), bytes_max: 0 };
        let spools = Spools::new(None, settings, TaskTracker::new(), CancellationToken::new());
        spools.of(&self.0, allocation(), Epoch(1), &"n1".parse().unwrap())
    }

    fn store(&self) -> LogStore {
        let url = format!("file://{}/store", self.0.0.display());
        LogStore::open(&StoreSettings { url, ..StoreSettings::default() }).unwrap()
    }

    /// Everything that one read gives.
    async fn read(&self, wanted: Wanted) -> Vec<LogItem> {
        self.read_with(self.spool(), None, wanted).await
    }

    async fn read_with(&self, spool: Arc<Spool>, store: Option<LogStore>, wanted: Wanted) -> Vec<LogItem> {
        let (send, mut receive) = mpsc::channel(64);
        tail(self.0.clone(), spool, store, wanted, None, send).await;
        std::iter::from_fn(|| receive.try_recv().ok()).collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0.0);
    }
}

fn allocation() -> AllocationId {
    "00000000-0000-4000-8000-000000000001".parse().unwrap()
}

fn wanted(launch: u32) -> Wanted {
    Wanted { launch, stdout: true, stderr: true, ..Wanted::default() }
}

fn at(segment: u32, offset: u64) -> Position {
    Position { segment, offset }
}

fn chunk(rank: u32, stderr: bool, text: &str, end: u64) -> LogItem {
    in_segment(0, rank, stderr, text, end)
}

fn in_segment(segment: u32, rank: u32, stderr: bool, text: &str, end: u64) -> LogItem {
    LogItem::Chunk { rank, stderr, data: text.as_bytes().to_vec(), segment, end }
}

#[tokio::test]
async fn output_is_sent_by_rank_and_only_of_the_launch() {
    let dir = Dir::new("there");
    dir.append("1/1.out", "b\n");
    dir.append("1/0.out", "a\nrest");
    dir.append("1/0.err", "e\n");
    dir.append("2/0.out", "other\n");
    let all = [chunk(0, false, "a\n", 2), chunk(0, false, "rest", 6), chunk(0, true, "e\n", 2), chunk(1, false, "b\n", 2), LogItem::End];
    assert_eq!(dir.read(wanted(1)).await, all);
}

#[tokio::test]
async fn following_sends_whole_lines_continues_at_the_readers_position_and_ends_with_the_launch() {
    let dir = Dir::new("follow");
    dir.append("1/0.out", "one\ntwo\nthr");
    let (activity, view) = watch::channel(Activity::default());
    let (send, mut receive) = mpsc::channel(16);
    let mut from = wanted(1);
    from.positions.insert((0, false), at(0, 4));
    let reader = tokio::spawn(tail(dir.0.clone(), dir.spool(), None, from, Some((view, Growth::start().unwrap())), send));
    assert_eq!(receive.recv().await, Some(chunk(0, false, "two\n", 8)));
    dir.append("1/0.out", "ee\nlast");
    assert_eq!(receive.recv().await, Some(chunk(0, false, "three\n", 14)));
    activity.send_replace(Activity { over: [1].into() });
    assert_eq!(receive.recv().await, Some(chunk(0, false, "last", 18)));
    assert_eq!(receive.recv().await, Some(LogItem::End));
    reader.await.unwrap();
}

#[tokio::test]
async fn a_shrunken_file_is_read_from_its_beginning_with_a_notice() {
    let dir = Dir::new("shrank");
    dir.append("0/0.out", "new\n");
    let mut from = wanted(0);
    from.positions.insert((0, false), at(0, 100));
    let got = dir.read(from).await;
    assert!(matches!(&got[0], LogItem::Notice(text) if text.contains("truncated")), "{got:?}");
    assert_eq!(got[1], chunk(0, false, "new\n", 4));
}

#[tokio::test]
async fn a_program_that_truncates_while_it_is_followed_begins_a_segment() {
    let dir = Dir::new("segment");
    dir.append("1/0.out", "one\ntwo\n");
    let (activity, view) = watch::channel(Activity::default());
    let (send, mut receive) = mpsc::channel(16);
    let reader = tokio::spawn(tail(dir.0.clone(), dir.spool(), None, wanted(1), Some((view, Growth::start().unwrap())), send));
    assert_eq!(receive.recv().await, Some(chunk(0, false, "one\ntwo\n", 8)));
    dir.truncate("1/0.out");
    dir.append("1/0.out", "x\n");
    assert!(matches!(receive.recv().await, Some(LogItem::Notice(text)) if text.contains("truncated")));
    assert_eq!(receive.recv().await, Some(in_segment(1, 0, false, "x\n", 2)));
    activity.send_replace(Activity { over: [1].into() });
    assert_eq!(receive.recv().await, Some(LogItem::End));
    reader.await.unwrap();
}

#[tokio::test]
async fn a_file_that_was_truncated_and_grew_again_is_detected_by_its_content() {
    let dir = Dir::new("rewritten");
    let spool = dir.spool();
    let read = async || {
        let mut from = wanted(1);
        from.positions.insert((0, false), at(0, 4));
        dir.read_with(Arc::clone(&spool), None, from).await
    };
    dir.append("1/0.out", "one\n");
    assert_eq!(read().await, [LogItem::End]);
    dir.append("1/0.out", "more\n");
    assert_eq!(read().await, [chunk(0, false, "more\n", 9), LogItem::End], "it grew");
    dir.truncate("1/0.out");
    dir.append("1/0.out", "two, which is longer\n");
    let got = read().await;
    assert!(got.contains(&in_segment(1, 0, false, "two, which is longer\n", 21)), "{got:?}");
    assert!(matches!(&got[0], LogItem::Notice(text) if text.starts_with("5 bytes")), "{got:?}");
}

#[tokio::test]
async fn a_rank_that_never_stops_writing_waits_its_turn() {
    let dir = Dir::new("turn");
    let line = format!("{}\n", "x".repeat(99));
    dir.append("1/0.out", &line.repeat(1000));
    dir.append("1/1.out", "b\n");
    let (activity, view) = watch::channel(Activity::default());
    // One piece is in the queue and the next waits for it: so the pass has begun, and the loud rank
    // writes on.
    let (send, mut receive) = mpsc::channel(1);
    let reader = tokio::spawn(tail(dir.0.clone(), dir.spool(), None, wanted(1), Some((view, Growth::start().unwrap())), send));
    let mut loud = 0;
    loop {
        match receive.recv().await.unwrap() {
            LogItem::Chunk { rank: 0, data, .. } => loud += data.len(),
            item => {
                assert_eq!(item, chunk(1, false, "b\n", 2));
                break;
            }
        }
        dir.append("1/0.out", &line);
    }
    assert_eq!(loud, 100_000);
    activity.send_replace(Activity { over: [1].into() });
    while receive.recv().await.unwrap() != LogItem::End {}
    reader.await.unwrap();
}

#[tokio::test]
async fn output_removed_while_it_is_read_is_reported_as_lost() {
    for (text, has_notice) in [("one\n", true), ("", false)] {
        for whole in [true, false] {
            let dir = Dir::new("removed");
            dir.append("1/0.out", text);
            dir.append("1/1.out", "b\n");
            let (send, mut receive) = mpsc::channel(16);
            let mut reader = Reader::new(Source::new(dir.spool(), Some(dir.0.clone()), None), Wanted { rank: Some(0), ..wanted(1) }, send);
            assert!(reader.pass(false).await.is_continue());
            while receive.try_recv().is_ok() {}
            if whole {
                std::fs::remove_dir_all(dir.0.logs()).unwrap();
            } else {
                std::fs::remove_file(dir.0.logs().join("1/0.out")).unwrap();
            }
            assert_eq!(reader.pass(true).await.is_break(), whole);
            assert_eq!(matches!(receive.try_recv(), Ok(LogItem::Notice(_))), has_notice, "{text:?} {whole}");
        }
    }
}

#[tokio::test]
async fn the_last_lines_of_each_stream_are_found_from_the_end() {
    let dir = Dir::new("tail");
    dir.append("1/0.out", "a\nb\nc\n");
    dir.append("1/1.out", "d\ne\nf");
    for (count, first, second) in [(0, "", ""), (1, "c\n", "f"), (2, "b\nc\n", "e\nf"), (9, "a\nb\nc\n", "d\ne\nf")] {
        let got = dir.read(Wanted { tail: Some(count), ..wanted(1) }).await;
        let text = |rank: u32| -> String {
            let of = got.iter().filter_map(|i| match i {
                LogItem::Chunk { rank: r, data, .. } if *r == rank => Some(String::from_utf8_lossy(data).into_owned()),
                _ => None,
            });
            of.collect()
        };
        assert_eq!((text(0).as_str(), text(1).as_str()), (first, second), "--tail {count}");
    }
    let long: String = (0..40_000).map(|n| format!("{n}\n")).collect();
    dir.append("2/0.out", &long);
    let got = dir.read(Wanted { tail: Some(30_000), ..wanted(2) }).await;
    let LogItem::Chunk { data, .. } = &got[1] else { panic!("{got:?}") };
    assert!(data.starts_with(b"10000\n"), "over more than one block");
}

/// The first part of a stream is in the store and punched out of its file.
#[tokio::test]
async fn removed_output_comes_from_the_store_or_is_reported_as_lost() {
    use nix::fcntl::{FallocateFlags, fallocate};
    let dir = Dir::new("punched");
    let line = |n: usize| format!("{n:07}\n");
    let text: String = (0..4096).map(line).collect();
    dir.append("1/0.out", &text);
    let (spool, store) = (dir.spool(), dir.store());
    let stream = Stream { launch: 1, rank: 0, stderr: false };
    spool.look(None).unwrap();
    let (place, node) = spool.place();
    assert_eq!(place, Place { tenant: String::new(), project: String::new(), allocation: allocation(), epoch: Epoch(1) });
    // The store has 0 to 10,003 and 12,000 to 20,000, neither ending at the end of a line; the file
    // has what is beyond 16,384.
    for (start, end) in [(0, 10_003), (12_000, 20_000)] {
        let cut = Cut { stream, segment: 0, chunk: Chunk { start, end, open: false } };
        let compressed = zstd::bulk::compress(&text.as_bytes()[start as usize..end as usize], 1).unwrap();
        store.put_chunk(&place, &node, &cut, compressed).await.unwrap();
        spool.put(&cut);
    }
    let file = std::fs::OpenOptions::new().write(true).open(dir.0.logs().join("1/0.out")).unwrap();
    fallocate(&file, FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, 16_384).unwrap();
    let got = dir.read_with(Arc::clone(&spool), Some(store.clone()), wanted(1)).await;
    let mut read = Vec::new();
    let mut notices = Vec::new();
    for item in &got {
        match item {
            LogItem::Chunk { data, .. } => read.extend(data.clone()),
            LogItem::Notice(text) => notices.push(text.clone()),
            LogItem::NotHere | LogItem::End | LogItem::Written(_) => {}
        }
    }
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].starts_with("1997 bytes of rank 0's stdout are missing here"), "{notices:?}");
    let expected = [&text.as_bytes()[..10_003], &text.as_bytes()[12_000..]].concat();
    assert!(read == expected, "{} of {} bytes", read.len(), expected.len());
    let got = dir.read_with(Arc::clone(&spool), Some(store.clone()), Wanted { tail: Some(2400), ..wanted(1) }).await;
    assert!(matches!(&got[1], LogItem::Chunk { data, .. } if data.starts_with(line(1696).as_bytes())), "{got:?}");
    let without = dir.read_with(spool, None, wanted(1)).await;
    assert!(matches!(&without[0], LogItem::Notice(text) if text.contains("logs.store")), "{without:?}");
}

#[tokio::test]
async fn times_are_of_when_it_was_written() {
    let dir = Dir::new("times");
    let spool = dir.spool();
    dir.append("1/0.out", "early\n");
    spool.look(None).unwrap();
    let between = lattice_agent_common::clock::now().0 + 20;
    while lattice_agent_common::clock::now().0 < between + 20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    dir.append("1/0.out", "late\n");
    spool.look(None).unwrap();
    let since = dir.read_with(Arc::clone(&spool), None, Wanted { since_ms: Some(between), ..wanted(1) }).await;
    assert_eq!(since, [chunk(0, false, "late\n", 11), LogItem::End]);
    let until = dir.read_with(Arc::clone(&spool), None, Wanted { until_ms: Some(between), ..wanted(1) }).await;
    let both = [chunk(0, false, "early\n", 6), chunk(0, false, "late\n", 11)];
    assert_eq!(until[..2], both, "what was written between two looks is not told apart to the millisecond");
    let dated = dir.read_with(spool, None, Wanted { dated: true, ..wanted(1) }).await;
    let [LogItem::Written(early), one, LogItem::Written(late), other, LogItem::End] = &dated[..] else { panic!("{dated:?}") };
    assert_eq!([one, other], [&both[0], &both[1]]);
    assert!(*early < between && between < *late, "{early} {between} {late}");
}
