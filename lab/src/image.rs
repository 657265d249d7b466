//! A small software environment (uenv) as a SquashFS image, and the program in it.

use crate::binaries::Binaries;
use crate::machine::Machine;
use crate::process::run;
use anyhow::{Context, Result, bail};
use backhand::compression::Compressor;
use backhand::{FilesystemCompressor, FilesystemWriter, NodeHeader};
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The C source of the MPI program.
const RING_C: &str = include_str!("image/ring.c");
/// The beginning of the environment's README; the ranks check it.
pub const README: &str = "The demonstration environment of lattice-lab";
/// Where ranks see the environment.
pub const MOUNT_POINT: &str = "/user-environment";

/// The ring program of this machine: a real MPI program if MPICH is installed, else the lab's own PMI client.
#[derive(Clone, Debug)]
pub enum Ring {
    /// Compiled with this machine's MPICH.
    Mpi(PathBuf),
    /// The lab's `pmi-ring`.
    Pmi(PathBuf),
}

impl Ring {
    /// Builds the program in `dir`.
    pub fn make(machine: &Machine, dir: &Path) -> Result<Self> {
        let Some(mpicc) = &machine.mpicc else {
            return Ok(Self::Pmi(Binaries::beside_lab()?.lab()));
        };
        Self::compile(mpicc, &dir.join("ring")).map(Self::Mpi)
    }

    /// Builds `program` with an MPI's compiler.
    pub fn compile(mpicc: &Path, program: &Path) -> Result<PathBuf> {
        let source = program.with_extension("c");
        std::fs::write(&source, RING_C).with_context(|| format!("cannot write {}", source.display()))?;
        let done = run(Command::new(mpicc).args(["-O1", "-o"]).arg(program).arg(&source), Duration::from_secs(60))?;
        if done.code() != 0 {
            bail!("{} cannot compile {}: {}", mpicc.display(), source.display(), done.err().trim());
        }
        Ok(program.to_owned())
    }

    /// The executable outside of any image.
    pub fn program(&self) -> &Path {
        match self {
            Self::Mpi(p) | Self::Pmi(p) => p,
        }
    }

    /// A description for people.
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Mpi(_) => "an MPI program, compiled with this machine's MPICH",
            Self::Pmi(_) => "the bundled PMI-1 ring (this machine has no MPICH)",
        }
    }

    /// The command line that prints `lines` lines a rank, one every `interval_ms`. `check`: whether the ranks must find
    /// the environment at [`MOUNT_POINT`], and run from there.
    pub fn argv(&self, lines: u32, interval_ms: u32, check: bool) -> Vec<String> {
        let program = if check { format!("{MOUNT_POINT}/bin/ring") } else { self.program().to_string_lossy().into_owned() };
        let mut argv = vec![program];
        if matches!(self, Self::Pmi(_)) {
            argv.push("pmi-ring".to_owned());
        }
        argv.extend([lines.to_string(), interval_ms.to_string()]);
        if check {
            argv.extend([format!("{MOUNT_POINT}/README"), README.to_owned()]);
        }
        argv
    }
}

/// Writes the image: `README`, `meta/env.json` and `bin/ring`.
pub fn write(image: &Path, program: &Path) -> Result<()> {
    let bytes = std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let meta = serde_json::json!({
        "name": "lattice-demo",
        "mount": MOUNT_POINT,
        "description": "a ring program and this description",
        "views": {},
    });
    let mut readme = README.to_owned();
    readme.push_str(".\nIt holds one program, bin/ring.\n");
    let files: [(&str, u16, Vec<u8>); 3] = [
        ("/README", 0o644, readme.into_bytes()),
        ("/meta/env.json", 0o644, serde_json::to_vec_pretty(&meta)?),
        ("/bin/ring", 0o755, bytes),
    ];
    let mut writer = FilesystemWriter::default();
    writer.set_root_mode(0o755);
    writer.set_compressor(FilesystemCompressor::new(Compressor::Gzip, None)?);
    for folder in ["/meta", "/bin"] {
        writer.push_dir(folder, NodeHeader::new(0o755, 0, 0, 0))?;
    }
    for (path, mode, content) in files {
        writer.push_file(Cursor::new(content), path, NodeHeader::new(mode, 0, 0, 0))?;
    }
    let mut out = Cursor::new(Vec::new());
    writer.write(&mut out).context("cannot make the SquashFS image")?;
    std::fs::write(image, out.into_inner()).with_context(|| format!("cannot write {}", image.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use backhand::{FilesystemReader, InnerNode};
    use std::io::BufReader;

    #[test]
    fn the_image_holds_what_was_put_in() {
        let dir = std::env::temp_dir().join(format!("lattice-lab-image-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (program, image) = (dir.join("program"), dir.join("env.sqfs"));
        std::fs::write(&program, vec![7u8; 300_000]).unwrap();
        write(&image, &program).unwrap();
        let reader = FilesystemReader::from_reader(BufReader::new(std::fs::File::open(&image).unwrap())).unwrap();
        let found = |path: &str| {
            let node = reader.files().find(|n| n.fullpath == Path::new(path)).unwrap_or_else(|| panic!("{path} is missing"));
            let InnerNode::File(file) = &node.inner else { panic!("{path} is no file") };
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut reader.file(file).reader(), &mut bytes).unwrap();
            (node.header.permissions & 0o777, bytes)
        };
        assert_eq!(found("/bin/ring"), (0o755, vec![7u8; 300_000]));
        assert!(found("/README").1.starts_with(README.as_bytes()));
        assert!(serde_json::from_slice::<serde_json::Value>(&found("/meta/env.json").1).is_ok());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
