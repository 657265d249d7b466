//! The page that an application and its node's agent share: `$LATTICE_CHECKPOINT_SHM`, a file of [`BYTES`] bytes.
//!
//! Numbers are of the machine's own byte order and lie at multiples of their size. The agent makes the file once, owned by the
//! allocation's user, and never shortens or replaces it; whoever writes it must not either.
//!
//! | offset | what | written by |
//! |---|---|---|
//! | 0 | [`MAGIC`] | agent |
//! | 8 | u32 [`VERSION`]: another number is another layout | agent |
//! | 12 | u32 [`BYTES`] | agent |
//! | 64 | u32 futex word: the number of the present request, 0 before the first | agent |
//! | 68 | u32 the number of the request that the next two are of, 0 where it was withdrawn | agent |
//! | 72 | u64 its deadline, milliseconds since 1970 | agent |
//! | 80 | its token, ended by a zero: save into `$LATTICE_CHECKPOINT_DIR/<token>/` | agent |
//! | 1024 | u32 the number of the request that was answered last: written after the whole answer | application |
//! | 1028 | u32 the answer: [`DONE`], [`FAILED`] or [`DEFERRED`] | application |
//! | 1032 | u32 the number of the request that it has heard: written after the next two, at once, and again with each progress | application |
//! | 1036 | u32 how far it is, in percent; [`UNSAID_32`]: it does not say | application |
//! | 1040 | u64 how long it will take yet, in milliseconds; [`UNSAID`] | application |
//! | 1048 | u64 the step that it saved; [`UNSAID`] | application |
//! | 1056 | u64 how many files it wrote; [`UNSAID`] | application |
//! | 1064 | u64 how many bytes; [`UNSAID`] | application |
//! | 1072 | u64 of [`DEFERRED`]: after how many milliseconds it wants to be asked again | application |
//! | 1080 | of [`FAILED`]: why, UTF-8, ended by a zero | application |
//! | 1336 | u32 1: the next is told, of [`DONE`]; what knows nothing of it leaves 0 there | application |
//! | 1344 | f64 the time of what is simulated, in seconds | application |
//!
//! A request stands while the word at 64 is not 0 and not the number at 1024. It is whole where the number at 68 is the same as that
//! at 64, before and after the rest was read. Who waits for the next one does so with `FUTEX_WAIT` on the word at 64, not the private
//! one: the agent wakes all of them.
//!
//! The agent withdraws a request that it gave up, and asks again under another number; an agent that is killed may leave one that
//! nobody waits for until the next.
//!
//! Who listens holds a shared lock (`flock`) on the file, and gives it up when it listens no more; the kernel does with the last
//! descriptor, so that the agent knows whether somebody would hear. A child that was forked without exec has the descriptor as well. One process of a node answers, as with the file in the other mode.

/// The beginning of the file.
pub const MAGIC: [u8; 8] = *b"LATTCKPT";
/// Of this layout.
pub const VERSION: u32 = 1;
/// Of the file.
pub const BYTES: usize = 4096;

/// Where [`VERSION`] lies.
pub const AT_VERSION: usize = 8;
/// Where [`BYTES`] lies.
pub const AT_BYTES: usize = 12;
/// The number of the present request: the futex word.
pub const AT_REQUEST: usize = 64;
/// The number of the request that deadline and token are of.
pub const AT_OF_REQUEST: usize = 68;
/// The deadline.
pub const AT_DEADLINE: usize = 72;
/// The token.
pub const AT_TOKEN: usize = 80;
/// Bytes of a token with its zero.
pub const TOKEN_BYTES: usize = 64;

/// The number of the request that was answered last.
pub const AT_ANSWERED: usize = 1024;
/// The answer.
pub const AT_ANSWER: usize = 1028;
/// The number of the request that was heard.
pub const AT_TAKEN: usize = 1032;
/// Percent.
pub const AT_PERCENT: usize = 1036;
/// Milliseconds that it will take yet.
pub const AT_LEFT: usize = 1040;
/// The step.
pub const AT_STEP: usize = 1048;
/// Files.
pub const AT_FILES: usize = 1056;
/// Bytes.
pub const AT_SAVED_BYTES: usize = 1064;
/// Milliseconds until it wants to be asked again.
pub const AT_DEFERRAL: usize = 1072;
/// The reason of a failure.
pub const AT_REASON: usize = 1080;
/// Bytes of a reason with its zero.
pub const REASON_BYTES: usize = 256;

/// Whether the time is told.
pub const AT_TIME_TOLD: usize = 1336;
/// The time of what is simulated.
pub const AT_TIME: usize = 1344;

/// All is saved.
pub const DONE: u32 = 1;
/// It cannot save itself.
pub const FAILED: u32 = 2;
/// It wants to be asked again later.
pub const DEFERRED: u32 = 3;
/// In place of a number that is not told.
pub const UNSAID: u64 = u64::MAX;
/// The same of 32 bits.
pub const UNSAID_32: u32 = u32::MAX;
