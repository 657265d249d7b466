//! The mechanisms on the real kernel. A test that needs root or a cgroup v2 tree counts as ignored if that is missing,
//! or fails with `LATTICE_TEST_REQUIRE_ALL=1`.

use lattice_model::{AllocationId, Image, Principal, RankOutcome};
use lattice_runtime::cgroup::Slice;
use lattice_runtime::image::{self, CopyMonitor, ImageError, NoRoom, cache};
use lattice_runtime::mounts;
use lattice_runtime::process::{self, Program};
use libtest_mimic::{Arguments, Failed, Trial};
use std::fs::{self, File, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

fn main() {
    let arguments = Arguments::from_args();
    let root = (!nix::unistd::geteuid().is_root()).then_some("needs root");
    let tree = root.or_else(|| Slice::find(Path::new("lattice-test")).is_err().then_some("needs a cgroup v2 tree"));
    let loops = root.or_else(|| (!Path::new("/dev/loop-control").exists()).then_some("needs loop devices"));
    let trials = vec![
        trial("image_is_admitted_with_the_users_rights", root, image_rights),
        trial("image_that_is_none_is_refused_and_leaves_nothing", root, image_refusals),
        trial("image_admitted_by_many_at_once_is_copied_once", root, image_many),
        trial("image_copy_that_is_cancelled_leaves_nothing", root, image_cancelled),
        trial("image_cache_that_is_full_says_so", root, image_no_space),
        trial("image_in_use_stays_and_one_that_nobody_uses_goes", root, image_unused),
        trial("image_for_which_there_is_no_room_is_refused_before_it_is_copied", root, image_no_room),
        trial("image_with_a_loop_device_stays", loops, image_with_loop),
        trial("program_gets_its_user_and_nothing_of_ours", root, program_nothing_of_ours),
        trial("program_that_cannot_start_says_why", None, program_failures),
        trial("scope_is_made_watched_killed_and_removed", tree, scope_life),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial(name: &str, missing: Option<&'static str>, test: fn() -> Result<(), Failed>) -> Trial {
    match missing {
        None => Trial::test(name, test),
        Some(why) if std::env::var_os("LATTICE_TEST_REQUIRE_ALL").is_some() => Trial::test(name, move || Err(why.into())),
        Some(why) => Trial::test(name, test).with_kind(why).with_ignored_flag(true),
    }
}

/// A directory of one test, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lattice-kernel-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    /// A file that begins as a SquashFS; nothing mounts it here.
    fn image(&self, name: &str, bytes: usize) -> Image {
        let path = self.0.join(name);
        let contents: Vec<u8> = b"hsqs".iter().copied().chain((0..bytes).map(|i| i.to_le_bytes()[1])).collect();
        fs::write(&path, contents).unwrap();
        let sha256 = image::digest_as(&root(), &path, &NOT_CANCELLED).unwrap();
        Image { path, sha256 }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Detached: a child that another test is just making may still hold a copy of our descriptor.
        let _ = nix::mount::umount2(&self.0.join("full"), nix::mount::MntFlags::MNT_DETACH);
        let _ = fs::remove_dir_all(&self.0);
    }
}

static NOT_CANCELLED: AtomicBool = AtomicBool::new(false);
/// Never set: the copy is not cancelled.
static GOING_ON: CopyMonitor = CopyMonitor::new();

/// Accepts an image of any size.
fn enough(_bytes: u64) -> Result<(), NoRoom> {
    Ok(())
}

fn root() -> Principal {
    Principal { name: "root".into(), uid: 0, gid: 0, groups: vec![] }
}

fn nobody(groups: Vec<u32>) -> Principal {
    Principal { name: "nobody".into(), uid: 65534, gid: 65534, groups }
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn image_rights() -> Result<(), Failed> {
    let scratch = Scratch::new("rights");
    let groups = nix::unistd::getgroups()?;
    let cache = scratch.0.join("cache");
    let image = scratch.image("a.sqfs", 3 << 20);
    let mode = |mode| fs::set_permissions(&image.path, Permissions::from_mode(mode)).unwrap();

    mode(0o600);
    assert!(matches!(image::admit(&cache, &nobody(vec![]), &image, &GOING_ON, enough), Err(ImageError::PermissionDenied { .. })));
    assert!(matches!(image::digest_as(&nobody(vec![]), &image.path, &NOT_CANCELLED), Err(ImageError::PermissionDenied { .. })));
    // By a supplementary group alone.
    mode(0o640);
    chown(&image.path, None, Some(4242))?;
    assert!(matches!(image::admit(&cache, &nobody(vec![7]), &image, &GOING_ON, enough), Err(ImageError::PermissionDenied { .. })));
    let admitted = image::admit(&cache, &nobody(vec![7, 4242]), &image, &GOING_ON, enough)?;
    assert!(admitted.copied);
    assert_eq!(admitted.held.path(), image::cached(&cache, &image.sha256));
    let (copy, dir) = (fs::metadata(admitted.held.path())?, fs::metadata(&cache)?);
    assert_eq!((copy.mode() & 0o7777, copy.uid(), dir.mode() & 0o7777), (0o400, 0, 0o700));
    assert_eq!(fs::read(admitted.held.path())?, fs::read(&image.path)?);
    // A user who may not read an image does not get the copy of another user.
    assert!(matches!(image::admit(&cache, &nobody(vec![]), &image, &GOING_ON, enough), Err(ImageError::PermissionDenied { .. })));
    mode(0o444);
    assert!(!image::admit(&cache, &nobody(vec![]), &image, &GOING_ON, enough)?.copied);
    // A directory in the path that the user may not enter.
    fs::set_permissions(&scratch.0, Permissions::from_mode(0o700))?;
    assert!(matches!(image::admit(&cache, &nobody(vec![]), &image, &GOING_ON, enough), Err(ImageError::PermissionDenied { .. })));
    // None of it changed this process's own ids.
    assert_eq!((nix::unistd::geteuid().as_raw(), nix::unistd::getgroups()?), (0, groups));
    assert!(fs::read(admitted.held.path()).is_ok());
    Ok(())
}

fn image_refusals() -> Result<(), Failed> {
    let scratch = Scratch::new("refusals");
    let cache = scratch.0.join("cache");
    let good = scratch.image("good.sqfs", 100);
    let user = nobody(vec![]);
    let admit = |path: PathBuf, sha256: &str| image::admit(&cache, &user, &Image { path, sha256: sha256.into() }, &GOING_ON, enough);
    let at = |name: &str| scratch.0.join(name);

    assert!(matches!(admit(at("none"), &good.sha256), Err(ImageError::NotFound { .. })));
    assert!(matches!(admit(at("good.sqfs/x"), &good.sha256), Err(ImageError::NotFound { .. })));
    assert!(matches!(admit(scratch.0.clone(), &good.sha256), Err(ImageError::NotAnImage { .. })));
    assert!(matches!(admit("/dev/zero".into(), &good.sha256), Err(ImageError::NotAnImage { .. })));
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::from_bits_truncate(0o644))?;
    assert!(matches!(admit(at("fifo"), &good.sha256), Err(ImageError::NotAnImage { .. })));
    for text in ["", "hsq", "#!/bin/sh\n"] {
        fs::write(at("text"), text)?;
        assert!(matches!(admit(at("text"), &good.sha256), Err(ImageError::NotAnImage { .. })), "{text:?}");
    }
    for digest in ["", "../../etc/passwd", &"A".repeat(64), &"a".repeat(65)] {
        assert!(matches!(admit(good.path.clone(), digest), Err(ImageError::BadDigest { .. })), "{digest:?}");
    }
    match admit(good.path.clone(), &"0".repeat(64)) {
        Err(ImageError::WrongDigest { want, got, .. }) => assert_eq!((want, got), ("0".repeat(64), good.sha256.clone())),
        other => return Err(format!("{other:?}").into()),
    }
    assert_eq!(entries(&cache), Vec::<String>::new());
    // A partial copy of a killed agent does no harm.
    fs::write(image::cached(&cache, &good.sha256).with_extension("sqfs.part"), vec![1; 5000])?;
    assert!(admit(good.path.clone(), &good.sha256)?.copied);
    assert_eq!(fs::read(image::cached(&cache, &good.sha256))?, fs::read(&good.path)?);
    assert_eq!(entries(&cache).len(), 1);
    Ok(())
}

fn image_many() -> Result<(), Failed> {
    let scratch = Scratch::new("many");
    let cache = scratch.0.join("cache");
    let image = scratch.image("a.sqfs", 2 << 20);
    let copies: usize = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..12).map(|_| scope.spawn(|| image::admit(&cache, &nobody(vec![]), &image, &GOING_ON, enough).unwrap())).collect();
        threads.into_iter().map(|t| usize::from(t.join().unwrap().copied)).sum()
    });
    assert_eq!((copies, entries(&cache).len()), (1, 1));
    Ok(())
}

fn image_cancelled() -> Result<(), Failed> {
    let scratch = Scratch::new("cancelled");
    let cache = scratch.0.join("cache");
    let image = scratch.image("a.sqfs", 100);
    let cancelled = CopyMonitor::new();
    cancelled.cancel();
    let refused = image::admit(&cache, &root(), &image, &cancelled, enough);
    assert!(matches!(refused, Err(ImageError::Cancelled { .. })), "{refused:?}");
    assert_eq!(entries(&cache), Vec::<String>::new());
    let goes_on = CopyMonitor::new();
    assert!(image::admit(&cache, &root(), &image, &goes_on, enough)?.copied);
    assert_eq!(goes_on.percent(), Some(100));
    Ok(())
}

fn image_no_space() -> Result<(), Failed> {
    let scratch = Scratch::new("full");
    let image = scratch.image("a.sqfs", 1 << 20);
    let cache = scratch.0.join("full");
    fs::create_dir(&cache)?;
    nix::mount::mount(Some("tmpfs"), &cache, Some("tmpfs"), nix::mount::MsFlags::empty(), Some("size=64k"))?;
    assert!(matches!(image::admit(&cache, &nobody(vec![]), &image, &GOING_ON, enough), Err(ImageError::NoSpace { .. })));
    assert_eq!(entries(&cache), Vec::<String>::new());
    Ok(())
}

fn image_unused() -> Result<(), Failed> {
    let scratch = Scratch::new("unused");
    let cache = scratch.0.join("cache");
    let admit = |image: &Image| image::admit(&cache, &root(), image, &GOING_ON, enough);
    let (old, new) = (scratch.image("old.sqfs", 1000), scratch.image("new.sqfs", 2000));
    let held = admit(&old)?.held;
    let long_ago = SystemTime::now() - Duration::from_secs(1000);
    File::open(held.path())?.set_modified(long_ago)?;
    drop(admit(&new)?);
    let paths = |unused: Vec<cache::UnusedImage>| unused.into_iter().map(|u| u.path).collect::<Vec<_>>();
    assert_eq!(paths(cache::unused(&cache)?), [image::cached(&cache, &new.sha256)]);
    assert!(!cache::remove_unused(held.path())? && held.path().exists());
    // An image that was seen in use counts as used.
    drop(held);
    let unused = cache::unused(&cache)?;
    assert!(unused.len() == 2 && unused.iter().all(|u| u.bytes > 0 && u.last_used > long_ago + Duration::from_secs(900)), "{unused:?}");
    // It can be locked again while it is in the cache; once removed, it is copied again.
    assert!(cache::hold(&cache, &old.sha256)?.is_some());
    assert!(cache::remove_unused(&image::cached(&cache, &old.sha256))?);
    assert!(cache::hold(&cache, &old.sha256)?.is_none());
    assert!(admit(&old)?.copied);
    // An image that is being copied is in use; the partial copy of a killed agent is not.
    let part = image::cached(&cache, &"a".repeat(64)).with_extension("sqfs.part");
    let copying = File::create(&part)?;
    copying.lock()?;
    cache::unused(&cache)?;
    assert!(part.exists());
    drop(copying);
    cache::unused(&cache)?;
    assert!(!part.exists());
    Ok(())
}

fn image_no_room() -> Result<(), Failed> {
    let scratch = Scratch::new("no-room");
    let cache = scratch.0.join("cache");
    let image = scratch.image("a.sqfs", 3 << 20);
    let refused = image::admit(&cache, &root(), &image, &GOING_ON, |bytes| {
        assert_eq!(bytes, (3 << 20) + 4);
        Err(NoRoom { bytes_max: 2 << 20 })
    });
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("it has 3 MiB") && why.contains("at most 2 MiB"), "{why}");
    assert_eq!(entries(&cache), Vec::<String>::new());
    Ok(())
}

/// An image is in use even if only the kernel uses it: neither an agent nor a shim is left.
fn image_with_loop() -> Result<(), Failed> {
    let scratch = Scratch::new("mounted");
    let file = image::cached(&scratch.0, &"b".repeat(64));
    fs::write(&file, vec![7; 1 << 16])?;
    let (device, _path) = mounts::attach_loop(&file)?;
    assert!(cache::unused(&scratch.0)?.is_empty() && !cache::remove_unused(&file)? && file.exists());
    drop(device);
    // The kernel releases it a moment after the last close.
    let freed = (0..6000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        cache::remove_unused(&file).unwrap()
    });
    assert!(freed && !file.exists());
    Ok(())
}

/// Runs a program to its end, once on a copy of our memory and once in ours; returns its output, which must be the
/// same.
fn run(
    argv: &[&str],
    env: &[(&str, &str)],
    dir: &Path,
    user: Option<&Principal>,
    name: &str,
) -> Result<(RankOutcome, String), process::NotStarted> {
    let scratch = Scratch::new(name);
    let out = File::options().create(true).append(true).open(scratch.0.join("out")).unwrap();
    let null = File::open("/dev/null").unwrap();
    let argv: Vec<String> = argv.iter().map(|a| (*a).to_owned()).collect();
    let env: Vec<(String, String)> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let program = Program {
        argv: &argv,
        env: &env,
        pid_variable: Some("OWN_PID"),
        shared_env: None,
        working_dir: dir,
        user,
        stdin: null.as_fd(),
        stdout: out.as_fd(),
        stderr: out.as_fd(),
        inherit: &[null.try_clone().unwrap().into()],
        cgroup: None,
        v1_groups: &[],
        open_files: Some((64, 64)),
        binding: None,
        terminal: false,
    };
    let ended = |pid: i32, pidfd: &OwnedFd| {
        nix::poll::poll(&mut [nix::poll::PollFd::new(pidfd.as_fd(), nix::poll::PollFlags::POLLIN)], nix::poll::PollTimeout::NONE).unwrap();
        process::reap(pid).unwrap().unwrap()
    };
    let written = || {
        let text = fs::read_to_string(scratch.0.join("out")).unwrap();
        out.set_len(0).unwrap();
        text
    };
    let copied = process::spawn(&program).and_then(|child| {
        let outcome = ended(child.pid, &child.pidfd);
        child.into_start_report().failure().map_or_else(|| Ok((outcome, written())), Err)
    });
    let lent = process::spawn_loaded(&program).map(|(pid, pidfd)| (ended(pid, &pidfd), written()));
    match (&copied, &lent) {
        // Its pid may be part of the output.
        (Ok((one, _)), Ok((other, _))) => assert_eq!(one, other),
        _ => assert_eq!(copied, lent),
    }
    lent
}

fn program_nothing_of_ours() -> Result<(), Failed> {
    let leak = File::open("/dev/null")?;
    nix::fcntl::fcntl(&leak, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))?;
    let user = nobody(vec![65534, 4242]);
    let of = |argv: &[&str]| run(argv, &[("A", "b"), ("PATH", "/usr/bin:/bin")], Path::new("/tmp"), Some(&user), "ours");
    let (outcome, text) = of(&["sh", "-c", "id -u; id -g; id -G; pwd; echo $A; ulimit -n; umask"])?;
    assert_eq!(text.lines().collect::<Vec<_>>(), ["65534", "65534", "65534 4242", "/tmp", "b", "64", "0022"]);
    assert_eq!(outcome, RankOutcome::Exited { code: 0 });
    assert_eq!(of(&["sh", "-c", "test $OWN_PID = $$ && echo own"])?.1, "own\n");
    // Checks the program itself: a shell changes descriptors and signal mask. Descriptor 4 is the directory that `ls`
    // reads.
    assert_eq!(of(&["ls", "/proc/self/fd"])?.1, "0\n1\n2\n3\n4\n");
    assert_eq!(of(&["grep", "-hE", "^Sig(Blk|Ign)", "/proc/self/status"])?.1, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
    let stat = of(&["cat", "/proc/self/stat"])?.1;
    let fields: Vec<&str> = stat.split(' ').collect();
    assert_eq!((fields[0], fields[0]), (fields[4], fields[5]), "leads its group and session");
    Ok(())
}

fn program_failures() -> Result<(), Failed> {
    let tmp = Path::new("/tmp");
    let refused = |argv: &[&str], dir: &Path| run(argv, &[("PATH", "/usr/bin:/bin")], dir, None, "failures").unwrap_err();
    let missing = refused(&["no-such-program"], tmp);
    assert_eq!((missing.code, missing.why.as_str()), (127, "no-such-program: command not found"));
    assert_eq!(refused(&["/no/such"], tmp).code, 127);
    assert_eq!(refused(&["/etc/passwd"], tmp).code, 126);
    assert_eq!(refused(&["/tmp"], tmp).code, 126);
    assert_eq!(refused(&[], tmp).code, 127);
    assert_eq!(refused(&["true", "a\0b"], tmp).code, 126);
    let nowhere = refused(&["true"], Path::new("/no/such/directory"));
    assert_eq!(nowhere.code, 127);
    assert!(nowhere.why.contains("/no/such/directory"), "{}", nowhere.why);
    let killed = run(&["sh", "-c", "kill -9 $$"], &[("PATH", "/usr/bin:/bin")], tmp, None, "killed")?;
    assert_eq!(killed.0, RankOutcome::Signalled { signal: 9 });
    Ok(())
}

fn scope_life() -> Result<(), Failed> {
    struct Swept(Slice);
    impl Drop for Swept {
        fn drop(&mut self) {
            for (_, scope) in self.0.scopes().unwrap_or_default() {
                let _ = scope.whole().kill();
                let _ = scope.whole().wait_empty(Duration::from_secs(5));
                let _ = scope.whole().remove();
            }
            let _ = self.0.remove();
        }
    }
    let slice = Slice::find(Path::new(&format!("lattice-test-{}.slice", std::process::id())))?;
    assert_eq!(slice.scopes()?, []);
    let swept = Swept(slice.clone());
    let id = AllocationId(uuid::Uuid::new_v4());
    let scope = slice.create_scope(id)?;
    assert_eq!(slice.create_scope(id)?, scope);
    assert_eq!(slice.scopes()?, [(id, scope.clone())]);
    let launch = scope.launch(1);
    launch.create()?;
    assert!(!scope.work().is_populated()?);

    let (null, dir) = (File::open("/dev/null")?, launch.open_dir()?);
    // A child that leaves its session and its parent, as a daemon does.
    let argv = ["sh", "-c", "setsid sleep 1000 & exec sleep 1000"].map(str::to_owned);
    let (pid, _pidfd) = process::spawn_loaded(&Program {
        argv: &argv,
        env: &[],
        pid_variable: None,
        shared_env: None,
        working_dir: Path::new("/"),
        user: None,
        stdin: null.as_fd(),
        stdout: null.as_fd(),
        stderr: null.as_fd(),
        inherit: &[],
        cgroup: Some(dir.as_fd()),
        v1_groups: &[],
        open_files: None,
        binding: None,
        terminal: false,
    })?;
    assert!(scope.work().is_populated()? && launch.processes().contains(&pid));
    assert_eq!(slice.scope_of_pid(pid).unwrap(), Some(id));
    assert_eq!(slice.scope_of_pid(1).unwrap(), None);
    assert!(slice.scope_of_pid(i32::MAX).is_err(), "one that is not there could be anybody's");
    assert!(!scope.work().wait_empty(Duration::from_millis(20))?);
    assert!(scope.whole().remove().is_err());
    scope.work().kill()?;
    assert!(scope.work().wait_empty(Duration::from_secs(60))?);
    nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), None)?;
    scope.whole().remove()?;
    scope.whole().remove()?;
    assert!(scope.whole().wait_empty(Duration::ZERO)?);
    scope.whole().kill()?;
    drop(swept);
    assert!(!slice.path().exists());
    Ok(())
}
