//! The page that an application and its node's agent share: `$LATTICE_CHECKPOINT_SHM`, a file of [`BYTES`] bytes.
//!
//! Numbers are in the machine's own byte order, at multiples of their size. The agent makes the file once, owned by the
//! allocation's user, and never shortens or replaces it; the application must not do that either.
//!
//! | offset | content | written by |
//! |---|---|---|
//! | 0 | [`MAGIC`] | agent |
//! | 8 | u32 [`VERSION`]: another number is another layout | agent |
//! | 12 | u32 [`BYTES`] | agent |
//! | 64 | u32 futex word: the number of the present request, 0 before the first | agent |
//! | 68 | u32 the number of the request to which the next two values belong, 0 if it was withdrawn | agent |
//! | 72 | u64 its deadline, milliseconds since 1970 | agent |
//! | 80 | its token, ended by a zero: save into `$LATTICE_CHECKPOINT_DIR/<token>/` | agent |
//! | 1024 | u32 the number of the request that was answered last: written after the whole answer | application |
//! | 1028 | u32 the answer: [`DONE`], [`FAILED`] or [`DEFERRED`] | application |
//! | 1032 | u32 the number of the accepted request: written after the next two, whenever they change | application |
//! | 1036 | u32 its progress in percent; [`UNREPORTED_32`]: not reported | application |
//! | 1040 | u64 the remaining time in milliseconds, at most a day; [`UNREPORTED`]: not reported | application |
//! | 1048 | u64 the step that it saved; [`UNREPORTED`]: not reported | application |
//! | 1056 | u64 the number of files that it wrote; [`UNREPORTED`]: not reported | application |
//! | 1064 | u64 the number of bytes; [`UNREPORTED`]: not reported | application |
//! | 1072 | u64 for [`DEFERRED`]: after how many milliseconds it wants to be asked again, at most a day | application |
//! | 1080 | for [`FAILED`]: the reason, UTF-8, ended by a zero | application |
//! | 1336 | u32 for [`DONE`]: 1 if the next value is set; a program that does not set it leaves 0 | application |
//! | 1344 | f64 the simulated time, in seconds | application |
//!
//! A request is pending while the word at 64 is neither 0 nor the number at 1024. Its data is consistent if the number
//! at 68 equals the one at 64, both before and after the rest was read. To wait for the next request use `FUTEX_WAIT`
//! on the word at 64, not the private variant: the agent wakes all waiters.
//!
//! The agent withdraws a request that it gave up; a later request for the same token has another number. If the agent
//! is killed, a request for which nobody waits may stay until the next one.
//!
//! A listener holds a shared lock (`flock`) on the file while it listens; the kernel releases it with the last
//! descriptor. By this lock the agent knows whether any process would receive a request. A child that was forked and
//! has not called exec has the descriptor as well. Only one process of each node answers, as in the signal mode.

/// The beginning of the file.
pub const MAGIC: [u8; 8] = *b"LATTCKPT";
/// The version of this layout.
pub const VERSION: u32 = 1;
/// The length of the file.
pub const BYTES: usize = 4096;

/// Offset of [`VERSION`].
pub const AT_VERSION: usize = 8;
/// Offset of [`BYTES`].
pub const AT_BYTES: usize = 12;
/// Offset of the number of the present request: the futex word.
pub const AT_REQUEST: usize = 64;
/// Offset of the number of the request to which deadline and token belong.
pub const AT_OF_REQUEST: usize = 68;
/// Offset of the deadline.
pub const AT_DEADLINE: usize = 72;
/// Offset of the token.
pub const AT_TOKEN: usize = 80;
/// Bytes of a token, including its zero.
pub const TOKEN_BYTES: usize = 64;

/// Offset of the number of the request that was answered last.
pub const AT_ANSWERED: usize = 1024;
/// Offset of the answer.
pub const AT_ANSWER: usize = 1028;
/// Offset of the number of the request that was accepted.
pub const AT_TAKEN: usize = 1032;
/// Offset of the percentage.
pub const AT_PERCENT: usize = 1036;
/// Offset of the remaining milliseconds.
pub const AT_LEFT: usize = 1040;
/// Offset of the step.
pub const AT_STEP: usize = 1048;
/// Offset of the number of files.
pub const AT_FILES: usize = 1056;
/// Offset of the number of bytes.
pub const AT_SAVED_BYTES: usize = 1064;
/// Offset of the milliseconds until the application wants to be asked again.
pub const AT_DEFERRAL: usize = 1072;
/// Offset of the reason of a failure.
pub const AT_REASON: usize = 1080;
/// Bytes of a reason, including its zero.
pub const REASON_BYTES: usize = 256;

/// Offset of the word that says whether the simulated time is set.
pub const AT_TIME_SET: usize = 1336;
/// Offset of the simulated time.
pub const AT_TIME: usize = 1344;

/// The answer: all is saved.
pub const DONE: u32 = 1;
/// The answer: it cannot save itself.
pub const FAILED: u32 = 2;
/// The answer: it wants to be asked again later.
pub const DEFERRED: u32 = 3;
/// The value of a number that is not reported.
pub const UNREPORTED: u64 = u64::MAX;
/// The same in 32 bits.
pub const UNREPORTED_32: u32 = u32::MAX;
