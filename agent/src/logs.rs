//! Reading output where it lies: this node's log files of one launch, as far as they are and, on request, as they grow.
//!
//! Order is kept per file. A chunk ends at the end of a line where the program wrote one, so that lines of different
//! ranks do not mix; what a program leaves without an end of line follows when it is over.

use crate::allocation::Activity;
use crate::growth::{Growing, Growth};
use crate::mesh::frame::LogItem;
use lattice_runtime::shim::ShimDir;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Bytes read at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// How long growth can go unnoticed should the kernel's event be lost.
const LOOK_ANYWAY: Duration = Duration::from_secs(1);

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
        let _ = out.send(LogItem::Notice("this node does not hold the output (any more): see log_spool_max_bytes".to_owned())).await;
        let _ = out.send(LogItem::End).await;
        return;
    }
    let (mut growing, mut follow) = match follow {
        Some((activity, growth)) => (growth.of(&dir.logs()).ok(), Some(activity)),
        None => (None, None),
    };
    loop {
        // Asked before the files are read: what is written before the end is then read after it.
        let over = match &follow {
            Some(activity) => activity.has_changed().is_err() || activity.borrow().over.contains(&wanted.launch),
            None => true,
        };
        match pass(&dir, &mut wanted, over, &out).await {
            Ok(()) => {}
            Err(Stopped::Nobody) => return,
            Err(Stopped::Io(error)) => {
                let _ = out.send(LogItem::Notice(format!("the output cannot be read: {error}"))).await;
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

/// Reads every wanted file to its present end. Without `over`, an unfinished last line waits.
async fn pass(dir: &ShimDir, wanted: &mut Wanted, over: bool, out: &mpsc::Sender<LogItem>) -> Result<(), Stopped> {
    for (rank, stderr) in files(dir, wanted).map_err(Stopped::Io)? {
        let path = dir.log(
            wanted.launch,
            rank,
            if stderr { lattice_runtime::shim::LogStream::Err } else { lattice_runtime::shim::LogStream::Out },
        );
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Stopped::Io(error)),
        };
        let at = wanted.received.entry((rank, stderr)).or_insert(0);
        if file.metadata().map_err(Stopped::Io)?.len() < *at {
            *at = 0;
            let notice = format!("rank {rank} truncated its own {}: what follows is new", if stderr { "stderr" } else { "stdout" });
            out.send(LogItem::Notice(notice)).await.map_err(|_| Stopped::Nobody)?;
        }
        loop {
            let mut data = vec![0; CHUNK_BYTES];
            let n = file.read_at(&mut data, *at).map_err(Stopped::Io)?;
            let whole = match data[..n].iter().rposition(|b| *b == b'\n') {
                _ if over || n == CHUNK_BYTES && !data[..n].contains(&b'\n') => n,
                Some(end) => end + 1,
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

/// The (rank, stderr) of every wanted log file that is there, in order.
fn files(dir: &ShimDir, wanted: &Wanted) -> io::Result<Vec<(u32, bool)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir.logs())? {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else { continue };
        let mut parts = name.split('.');
        let (Some(launch), Some(rank), Some(suffix), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else { continue };
        let (Ok(launch), Ok(rank)) = (launch.parse::<u32>(), rank.parse::<u32>()) else { continue };
        let stderr = suffix == "err";
        let stream = if stderr { wanted.stderr } else { wanted.stdout && suffix == "out" };
        if launch == wanted.launch && wanted.rank.is_none_or(|r| r == rank) && stream {
            found.push((rank, stderr));
        }
    }
    found.sort_unstable();
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
}
