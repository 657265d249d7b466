use super::*;
use crate::measuring::tests::share as measuring_share;
use lattice_agent_common::config::logs::StoreSettings;
use lattice_agent_common::node_problems::NodeProblems;
use lattice_agent_common::node_view::NodeView;
use lattice_mesh::usage::Shown;
use lattice_model::{TelemetryMode, TelemetryOrder, Timestamp};
use lattice_node::{Local, Phase};
use serde_json::Value;
use std::fs;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

struct Bed {
    dir: PathBuf,
    view: watch::Sender<Arc<NodeView>>,
    traces: Traces,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn shown(name: &str, source: &str, now: f64) -> Shown {
    Shown { name: name.into(), unit: "count".into(), source: source.into(), now, mean: None, max: None }
}

fn view(order: Option<u128>, duration_ms: u64) -> NodeView {
    let mut share = (*measuring_share(1, 3)).clone();
    share.spec.tenant = "physics".into();
    share.telemetry = order.map(|id| {
        let (by, since) = ("ada".to_owned(), Timestamp(1_000_000));
        TelemetryOrder { id: Uuid::from_u128(id), mode: TelemetryMode::Debug, by, since, until: Some(Timestamp(since.0 + duration_ms)) }
    });
    NodeView { locals: vec![Local { share, phase: Phase::Running, assignment: None }], ..NodeView::default() }
}

impl Bed {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("lattice-traces-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let (view, _) = watch::channel(Arc::new(NodeView::default()));
        let traces = Self::life(&dir);
        Self { dir, view, traces }
    }

    fn life(dir: &Path) -> Traces {
        let url = format!("file://{}", dir.join("objects").display());
        let store = LogStore::open(&StoreSettings { url, ..StoreSettings::default() }).unwrap();
        Traces::open(dir, Some(store), Duration::from_secs(3600))
    }

    /// Restarts the agent: everything in the memory of the earlier run is gone.
    fn again(&mut self) {
        self.traces = Self::life(&self.dir);
    }

    fn recorder(&self) -> Recorder {
        Recorder::new(self.traces.clone(), TelemetryMode::Debug, "n1".parse().unwrap(), self.view.subscribe(), NodeProblems::default())
    }

    /// The files below a folder with this extension, in order.
    fn files(&self, below: &str, extension: &str) -> Vec<PathBuf> {
        let mut folders = vec![self.dir.join(below)];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
                match path.is_dir() {
                    true => folders.push(path),
                    false if path.extension().is_some_and(|it| it == extension) => found.push(path),
                    false => {}
                }
            }
        }
        found.sort();
        found
    }
}

fn key() -> Key {
    (AllocationId(Uuid::from_u128(1)), Epoch(3))
}

fn take(recorder: &mut Recorder, at_ms: u64, value: f64) {
    recorder.take(key(), at_ms, &[shown("cpu_cores", "cgroup2", value)], &[("G1".to_owned(), vec![shown("gpu_utilization", "nvml", 0.5)])]);
}

fn parsed(lines: &[u8]) -> Vec<Value> {
    lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(|line| serde_json::from_slice(line).unwrap()).collect()
}

#[test]
fn looks_become_lines_with_allocation_and_measures() {
    let bed = Bed::new("lines");
    let mut recorder = bed.recorder();
    recorder.follow_at(&view(None, 0), 5000);
    assert!(!recorder.is_recording(key()));
    take(&mut recorder, 7, 1.0);
    assert_eq!(recorder.kept(key()), None, "nobody asked");
    recorder.follow_at(&view(Some(1), 60_000), 5000);
    assert!(recorder.is_recording(key()));
    for at_ms in [7, 1007] {
        take(&mut recorder, at_ms, at_ms as f64);
    }
    recorder.take(key(), 2007, &[shown("cpu_cores", "procfs", f64::NAN)], &[]);
    take(&mut recorder, 3007, 3007.0);
    let gpu = |id: &str, source: &str| (id.to_owned(), vec![shown("gpu_utilization", source, 0.5)]);
    recorder.take(key(), 4007, &[shown("cpu_cores", "cgroup2", 1.0)], &[gpu("G1", "nvml"), gpu("G2", "sysfs")]);
    assert_eq!(recorder.kept(key()), Some(TraceCounts { points: 5, lost: 0 }));
    recorder.follow_at(&view(None, 0), 6000);
    let files = bed.files("traces", "jsonl");
    assert_eq!((files.len(), bed.files("traces", "json").len()), (1, 0), "the request is forgotten");
    let contents = chunk::read(&files[0]).unwrap();
    let header = contents.header.unwrap();
    assert_eq!((header.tenant.as_str(), header.by.as_str(), header.epoch, contents.looks), ("physics", "ada", Epoch(3), 5));
    let lines = parsed(&contents.lines);
    assert_eq!(lines[1]["metrics"]["cpu_cores"], serde_json::json!({ "unit": "count", "source": "cgroup2" }));
    assert_eq!(lines[1]["gpus"]["G1"]["gpu_utilization"], serde_json::json!({ "unit": "count", "source": "nvml" }));
    assert_eq!(lines[2], serde_json::json!({ "at_ms": 7, "values": { "cpu_cores": 7.0 }, "gpus": { "G1": { "gpu_utilization": 0.5 } } }));
    assert_eq!(lines[4]["metrics"]["cpu_cores"]["source"], "procfs", "another source is declared before its value");
    assert_eq!(lines[5], serde_json::json!({ "at_ms": 2007, "values": { "cpu_cores": null } }));
    assert_eq!(lines[6]["metrics"]["cpu_cores"]["source"], "cgroup2", "and the one before when it is back");
    let second = serde_json::json!({ "metrics": {}, "gpus": { "G2": { "gpu_utilization": { "unit": "count", "source": "sysfs" } } } });
    assert_eq!(lines[8], second, "each GPU has its own");
    assert_eq!(lines.len(), 10);
}

#[test]
fn a_header_has_the_modes_name() {
    let bed = Bed::new("header");
    let mut recorder = bed.recorder();
    recorder.follow_at(&view(Some(1), 60_000), 5000);
    take(&mut recorder, 7, 1.0);
    recorder.follow_at(&view(None, 0), 6000);
    let file = &bed.files("traces", "jsonl")[0];
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains("\"mode\":\"debug\""), "{text}");
    assert_eq!(chunk::read(file).unwrap().header.map(|header| header.mode), Some(TelemetryMode::Debug));
    fs::write(file, text.replace("\"debug\"", "\"closer\"")).unwrap();
    assert!(chunk::read(file).unwrap().header.is_none());
}

#[test]
fn its_time_is_counted_over_a_killed_agent_and_is_over_by_itself() {
    let mut bed = Bed::new("time");
    let mut recorder = bed.recorder();
    recorder.follow_at(&view(Some(1), 60_000), 5000);
    take(&mut recorder, 1, 1.0);
    drop(recorder);
    assert_eq!(bed.files("traces", "open").len(), 1, "it was being written");
    bed.again();
    assert_eq!((bed.files("traces", "open").len(), bed.files("traces", "jsonl").len()), (0, 1));
    let mut recorder = bed.recorder();
    recorder.follow_at(&view(Some(1), 60_000), 64_999);
    assert!(recorder.is_recording(key()));
    recorder.follow_at(&view(Some(1), 60_000), 65_000);
    assert!(!recorder.is_recording(key()), "the quorum is away, and its time is over");
    take(&mut recorder, 2, 2.0);
    drop(recorder);
    bed.again();
    let mut recorder = bed.recorder();
    recorder.follow_at(&view(Some(1), 60_000), 70_000);
    assert!(!recorder.is_recording(key()), "and stays over");
    recorder.follow_at(&view(Some(2), 60_000), 70_000);
    assert!(recorder.is_recording(key()), "another request has its own time");
    // Events that ended while no agent was running.
    drop(recorder);
    bed.again();
    let mut recorder = bed.recorder();
    recorder.follow_at(&NodeView::default(), 71_000);
    assert_eq!(bed.files("traces", "json").len(), 0);
}

#[test]
fn an_audit_can_record_its_end_beforehand_even_if_its_time_ended_while_no_agent_ran() {
    let mut bed = Bed::new("ending");
    let mode = TelemetryMode::Audit;
    let audits = |bed: &Bed| {
        let mut recorder = Recorder::new(bed.traces.clone(), mode, "n1".parse().unwrap(), bed.view.subscribe(), NodeProblems::default());
        recorder.lacks(&["io_uring: why".to_owned()]);
        recorder
    };
    let mut asked = view(Some(1), 60_000);
    asked.locals[0].share.telemetry.as_mut().unwrap().mode = mode;
    let mut recorder = audits(&bed);
    assert_eq!(recorder.follow_at(&asked, 5000), [key()]);
    assert_eq!((recorder.ending(&asked, 64_999), recorder.ending(&asked, 65_000)), (vec![], vec![key()]));
    assert_eq!(recorder.ending(&NodeView::default(), 6000), [key()]);
    assert!(recorder.take_lines(key(), 7, 1, b"{\"at_ms\":7}\n".to_vec()));
    drop(recorder);
    bed.again();
    let header = chunk::read(&bed.files("traces", "jsonl")[0]).unwrap().header.unwrap();
    assert!(header.mode == mode && header.about.ends_with("; HERE NOTHING OF: io_uring: why"), "{header:?}");
    let mut recorder = audits(&bed);
    assert_eq!(recorder.follow_at(&asked, 70_000), [key()]);
    assert_eq!(recorder.ending(&asked, 70_000), [key()]);
    assert!(recorder.take_earlier_end(key()).is_some() && recorder.take_lines(key(), 8, 1, b"{\"at_ms\":8}\n".to_vec()));
    assert!(recorder.follow_at(&asked, 70_000).is_empty() && !recorder.is_recording(key()));
    assert_eq!((recorder.ending(&asked, 70_000), bed.files("traces", "jsonl").len()), (vec![], 2));
}

/// Audits on a disk that takes nothing until [`fs::remove_file`] of `traces`.
fn audits_without_disk(bed: &Bed) -> (Recorder, NodeView) {
    fs::write(bed.dir.join("traces"), "").unwrap();
    let mode = TelemetryMode::Audit;
    let mut asked = view(Some(1), 60_000);
    asked.locals[0].share.telemetry.as_mut().unwrap().mode = mode;
    let mut recorder = Recorder::new(bed.traces.clone(), mode, "n1".parse().unwrap(), bed.view.subscribe(), NodeProblems::default());
    assert_eq!(recorder.follow_at(&asked, 5000), [key()]);
    (recorder, asked)
}

fn line(at_ms: u64, text: &str) -> Vec<u8> {
    format!("{{\"at_ms\":{at_ms},\"event\":\"{text}\"}}\n").into_bytes()
}

#[test]
fn lines_of_an_audit_wait_for_the_disk_in_order_and_those_beyond_the_bound_count_as_lost() {
    let bed = Bed::new("full");
    let (mut recorder, _) = audits_without_disk(&bed);
    assert!(recorder.take_mark(key(), 1, line(1, "begun")) && recorder.take_lines(key(), 2, 1, line(2, "open")));
    assert!(recorder.is_behind(key()) && recorder.has_pending());
    assert_eq!(recorder.kept(key()), Some(TraceCounts { points: 0, lost: 0 }));
    let large = line(3, &"x".repeat(pending::PENDING_BYTES_MAX - 200));
    assert!(recorder.take_lines(key(), 3, 10, large) && !recorder.take_lines(key(), 4, 5, line(4, &"y".repeat(200))));
    assert_eq!(recorder.kept(key()), Some(TraceCounts { points: 0, lost: 5 }));
    // A mark may wait where no more events may.
    assert!(recorder.take_mark(key(), 5, line(5, &"z".repeat(200))));
    assert_eq!(recorder.events_pending(), 13);
    recorder.retry(6);
    assert!(recorder.is_behind(key()), "the disk takes nothing yet");
    fs::remove_file(bed.dir.join("traces")).unwrap();
    recorder.retry(6);
    assert!(!recorder.has_pending());
    assert!(recorder.take_lines(key(), 7, 1, line(7, "open")));
    assert_eq!(recorder.kept(key()), Some(TraceCounts { points: 14, lost: 5 }));
    recorder.follow_at(&view(None, 0), 6000);
    let all = bed.files("traces", "jsonl").iter().flat_map(|file| parsed(&chunk::read(file).unwrap().lines)).collect::<Vec<_>>();
    let mut at: Vec<u64> = all.iter().filter_map(|line| line["at_ms"].as_u64()).collect();
    at.sort_unstable();
    assert_eq!(at, [1, 2, 3, 5, 7], "each once");
}

#[test]
fn the_last_line_of_an_audit_that_ends_on_a_full_disk_is_written_later() {
    let bed = Bed::new("full-end");
    let (mut recorder, asked) = audits_without_disk(&bed);
    assert!(recorder.take_mark(key(), 1, line(1, "begun")));
    assert_eq!(recorder.ending(&NodeView::default(), 6000), [key()]);
    assert!(recorder.take_mark(key(), 2, line(2, "ended")));
    recorder.follow_at(&NodeView::default(), 6000);
    assert!(!recorder.is_recording(key()) && recorder.has_pending() && !recorder.is_behind(key()));
    // The same work is audited again meanwhile.
    let mut again = asked;
    again.locals[0].share.telemetry.as_mut().unwrap().id = Uuid::from_u128(2);
    assert_eq!(recorder.follow_at(&again, 7000), [key()]);
    fs::remove_file(bed.dir.join("traces")).unwrap();
    recorder.retry(7);
    assert!(!recorder.has_pending());
    let files = bed.files("traces", "jsonl");
    let contents = chunk::read(&files[0]).unwrap();
    assert_eq!((files.len(), contents.header.unwrap().order), (1, Uuid::from_u128(1)));
    assert_eq!(parsed(&contents.lines)[1..].iter().map(|line| line["event"].as_str().unwrap()).collect::<Vec<_>>(), ["begun", "ended"]);
}

#[tokio::test]
async fn complete_files_are_uploaded_and_removed_and_torn_ones_do_no_harm() {
    let bed = Bed::new("put");
    let mut recorder = bed.recorder();
    recorder.follow_at(&view(Some(1), 60_000), 5000);
    take(&mut recorder, 7, 1.0);
    recorder.follow_at(&view(None, 0), 6000);
    let folder = bed.dir.join("traces/torn-1");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("1-0000000000001-ab.jsonl"), b"{\"at_ms\":1}\n{\"at").unwrap();
    fs::write(folder.join("no name"), b"").unwrap();
    let stop = CancellationToken::new();
    let flushing = tokio::spawn(bed.traces.clone().flush(NodeProblems::default(), stop.clone()));
    let came = async {
        while bed.files("traces", "jsonl").len() + usize::from(bed.files("objects", "zst").is_empty()) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), came).await.unwrap();
    stop.cancel();
    flushing.await.unwrap();
    let objects = bed.files("objects", "zst");
    let allocation = key().0;
    let place = bed.dir.join(format!("objects/physics/default/{allocation}/telemetry/n1"));
    assert_eq!((objects.len(), objects[0].parent()), (1, Some(place.as_path())));
    let lines = zstd::bulk::decompress(&fs::read(&objects[0]).unwrap(), 1 << 20).unwrap();
    assert_eq!(parsed(&lines)[2]["at_ms"], 7);
    assert_eq!(bed.traces.0.debug.lost.load(Ordering::Relaxed), 1, "a look of which it is not known whose it is");
    assert!(!bed.traces.dir(key()).exists(), "an empty folder goes");
}

#[test]
fn the_oldest_files_are_removed_if_too_many_wait() {
    let bed = Bed::new("bounds");
    let mut recorder = bed.recorder();
    recorder.follow_at(&view(Some(1), 60_000), 5000);
    let folder = bed.traces.dir(key());
    fs::create_dir_all(&folder).unwrap();
    fs::File::create(folder.join("1-0000000000099-ab.open")).unwrap().set_len(SPOOL_BYTES_MAX / 8).unwrap();
    for n in 0..10u64 {
        let path = folder.join(format!("1-{n:013}-ab.jsonl"));
        fs::write(&path, b"{\"at_ms\":1}\n{\"at_ms\":2}\n").unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(SPOOL_BYTES_MAX / 8).unwrap();
    }
    let left = bed.traces.within_bounds(None).unwrap();
    assert_eq!(left.len(), 7, "what grows is counted");
    assert!(left[0].path.ends_with("1-0000000000003-ab.jsonl"), "{left:?}");
    assert_eq!((bed.files("traces", "jsonl").len(), bed.traces.0.debug.lost.load(Ordering::Relaxed)), (7, 6));
    assert_eq!([recorder.take_dropped(key()), recorder.take_dropped(key())], [6, 0], "the record can say so, once");
    recorder.count_lost(key(), 1);
    let lost = Some(TraceCounts { points: 0, lost: 7 });
    assert_eq!(recorder.kept(key()), lost, "its owner is told");
    recorder.follow_at(&view(Some(2), 60_000), 6000);
    assert_eq!(recorder.kept(key()), lost, "also who asks anew");
    recorder.follow_at(&NodeView::default(), 7000);
    assert!(bed.traces.0.debug.kept().is_empty(), "and is forgotten with the claim");
}

#[tokio::test]
async fn one_allocations_refused_file_does_not_hold_back_others() {
    let bed = Bed::new("others");
    fs::write(bed.dir.join("objects/refused"), "no folder can be made here").unwrap();
    for (tenant, number) in [("refused", 1u64), ("physics", 2)] {
        let (allocation, epoch) = (AllocationId(Uuid::from_u128(u128::from(number))), Epoch(3));
        let (node, tenant, project) = ("n1".parse().unwrap(), tenant.to_owned(), String::new());
        let (version, order, by) = (chunk::VERSION, Uuid::nil(), "ada".to_owned());
        let (mode, about) = (TelemetryMode::Debug, String::new());
        let header = chunk::Header { version, allocation, epoch, node, tenant, project, order, by, mode, about };
        let mut chunk = chunk::Chunk::begin(&bed.traces.dir((allocation, epoch)), number, &header).unwrap();
        chunk.append(b"{\"at_ms\":1}\n").unwrap();
        chunk.close().unwrap();
    }
    let (problems, stop) = (NodeProblems::default(), CancellationToken::new());
    let flushing = tokio::spawn(bed.traces.clone().flush(problems.clone(), stop.clone()));
    let came = async {
        while bed.files("traces", "jsonl").len() != 1 || bed.files("objects/physics", "zst").is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), came).await.unwrap();
    stop.cancel();
    flushing.await.unwrap();
    let left = bed.files("traces", "jsonl");
    assert_eq!(left[0].parent(), Some(bed.traces.dir((AllocationId(Uuid::from_u128(1)), Epoch(3))).as_path()));
    assert!(problems.lines()[0].contains("stay on this node"), "{:?}", problems.lines());
}
