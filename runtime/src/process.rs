//! One program: born inside its cgroup, in its own session, as its user, with nothing of ours except what it is given.

use crate::binding::Binding;
use crate::identity;
use lattice_model::{Principal, RankOutcome};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::{Pid, pipe2};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use thiserror::Error;

/// Search path for a program without a slash when its environment has no `PATH`.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";
/// Directories of a `PATH` that are searched; more are ignored.
const PATH_DIRECTORIES_MAX: usize = 1024;

/// What to start.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// Program and arguments. A program without a slash is searched in `env`'s `PATH`, with the user's rights.
    pub argv: &'a [String],
    /// Its environment: these variables, and those of `shared_env` with other names.
    pub env: &'a [(String, String)],
    /// The name of a variable whose value is the new process's own pid.
    pub pid_variable: Option<&'static str>,
    /// Variables that many programs share, prepared once.
    pub shared_env: Option<&'a Environment>,
    /// Its working directory, entered with the user's rights.
    pub working_dir: &'a Path,
    /// Its user; `None`: ours.
    pub user: Option<&'a Principal>,
    /// Its descriptor 0.
    pub stdin: BorrowedFd<'a>,
    /// Its descriptor 1.
    pub stdout: BorrowedFd<'a>,
    /// Its descriptor 2.
    pub stderr: BorrowedFd<'a>,
    /// Its descriptors 3, 4, … It gets no others.
    pub inherit: &'a [OwnedFd],
    /// The cgroup directory it is born in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// `tasks` files of the v1 groups that it joins before it drops our rights ([`crate::cgroup::controllers`]).
    pub v1_groups: &'a [BorrowedFd<'a>],
    /// Soft and hard limit of open files; `None`: ours.
    pub open_files: Option<(u64, u64)>,
    /// Its processors and memory nodes; `None`: ours.
    pub binding: Option<&'a Binding>,
    /// Whether its descriptor 0 is a terminal that becomes its controlling one.
    pub terminal: bool,
}

/// Environment variables in the form in which a program gets them.
#[derive(Clone, Debug, Default)]
pub struct Environment(Vec<CString>);

impl Environment {
    /// From names and values. A zero byte in one of them is refused.
    pub fn new<'e>(variables: impl IntoIterator<Item = (&'e String, &'e String)>) -> Result<Self, NotStarted> {
        let variable = |(name, value): (&String, &String)| {
            CString::new(format!("{name}={value}"))
                .map_err(|_| NotStarted { code: NOT_EXECUTABLE, why: format!("{name}: a zero byte in the environment") })
        };
        variables.into_iter().map(variable).collect::<Result<_, _>>().map(Self)
    }

    /// The variables that have none of these names.
    fn without<'e>(&'e self, names: &'e [(String, String)]) -> impl Iterator<Item = &'e CString> {
        let named = |variable: &CString, name: &str| {
            variable.as_bytes().strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
        };
        self.0.iter().filter(move |variable| !names.iter().any(|(name, _)| named(variable, name)))
    }

    fn path(&self) -> Option<String> {
        self.0.iter().rev().find_map(|v| v.as_bytes().strip_prefix(b"PATH=")).map(|path| String::from_utf8_lossy(path).into_owned())
    }
}

/// A program that could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{why}")]
pub struct NotStarted {
    /// The exit code that a shell would give: 127 for not found, 126 for anything else.
    pub code: u8,
    /// The reason, for people.
    pub why: String,
}

/// A new process. Whether it could execute its program is known a moment later.
#[derive(Debug)]
pub struct Child {
    /// Its pid; valid until it is reaped. Also its process group and session.
    pub pid: i32,
    /// Its pidfd.
    pub pidfd: OwnedFd,
    /// The child's own report whether it executed its program.
    start: StartReport,
}

impl Child {
    /// The child's report on its start, for callers that no longer need pid and pidfd.
    pub fn into_start_report(self) -> StartReport {
        self.start
    }

    /// Pid, pidfd, and the child's report on its start.
    pub fn into_parts(self) -> (i32, OwnedFd, StartReport) {
        (self.pid, self.pidfd, self.start)
    }
}

/// The end of a pipe through which a child reports why it could not execute its program. The pipe closes when it could.
#[derive(Debug)]
pub struct StartReport {
    report: File,
    program: String,
    working_dir: String,
    user: Option<String>,
    is_fault_of_node: bool,
}

impl StartReport {
    /// Why the program was not started, once that is known; it certainly is after the child was reaped. Does not block.
    pub fn failure(&mut self) -> Option<NotStarted> {
        let mut report = [0; REPORT_BYTES];
        let Ok(REPORT_BYTES) = self.report.read(&mut report) else { return None };
        let [stage, errno @ ..] = report;
        let errno = Errno::from_raw(i32::from_le_bytes(errno));
        self.is_fault_of_node = !matches!(stage, STAGE_DIRECTORY | STAGE_EXEC)
            || matches!(errno, Errno::EAGAIN | Errno::ENOMEM | Errno::ENFILE | Errno::EIO | Errno::ESTALE);
        let code = if matches!(errno, Errno::ENOENT | Errno::ENOTDIR) { NOT_FOUND } else { NOT_EXECUTABLE };
        let Self { program, working_dir, .. } = self;
        let why = match stage {
            STAGE_DIRECTORY => format!("working directory {working_dir}: {}", errno.desc()),
            STAGE_EXEC if code == NOT_FOUND && !program.contains('/') => format!("{program}: command not found"),
            STAGE_EXEC => format!("{program}: {}", errno.desc()),
            STAGE_BINDING => {
                format!("{program}: binding it to its processors or memory: {} (are they outside the allocation's?)", errno.desc())
            }
            STAGE_OOM_SCORE => format!("{program}: writing its oom_score_adj: {}", errno.desc()),
            STAGE_GROUPS => format!("{program}: joining its cgroups of version 1: {}", errno.desc()),
            STAGE_IDENTITY => format!("{program}: cannot become user {}: {}", self.user.as_deref().unwrap_or("?"), errno.desc()),
            STAGE_TERMINAL => format!("{program}: taking its terminal: {}", errno.desc()),
            _ => format!("{program}: preparing its descriptors: {}", errno.desc()),
        };
        Some(NotStarted { code, why })
    }

    /// Whether the reason that [`Self::failure`] gave is the machine's, and not the program's or its directory's.
    pub fn is_fault_of_node(&self) -> bool {
        self.is_fault_of_node
    }
}

/// From linux/sched.h; libc's constants are too narrow for them.
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// For a child that shares our memory: it makes system calls and little else.
const CHILD_STACK_BYTES: usize = 64 * 1024;
const STACK_ALIGNMENT: usize = 16;
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// The stage, and errno as four bytes, little endian.
const REPORT_BYTES: usize = 5;
/// Digits of the largest `u32`.
const PID_DIGITS_MAX: usize = 10;
const STAGE_DESCRIPTORS: u8 = 1;
const STAGE_IDENTITY: u8 = 2;
const STAGE_DIRECTORY: u8 = 3;
const STAGE_EXEC: u8 = 4;
const STAGE_BINDING: u8 = 5;
const STAGE_TERMINAL: u8 = 6;
const STAGE_GROUPS: u8 = 7;
const STAGE_OOM_SCORE: u8 = 8;

/// As in proc_pid_oom_score_adj(5): the kernel kills any other process first. With −1000 it would never kill us, and
/// would hang us if only we held the memory.
const OOM_SCORE_SPARED: i32 = -999;
/// The score of our programs instead of [`OOM_SCORE_SPARED`], as text.
static OOM_SCORE_OF_PROGRAMS: OnceLock<String> = OnceLock::new();

/// Makes the kernel kill other processes before this one when memory is used up. Programs that it starts from now on
/// get its previous score. Needs `CAP_SYS_RESOURCE`.
pub fn spare_self_from_oom() -> io::Result<()> {
    let file = "/proc/self/oom_score_adj";
    let before = fs::read_to_string(file)?;
    if before.trim().parse::<i32>().is_ok_and(|score| score <= OOM_SCORE_SPARED) {
        return Ok(());
    }
    fs::write(file, OOM_SCORE_SPARED.to_string())?;
    let _ = OOM_SCORE_OF_PROGRAMS.set(before.trim().to_owned());
    Ok(())
}

fn not_executable(program: &str, doing: &str, error: impl std::fmt::Display) -> NotStarted {
    NotStarted { code: NOT_EXECUTABLE, why: format!("{program}: {doing}: {error}") }
}

/// Makes the process. Does not wait until the program is found and loaded: a file system that hangs then hangs only the
/// child.
pub fn spawn(program: &Program<'_>) -> Result<Child, NotStarted> {
    let prepared = prepare(program)?;
    let made = prepared.make(ChildMemory::Copied)?;
    Ok(prepared.child(made))
}

/// Makes these processes like [`spawn`], one directly after the other: each page of ours that is written between two of
/// them must be copied again. Errors in `all` are passed on.
pub fn spawn_all(all: Vec<Result<Prepared<'_>, NotStarted>>) -> Vec<Result<Child, NotStarted>> {
    let mut made = Vec::with_capacity(all.len());
    for prepared in &all {
        made.push(prepared.as_ref().map_err(NotStarted::clone).and_then(|prepared| prepared.make(ChildMemory::Copied)));
    }
    all.into_iter().zip(made).map(|(prepared, made)| Ok(prepared?.child(made?))).collect()
}

/// Makes the process and waits until it has executed its program. Our pages are not copied for it; that copy is most of
/// the cost of a start from a large process. Not for programs on a file system that may hang. Returns pid and pidfd.
pub fn spawn_loaded(program: &Program<'_>) -> Result<(i32, OwnedFd), NotStarted> {
    let mut prepared = prepare(program)?;
    let (pid, pidfd) = prepared.make(ChildMemory::Lent)?;
    match prepared.start.failure() {
        None => Ok((pid, pidfd)),
        Some(failure) => {
            let _ = waitpid(Pid::from_raw(pid), None);
            Err(failure)
        }
    }
}

/// The memory of the child until it executes its program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChildMemory {
    /// A copy of ours, as after fork(2).
    Copied,
    /// Ours, while the calling thread waits, as after vfork(2).
    Lent,
}

/// A program that is prepared; only the process must still be made.
pub struct Prepared<'a> {
    plan: ChildPlan<'a>,
    start: StartReport,
    cgroup: Option<BorrowedFd<'a>>,
    /// The texts to which `plan` points.
    _texts: Vec<CString>,
    _pid_text: Vec<u8>,
    _lifted: Vec<OwnedFd>,
}

/// Prepares everything that the child needs.
pub fn prepare<'a>(program: &Program<'a>) -> Result<Prepared<'a>, NotStarted> {
    let name = program.argv.first().map_or("", String::as_str);
    if name.is_empty() {
        return Err(NotStarted { code: NOT_FOUND, why: "there is no program to start".to_owned() });
    }
    let has_nul = |_| not_executable(name, "a zero byte in its", "arguments or directory");
    let text = |t: &str| CString::new(t).map_err(has_nul);
    let argv = program.argv.iter().map(|a| text(a)).collect::<Result<Vec<_>, _>>()?;
    let own = Environment::new(program.env.iter().map(|(k, v)| (k, v)))?;
    let mut env = null_terminated(program.shared_env.into_iter().flat_map(|shared| shared.without(program.env)).chain(&own.0));
    let mut pid_text = Vec::new();
    let pid_digits = program.pid_variable.map(|variable| {
        pid_text = [variable.as_bytes(), b"=", &[0; PID_DIGITS_MAX + 1]].concat();
        let text = pid_text.as_mut_ptr();
        env.insert(0, text.cast_const().cast());
        // Behind the name and the equals sign, within the text.
        text.wrapping_add(variable.len() + 1)
    });
    let path = own.path().or_else(|| program.shared_env.and_then(Environment::path));
    let candidates = candidates(name, path.as_deref()).iter().map(|c| text(c)).collect::<Result<Vec<_>, _>>()?;
    let working_dir = CString::new(program.working_dir.as_os_str().as_encoded_bytes()).map_err(has_nul)?;

    let system = |doing| move |errno: Errno| not_executable(name, doing, errno.desc());
    // All sources are above all targets, so that placing one never overwrites another.
    let above = 3 + RawFd::try_from(program.inherit.len()).unwrap_or(RawFd::MAX);
    let mut lifted = Vec::new();
    let mut lift = |fd: BorrowedFd<'_>| {
        if fd.as_raw_fd() >= above {
            return Ok(fd.as_raw_fd());
        }
        let raw = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(above)).map_err(system("duplicating a descriptor"))?;
        // SAFETY: fcntl has just made it for us.
        lifted.push(unsafe { OwnedFd::from_raw_fd(raw) });
        Ok::<_, NotStarted>(raw)
    };
    let given = [program.stdin, program.stdout, program.stderr];
    let sources = given.into_iter().chain(program.inherit.iter().map(AsFd::as_fd)).map(&mut lift).collect::<Result<Vec<_>, _>>()?;
    let (report, report_writer) = pipe2(OFlag::O_CLOEXEC).map_err(system("making a pipe"))?;
    fcntl(&report, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(system("making a pipe"))?;
    let report_writer_fd = lift(report_writer.as_fd())?;
    lifted.push(report_writer);

    // Nothing to switch if we run as that user already and could not switch anyway.
    let us = nix::unistd::geteuid();
    let user = program.user.filter(|u| us.is_root() || us.as_raw() != u.uid);
    let plan = ChildPlan {
        v1_groups: program.v1_groups.iter().map(AsRawFd::as_raw_fd).collect(),
        oom_score: OOM_SCORE_OF_PROGRAMS.get().map(String::as_bytes),
        ignored: ignored_signals(),
        sources,
        report_writer: report_writer_fd,
        identity: user.map(|u| (u.uid, u.gid, u.groups.as_slice())),
        open_files: program.open_files,
        binding: program.binding.cloned(),
        terminal: program.terminal,
        working_dir,
        candidates,
        argv: null_terminated(&argv),
        env,
        pid_digits,
    };
    let start = StartReport {
        report: File::from(report),
        program: name.to_owned(),
        working_dir: program.working_dir.display().to_string(),
        user: program.user.map(|u| u.name.clone()),
        is_fault_of_node: false,
    };
    let texts = argv.into_iter().chain(own.0).collect();
    Ok(Prepared { plan, start, cgroup: program.cgroup, _texts: texts, _pid_text: pid_text, _lifted: lifted })
}

impl Prepared<'_> {
    fn child(self, (pid, pidfd): (i32, OwnedFd)) -> Child {
        Child { pid, pidfd, start: self.start }
    }

    fn make(&self, memory: ChildMemory) -> Result<(i32, OwnedFd), NotStarted> {
        let name = &self.start.program;
        let system = |doing| move |errno: Errno| not_executable(name, doing, errno.desc());
        let mut pidfd: RawFd = -1;
        // A handler of ours must not run in the child.
        let mut flags = u64::from(libc::CLONE_PIDFD.cast_unsigned()) | CLONE_CLEAR_SIGHAND;
        let mut stack = Vec::<u8>::new();
        if memory == ChildMemory::Lent {
            flags |= u64::from((libc::CLONE_VM | libc::CLONE_VFORK).cast_unsigned());
            stack.reserve_exact(CHILD_STACK_BYTES);
        }
        let mut cgroup = 0;
        if let Some(fd) = self.cgroup {
            flags |= CLONE_INTO_CGROUP;
            cgroup = u64::try_from(fd.as_raw_fd()).unwrap_or(0);
        }
        // SAFETY: all zeros is a valid value of this structure of integers.
        let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
        args.flags = flags;
        args.pidfd = ptr::from_mut(&mut pidfd).expose_provenance() as u64;
        args.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
        args.cgroup = cgroup;
        if memory == ChildMemory::Lent {
            let bottom = stack.as_mut_ptr().expose_provenance().next_multiple_of(STACK_ALIGNMENT);
            args.stack = bottom as u64;
            args.stack_size = (CHILD_STACK_BYTES - STACK_ALIGNMENT) as u64;
        }

        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).map_err(system("blocking signals"))?;
        // SAFETY: the child runs `become_program`, which uses only what was prepared and calls that are
        // async-signal-safe, and never returns. Where it has our memory it has a stack of its own in it, and this
        // thread, whose errno and frame it shares, waits (CLONE_VFORK) until it is gone from there.
        let pid = unsafe { clone3(&mut args, &self.plan) };
        drop(stack);
        let _ = before.thread_set_mask();
        let doing = if self.cgroup.is_some() { "making its process in its cgroup" } else { "making its process" };
        let pid = i32::try_from(pid.map_err(system(doing))?).map_err(|e| not_executable(name, doing, e))?;
        // SAFETY: the kernel has just made it for us (CLONE_PIDFD).
        Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
    }
}

/// clone3(2). The child runs [`become_program`] on the stack that `args` gives, or on a copy of ours if it gives none.
/// Not through libc: a function that was called on one stack cannot return on another.
///
/// # Safety
/// As for clone3 itself: pointers in `args` must be valid, and CLONE_VM requires CLONE_VFORK and a stack.
unsafe fn clone3(args: &mut libc::clone_args, plan: &ChildPlan<'_>) -> Result<i64, Errno> {
    let child: extern "C" fn(&ChildPlan<'_>) -> ! = become_program;
    let result: i64;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the system call's own registers are declared; the child's path leaves by `child`, which never returns,
    // with its stack aligned as a call wants it.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "and rsp, -16",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") ptr::from_mut(args),
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") ptr::from_ref(plan),
            in("r13") child,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x20",
            "blr x21",
            "brk 1",
            "2:",
            in("x8") libc::SYS_clone3,
            inlateout("x0") ptr::from_mut(args).expose_provenance() as i64 => result,
            in("x1") size_of::<libc::clone_args>(),
            in("x20") ptr::from_ref(plan),
            in("x21") child,
        );
    }
    if result < 0 { Err(Errno::from_raw(i32::try_from(-result).unwrap_or(libc::EINVAL))) } else { Ok(result) }
}

/// The signals that this process ignores: those that it was started with, and SIGPIPE. Read once, because nothing here
/// ignores another one later.
fn ignored_signals() -> &'static [i32] {
    static IGNORED: OnceLock<Vec<i32>> = OnceLock::new();
    IGNORED.get_or_init(|| {
        let is_ignored = |signal: &i32| {
            let mut now = [0u64; 4];
            // SAFETY: the kernel writes its own `struct sigaction`, which has 32 bytes, into an array that lives.
            let asked = unsafe { libc::syscall(libc::SYS_rt_sigaction, *signal, ptr::null::<u64>(), now.as_mut_ptr(), 8) };
            asked == 0 && now[0] == libc::SIG_IGN as u64
        };
        (1..=64).filter(is_ignored).collect()
    })
}

/// The paths to try, as execvp(3) does.
fn candidates(name: &str, path: Option<&str>) -> Vec<String> {
    if name.contains('/') {
        return vec![name.to_owned()];
    }
    let path = path.unwrap_or(PATH_DEFAULT);
    let directories = path.split(':').take(PATH_DIRECTORIES_MAX);
    directories.map(|d| if d.is_empty() { format!("./{name}") } else { format!("{d}/{name}") }).collect()
}

/// Pointers to the texts, with the null pointer at the end that execve needs.
fn null_terminated<'t>(texts: impl IntoIterator<Item = &'t CString>) -> Vec<*const libc::c_char> {
    texts.into_iter().map(|t| t.as_ptr()).chain([ptr::null()]).collect()
}

/// Everything that the child needs, prepared before it is made.
struct ChildPlan<'a> {
    v1_groups: Vec<RawFd>,
    oom_score: Option<&'static [u8]>,
    ignored: &'static [i32],
    sources: Vec<RawFd>,
    report_writer: RawFd,
    identity: Option<(u32, u32, &'a [u32])>,
    open_files: Option<(u64, u64)>,
    binding: Option<Binding>,
    terminal: bool,
    working_dir: CString,
    candidates: Vec<CString>,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    /// Where the child writes its pid: [`PID_DIGITS_MAX`] bytes, and a zero.
    pid_digits: Option<*mut u8>,
}

/// Writes a decimal number to `digits`.
///
/// # Safety
/// `digits` has [`PID_DIGITS_MAX`] bytes.
unsafe fn write_decimal(digits: *mut u8, number: u32) {
    let (mut divisor, mut at) = (1_000_000_000, digits);
    while divisor > 0 {
        let digit = number / divisor;
        if digit > 0 || divisor == 1 {
            // SAFETY: one byte for each digit, and a `u32` has at most PID_DIGITS_MAX.
            unsafe {
                at.write(b'0' + (digit % 10) as u8);
                at = at.add(1);
            }
        }
        divisor /= 10;
    }
}

/// What the child does before its program runs. It may neither allocate nor lock: another thread of ours may have held
/// the lock when the child was made.
extern "C" fn become_program(plan: &ChildPlan<'_>) -> ! {
    let fail = |stage: u8, errno: i32| -> ! {
        let [a, b, c, d] = errno.to_le_bytes();
        let report = [stage, a, b, c, d];
        // SAFETY: writes from a live array; _exit runs nothing of ours.
        unsafe {
            libc::write(plan.report_writer, report.as_ptr().cast(), report.len());
            libc::_exit(if matches!(errno, libc::ENOENT | libc::ENOTDIR) { NOT_FOUND } else { NOT_EXECUTABLE }.into());
        }
    };
    // SAFETY: async-signal-safe calls on integers and on memory of `plan`, which lives until execve or _exit. The uid
    // calls are raw: libc's would look for the threads that this copy of the process does not have.
    unsafe {
        libc::setsid();
        // Before the descriptors are placed: here they still have our numbers. Writing "0" moves the writing process.
        for group in &plan.v1_groups {
            if libc::write(*group, c"0".as_ptr().cast(), 1) < 0 {
                fail(STAGE_GROUPS, Errno::last_raw());
            }
        }
        // With our rights: a score that is set with CAP_SYS_RESOURCE is also the lowest that the program may set.
        if let Some(score) = plan.oom_score {
            let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file < 0 || libc::write(file, score.as_ptr().cast(), score.len()) < 0 {
                fail(STAGE_OOM_SCORE, Errno::last_raw());
            }
            libc::close(file);
        }
        let mut target = 0;
        for source in &plan.sources {
            if libc::dup2(*source, target) < 0 {
                fail(STAGE_DESCRIPTORS, Errno::last_raw());
            }
            target += 1;
        }
        // The new session has no controlling terminal yet.
        if plan.terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            fail(STAGE_TERMINAL, Errno::last_raw());
        }
        // They are closed by execve and not now, because the report's pipe is one of them.
        if libc::syscall(libc::SYS_close_range, target, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) < 0 {
            fail(STAGE_DESCRIPTORS, Errno::last_raw());
        }
        if let Some((soft, hard)) = plan.open_files {
            let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
        if let Some(digits) = plan.pid_digits {
            write_decimal(digits, libc::getpid().cast_unsigned());
        }
        libc::umask(0o022);
        if let Some(Err(errno)) = plan.binding.as_ref().map(Binding::apply) {
            fail(STAGE_BINDING, errno);
        }
        if let Some((uid, gid, groups)) = plan.identity {
            let switched = libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0
                && libc::syscall(libc::SYS_setresgid, gid, gid, gid) == 0
                && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0;
            if !switched {
                fail(STAGE_IDENTITY, Errno::last_raw());
            }
        }
        if libc::chdir(plan.working_dir.as_ptr()) < 0 {
            fail(STAGE_DIRECTORY, Errno::last_raw());
        }
        // The kernel's own `struct sigaction`, all zeros: the default. (libc's call refuses the two signals that it
        // reserves, which we may have inherited as ignored.) Ignored signals would stay ignored over execve, as SIGPIPE
        // is in a Rust process; those with a handler of ours are reset by CLONE_CLEAR_SIGHAND.
        let default = [0u64; 4];
        for signal in plan.ignored.iter().copied() {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), ptr::null::<u64>(), 8);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        let mut errno = libc::ENOENT;
        for candidate in &plan.candidates {
            libc::execve(candidate.as_ptr(), plan.argv.as_ptr(), plan.env.as_ptr());
            match Errno::last_raw() {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => errno = libc::EACCES,
                other => fail(STAGE_EXEC, other),
            }
        }
        fail(STAGE_EXEC, errno)
    }
}

/// Which child ended, and how: reaps one that has ended, without waiting. `None` if there is none now. Only for a
/// process that starts all its children itself, because it reaps any child.
pub fn reap_any() -> Option<(i32, RankOutcome)> {
    // If it fails, there is no child at all.
    wait_now(-1).unwrap_or(None)
}

/// Whether there is any child, living or not reaped yet. In a subreaper without a child, no process is left of all those
/// that it and its descendants started.
pub fn has_child() -> bool {
    let any = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    !matches!(waitid(Id::All, any), Err(Errno::ECHILD))
}

/// How this child ended, if it has: reaps it, without waiting. `NotFound` if it is not a child of ours.
pub fn reap(pid: i32) -> io::Result<Option<RankOutcome>> {
    match wait_now(pid) {
        Ok(end) => Ok(end.map(|(_, outcome)| outcome)),
        Err(Errno::ECHILD) => Err(io::ErrorKind::NotFound.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// waitpid(2) without waiting. Not nix's: for a child that a real-time signal ended, that one reaps the child and then
/// fails, because its `Signal` has no such member.
fn wait_now(pid: i32) -> Result<Option<(i32, RankOutcome)>, Errno> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is a valid integer for the whole call.
        match Errno::result(unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) }) {
            Ok(0) => return Ok(None),
            Ok(child) => {
                if let Some(outcome) = outcome(status) {
                    return Ok(Some((child, outcome)));
                }
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// The end that this status of waitpid(2) means; `None` if it means something else.
fn outcome(status: i32) -> Option<RankOutcome> {
    if libc::WIFEXITED(status) {
        Some(RankOutcome::Exited { code: u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX) })
    } else if libc::WIFSIGNALED(status) {
        Some(RankOutcome::Signalled { signal: u8::try_from(libc::WTERMSIG(status)).unwrap_or(u8::MAX) })
    } else {
        None
    }
}

/// Sends a signal to every living descendant of `root` that `which` selects; returns their number. For machines without
/// a v2 tree: below a subreaper no process escapes this, but only the next call reaches what is forked between the
/// listing and the signal.
pub fn signal_descendants(root: i32, signal: i32, which: impl Fn(&identity::ProcessStat) -> bool) -> usize {
    let chosen = identity::descendants(root).into_iter().filter(|(_, stat)| which(stat));
    chosen
        .inspect(|(pid, _)| {
            // SAFETY: two integers.
            unsafe { libc::kill(*pid, signal) };
        })
        .count()
}

/// Sends a signal to each of these processes; returns how many of them still existed.
pub fn signal_each(pids: impl IntoIterator<Item = i32>, signal: i32) -> usize {
    // A number that is not positive would name a process group.
    // SAFETY: two integers.
    pids.into_iter().filter(|pid| *pid > 0 && unsafe { libc::kill(*pid, signal) } == 0).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_for_as_execvp_does() {
        assert_eq!(candidates("a/b", Some("/x")), ["a/b"]);
        assert_eq!(candidates("b", Some("/x::/y")), ["/x/b", "./b", "/y/b"]);
        assert_eq!(candidates("b", None), ["/usr/local/bin/b", "/usr/bin/b", "/bin/b"]);
    }

    #[test]
    fn a_child_that_any_signal_ended_is_reaped_with_this_signal() {
        let child = |script| std::process::Command::new("sh").args(["-c", script]).spawn().unwrap().id().cast_signed();
        let reaped = |pid| {
            for _ in 0..6000 {
                if let Some(outcome) = reap(pid).unwrap() {
                    assert_eq!(reap(pid).unwrap_err().kind(), io::ErrorKind::NotFound);
                    return outcome;
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            panic!("it was not reaped");
        };
        for signal in [9, 15, 34, 64] {
            let pid = child("exec sleep 60");
            assert_eq!(signal_each([pid], signal), 1);
            assert_eq!(reaped(pid), RankOutcome::Signalled { signal: u8::try_from(signal).unwrap() });
        }
        assert_eq!(reaped(child("exit 200")), RankOutcome::Exited { code: 200 });
    }

    #[test]
    fn numbers_are_written_without_leading_zeros() {
        for number in [0, 7, 10, 4_194_304, u32::MAX] {
            let mut digits = [0; PID_DIGITS_MAX];
            // SAFETY: the array has that many bytes.
            unsafe { write_decimal(digits.as_mut_ptr(), number) };
            let text = String::from_utf8(digits.into_iter().take_while(|digit| *digit != 0).collect()).unwrap();
            assert_eq!(text, number.to_string());
        }
    }

    #[test]
    fn what_is_its_own_replaces_what_is_shared() {
        let pairs = |all: &[(&str, &str)]| all.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Vec<_>>();
        let shared = pairs(&[("A", "1"), ("AB", "2"), ("PATH", "/x")]);
        let shared = Environment::new(shared.iter().map(|(k, v)| (k, v))).unwrap();
        let own = pairs(&[("A", "3")]);
        let kept: Vec<_> = shared.without(&own).map(|v| v.to_str().unwrap()).collect();
        assert_eq!(kept, ["AB=2", "PATH=/x"]);
        assert_eq!(shared.path().as_deref(), Some("/x"));
        let zero = pairs(&[("A", "a\0b")]);
        assert!(Environment::new(zero.iter().map(|(k, v)| (k, v))).is_err());
    }
}
