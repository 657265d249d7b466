//! Reading output where it lies: this node's log files of one launch, as far as they are and, on request, as they grow.
//!
//! Order is kept per file. A chunk ends at the end of a line where the program wrote one, so that lines of different
//! ranks do not mix; what a program leaves without an end of line follows when it is over. Files are read in passes, each
//! to the length that it had when the pass began: a rank that never stops writing keeps nobody else from being read.

use crate::allocation::Activity;
use crate::growth::{Growing, Growth};
use crate::mesh::frame::LogItem;
use lattice_runtime::shim::{LogStream, ShimDir};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Bytes read at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// How long growth can go unnoticed should the kernel's event be lost.
const LOOK_ANYWAY: Duration = Duration::from_secs(1);

const NOTHING_HERE: &str = "no output lies here: there was none, or it was removed since (log_spool_max_bytes)";

/// Whose output, and from where on.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The launch's number; 0 is the script.
    pub launch: u32,
    pub rank: Option<u32>,
    pub stdout: bool,
    pub stderr: bool,
    /// (rank, stderr) → bytes that the reader has.
    pub received: BTreeMap<(u32, bool), u64>,
}

/// Sends what there is, and with `follow` what comes until the launch has no rank here any more, then [`LogItem::End`].
/// Ends quietly when nobody listens.
pub async fn tail(dir: ShimDir, mut wanted: Wanted, follow: Option<(watch::Receiver<Activity>, Growth)>, out: mpsc::Sender<LogItem>) {
    if !dir.logs().is_dir() {
        let _ = out.send(LogItem::Notice(NOTHING_HERE.to_owned())).await;
        let _ = out.send(LogItem::End).await;
        return;
    }
    let (mut growing, mut follow) = match follow {
        Some((activity, growth)) => (growth.of(&dir.logs()).ok(), Some(activity)),
        None => (None, None),
    };
    let mut held = BTreeSet::new();
    loop {
        // Asked before the files are read: what is written before the end is then read after it.
        let over = match &follow {
            Some(activity) => activity.has_changed().is_err() || activity.borrow().over.contains(&wanted.launch),
            None => true,
        };
        match pass(&dir, &mut wanted, &mut held, over, &out).await {
            Ok(()) => {}
            Err(Stopped::Nobody) => return,
            // A silent allocation leaves nothing when it is taken away.
            Err(Stopped::Io(error)) if error.kind() == io::ErrorKind::NotFound && held.is_empty() => {
                let _ = out.send(LogItem::End).await;
                return;
            }
            Err(Stopped::Io(error)) => {
                let notice = match error.kind() {
                    io::ErrorKind::NotFound => "the output was removed while it was read: the rest of it is lost".to_owned(),
                    _ => format!("the output cannot be read: {error}"),
                };
                let _ = out.send(LogItem::Notice(notice)).await;
                let _ = out.send(LogItem::End).await;
                return;
            }
        }
        if over {
            let _ = out.send(LogItem::End).await;
            return;
        }
        let Some(activity) = &mut follow else { continue };
        tokio::select! {
            () = grown(&mut growing) => {}
            _ = activity.changed() => {}
            () = out.closed() => return,
            () = tokio::time::sleep(LOOK_ANYWAY) => {}
        }
    }
}

enum Stopped {
    Nobody,
    Io(io::Error),
}

/// Reads every wanted file to the length that it has now. Without `over`, an unfinished last line waits. `held`: the
/// files that had something when they were last looked at.
async fn pass(
    dir: &ShimDir,
    wanted: &mut Wanted,
    held: &mut BTreeSet<(u32, bool)>,
    over: bool,
    out: &mpsc::Sender<LogItem>,
) -> Result<(), Stopped> {
    let launch = wanted.launch;
    let (listed, which) = (dir.clone(), (wanted.rank, wanted.stdout, wanted.stderr));
    let files = blocking(move || files(&listed, launch, which)).await.map_err(Stopped::Io)?;
    let vanished: Vec<_> = held.iter().filter(|file| !files.contains_key(*file)).copied().collect();
    for file in vanished {
        forget(file, wanted, held, out).await?;
    }
    for ((rank, stderr), length) in files {
        if length > 0 {
            held.insert((rank, stderr));
        }
        let at = wanted.received.entry((rank, stderr)).or_insert(0);
        if length < *at {
            *at = 0;
            let notice = format!("rank {rank} truncated its own {}: what follows is new", name(stderr));
            out.send(LogItem::Notice(notice)).await.map_err(|_| Stopped::Nobody)?;
        }
        while *at < length {
            let most = CHUNK_BYTES.min(usize::try_from(length - *at).unwrap_or(CHUNK_BYTES));
            let (path, from) = (dir.log(launch, rank, if stderr { LogStream::Err } else { LogStream::Out }), *at);
            let mut data = match blocking(move || read(&path, from, most)).await {
                Ok(data) => data,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    forget((rank, stderr), wanted, held, out).await?;
                    break;
                }
                Err(error) => return Err(Stopped::Io(error)),
            };
            let last = data.len() < most || *at + data.len() as u64 == length;
            let whole = match data.iter().rposition(|b| *b == b'\n') {
                _ if over && last => data.len(),
                Some(end) => end + 1,
                None if data.len() == CHUNK_BYTES => CHUNK_BYTES,
                None => 0,
            };
            if whole == 0 {
                break;
            }
            data.truncate(whole);
            *at += whole as u64;
            out.send(LogItem::Chunk { rank, stderr, data }).await.map_err(|_| Stopped::Nobody)?;
        }
    }
    Ok(())
}

/// Says that a file went while it was being read.
async fn forget(
    file: (u32, bool),
    wanted: &mut Wanted,
    held: &mut BTreeSet<(u32, bool)>,
    out: &mpsc::Sender<LogItem>,
) -> Result<(), Stopped> {
    held.remove(&file);
    wanted.received.remove(&file);
    let notice = format!("the {} of rank {} was removed while it was read: the rest of it is lost", name(file.1), file.0);
    out.send(LogItem::Notice(notice)).await.map_err(|_| Stopped::Nobody)
}

fn name(stderr: bool) -> &'static str {
    if stderr { "stderr" } else { "stdout" }
}

/// The disk may be slow, and a directory long.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

fn read(path: &Path, at: u64, most: usize) -> io::Result<Vec<u8>> {
    let mut data = vec![0; most];
    let n = File::open(path)?.read_at(&mut data, at)?;
    data.truncate(n);
    Ok(data)
}

/// The (rank, stderr) of every wanted log file that is there, in order, with its length.
fn files(dir: &ShimDir, launch: u32, (rank, stdout, stderr): (Option<u32>, bool, bool)) -> io::Result<BTreeMap<(u32, bool), u64>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir.logs())? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let mut parts = name.split('.');
        let (Some(of_launch), Some(of_rank), Some(suffix), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (Ok(of_launch), Ok(of_rank)) = (of_launch.parse::<u32>(), of_rank.parse::<u32>()) else { continue };
        let stream = if suffix == "err" { stderr } else { stdout && suffix == "out" };
        if of_launch == launch && rank.is_none_or(|r| r == of_rank) && stream {
            match entry.metadata() {
                Ok(metadata) => drop(found.insert((of_rank, suffix == "err"), metadata.len())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(found)
}

async fn grown(growing: &mut Option<Growing>) {
    match growing {
        Some(growing) => growing.grown().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::path::PathBuf;

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
            std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0.0);
        }
    }

    fn wanted(launch: u32) -> Wanted {
        Wanted { launch, rank: None, stdout: true, stderr: true, received: BTreeMap::new() }
    }

    fn chunk(rank: u32, stderr: bool, text: &str) -> LogItem {
        LogItem::Chunk { rank, stderr, data: text.as_bytes().to_vec() }
    }

    #[tokio::test]
    async fn what_is_there_is_sent_by_rank_and_only_of_the_launch() {
        let dir = Dir::new("there");
        dir.append("1.1.out", "b\n");
        dir.append("1.0.out", "a\nrest");
        dir.append("1.0.err", "e\n");
        dir.append("2.0.out", "other\n");
        let (send, mut receive) = mpsc::channel(16);
        tail(dir.0.clone(), wanted(1), None, send).await;
        let mut got = Vec::new();
        while let Some(item) = receive.recv().await {
            got.push(item);
        }
        assert_eq!(got, [chunk(0, false, "a\nrest"), chunk(0, true, "e\n"), chunk(1, false, "b\n"), LogItem::End]);
    }

    #[tokio::test]
    async fn following_sends_whole_lines_goes_on_where_the_reader_was_and_ends_with_the_launch() {
        let dir = Dir::new("follow");
        dir.append("1.0.out", "one\ntwo\nthr");
        let (activity, view) = watch::channel(Activity::default());
        let (send, mut receive) = mpsc::channel(16);
        let mut from = wanted(1);
        from.received.insert((0, false), 4);
        let reader = tokio::spawn(tail(dir.0.clone(), from, Some((view, Growth::start().unwrap())), send));
        assert_eq!(receive.recv().await, Some(chunk(0, false, "two\n")));
        dir.append("1.0.out", "ee\nlast");
        assert_eq!(receive.recv().await, Some(chunk(0, false, "three\n")));
        activity.send_replace(Activity { over: [1].into() });
        assert_eq!(receive.recv().await, Some(chunk(0, false, "last")));
        assert_eq!(receive.recv().await, Some(LogItem::End));
        reader.await.unwrap();
    }

    #[tokio::test]
    async fn a_file_that_shrank_is_read_from_its_beginning_and_said() {
        let dir = Dir::new("shrank");
        dir.append("0.0.out", "new\n");
        let mut from = wanted(0);
        from.received.insert((0, false), 100);
        let (send, mut receive) = mpsc::channel(16);
        tail(dir.0.clone(), from, None, send).await;
        assert!(matches!(receive.recv().await, Some(LogItem::Notice(_))));
        assert_eq!(receive.recv().await, Some(chunk(0, false, "new\n")));
    }

    #[tokio::test]
    async fn a_rank_that_goes_on_writing_waits_its_turn() {
        let dir = Dir::new("turn");
        let line = format!("{}\n", "x".repeat(99));
        dir.append("1.0.out", &line.repeat(1000));
        dir.append("1.1.out", "b\n");
        let (activity, view) = watch::channel(Activity::default());
        // One piece lies in the queue, the next waits for it: the pass has begun, and the loud one writes on.
        let (send, mut receive) = mpsc::channel(1);
        let reader = tokio::spawn(tail(dir.0.clone(), wanted(1), Some((view, Growth::start().unwrap())), send));
        let mut loud = 0;
        loop {
            match receive.recv().await.unwrap() {
                LogItem::Chunk { rank: 0, data, .. } => loud += data.len(),
                item => {
                    assert_eq!(item, chunk(1, false, "b\n"));
                    break;
                }
            }
            dir.append("1.0.out", &line);
        }
        assert_eq!(loud, 100_000);
        activity.send_replace(Activity { over: [1].into() });
        while receive.recv().await.unwrap() != LogItem::End {}
        reader.await.unwrap();
    }

    #[tokio::test]
    async fn output_that_is_removed_while_it_is_read_is_said_to_be_lost_and_its_absence_is_not() {
        for (text, said) in [("one\n", true), ("", false)] {
            for whole in [true, false] {
                let dir = Dir::new("removed");
                dir.append("1.0.out", text);
                dir.append("1.1.out", "b\n");
                let mut from = wanted(1);
                from.rank = Some(0);
                let (send, mut receive) = mpsc::channel(1);
                let mut held = BTreeSet::new();
                pass(&dir.0, &mut from, &mut held, false, &send).await.ok().unwrap();
                drop((send, receive.try_recv()));
                let (send, mut receive) = mpsc::channel(4);
                if whole {
                    std::fs::remove_dir_all(dir.0.logs()).unwrap();
                } else {
                    std::fs::remove_file(dir.0.logs().join("1.0.out")).unwrap();
                }
                let again = pass(&dir.0, &mut from, &mut held, true, &send).await;
                assert_eq!(again.is_err(), whole);
                assert_eq!(held.is_empty(), !(whole && said));
                assert_eq!(matches!(receive.try_recv(), Ok(LogItem::Notice(_))), said && !whole);
            }
        }
    }
}
