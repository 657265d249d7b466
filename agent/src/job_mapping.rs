//! The files by which NVIDIA's dcgm-exporter says whose job uses a GPU (`--hpc-job-mapping-dir`, `DCGM_HPC_JOB_MAPPING_DIR`): one for each
//! GPU that work has, named by the GPU's number as DCGM counts, with the allocation's id in it. Others' files stay as they are, and so do
//! ours while an agent is away: the work goes on.

use crate::context::{Context, Shared};
use lattice_model::AllocationId;
use lattice_model::topology::{GpuDevice, GpuTopology, GpuVendor};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often what should be there is compared with what is, where nothing changed: somebody may clear the folder.
const AGAIN: Duration = Duration::from_secs(30);
/// Bytes of a file that are read: an id and a line's end, and what somebody else may have written.
const BYTES_MAX: u64 = 4096;
/// What cannot be written is said under this name.
const TROUBLE: &str = "GPU job mapping";

/// Keeps the folder as the node's work is, until `stop`.
pub async fn run(context: Shared, dir: PathBuf, stop: CancellationToken) {
    let mut view = context.view.clone();
    loop {
        view.mark_unchanged();
        let (wanted, of_node) = wanted(&context);
        let to = dir.clone();
        let done = tokio::task::spawn_blocking(move || keep(&to, &wanted, &of_node)).await;
        match done {
            Ok(Ok(())) => context.troubles.over(TROUBLE),
            Ok(Err(error)) => {
                context.troubles.say(TROUBLE, format!("{}: {error}: dcgm-exporter does not know whose GPUs are", dir.display()));
            }
            Err(broke) => tracing::error!(%broke, "writing the GPUs' job mapping broke"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = view.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

/// What each file should say, and all names that are this node's.
fn wanted(context: &Context) -> (BTreeMap<String, AllocationId>, BTreeSet<String>) {
    let topology = context.topology();
    let numbers = numbers(&topology.gpu);
    let view = context.view.borrow();
    let of = view.locals.iter().filter_map(|local| Some((local.share.allocation, local.assignment.as_ref()?)));
    let wanted = of.flat_map(|(allocation, assignment)| {
        let names = assignment.gpus.iter().filter_map(|gpu| numbers.get(gpu.as_str()).cloned());
        names.map(move |name| (name, allocation)).collect::<Vec<_>>()
    });
    (wanted.collect(), numbers.values().cloned().collect())
}

/// What DCGM calls the GPUs: NVML's numbers, which are in the order of their addresses. Instances of partitioned GPUs are left out: DCGM
/// names them by numbers that the topology lacks. Simulated ones are counted for themselves.
fn numbers(gpus: &GpuTopology) -> BTreeMap<&str, String> {
    let of_nvidia = |gpu: &&GpuDevice| gpu.vendor == GpuVendor::Nvidia;
    let addresses: BTreeSet<&str> = gpus.gpus.iter().filter(of_nvidia).filter_map(|gpu| gpu.pci_address.as_deref()).collect();
    let number = |gpu: &GpuDevice| match gpu.vendor {
        GpuVendor::Nvidia if gpu.partitioned => None,
        GpuVendor::Nvidia => addresses.iter().position(|address| Some(*address) == gpu.pci_address.as_deref()).map(|n| n.to_string()),
        GpuVendor::Simulated => Some(gpu.index.to_string()),
        GpuVendor::Amd => None,
    };
    gpus.gpus.iter().filter_map(|gpu| Some((gpu.id.as_str(), number(gpu)?))).collect()
}

/// Makes the files so. Of the node's names those that nobody has are removed.
fn keep(dir: &Path, wanted: &BTreeMap<String, AllocationId>, of_node: &BTreeSet<String>) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for (name, allocation) in wanted {
        let (file, line) = (dir.join(name), format!("{allocation}\n"));
        if text(&file).as_deref() != Some(line.as_str()) {
            // No name that the exporter takes for a GPU's.
            let part = dir.join(format!(".{name}.part"));
            fs::write(&part, line)?;
            // Whatever the umask is: the exporter need not be root.
            fs::set_permissions(&part, fs::Permissions::from_mode(0o644))?;
            fs::rename(&part, &file)?;
        }
    }
    for name in of_node.iter().filter(|name| !wanted.contains_key(*name)) {
        match fs::remove_file(dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn text(file: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(file).ok()?.take(BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn gpu(index: u32, id: &str, vendor: GpuVendor, partitioned: bool, address: &str) -> GpuDevice {
        GpuDevice {
            index,
            id: id.to_owned(),
            vendor,
            model: String::new(),
            memory_bytes: 0,
            compute_capability: String::new(),
            partitioned,
            pci_address: Some(address.to_owned()),
            numa_node: None,
            device_files: vec![],
        }
    }

    #[test]
    fn numbers_are_nvmls_and_partitioned_gpus_count_once() {
        let gpus = GpuTopology {
            gpus: vec![
                gpu(0, "MIG-a", GpuVendor::Nvidia, true, "0000:1a:00.0"),
                gpu(1, "MIG-b", GpuVendor::Nvidia, true, "0000:1a:00.0"),
                gpu(2, "GPU-c", GpuVendor::Nvidia, false, "0000:3b:00.0"),
                gpu(3, "GPU-d", GpuVendor::Nvidia, false, "0000:5e:00.0"),
                gpu(4, "GPU-e", GpuVendor::Amd, false, "0000:6e:00.0"),
            ],
            ..GpuTopology::default()
        };
        let numbers: Vec<(&str, String)> = numbers(&gpus).into_iter().collect();
        assert_eq!(numbers, [("GPU-c", "1".to_owned()), ("GPU-d", "2".to_owned())]);
    }

    #[test]
    fn files_say_who_has_a_gpu_and_others_files_stay() {
        let dir = std::env::temp_dir().join(format!("lattice-job-mapping-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let id = AllocationId(Uuid::from_u128(7));
        let of_node: BTreeSet<String> = ["0", "1"].map(str::to_owned).into();
        keep(&dir, &[("0".to_owned(), id)].into(), &of_node).unwrap();
        fs::write(dir.join("9"), "somebody else's\n").unwrap();
        assert_eq!(fs::read_to_string(dir.join("0")).unwrap(), format!("{id}\n"));
        assert_eq!(fs::metadata(dir.join("0")).unwrap().permissions().mode() & 0o777, 0o644);
        keep(&dir, &[("1".to_owned(), id)].into(), &of_node).unwrap();
        let mut names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["1", "9"]);
        fs::remove_dir_all(&dir).unwrap();
    }
}
