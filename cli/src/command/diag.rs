//! `lattice diag`.

use super::top::value::age_text;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::table::{Fit, Table, entry};
use lattice_cli_syntax::args::watching::Diag;
use lattice_model::resources::bytes_text;
use serde_json::{Value, json};

pub async fn run(session: &Session, args: Diag) -> Result<(), Failure> {
    let Diag { id, stacks, network, storage } = args;
    let some = network || storage;
    let key = session.resolve_key(&id)?;
    let request = v1::DiagnoseRequest { key, processes: !some, stacks, network: network || !some, storage: storage || !some };
    let client = session.connect().await?;
    let diagnosis = answer(client.allocations().diagnose(request)).await?;
    match session.format() {
        Format::Table => print(&text(&diagnosis.nodes, session.table_size()))?,
        Format::Data(notation) => notation.print(&json_of(&diagnosis))?,
        Format::Name => print_names(diagnosis.nodes.iter().filter(|n| n.error.is_empty()).map(|n| n.node.as_str()))?,
    }
    let unreachable: Vec<&v1::NodeDiagnosis> = diagnosis.nodes.iter().filter(|node| !node.error.is_empty()).collect();
    for node in &unreachable {
        session.note(&format!("{} reports nothing: {}", node.node, node.error));
    }
    for node in diagnosis.nodes.iter().filter(|node| node.omitted > 0) {
        session.note(&format!("{} has {} more processes of the allocation, which are not shown", node.node, node.omitted));
    }
    if !unreachable.is_empty() && unreachable.len() == diagnosis.nodes.len() {
        return Err(Failure::new(Exit::Unavailable, "no node of the allocation reported a diagnosis"));
    }
    Ok(())
}

/// How the tables are made narrower.
const PROCESSES_FIT: Fit<'_> = Fit {
    left_out: &["FILES", "MEMORY", "LAUNCH"],
    shortened: &[("NAME", 8), ("WAITS IN", 12), ("NODE", 8)],
    wrapped: &[],
    left_out_last: &[],
};
const FINDINGS_FIT: Fit<'_> =
    Fit { left_out: &["SOURCE", "AGE"], shortened: &[("NODE", 8), ("ABOUT", 16)], wrapped: &[("FOUND", 24)], left_out_last: &["PART"] };

fn text(nodes: &[v1::NodeDiagnosis], size: TableSize) -> String {
    let mut parts = Vec::new();
    let number = |n: Option<u32>| n.map(|n| n.to_string()).unwrap_or_default();
    let mut table = Table::new(&["NODE", "LAUNCH", "RANK", "PID", "NAME", "STATE", "WAITS IN", "STILL", "CPU", "MEMORY", "FILES"]);
    for node in nodes {
        for p in &node.processes {
            let files = match (p.open_files, p.open_files_max) {
                (Some(open), Some(most)) => format!("{open}/{most}"),
                (open, _) => open.map(|open| open.to_string()).unwrap_or_default(),
            };
            table.row(vec![
                node.node.clone(),
                number(p.launch),
                number(p.rank),
                p.pid.to_string(),
                p.name.clone(),
                p.state.clone(),
                p.wchan.clone(),
                p.off_cpu_ms.map(|ms| format!("{:.1} s", ms as f64 / 1e3)).unwrap_or_default(),
                format!("{:.1} s", p.cpu_seconds),
                bytes_text(p.memory_bytes),
                files,
            ]);
        }
    }
    if nodes.iter().any(|node| !node.processes.is_empty()) {
        parts.push(table.on_screen(&[], &PROCESSES_FIT, size));
    }
    let mut details = String::new();
    for node in nodes {
        for p in &node.processes {
            let who =
                p.rank.map_or_else(|| format!("{} process {}", node.node, p.pid), |rank| format!("{} rank {rank} ({})", node.node, p.pid));
            for note in &p.notes {
                details += &entry("! ", &format!("{who}: {note}"), size);
            }
            if !p.stack.is_empty() {
                details += &entry("  ", &format!("{who}: {}", p.stack.join(" < ")), size);
            }
        }
    }
    if !details.is_empty() {
        parts.push(details);
    }
    let mut table = Table::new(&["", "NODE", "PART", "ABOUT", "FOUND", "SOURCE", "AGE"]);
    let mut found = false;
    for node in nodes {
        for f in &node.findings {
            found = true;
            let mark = if f.problem { "!" } else { " " };
            let cells = [mark, &node.node, &f.part, &f.subject, &f.text, &f.source].map(str::to_owned);
            table.row(cells.into_iter().chain([age_text(age_ms(node, f))]).collect());
        }
    }
    if found {
        parts.push(table.on_screen(&[], &FINDINGS_FIT, size));
    }
    parts.join("\n")
}

/// The greatest possible age of a finding when it is shown, in milliseconds.
fn age_ms(node: &v1::NodeDiagnosis, of: &v1::Finding) -> u64 {
    of.age_ms.unwrap_or(0).saturating_add(node.took_ms)
}

fn json_of(diagnosis: &v1::DiagnoseResponse) -> Value {
    let process = |p: &v1::ProcessDiagnosis| {
        json!({
            "pid": p.pid, "launch": p.launch, "rank": p.rank, "name": p.name, "state": p.state, "threads": p.threads,
            "wchan": (!p.wchan.is_empty()).then_some(&p.wchan), "off_cpu_ms": p.off_cpu_ms, "cpu_seconds": p.cpu_seconds,
            "memory_bytes": p.memory_bytes, "open_files": p.open_files, "open_files_max": p.open_files_max, "stack": p.stack, "notes": p.notes,
        })
    };
    let node = |n: &v1::NodeDiagnosis| {
        let finding = |f: &v1::Finding| json!({"part": f.part, "subject": f.subject, "text": f.text, "source": f.source, "problem": f.problem, "age_ms": age_ms(n, f)});
        json!({
            "node": n.node,
            "error": (!n.error.is_empty()).then_some(&n.error),
            "took_ms": n.took_ms,
            "processes": n.processes.iter().map(process).collect::<Vec<_>>(),
            "omitted": n.omitted,
            "findings": n.findings.iter().map(finding).collect::<Vec<_>>(),
        })
    };
    json!({"allocation": diagnosis.allocation, "nodes": diagnosis.nodes.iter().map(node).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_and_notes_that_need_attention_are_marked() {
        let rank = v1::ProcessDiagnosis {
            pid: 7,
            launch: Some(1),
            rank: Some(0),
            name: "a.out".into(),
            state: "D".into(),
            wchan: "nfs_wait".into(),
            off_cpu_ms: Some(61_000),
            cpu_seconds: 1.5,
            memory_bytes: 1 << 20,
            open_files: Some(9),
            open_files_max: Some(10),
            stack: vec!["nfs_wait".into(), "vfs_read".into()],
            notes: vec!["9 of 10 open files".into()],
            ..Default::default()
        };
        let mount = v1::Finding {
            part: "storage".into(),
            subject: "/x (nfs)".into(),
            text: "does not answer".into(),
            source: "statvfs".into(),
            problem: true,
            age_ms: None,
        };
        let disk = v1::Finding {
            part: "storage".into(),
            subject: "disk sda".into(),
            text: "idle".into(),
            source: "ebpf".into(),
            problem: false,
            age_ms: Some(800),
        };
        let findings = vec![mount, disk];
        let node = v1::NodeDiagnosis { node: "n1".into(), took_ms: 400, processes: vec![rank], findings, ..Default::default() };
        let diagnosis = v1::DiagnoseResponse { allocation: "a".into(), nodes: vec![node] };
        let want = "\
NODE  LAUNCH  RANK  PID  NAME   STATE  WAITS IN  STILL   CPU    MEMORY  FILES
n1    1       0     7    a.out  D      nfs_wait  61.0 s  1.5 s  1 MiB   9/10

! n1 rank 0 (7): 9 of 10 open files
  n1 rank 0 (7): nfs_wait < vfs_read

   NODE  PART     ABOUT     FOUND            SOURCE   AGE
!  n1    storage  /x (nfs)  does not answer  statvfs  0.4 s
   n1    storage  disk sda  idle             ebpf     1.2 s
";
        assert_eq!(text(&diagnosis.nodes, TableSize::default()), want);
        let narrow = TableSize { columns: Some(80), ..TableSize::default() };
        let mut long = diagnosis.nodes.clone();
        long[0].findings[0].text = "does not answer: ".to_owned() + &"every call to it waits ".repeat(8);
        long[0].processes[0].wchan = "a_function_of_the_kernel_with_a_long_name".into();
        long[0].processes[0].stack = vec!["kernel_function".into(); 12];
        long[0].processes[0].notes = vec!["it waits for a device ".repeat(8)];
        let shown = text(&long, narrow);
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        let count = |what: &str| shown.matches(what).count();
        assert_eq!([count("every call"), count("kernel_function"), count("device")], [8, 12, 8], "nothing is lost: {shown}");
        let json = json_of(&diagnosis);
        assert_eq!(json["nodes"][0]["findings"][1]["age_ms"], 1200);
        assert_eq!((&json["nodes"][0]["processes"][0]["rank"], &json["nodes"][0]["findings"][0]["problem"]), (&0.into(), &true.into()));
    }
}
