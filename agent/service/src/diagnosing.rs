//! `AllocationService.Diagnose`: problems of an allocation's work, from the agents of its nodes.

use super::Api;
use super::usage::runs;
use futures::stream::{self, StreamExt};
use lattice_api::v1;
use lattice_mesh::diagnosis::{DiagnosisGpus, DiagnosisOpen, WireDiagnosis, WireFact, WireProcess};
use lattice_meshd::diagnosis;
use lattice_meshd::diagnosis::gpus::uneven;
use lattice_model::millis;
use std::time::Instant;
use tonic::{Request, Status};

/// How many nodes are asked at once.
const NODES_AT_ONCE_MAX: usize = 64;

pub(super) async fn diagnose(api: &Api, request: Request<v1::DiagnoseRequest>) -> Result<v1::DiagnoseResponse, Status> {
    let caller = api.caller(&request).await?;
    let v1::DiagnoseRequest { key, processes, stacks, network, storage } = request.into_inner();
    if !(processes || stacks || network || storage) {
        return Err(Status::invalid_argument("nothing is asked: processes, stacks, network or storage"));
    }
    let allocation = api.allocation(&caller, &key).await?;
    api.check(&caller, &allocation).await?;
    runs(&allocation)?;
    api.audit_measurements_read(&caller.principal, &allocation, "diag").await?;
    let user = caller.vouched_for(&allocation.owner);
    let nodes: Vec<_> = allocation.nodes().cloned().collect();
    let asked = nodes.into_iter().map(|node| {
        let open = DiagnosisOpen {
            allocation: *allocation.id.0.as_bytes(),
            epoch: allocation.epoch.0,
            uid: user.uid,
            user: user.name.clone(),
            processes,
            stacks,
            network,
            storage,
        };
        async move {
            let began = Instant::now();
            let found = diagnosis::of_node(&api.context, &node, api.mesh_address(&node).await, open).await;
            let took_ms = millis(began.elapsed());
            let base = v1::NodeDiagnosis { node: node.to_string(), took_ms, ..Default::default() };
            match found {
                Ok(WireDiagnosis { processes, omitted, facts, ages, gpus }) => {
                    let processes = processes.into_iter().map(process).collect();
                    (v1::NodeDiagnosis { processes, findings: findings(facts, &ages), omitted, ..base }, gpus)
                }
                Err(error) => (v1::NodeDiagnosis { error: error.to_string(), ..base }, DiagnosisGpus::default()),
            }
        }
    });
    let (mut nodes, gpus): (Vec<v1::NodeDiagnosis>, Vec<DiagnosisGpus>) = stream::iter(asked).buffered(NODES_AT_ONCE_MAX).unzip().await;
    compare_gpus(&mut nodes, &gpus);
    Ok(v1::DiagnoseResponse { allocation: allocation.id.to_string(), nodes })
}

/// Findings about GPUs that need the results of all nodes.
fn compare_gpus(nodes: &mut [v1::NodeDiagnosis], gpus: &[DiagnosisGpus]) {
    let names: Vec<String> = nodes.iter().map(|node| node.node.clone()).collect();
    let each: Vec<(&str, &DiagnosisGpus)> = names.iter().map(String::as_str).zip(gpus).collect();
    for (at, text) in uneven(&each) {
        let (part, subject, source) = ("gpus".to_owned(), "balance".to_owned(), gpus[at].source.clone());
        nodes[at].findings.push(v1::Finding { part, subject, text, source, problem: true, age_ms: Some(gpus[at].age_ms) });
    }
}

fn process(of: WireProcess) -> v1::ProcessDiagnosis {
    v1::ProcessDiagnosis {
        pid: of.pid,
        launch: of.launch,
        rank: of.rank,
        name: of.name,
        state: of.state,
        threads: of.threads,
        wchan: of.wchan,
        off_cpu_ms: of.off_cpu_ms,
        cpu_seconds: of.cpu_seconds,
        memory_bytes: of.memory_bytes,
        open_files: of.open_files,
        open_files_max: of.open_files_max,
        stack: of.stack,
        notes: of.notes,
    }
}

fn findings(facts: Vec<WireFact>, ages: &[(u32, u64)]) -> Vec<v1::Finding> {
    let mut findings: Vec<v1::Finding> = facts.into_iter().map(finding).collect();
    for (which, age_ms) in ages {
        if let Some(finding) = usize::try_from(*which).ok().and_then(|which| findings.get_mut(which)) {
            finding.age_ms = Some(*age_ms);
        }
    }
    findings
}

fn finding(WireFact { part, subject, text, source, problem }: WireFact) -> v1::Finding {
    v1::Finding { part, subject, text, source, problem, age_ms: None }
}
