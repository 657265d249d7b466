//! The product's binaries, built into the directory of the lab's own binaries and with the same profile.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Packages and their binaries.
const NEEDED: [(&str, &str); 5] = [
    ("lattice-agent", "lattice-agent"),
    ("lattice-quorum", "lattice-quorum"),
    ("lattice-shim", "lattice-shim"),
    ("lattice-pmi", "lattice-pmix"),
    ("lattice-cli", "lattice"),
];

/// Packages that no cluster needs, but that are built too: the library for programs in C, and the lab itself. Without the
/// lab, cargo would compile the shared packages a second time, with fewer features.
const ALSO_BUILT: [&str; 2] = ["lattice-checkpoint", "lattice-lab"];

/// The location of the binaries.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// The directory of all of them.
    pub dir: PathBuf,
}

impl Binaries {
    /// The binaries beside the lab's own executable.
    pub fn beside_lab() -> Result<Self> {
        let exe = std::env::current_exe().context("where is the lab's own executable?")?;
        let mut dir = exe.parent().context("the lab's executable has no folder")?.to_owned();
        if dir.file_name().is_some_and(|n| n == "deps") {
            dir.pop(); // a test executable
        }
        Ok(Self { dir })
    }

    /// The lab's own program.
    pub fn lab(&self) -> PathBuf {
        self.dir.join("lattice-lab")
    }

    /// The program that measures and simulates: package `lattice-lab-bench`.
    pub fn bench(&self) -> PathBuf {
        self.dir.join("lattice-lab-bench")
    }

    /// Their build profile, from the directory's name: `debug`, `release`.
    pub fn profile(&self) -> String {
        self.dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Builds them, in the profile of the lab itself; takes a fraction of a second if they are up to date. The
    /// compiler's messages go to stderr.
    pub fn build(&self) -> Result<()> {
        let packages = NEEDED.map(|(package, _)| package);
        self.build_with(packages.into_iter().chain(ALSO_BUILT).flat_map(|package| ["-p", package]))
    }

    /// Builds the program that measures, with all others, so that no package is compiled twice. In the profile of tests
    /// everything has the features that [`Self::build_for_tests`] chooses.
    pub fn build_bench(&self) -> Result<()> {
        if self.profile() == "debug" {
            return self.build_for_tests();
        }
        let packages = NEEDED.map(|(package, _)| package);
        self.build_with(packages.into_iter().chain(ALSO_BUILT).chain(["lattice-lab-bench"]).flat_map(|package| ["-p", package]))
    }

    /// Builds them for tests that `cargo test --workspace` built: with the same features, so that nothing is compiled
    /// twice.
    pub fn build_for_tests(&self) -> Result<()> {
        self.build_with(["--workspace", "--bins", "--test", "e2e"])
    }

    fn build_with(&self, selection: impl IntoIterator<Item = &'static str>) -> Result<()> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        if !manifest.exists() {
            eprintln!("lab: no sources at {}: using the binaries in {} as they are", manifest.display(), self.dir.display());
            return self.check();
        }
        let folder = self.dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let profile = if folder == "debug" { "dev" } else { folder.as_str() };
        let target = self.dir.parent().context("the lab's executable is not in a target folder")?;
        eprintln!(
            "lab: building lattice-agent, lattice-quorum, lattice-shim, lattice-pmix and lattice (profile {profile}; the first time takes minutes)"
        );
        let began = Instant::now();
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.arg("build").arg("--quiet").arg("--manifest-path").arg(&manifest).args(["--profile", profile]);
        cargo.arg("--target-dir").arg(target).args(selection);
        // Cargo sets these for the programs that it runs; the inner cargo needs the environment of the outer one.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_")
                || text.starts_with("CARGO_BIN_EXE_")
                || text == "CARGO_MANIFEST_DIR"
                || text == "CARGO_MANIFEST_PATH"
            {
                cargo.env_remove(&name);
            }
        }
        let status = cargo.stdin(Stdio::null()).stdout(Stdio::inherit()).stderr(Stdio::inherit()).status().context("cannot run cargo")?;
        if !status.success() {
            bail!("the build failed ({status}); its messages are above");
        }
        eprintln!("lab: built in {:.1} s, in {}", began.elapsed().as_secs_f64(), self.dir.display());
        self.check()
    }

    /// Checks that all of them exist.
    pub fn check(&self) -> Result<()> {
        for (package, binary) in NEEDED {
            if !self.dir.join(binary).is_file() {
                bail!("{} is not in {}: build it with `cargo build -p {package}`, or leave --no-build out", binary, self.dir.display());
            }
        }
        Ok(())
    }

    /// The CLI.
    pub fn lattice(&self) -> PathBuf {
        self.dir.join("lattice")
    }

    /// The agent.
    pub fn agent(&self) -> PathBuf {
        self.dir.join("lattice-agent")
    }

    /// The member.
    pub fn quorum(&self) -> PathBuf {
        self.dir.join("lattice-quorum")
    }

    /// The shim.
    pub fn shim(&self) -> PathBuf {
        self.dir.join("lattice-shim")
    }
}
