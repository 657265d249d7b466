//! The last lines that ended work wrote to its standard error, for the summary of its end. They are read from its
//! output, wherever that is stored.

use lattice_api::client::Client;
use lattice_api::json::LastStderrLine;
use lattice_api::v1;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;

/// Timeout for reading them.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of one output that are searched, from its end.
const TAIL_BYTES_MAX: usize = 4096;
/// Characters of a line that are shown.
const LINE_CHARS_MAX: usize = 200;
/// Messages of a stream that are read.
const CHUNKS_MAX: usize = 256;

/// The last line of the script, and that of the last launch; both may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastStderr {
    pub lines: Vec<LastStderrLine>,
    /// Why they could not be read.
    pub unread: Option<String>,
}

impl LastStderr {
    /// Reads the last line of the script, and of the rank that caused the end of the launch, else of rank 0.
    pub async fn read(client: &Client, allocation: &v1::Allocation) -> Self {
        let rank = rank_named(&allocation.abort_reason).unwrap_or(0);
        let key = allocation.id.clone();
        let request = v1::LogsRequest { key, stream: "stderr".to_owned(), tail: Some(1), ..Default::default() };
        // The script's output is that of rank 0.
        let ranks = if rank == 0 { vec![0] } else { vec![rank, 0] };
        let mut outputs = Outputs::default();
        let reading = async {
            for of in ranks {
                let request = v1::LogsRequest { rank: Some(of), ..request.clone() };
                let mut stream = client.allocations().logs(request).await?.into_inner();
                for _ in 0..CHUNKS_MAX {
                    let Some(chunk) = stream.message().await? else { break };
                    if of == rank || chunk.launch == 0 {
                        outputs.take(&chunk);
                    }
                }
            }
            Ok::<(), tonic::Status>(())
        };
        let unread = match timeout(READ_TIMEOUT, reading).await {
            Ok(Ok(())) => None,
            Ok(Err(status)) => Some(status.message().lines().next().unwrap_or_default().to_owned()),
            Err(_) => Some(format!("its output did not arrive within {} s", READ_TIMEOUT.as_secs())),
        };
        Self { lines: outputs.lines(rank), unread }
    }
}

/// The rank in `rank 3 on n2 was killed by signal 11`.
fn rank_named(abort_reason: &str) -> Option<u32> {
    abort_reason.strip_prefix("rank ")?.split(' ').next()?.parse().ok()
}

/// The ends of outputs, by launch.
#[derive(Default)]
struct Outputs(BTreeMap<u32, Vec<u8>>);

impl Outputs {
    fn take(&mut self, chunk: &v1::LogChunk) {
        // Only the script and the last launch are shown.
        if chunk.launch != 0 {
            self.0.retain(|launch, _| *launch == 0 || *launch >= chunk.launch);
        }
        if self.0.keys().all(|launch| *launch <= chunk.launch) || chunk.launch == 0 {
            let kept = self.0.entry(chunk.launch).or_default();
            kept.extend(&chunk.data);
            let surplus = kept.len().saturating_sub(TAIL_BYTES_MAX);
            kept.drain(..surplus);
        }
    }

    fn lines(&self, rank: u32) -> Vec<LastStderrLine> {
        let last = |bytes: &Vec<u8>| {
            let text = String::from_utf8_lossy(bytes);
            let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
            Some(line.trim_end().chars().take(LINE_CHARS_MAX).collect::<String>())
        };
        let rank_of = |launch| if launch == 0 { 0 } else { rank };
        self.0.iter().filter_map(|(&launch, bytes)| Some(LastStderrLine { launch, rank: rank_of(launch), line: last(bytes)? })).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_the_script_and_of_the_last_launch_are_kept() {
        let chunk = |launch, data: &str| v1::LogChunk { launch, stderr: true, data: data.as_bytes().to_vec(), ..Default::default() };
        let mut outputs = Outputs::default();
        for (launch, data) in [(1, "old\n"), (2, "segv"), (0, "line 4: foo: not "), (2, "fault\n\n"), (0, "found\n"), (1, "older\n")] {
            outputs.take(&chunk(launch, data));
        }
        let last_line = |launch, rank, line: &str| LastStderrLine { launch, rank, line: line.to_owned() };
        assert_eq!(outputs.lines(3), [last_line(0, 0, "line 4: foo: not found"), last_line(2, 3, "segvfault")]);
        let mut long = Outputs::default();
        long.take(&chunk(0, &"x".repeat(3 * TAIL_BYTES_MAX)));
        assert_eq!((long.0[&0].len(), long.lines(0)[0].line.len()), (TAIL_BYTES_MAX, LINE_CHARS_MAX));
        assert_eq!(rank_named("rank 3 on n2 was killed by signal 11"), Some(3));
        assert_eq!((rank_named(""), rank_named("out of memory on n2: launch 1 was killed")), (None, None));
    }
}
