//! Tests that this machine's cgroups do not allow, in a virtual machine (`lab/guest`): every controller in a whole v2
//! tree, memory limits in both versions, and a job with too little memory from its submission to `explain`. Ignored
//! with the reason where no such machine can be booted; fails there with `LATTICE_TEST_REQUIRE_ALL=1`.

use lattice_lab::binaries::Binaries;
use lattice_lab::machine::find;
use lattice_lab::process;
use libtest_mimic::{Arguments, Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// One boot with all tests in it; software emulation on a busy machine is slow.
const LIMIT: Duration = Duration::from_secs(900);

fn main() {
    let mut arguments = Arguments::from_args();
    // Two emulated machines at once would only be slower.
    arguments.test_threads = Some(1);
    let needed = ["qemu-system-x86_64", "busybox", "cpio", "depmod"];
    let missing = needed.iter().find(|p| find(p).is_none()).map(|p| format!("{p} is not installed (see lab/guest)"));
    let trial = |name: &str, test: fn() -> Result<(), Failed>| match missing.clone() {
        None => Trial::test(name, test),
        Some(why) if std::env::var_os("LATTICE_TEST_REQUIRE_ALL").is_some() => Trial::test(name, move || Err(why.into())),
        Some(why) => Trial::test(name, test).with_kind(why).with_ignored_flag(true),
    };
    let trials = vec![
        trial("every_limit_holds_in_a_whole_v2_tree", whole_v2),
        trial("memory_is_limited_under_version_1", memory_v1),
        trial("a_job_without_enough_memory_is_told_so", out_of_memory),
        trial("scratch_on_disk_is_kept_to_its_size_by_project_quota", scratch_quota),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs `lab/guest` with these arguments; returns its output if the program succeeded.
fn guest(arguments: &[&str]) -> Result<String, Failed> {
    let mut command = Command::new(root().join("guest"));
    command.args(["--limit", &(LIMIT.as_secs() - 20).to_string()]).args(arguments);
    let finished = process::run(&mut command, LIMIT)?;
    let output = finished.out() + &finished.err();
    if finished.timed_out || finished.code() != 0 {
        return Err(format!("lab/guest {}: code {}\n{output}", arguments.join(" "), finished.code()).into());
    }
    Ok(output)
}

/// Builds the program of `lattice-runtime`'s tests of limits.
fn limits_test() -> Result<&'static str, Failed> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let target = Binaries::beside_lab().map_err(|e| e.to_string())?.dir;
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["test", "--quiet", "--workspace", "--test", "limits", "--no-run", "--message-format", "json"]);
        cargo.arg("--manifest-path").arg(root().join("../Cargo.toml")).arg("--target-dir").arg(target.parent().unwrap_or(&target));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG_")) {
            cargo.env_remove(name);
        }
        let built = process::run(&mut cargo, Duration::from_secs(900)).map_err(|e| e.to_string())?;
        let messages = built.out();
        let of = |line: &str| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            (message.pointer("/target/name")? == "limits").then(|| message.get("executable")?.as_str().map(PathBuf::from)).flatten()
        };
        messages.lines().find_map(of).ok_or_else(|| format!("the tests of limits were not built: {}", built.err()))
    };
    let built = BUILT.get_or_init(build).as_ref().map_err(|why| Failed::from(why.clone()))?;
    built.to_str().ok_or_else(|| "the target folder's name is not UTF-8".into())
}

fn whole_v2() -> Result<(), Failed> {
    let test = limits_test()?;
    let output = guest(&["--with", test, "--", "/usr/bin/env", "LATTICE_TEST_REQUIRE_ALL=1", test, "--test-threads=1"])?;
    assert!(output.contains("0 failed; 0 ignored"), "{output}");
    Ok(())
}

fn memory_v1() -> Result<(), Failed> {
    let test = limits_test()?;
    let output =
        guest(&["--cgroup", "v1", "--with", test, "--", "/usr/bin/env", "LATTICE_TEST_V1_MEMORY=1", test, "memory", "--test-threads=1"])?;
    assert!(output.contains("1 passed; 0 failed; 0 ignored"), "{output}");
    Ok(())
}

/// `out-of-memory.sh` has the steps.
fn out_of_memory() -> Result<(), Failed> {
    let binaries = Binaries::beside_lab()?;
    binaries.build_for_tests()?;
    let test = limits_test()?;
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let (agent, shim, lattice) = (text(binaries.agent()), text(binaries.shim()), text(binaries.lattice()));
    let script = text(root().join("tests/guest/out-of-memory.sh"));
    let with = ["--memory", "2048", "--with", &agent, "--with", &shim, "--with", &lattice, "--with", test];
    let output = guest(&[&with[..], &["--", &script, &agent, &lattice, test]].concat())?;
    assert!(output.contains("all of it held"), "{output}");
    Ok(())
}

/// `scratch-quota.sh` has the steps. The file system is made here: the guest has no program for that.
fn scratch_quota() -> Result<(), Failed> {
    let binaries = Binaries::beside_lab()?;
    binaries.build_for_tests()?;
    let Some(mkfs) = find("mkfs.ext4") else { return Err("mkfs.ext4 is not installed (e2fsprogs)".into()) };
    let disk = std::env::temp_dir().join(format!("lattice-quota-{}.img", std::process::id()));
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let made = std::fs::File::create(&disk).and_then(|file| file.set_len(64 << 20));
    let made = made.and_then(|()| Command::new(mkfs).args(["-q", "-O", "quota,project", "-E", "quotatype=prjquota"]).arg(&disk).status());
    assert!(made.is_ok_and(|status| status.success()), "mkfs.ext4 -O quota,project fails");
    let (agent, shim, lattice) = (text(binaries.agent()), text(binaries.shim()), text(binaries.lattice()));
    let (script, image) = (text(root().join("tests/guest/scratch-quota.sh")), text(disk.clone()));
    let with = ["--memory", "2048", "--with", &agent, "--with", &shim, "--with", &lattice, "--with", &image];
    let output = guest(&[&with[..], &["--", &script, &agent, &lattice, &image]].concat());
    let _ = std::fs::remove_file(&disk);
    let output = output?;
    assert!(output.contains("all of it held"), "{output}");
    Ok(())
}
