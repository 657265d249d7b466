//! Lets the `mpirun` of an MPI library start its daemons on an allocation's nodes: variables that
//! name our launcher in place of ssh, and a file of the nodes in each library's format.
//!
//! Hydra gets our program as `ssh` and not as `manual`, which only prints what it would start. The
//! launcher is `lattice` under the name `lattice-mpi-launcher`, because Hydra passes it no
//! arguments of ours. It starts each daemon as a launch, with a launch's user, scope, limits and
//! end, but without the variables of a rank. A library's variable that the user set is not changed.
//! Standard input is not carried: both libraries send it over their own connections.

use lattice_model::{AllocationId, DesiredShare, Epoch, NodeId, Placement};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, fchown, symlink};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The name by which `lattice` is called in place of ssh.
const LAUNCHER: &str = "lattice-mpi-launcher";
/// The program behind it, in the directory of the agent's own program.
const PROGRAM: &str = "lattice";

/// A library's format of the list of nodes, one line each.
#[derive(Clone, Copy)]
enum Form {
    /// `node:slots`
    Hydra,
    /// `node slots=N`
    OpenMpi,
}

impl Form {
    const ALL: [Self; 2] = [Self::Hydra, Self::OpenMpi];

    fn extension(self) -> &'static str {
        match self {
            Self::Hydra => "hydra",
            Self::OpenMpi => "openmpi",
        }
    }

    fn line(self, node: &NodeId, slots: usize) -> String {
        match self {
            Self::Hydra => format!("{node}:{slots}\n"),
            Self::OpenMpi => format!("{node} slots={slots}\n"),
        }
    }
}

/// The variables that one library's `mpirun` reads.
struct Library {
    /// Variable for the program that it calls in place of ssh.
    launcher: &'static str,
    /// Variable for the file of nodes.
    hosts: &'static str,
    /// Further variables, which make it use that program even if it finds Slurm's variables
    /// (`--slurm-env`).
    more: &'static [(&'static str, &'static str)],
    form: Form,
}

/// MPICH and its descendants; Open MPI up to 4; Open MPI from 5 on.
const LIBRARIES: [Library; 3] = [
    Library {
        launcher: "HYDRA_LAUNCHER_EXEC",
        hosts: "HYDRA_HOST_FILE",
        more: &[("HYDRA_LAUNCHER", "ssh"), ("HYDRA_RMK", "user")],
        form: Form::Hydra,
    },
    Library {
        launcher: "OMPI_MCA_plm_rsh_agent",
        hosts: "OMPI_MCA_orte_default_hostfile",
        more: &[("OMPI_MCA_plm", "rsh"), ("OMPI_MCA_ras", "^slurm")],
        form: Form::OpenMpi,
    },
    Library {
        launcher: "PRTE_MCA_plm_ssh_agent",
        hosts: "PRTE_MCA_prte_default_hostfile",
        more: &[("PRTE_MCA_plm", "ssh"), ("PRTE_MCA_ras", "^slurm")],
        form: Form::OpenMpi,
    },
];

fn launcher(state_dir: &Path) -> PathBuf {
    state_dir.join("bin").join(LAUNCHER)
}

fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("hostfiles")
}

fn file(state_dir: &Path, allocation: AllocationId, epoch: Epoch, form: Form) -> PathBuf {
    directory(state_dir).join(format!("{allocation}-{epoch}.{}", form.extension()))
}

/// Why `mpirun` does not work across nodes inside allocations.
#[derive(Debug, Error)]
pub enum NoLauncher {
    #[error("mpirun: this agent's own program cannot be found ({0}): {LOST}")]
    FindOwnProgram(#[source] io::Error),
    #[error("mpirun: {} is not there: {LOST}; install {PROGRAM} beside the agent and start it again", .program.display())]
    NoProgram { program: PathBuf },
    #[error("mpirun: {} cannot be made ({source}): {LOST}", .link.display())]
    MakeLink { link: PathBuf, source: io::Error },
}

/// What does not work without the launcher.
const LOST: &str = "mpirun and mpiexec inside allocations start nothing on other nodes";

/// Installs the launcher: a link to the `lattice` beside this agent's program, which acts as the
/// launcher if it is called by that name. An error says what is missing.
pub fn install(state_dir: &Path) -> Result<(), NoLauncher> {
    let own = std::env::current_exe().map_err(NoLauncher::FindOwnProgram)?;
    let program = own.with_file_name(PROGRAM);
    let link = launcher(state_dir);
    if !program.is_file() {
        let _ = fs::remove_file(&link);
        return Err(NoLauncher::NoProgram { program });
    }
    let made = || -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(state_dir.join("bin"))?;
        let part = link.with_extension("part");
        match fs::remove_file(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        symlink(&program, &part)?;
        fs::rename(&part, &link)
    };
    made().map_err(|source| NoLauncher::MakeLink { link: link.clone(), source })
}

/// Writes the files of an allocation's nodes, readable by its user's group; none for one node, on
/// which `mpirun` needs no launcher. Not synced: after a reboot nobody reads them. Their user does
/// not own them: work could make them writable, and fill the state directory's disk.
pub fn write_hostfiles(state_dir: &Path, share: &DesiredShare, placement: Option<&Placement>) -> io::Result<()> {
    if share.nodes.len() < 2 {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(0o711).create(directory(state_dir))?;
    // An earlier run may have written only a part of it.
    forget(state_dir, share.allocation, share.epoch)?;
    let nodes: Vec<NodeId> = share.nodes.to_vec();
    let ranks = share.spec.usual_ranks(&nodes);
    let usual = slots(share, placement);
    // If a number of ranks was requested, each node offers as many slots as it gets of them.
    let slots = |node: &NodeId| match ranks.iter().find(|part| &part.node == node) {
        Some(part) if share.spec.launch.ranks > 0 => part.count as usize,
        Some(_) | None => usual,
    };
    for form in Form::ALL {
        let path = file(state_dir, share.allocation, share.epoch, form);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o400).open(path)?;
        let lines: String = share.nodes.iter().map(|node| form.line(node, slots(node))).collect();
        file.write_all(lines.as_bytes())?;
        fchown(&file, None, Some(share.owner.gid))?;
        // Not reduced by our umask.
        file.set_permissions(fs::Permissions::from_mode(0o440))?;
    }
    Ok(())
}

/// Ranks that a library starts on each node by default: the allocation's tasks per node, or, if
/// that is the default of one, as many as it has cores here. (Its cores on other nodes are unknown
/// here.)
fn slots(share: &DesiredShare, placement: Option<&Placement>) -> usize {
    if share.spec.tasks_per_node > 1 {
        return share.spec.tasks_per_node as usize;
    }
    let known = placement.map(|p| p.cores.len()).filter(|cores| *cores > 0);
    known.unwrap_or(share.resources.cores as usize).max(1)
}

/// Removes the files.
pub fn forget(state_dir: &Path, allocation: AllocationId, epoch: Epoch) -> io::Result<()> {
    for form in Form::ALL {
        match fs::remove_file(file(state_dir, allocation, epoch, form)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Removes files left by earlier runs of allocations that are no longer here.
pub fn sweep(state_dir: &Path, here: impl Fn(AllocationId) -> bool) {
    for entry in fs::read_dir(directory(state_dir)).into_iter().flatten().flatten() {
        let allocation = entry.file_name().to_str().and_then(|name| name.get(..36)?.parse::<AllocationId>().ok());
        if !allocation.is_some_and(&here)
            && let Err(error) = fs::remove_file(entry.path())
        {
            tracing::warn!(path = %entry.path().display(), %error, "a stray file of an allocation's nodes could not be removed");
        }
    }
}

/// Adds the variables of each library for which the user set none. Variables inherited from another
/// allocation do not count as the user's.
pub fn environment(env: &mut BTreeMap<String, String>, state_dir: &Path, share: &DesiredShare) {
    let launcher = launcher(state_dir);
    for library in &LIBRARIES {
        let names = || [library.launcher, library.hosts].into_iter().chain(library.more.iter().map(|(name, _)| *name));
        if env.get(library.launcher).is_some_and(|value| Path::new(value).file_name() == launcher.file_name()) {
            names().for_each(|name| drop(env.remove(name)));
        }
        let hosts = file(state_dir, share.allocation, share.epoch, library.form);
        // The launcher is missing if `lattice` is not installed, the file if the allocation needs
        // none.
        let there = launcher.exists() && hosts.exists();
        if there && !names().any(|name| env.contains_key(name)) {
            env.insert(library.launcher.to_owned(), launcher.display().to_string());
            env.insert(library.hosts.to_owned(), hosts.display().to_string());
            env.extend(library.more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::test_builders::desired_share;
    use lattice_model::{Principal, Resources};
    use std::os::unix::fs::MetadataExt;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lattice-hatch-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(path.join("bin")).unwrap();
            // Any existing program will do.
            symlink(std::env::current_exe().unwrap(), launcher(&path)).unwrap();
            Self(path)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn share(nodes: u32, tasks_per_node: u32) -> DesiredShare {
        let (uid, gid) = (nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw());
        let mut share = DesiredShare {
            owner: Principal { name: "u".into(), uid, gid, groups: vec![gid] },
            resources: Resources { cores: 6, memory_bytes: 0, gpus: 0 },
            nodes: (1..=nodes).map(|n| format!("n{n}").parse().unwrap()).collect(),
            ..desired_share(AllocationId(uuid::Uuid::new_v4()))
        };
        share.spec.tasks_per_node = tasks_per_node;
        share
    }

    fn environment_of(dir: &Dir, share: &DesiredShare, given: &[(&str, &str)]) -> BTreeMap<String, String> {
        let mut env = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        environment(&mut env, &dir.0, share);
        env
    }

    #[test]
    fn each_library_finds_the_nodes_in_its_own_form() {
        let dir = Dir::new("forms");
        let read = |share: &DesiredShare| {
            let env = environment_of(&dir, share, &[]);
            assert_eq!((env.len(), env["HYDRA_LAUNCHER"].as_str()), (12, "ssh"));
            ["HYDRA_HOST_FILE", "OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"]
                .map(|name| fs::read_to_string(&env[name]).unwrap())
        };
        let requested = share(2, 3);
        write_hostfiles(&dir.0, &requested, None).unwrap();
        write_hostfiles(&dir.0, &requested, None).unwrap();
        for form in Form::ALL {
            let file = fs::metadata(file(&dir.0, requested.allocation, requested.epoch, form)).unwrap();
            assert_eq!((file.mode() & 0o777, file.gid()), (0o440, requested.owner.gid));
        }
        let open_mpi = "n1 slots=3\nn2 slots=3\n".to_owned();
        assert_eq!(read(&requested), ["n1:3\nn2:3\n".to_owned(), open_mpi.clone(), open_mpi]);
        let mut fewer = share(2, 2);
        fewer.spec.launch.ranks = 3;
        write_hostfiles(&dir.0, &fewer, None).unwrap();
        assert_eq!(read(&fewer)[0], "n1:2\nn2:1\n");
        forget(&dir.0, fewer.allocation, fewer.epoch).unwrap();
        let unrequested = share(2, 1);
        write_hostfiles(&dir.0, &unrequested, None).unwrap();
        assert_eq!(read(&unrequested)[0], "n1:6\nn2:6\n");
        sweep(&dir.0, |id| id == unrequested.allocation);
        assert!(environment_of(&dir, &requested, &[]).is_empty());
        forget(&dir.0, unrequested.allocation, unrequested.epoch).unwrap();
        assert_eq!(fs::read_dir(directory(&dir.0)).unwrap().count(), 0);
    }

    #[test]
    fn the_users_values_stay_and_those_of_another_allocation_are_replaced() {
        let dir = Dir::new("said");
        let (one, two) = (share(1, 1), share(2, 1));
        for share in [&one, &two] {
            write_hostfiles(&dir.0, share, None).unwrap();
        }
        let env = environment_of(&dir, &two, &[("HYDRA_LAUNCHER", "fork")]);
        assert!(env["HYDRA_LAUNCHER"] == "fork" && !env.contains_key("HYDRA_HOST_FILE") && env.contains_key("OMPI_MCA_plm_rsh_agent"));
        let inherited =
            [("HYDRA_LAUNCHER_EXEC", "/other/bin/lattice-mpi-launcher"), ("HYDRA_HOST_FILE", "/other"), ("HYDRA_LAUNCHER", "ssh")];
        assert_ne!(environment_of(&dir, &two, &inherited)["HYDRA_HOST_FILE"], "/other");
        assert!(environment_of(&dir, &one, &inherited).is_empty(), "one node needs nothing");
    }
}
