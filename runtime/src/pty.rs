//! Pseudo-terminals. The holder of the master acts as keyboard and screen of the programs at the other end. When the
//! last copy of the master closes, the kernel hangs up their session.

use lattice_model::Principal;
pub use lattice_model::TerminalSize as Size;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::pty::{posix_openpt, ptsname_r, unlockpt};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::termios::{InputFlags, LocalFlags, OutputFlags, SetArg, SpecialCharacterIndices, tcgetattr, tcsetattr};
use nix::unistd::{Gid, Uid, fchown, geteuid};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

/// How the terminal changes bytes. Signals (Ctrl-C, Ctrl-Z, Ctrl-\) and line editing are always on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// Whether input is shown in the output: right where a person types, wrong where a file is read.
    pub echo: bool,
    /// Whether a line's end in the output becomes CR LF: right for a screen, wrong for a file.
    pub cooked_output: bool,
}

/// A new terminal.
#[derive(Debug)]
pub struct Terminal {
    /// Our end: writing to it is typing, reading from it gives the programs' output. Non-blocking. Reads fail with
    /// `EIO` once nobody has the other end open.
    pub master: OwnedFd,
    /// The programs' end. Hold it until a program has it.
    pub slave: OwnedFd,
    /// Path at which programs open their end, in every mount namespace that shares this one's `/dev/pts`.
    pub path: PathBuf,
}

/// Columns of the terminal `of`. `None`: it is not a terminal, or does not report its size.
pub fn columns_of(of: &impl AsFd) -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: an open descriptor, and a structure that outlives the call.
    let done = unsafe { libc::ioctl(of.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) } == 0;
    (done && size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Makes a terminal for `owner` only (mode 0600). If we are not root, it remains ours.
pub fn open(owner: &Principal, size: Size, modes: Modes) -> io::Result<Terminal> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let master = posix_openpt(flags)?;
    unlockpt(&master)?;
    let path = PathBuf::from(ptsname_r(&master)?);
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    // Through the master and not by the path, so that no other terminal can be opened.
    // SAFETY: an open descriptor and an integer; the result is a new descriptor or an error.
    let slave = Errno::result(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags.bits()) })?;
    // SAFETY: the kernel has just made it for us.
    let slave = unsafe { OwnedFd::from_raw_fd(slave) };
    let mut termios = tcgetattr(&slave)?;
    termios.input_flags.insert(InputFlags::IUTF8);
    termios.local_flags.set(LocalFlags::ECHO, modes.echo);
    termios.output_flags.set(OutputFlags::OPOST, modes.cooked_output);
    tcsetattr(&slave, SetArg::TCSANOW, &termios)?;
    let master = OwnedFd::from(master);
    set_size(master.as_fd(), size)?;
    if geteuid().is_root() {
        fchown(&slave, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
    }
    fchmod(&slave, Mode::S_IRUSR | Mode::S_IWUSR)?;
    Ok(Terminal { master, slave, path })
}

/// Changes the size; the kernel sends SIGWINCH to the foreground programs.
pub fn set_size(terminal: BorrowedFd<'_>, size: Size) -> io::Result<()> {
    let size = libc::winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: an open descriptor, and a structure that outlives the call.
    Errno::result(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) })?;
    Ok(())
}

/// The bytes to write so that a reader of this terminal sees an end of input: the end-of-file character, twice if a
/// line was begun (the first one then only passes that line to its reader).
pub fn end_of_input(terminal: BorrowedFd<'_>, line_begun: bool) -> io::Result<Vec<u8>> {
    let termios = tcgetattr(terminal)?;
    let eof = termios.control_chars[SpecialCharacterIndices::VEOF as usize];
    Ok(vec![eof; if line_begun { 2 } else { 1 }])
}
