//! Counts of the kernel programs: known loads, attributed to their work; counts of no allocation; and the agent without
//! the programs.

use crate::harness::{JOB, Need, World, configure};
use crate::telemetry::{PYTHON, Page, TELEMETRY, measured, node_of};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::process;
use libtest_mimic::Trial;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const MEBIBYTE: f64 = 1_048_576.0;
/// Data that stays in memory, to be written back.
const BUFFERED_MEBIBYTES: u32 = 48;
const NEEDS: &[Need] = &[Need::PrometheusClient, Need::KernelProbes];
/// Temporary directories must be on a block device as well.
const NEEDS_DEVICE: &[Need] = &[Need::PrometheusClient, Need::KernelProbes, Need::BlockDevice];

pub fn trials() -> Vec<Trial> {
    vec![
        TELEMETRY.test("the_kernel_counts_two_known_loads_apart", NEEDS, counted),
        TELEMETRY.test("direct_writes_are_counted_for_each_allocation_and_device", NEEDS_DEVICE, written),
        TELEMETRY.test("later_writeback_is_counted_for_no_allocation", NEEDS_DEVICE, written_back),
        TELEMETRY.test("connections_that_work_makes_are_counted", NEEDS, connected),
        TELEMETRY.test("tcp_retransmissions_are_counted", NEEDS, sent_again),
        TELEMETRY.test("without_its_programs_an_agent_exports_the_same_names", NEEDS, without),
        TELEMETRY.test("counts_of_the_kernel_go_on_and_leave_nothing_behind_after_kill_9", NEEDS, counted_on),
    ]
}

/// The program's own counts: context switches of round trips through pipes, datagrams sent to itself, MiB written past
/// the page cache. Afterwards it sleeps.
struct Load {
    id: String,
    begun: Instant,
    switches: [f64; 2],
    datagrams: f64,
    mebibytes: f64,
}

/// Bytes of one datagram, and of its headers.
const DATAGRAM: f64 = 1000.0;
const HEADERS: f64 = 28.0;

impl Load {
    fn begin(w: &World, name: &str, rounds: u32, datagrams: u32, mebibytes: u32) -> (String, Instant) {
        let path = w.dir.join(format!("{name}.py"));
        let file = w.dir.join(format!("{name}.direct"));
        let program = format!(
            "import os, socket, mmap, resource, time\n\
             a, b = os.pipe(), os.pipe()\n\
             child = os.fork()\n\
             if child == 0:\n    for _ in range({rounds}):\n        os.read(a[0], 1); os.write(b[1], b'x')\n    os._exit(0)\n\
             for _ in range({rounds}):\n    os.write(a[1], b'x'); os.read(b[0], 1)\n\
             os.waitpid(child, 0)\n\
             s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)); s.connect(s.getsockname())\n\
             for _ in range({datagrams}):\n    s.send(b'x' * 1000); s.recv(2000)\n\
             if {mebibytes}:\n    page = mmap.mmap(-1, 1 << 20)\n    fd = os.open({file:?}, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)\n\
             for _ in range({mebibytes}): os.write(fd, page)\n\
             own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]\n\
             print('counted', sum(u.ru_nvcsw for u in own), sum(u.ru_nivcsw for u in own), flush=True)\ntime.sleep(600)\n"
        );
        fs::write(&path, program).unwrap();
        let begun = Instant::now();
        (w.submit(&["--cores", "1", "--", PYTHON, &path.to_string_lossy()]), begun)
    }

    fn wait(w: &World, (id, begun): (String, Instant), datagrams: u32, mebibytes: u32) -> Self {
        w.wait_log(&id, "counted ");
        let log = w.ok(&["logs", &id]);
        let counts = log.lines().find_map(|line| line.split_once("counted ")).unwrap_or_else(|| panic!("{log}")).1;
        let numbers: Vec<f64> = counts.split_whitespace().map(|word| word.parse().unwrap()).collect();
        Self { id, begun, switches: [numbers[0], numbers[1]], datagrams: f64::from(datagrams), mebibytes: f64::from(mebibytes) }
    }
}

/// Equal within one percent, plus a few unrelated events.
fn about(what: &str, counted: f64, known: f64, besides: f64) {
    assert!((counted - known).abs() <= known * 0.01 + besides, "{what}: {known} is known, and {counted} is exported");
}

fn counting(w: &World) {
    for node in ["n1", "n2"] {
        w.wait("the programs to be loaded", || {
            Page::agent(w, node).find("lattice_agent_kernel_probe", &[("probe", "sched_switch")]) == Some(1.0)
        });
    }
}

/// The series does not exist until the first measurement.
fn of(page: &Page, id: &str, name: &str, more: &[(&str, &str)]) -> f64 {
    page.find(name, &[&[("allocation", id)], more].concat()).unwrap_or(0.0)
}

fn counted(w: &World) {
    counting(w);
    let loads = [("much", 20_000, 20_000), ("little", 3000, 2000)];
    let begun = loads.map(|(name, rounds, datagrams)| Load::begin(w, name, rounds, datagrams, 0));
    for (id, (_, rounds, datagrams)) in begun.into_iter().zip(loads) {
        let load = Load::wait(w, id, datagrams, 0);
        let (id, node) = (load.id.as_str(), node_of(w, &load.id));
        let at = |page: &Page, name: &str, more: &[(&str, &str)]| page.value(name, &[&[("allocation", id)], more].concat());
        let switches = |page: &Page, kind| of(page, id, "lattice_allocation_context_switches_total", &[("kind", kind)]);
        // Some of its last switches and datagrams appear in a later measurement.
        let known = load.switches[0] + load.switches[1];
        let bytes = load.datagrams * (DATAGRAM + HEADERS);
        let received = |page: &Page| of(page, id, "lattice_allocation_network_received_bytes_total", &[]);
        let mut last = None;
        w.wait("the switches and the datagrams to be exported", || {
            let page = last.insert(Page::agent(w, &node));
            switches(page, "voluntary") + switches(page, "involuntary") >= known * 0.99 && received(page) >= bytes
        });
        let page = last.unwrap();
        assert!(load.switches[0] >= f64::from(rounds), "each round trip waits");
        about("voluntary switches", switches(&page, "voluntary"), load.switches[0], 30.0);
        about("all switches", switches(&page, "voluntary") + switches(&page, "involuntary"), known, 50.0);
        about("bytes sent", at(&page, "lattice_allocation_network_sent_bytes_total", &[]), bytes, 0.0);
        about("bytes received", at(&page, "lattice_allocation_network_received_bytes_total", &[]), bytes, 0.0);
        for direction in ["sent", "received"] {
            let packets = at(&page, "lattice_allocation_network_packets_total", &[("direction", direction)]);
            about("packets", packets, load.datagrams, 0.0);
        }
        let top = w.lattice.json(&["top", id]).unwrap();
        // Each time slice ends with a switch.
        let stints = at(&page, "lattice_allocation_on_cpu_seconds_count", &[]);
        let switched = switches(&page, "voluntary") + switches(&page, "involuntary");
        about("stints", stints, switched, 5.0);
        about("waits", at(&page, "lattice_allocation_run_queue_seconds_count", &[]), switched, 5.0);
        let (on_cpu, cpu) = (at(&page, "lattice_allocation_on_cpu_seconds_sum", &[]), page.cpu_seconds(id));
        // A time slice continues while a hypervisor takes the processor away: two threads have at most twice the
        // elapsed time.
        let most = load.begun.elapsed().as_secs_f64() * 2.0;
        assert!(on_cpu >= cpu * 0.9 - 0.1 && on_cpu <= most, "{cpu} s of a processor, and stints of {on_cpu} s in at most {most} s");
        assert_eq!(at(&page, "lattice_allocation_processes_started_total", &[]), 2.0);
        assert_eq!(at(&page, "lattice_allocation_processes_exited_total", &[]), 1.0);
        for measure in ["switches_voluntary", "network_sent", "run_queue"] {
            assert_eq!(page.value("lattice_allocation_measure_source_info", &[("measure", measure), ("source", "ebpf")]), 1.0);
        }
        assert_eq!(page.value("lattice_agent_kernel_probe", &[("probe", "sched_switch")]), 1.0);
        assert_eq!(measured(&top["nodes"][0], "switches_voluntary")["source"], "ebpf", "{top}");
        w.ok(&["cancel", id]);
        w.ended(id);
    }
}

/// Writes past the page cache count for the allocation, by device. Data that it leaves in the page cache is written
/// later, and counts for no allocation.
fn written(w: &World) {
    counting(w);
    let loads = [("writes-much", 32), ("writes-little", 4)];
    let begun = loads.map(|(name, mebibytes)| Load::begin(w, name, 1, 1, mebibytes));
    for (id, (_, mebibytes)) in begun.into_iter().zip(loads) {
        let load = Load::wait(w, id, 1, mebibytes);
        let (id, node) = (load.id.as_str(), node_of(w, &load.id));
        let known = load.mebibytes * MEBIBYTE;
        let block_bytes = |page: &Page| of(page, id, "lattice_allocation_block_io_bytes_total", &[("direction", "write")]);
        let mut last = None;
        w.wait("the written bytes to be exported", || block_bytes(last.insert(Page::agent(w, &node))) >= known);
        let page = last.unwrap();
        // These writes bypass the page cache, so they count as its own; metadata of the file may be added.
        about("bytes written past the page cache", block_bytes(&page), known, 65_536.0);
        let requests = of(&page, id, "lattice_allocation_block_io_seconds_count", &[("direction", "write")]);
        let waited = of(&page, id, "lattice_allocation_block_io_seconds_sum", &[("direction", "write")]);
        assert!(requests >= load.mebibytes && waited > 0.0, "{requests} requests took {waited} s");
        let top = w.lattice.json(&["top", id]).unwrap();
        // The devices add up to the same: one, or several below a stacked device.
        let bytes = page.sum("lattice_allocation_device_io_bytes_total", &[("allocation", id), ("direction", "write")]);
        assert_eq!(bytes, block_bytes(&page));
        let by_device = page.sum("lattice_allocation_device_io_requests_total", &[("allocation", id), ("direction", "write")]);
        assert_eq!(by_device, requests);
        let seconds = page.sum("lattice_allocation_device_io_seconds_total", &[("allocation", id), ("direction", "write")]);
        assert!((seconds - waited).abs() < 1e-6, "{seconds} s, and {waited} s by the histogram");
        let named = |one: &Value| one["name"].as_str().and_then(|name| name.strip_prefix("device_write_bytes:")).map(str::to_owned);
        let disk = top["nodes"][0]["measured"].as_array().unwrap().iter().find_map(named).unwrap_or_else(|| panic!("{top}"));
        assert!(Path::new("/sys/block").join(&disk).exists(), "{disk}");
        let diag = w.ok(&["diag", id, "--storage"]);
        assert!(diag.contains(&format!("disk {disk}")) && diag.contains("written so far"), "{diag}");
        let diagnosis = w.lattice.json(&["diag", id, "--storage"]).unwrap();
        let findings = diagnosis["nodes"][0]["findings"].as_array().unwrap();
        let of = |about: &str| findings.iter().find(|f| f["subject"] == about).unwrap_or_else(|| panic!("no {about}: {diagnosis:#}"));
        let writes = text(of("writes of all disks"), "text");
        let (count, took) = writes.split_once(" so far, ").unwrap_or_else(|| panic!("{writes}"));
        assert!(count.parse::<f64>().unwrap() >= requests && ["p50 ", "p95 ", "p99 "].iter().all(|p| took.contains(p)), "{writes}");
        // The value is from an earlier measurement.
        assert!(of(&format!("disk {disk}"))["age_ms"].as_u64().is_some_and(|age| age < 10_000), "{diagnosis:#}");
        assert_eq!(page.value("lattice_allocation_measure_source_info", &[("measure", "block_write"), ("source", "ebpf")]), 1.0);
        w.ok(&["cancel", id]);
        w.ended(id);
    }
}

fn written_back(w: &World) {
    counting(w);
    let (path, file) = (w.dir.join("buffered.py"), w.dir.join("buffered"));
    let program = format!(
        "import time\nkept = open({file:?}, 'wb')\nkept.write(b'x' * ({BUFFERED_MEBIBYTES} << 20)); kept.flush()\nprint('buffered', flush=True)\ntime.sleep(600)\n"
    );
    fs::write(&path, program).unwrap();
    let nobodys = |page: &Page| page.value("lattice_node_block_unattributed_bytes_total", &[("direction", "write")]);
    let before = nobodys(&Page::agent(w, "n1"));
    let id = w.submit(&["--cores", "1", "--", PYTHON, &path.to_string_lossy()]);
    w.wait_log(&id, "buffered");
    // The kernel's own threads write the whole file system.
    let opened = File::open(&file).unwrap();
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::syncfs(opened.as_raw_fd()) }, 0, "{}", std::io::Error::last_os_error());
    let known = f64::from(BUFFERED_MEBIBYTES) * MEBIBYTE;
    // Each agent counts what belongs to no allocation on the whole machine.
    w.wait("the writeback to be exported", || nobodys(&Page::agent(w, "n1")) >= before + known);
    let own = of(&Page::agent(w, &node_of(w, &id)), &id, "lattice_allocation_block_io_bytes_total", &[("direction", "write")]);
    assert!(own < known * 0.1, "{own} bytes of {known} are counted as its own");
    w.ok(&["cancel", &id]);
    w.ended(&id);
}

fn connected(w: &World) {
    counting(w);
    let path = w.dir.join("connects.py");
    let program = "import socket, time\nlistening = socket.create_server(('127.0.0.1', 0))\n\
                   for _ in range(40):\n    mine = socket.create_connection(listening.getsockname()); its, _ = listening.accept(); mine.close(); its.close()\n\
                   print('connected', flush=True)\ntime.sleep(600)\n";
    fs::write(&path, program).unwrap();
    let id = w.submit(&["--cores", "1", "--", PYTHON, &path.to_string_lossy()]);
    w.wait_log(&id, "connected");
    let node = node_of(w, &id);
    let connects = || of(&Page::agent(w, &node), &id, "lattice_allocation_tcp_connects_total", &[]);
    w.wait("its connections", || connects() >= 40.0);
    let accepts = || of(&Page::agent(w, &node), &id, "lattice_allocation_tcp_accepts_total", &[]);
    w.wait("its accepted connections", || accepts() >= 40.0);
    // Each end of a connection counts once.
    assert_eq!((connects(), accepts()), (40.0, 40.0));
    let top = w.lattice.json(&["top", &id]).unwrap();
    assert_eq!(measured(&top["nodes"][0], "connections_accepted")["source"], "ebpf", "{top}");
    w.ok(&["cancel", &id]);
    w.ended(&id);
}

/// Connections to a listener with a full queue: the kernel repeats the SYN after a second, and after two more. One
/// connection waits to be accepted.
fn sent_again(w: &World) {
    counting(w);
    let path = w.dir.join("again.py");
    let program = "import socket, sys, time\nlistening = socket.socket(); listening.bind(('127.0.0.1', 0)); listening.listen(0)\n\
                   taken = socket.create_connection(listening.getsockname())\n\
                   kept = [socket.socket() for _ in range(int(sys.argv[1]))]\n\
                   for one in kept: one.setblocking(False); one.connect_ex(listening.getsockname())\n\
                   print('begun', flush=True)\ntime.sleep(600)\n";
    fs::write(&path, program).unwrap();
    let submit = |waiting: &str| w.submit(&["--cores", "1", "--", PYTHON, &path.to_string_lossy(), waiting]);
    let (id, calm) = (submit("3"), submit("0"));
    [&id, &calm].iter().for_each(|id| w.wait_log(id, "begun"));
    let again = |id: &str| of(&Page::agent(w, &node_of(w, id)), id, "lattice_allocation_tcp_retransmits_total", &[]);
    w.wait("what was sent again", || again(&id) >= 3.0);
    assert_eq!(again(&calm), 0.0, "it is counted for the allocation that does it");
    let queue = |id: &str| Page::agent(w, &node_of(w, id)).find("lattice_allocation_accept_queue", &[("allocation", id)]);
    w.wait("the connection that nobody accepts", || [&id, &calm].iter().all(|id| queue(id) == Some(1.0)));
    let top = w.lattice.json(&["top", &calm]).unwrap();
    let queue = measured(&top["nodes"][0], "accept_queue");
    assert_eq!((queue["now"].as_f64(), queue["source"].as_str()), (Some(1.0), Some("sock_diag")), "{top}");
    [&id, &calm].iter().for_each(|id| {
        w.ok(&["cancel", id]);
        w.ended(id);
    });
}

/// The metrics of an allocation on a node, by name.
fn names(page: &Page, id: &str) -> BTreeSet<String> {
    let of = page.0.keys().filter(|(_, labels)| labels.get("allocation").is_some_and(|of| of == id));
    of.map(|(name, _)| name.clone()).collect()
}

/// The agent without its programs: cgroups and `/proc` provide what they can under the same names.
fn without(w: &World) {
    counting(w);
    let id = w.submit(&["--cores", "1", "--", "sh", "-c", "while :; do sleep 0.1; done"]);
    w.running(&id);
    let (node, cluster) = (node_of(w, &id), w.cluster());
    let switches = |page: &Page| page.find("lattice_allocation_context_switches_total", &[("allocation", &id), ("kind", "voluntary")]);
    w.wait("its switches", || switches(&Page::agent(w, &node)).is_some_and(|count| count > 0.0));
    // Measured less often than the rest.
    w.wait("its launch", || names(&Page::agent(w, &node), &id).contains("lattice_allocation_launch_idle_seconds"));
    let with = names(&Page::agent(w, &node), &id);
    let config = cluster.dir.join(&node).join("agent.yaml");
    faults::kill_node(&w.dir, &node).unwrap();
    let before = configure(&w.dir, &node, "measuring: {kernel_probes: false}");
    faults::start_node(&w.dir, &node).unwrap();
    w.wait("its processor time", || Page::agent(w, &node).cpu_seconds(&id) > 0.0);
    let page = Page::agent(w, &node);
    let measured = names(&page, &id);
    assert!(measured.is_subset(&with), "{measured:?} is exported without programs, and with them {with:?}");
    for name in ["cpu_seconds_total", "memory_bytes", "page_faults_total", "processes", "threads"] {
        assert!(measured.contains(&format!("lattice_allocation_{name}")), "{measured:?}");
    }
    // Values without another source are absent, not 0.
    assert_eq!(switches(&page), None);
    assert_eq!(page.sum("lattice_allocation_measure_source_info", &[("source", "ebpf")]), 0.0);
    assert_eq!(page.value("lattice_agent_kernel_probe", &[("probe", "sched_switch")]), 0.0);
    let doctor = |config: &Path| {
        let mut command = Command::new(cluster.binaries.join("lattice-agent"));
        process::run(command.arg("doctor").arg("--config").arg(config), JOB).unwrap().out()
    };
    assert!(doctor(&config).contains("switched off (measuring.kernel_probes: false)"), "{}", doctor(&config));
    faults::kill_node(&w.dir, &node).unwrap();
    fs::write(&config, before).unwrap();
    faults::start_node(&w.dir, &node).unwrap();
    w.wait("the programs to count again", || {
        Page::agent(w, &node).find("lattice_agent_kernel_probe", &[("probe", "sched_switch")]) == Some(1.0)
    });
    w.ok(&["cancel", &id]);
    w.ended(&id);
}

/// The ids of the kernel programs that a process holds, ascending.
pub fn programs_of(pid: i32) -> Vec<u32> {
    let infos = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten().filter_map(|info| fs::read_to_string(info.path()).ok());
    let id = |info: String| info.lines().find_map(|line| line.strip_prefix("prog_id:")).and_then(|id| id.trim().parse().ok());
    let mut held: Vec<u32> = infos.filter_map(id).collect();
    held.sort_unstable();
    held
}

/// Whether the kernel has a program with this id.
fn has_program(id: u32) -> bool {
    const BPF_PROG_GET_FD_BY_ID: i32 = 13;
    #[repr(C)]
    struct Attributes {
        id: u32,
        next: u32,
        flags: u32,
    }
    let attributes = Attributes { id, next: 0, flags: 0 };
    // SAFETY: the attributes have the size that is passed, and live during the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_GET_FD_BY_ID, &raw const attributes, size_of::<Attributes>()) };
    if fd >= 0 {
        // SAFETY: it was just opened and is nobody else's.
        unsafe { libc::close(i32::try_from(fd).unwrap()) };
    }
    fd >= 0
}

fn counted_on(w: &World) {
    let loop_of_pipes = "import os\na, b = os.pipe(), os.pipe()\nif os.fork() == 0:\n    while True: os.read(a[0], 1); os.write(b[1], b'x')\n\
                         while True: os.write(a[1], b'x'); os.read(b[0], 1)\n";
    let path = w.dir.join("pipes.py");
    fs::write(&path, loop_of_pipes).unwrap();
    let id = w.submit(&["--cores", "1", "--", PYTHON, &path.to_string_lossy()]);
    w.running(&id);
    let node = node_of(w, &id);
    let switches =
        |page: &Page| page.find("lattice_allocation_context_switches_total", &[("allocation", &id), ("kind", "voluntary")]).unwrap_or(0.0);
    w.wait("switches", || switches(&Page::agent(w, &node)) > 1000.0);
    let pid = w.cluster().node(&node).unwrap().daemon.process.as_ref().unwrap().pid;
    let held = programs_of(pid);
    assert!(held.len() >= 8 && held.iter().all(|id| has_program(*id)), "{held:?}");
    let before = switches(&Page::agent(w, &node));
    faults::kill_node(&w.dir, &node).unwrap();
    w.wait("the kernel to let go what the agent had", || !held.iter().any(|id| has_program(*id)));
    faults::start_node(&w.dir, &node).unwrap();
    let mut first = 0.0;
    w.wait("its series to be back", || {
        first = switches(&Page::agent(w, &node));
        first > 0.0
    });
    assert!(first >= before, "{before} before, and {first} after");
    w.wait("it to be counted on", || switches(&Page::agent(w, &node)) > first);
    w.ok(&["cancel", &id]);
    w.ended(&id);
}
