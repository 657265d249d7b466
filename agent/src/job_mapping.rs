//! Writes the files from which NVIDIA's dcgm-exporter reads whose job uses a GPU
//! (`--hpc-job-mapping-dir`, `DCGM_HPC_JOB_MAPPING_DIR`): one for each GPU that work has, named by
//! the GPU's number in DCGM, with the allocation's id in it. Files of others stay unchanged, and so
//! do ours while the agent is down, because the work continues.
//!
//! Instances of partitioned GPUs get no file: the exporter reads only whole numbers as names, and
//! would charge each instance to every job on that GPU. While a GPU is lost or new, NVIDIA's GPUs
//! have no files, and existing ones are removed: the exporter may count the GPUs differently, and
//! charging a wrong job is worse than charging none.

use lattice_meshd::context::{Context, Shared};
use lattice_model::AllocationId;
use lattice_model::gpu_look::gpu_key;
use lattice_model::topology::{GpuDevice, GpuTopology, GpuVendor};
use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The interval at which the files are checked if nothing has changed: the folder may have been
/// cleared.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// How many bytes of a file are read: an id and a line end, or what others may have written.
const BYTES_MAX: u64 = 4096;
/// The subject under which problems are reported.
const SUBJECT: &str = "GPU job mapping";
const UNCERTAIN: &str = "a GPU is lost or new, and DCGM may number the others differently: NVIDIA's GPUs have no files here until it is as before, or \
                         dcgm-exporter and the agent are restarted together";
/// How many names in the folder are read.
const FILES_MAX: usize = 4096;

/// Keeps the folder up to date with the node's work, until `stop`.
pub async fn run(context: Shared, dir: PathBuf, stop: CancellationToken) {
    let mut view = context.work.view.clone();
    loop {
        view.mark_unchanged();
        let (wanted, uncertain) = wanted(&context);
        let to = dir.clone();
        let done = tokio::task::spawn_blocking(move || write_files(&to, &wanted)).await;
        match done {
            Ok(Ok(())) if uncertain => context.work.problems.set(SUBJECT, UNCERTAIN.to_owned()),
            Ok(Ok(())) => context.work.problems.clear(SUBJECT),
            Ok(Err(error)) => {
                context.work.problems.set(SUBJECT, format!("{}: {error}: dcgm-exporter does not learn whose GPUs they are", dir.display()));
            }
            Err(broke) => tracing::error!(%broke, "writing the GPUs' job mapping panicked"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = view.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
        }
    }
}

/// The allocation in each file, and whether NVIDIA GPUs are left out because their numbers in DCGM
/// are uncertain.
fn wanted(context: &Context) -> (BTreeMap<String, AllocationId>, bool) {
    let topology = context.machine.topology();
    let mut numbers = numbers(&topology.gpu);
    let statuses = context.machine.gpus.borrow().clone();
    let of_nvidia = |gpu: &&GpuDevice| gpu.vendor == GpuVendor::Nvidia;
    // A driver that is started again leaves out lost GPUs and counts new ones.
    let is_other = statuses.has_newcomers() || topology.gpu.gpus.iter().filter(of_nvidia).any(|gpu| !statuses.is_present(gpu_key(gpu)));
    let uncertain = is_other && topology.gpu.gpus.iter().any(|gpu| of_nvidia(&gpu));
    if uncertain {
        numbers.retain(|id, _| topology.gpu.by_id(id).is_some_and(|gpu| gpu.vendor != GpuVendor::Nvidia));
    }
    let view = context.work.view.borrow();
    let of = view.locals.iter().filter_map(|local| Some((local.share.allocation, local.assignment.as_ref()?)));
    let wanted = of.flat_map(|(allocation, assignment)| {
        let names = assignment.gpus.iter().filter_map(|gpu| numbers.get(gpu.as_str()).cloned());
        names.map(move |name| (name, allocation)).collect::<Vec<_>>()
    });
    (wanted.collect(), uncertain)
}

/// The GPUs' numbers in DCGM: those of NVML, which are in the order of the bus addresses. Instances
/// of partitioned GPUs are left out: DCGM gives them numbers that the topology does not have.
/// A simulated GPU has its number in the topology.
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

/// Writes as many files as possible; returns the first error. Files that are named like a GPU,
/// contain an allocation's id and are not wanted are removed: the exporter would charge that
/// allocation.
fn write_files(dir: &Path, wanted: &BTreeMap<String, AllocationId>) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    let flags = (OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW).bits();
    let folder = OpenOptions::new().read(true).custom_flags(flags).open(dir)?;
    let found = folder.metadata()?;
    // Others could make root write and read files of their choice.
    if found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 {
        let why = "others than root may write in this folder: give it to root with mode 755, or name another one";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    // The folder that was checked, even if its name has changed since.
    let at = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    let mut result = Ok(());
    for (name, allocation) in wanted {
        let line = format!("{allocation}\n");
        if text(&at.join(name)).as_deref() != Some(line.as_str()) {
            result = result.and(write(&at, name, &line));
        }
    }
    let is_number = |name: &String| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let names = fs::read_dir(&at)?.take(FILES_MAX).flatten().filter_map(|entry| entry.file_name().into_string().ok()).filter(is_number);
    for name in names.filter(|name| !wanted.contains_key(name)).collect::<Vec<_>>() {
        let file = at.join(name);
        if text(&file).is_some_and(|text| text.trim_end().parse::<AllocationId>().is_ok()) {
            result = result.and(remove(&file));
        }
    }
    result
}

fn write(at: &Path, name: &str, line: &str) -> io::Result<()> {
    // A name that the exporter does not take for a GPU's.
    let part = at.join(format!(".{name}.part"));
    remove(&part)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&part)?;
    // Readable whatever the umask is: the exporter need not run as root.
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.write_all(line.as_bytes())?;
    fs::rename(&part, at.join(name))
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The text of a regular file; links and files that block are not read.
fn text(file: &Path) -> Option<String> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(file).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text).ok()?;
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
    fn files_name_the_allocation_of_each_gpu_and_foreign_files_stay() {
        let dir = std::env::temp_dir().join(format!("lattice-job-mapping-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let id = AllocationId(Uuid::from_u128(7));
        write_files(&dir, &[("0".to_owned(), id)].into()).unwrap();
        fs::write(dir.join("9"), "somebody else's\n").unwrap();
        assert_eq!(fs::read_to_string(dir.join("0")).unwrap(), format!("{id}\n"));
        assert_eq!(fs::metadata(dir.join("0")).unwrap().permissions().mode() & 0o777, 0o644);
        // The file of a GPU that is no longer counted is removed as well.
        fs::write(dir.join("12"), format!("{id}\n")).unwrap();
        write_files(&dir, &[("1".to_owned(), id)].into()).unwrap();
        let mut names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["1", "9"]);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn links_and_pipes_lead_nowhere_and_a_folder_of_others_is_refused() {
        let root = std::env::temp_dir().join(format!("lattice-job-mapping-links-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let dir = root.join("jobs");
        DirBuilder::new().recursive(true).mode(0o755).create(&dir).unwrap();
        let secret = root.join("secret");
        fs::write(&secret, "secret").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let id = AllocationId(Uuid::from_u128(7));
        std::os::unix::fs::symlink(&secret, dir.join(".0.part")).unwrap();
        std::os::unix::fs::symlink(&secret, dir.join("0")).unwrap();
        nix::unistd::mkfifo(&dir.join("1"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::create_dir(dir.join("2")).unwrap();
        let wanted = ["0", "1", "2", "3"].map(|name| (name.to_owned(), id)).into();
        // The directory named 2 cannot be replaced; the other files are written all the same.
        assert!(write_files(&dir, &wanted).is_err());
        for name in ["0", "1", "3"] {
            assert_eq!(fs::read_to_string(dir.join(name)).unwrap(), format!("{id}\n"));
            assert!(fs::symlink_metadata(dir.join(name)).unwrap().is_file());
        }
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
        assert_eq!(fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
        std::os::unix::fs::symlink(&dir, root.join("link")).unwrap();
        assert!(write_files(&root.join("link"), &wanted).is_err());
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(write_files(&dir, &wanted).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        fs::remove_dir_all(&root).unwrap();
    }
}
