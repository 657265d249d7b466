//! A terminal that runs `lattice`, with the test as its user.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{OpenptyResult, openpty};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Longer than anything here takes, also on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The terminal, and its program.
pub struct Tty {
    master: OwnedFd,
    slave: OwnedFd,
    before: Termios,
    child: Child,
    /// Output that was not searched yet.
    shown: String,
}

impl Tty {
    /// Starts the command with its own terminal of 40 rows and 100 columns.
    pub fn start(command: Command) -> Self {
        Self::start_sized(command, 40, 100)
    }

    /// Starts the command with its own terminal of this size.
    pub fn start_sized(mut command: Command, rows: u16, columns: u16) -> Self {
        let OpenptyResult { master, slave } = openpty(None, None).unwrap();
        let before = tcgetattr(&slave).unwrap();
        let end = || slave.try_clone().unwrap();
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "vt220");
        // SAFETY: setsid and ioctl are async-signal-safe, and nothing else is done between fork and exec.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                Errno::result(libc::ioctl(0, libc::TIOCSCTTY, 0))?;
                Ok(())
            });
        }
        resize(&master, rows, columns);
        Self { child: command.spawn().unwrap(), master, slave, before, shown: String::new() }
    }

    /// Changes the size; the kernel notifies the program.
    pub fn resize(&self, rows: u16, columns: u16) {
        resize(&self.master, rows, columns);
    }

    pub fn types(&self, text: &str) {
        assert_eq!(nix::unistd::write(&self.master, text.as_bytes()), Ok(text.len()));
    }

    /// Waits until this text is shown, and forgets the output before it.
    pub fn sees(&mut self, text: &str) {
        let until = Instant::now() + WAIT_MAX;
        loop {
            if let Some(at) = self.shown.find(text) {
                self.shown.drain(..at + text.len());
                return;
            }
            let ended = self.child.try_wait().unwrap();
            let read = self.read();
            assert!(read || ended.is_none(), "ended with {ended:?} before {text:?} was shown, but {:?}", self.shown);
            assert!(Instant::now() < until, "waited in vain for {text:?}, shown was {:?}", self.shown);
        }
    }

    /// Waits shortly for output, and returns what was not searched.
    pub fn take_output(&mut self) -> String {
        self.read();
        std::mem::take(&mut self.shown)
    }

    /// Types a command to a shell until its answer is shown; the answer must not be part of the command.
    pub fn asks(&mut self, command: &str, answer: &str) {
        assert!(!command.contains(answer));
        self.types(&format!("{command}\n"));
        self.sees(answer);
    }

    /// Repeats an action until this text is shown: keys that were typed before a program read them are lost.
    pub fn sees_again(&mut self, act: impl Fn(&Self), text: &str) {
        let until = Instant::now() + WAIT_MAX;
        while !self.shown.contains(text) {
            act(self);
            let look = Instant::now() + Duration::from_millis(500);
            while !self.shown.contains(text) && Instant::now() < look {
                self.read();
            }
            assert!(Instant::now() < until, "waited in vain for {text:?}, shown was {:?}", self.shown);
        }
        self.sees(text);
    }

    fn read(&mut self) -> bool {
        let ready = poll(&mut [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)], PollTimeout::from(20u8));
        if ready != Ok(1) {
            return false;
        }
        let mut chunk = [0; 65536];
        let n = nix::unistd::read(&self.master, &mut chunk).unwrap();
        self.shown.push_str(&String::from_utf8_lossy(&chunk[..n]));
        n > 0
    }

    /// Waits for the program's end; returns its status, and the output that was not searched.
    pub fn ended(&mut self) -> (ExitStatus, String) {
        let until = Instant::now() + WAIT_MAX;
        loop {
            let ended = self.child.try_wait().unwrap();
            let read = self.read();
            if let (Some(status), false) = (ended, read) {
                return (status, std::mem::take(&mut self.shown));
            }
            assert!(Instant::now() < until, "it does not end; shown was {:?}", self.shown);
        }
    }

    /// Checks that the program ended with this code, and that the terminal was restored.
    pub fn ended_with(&mut self, code: i32) -> String {
        let (status, shown) = self.ended();
        assert_eq!(status.code(), Some(code), "{shown}");
        self.is_restored();
        shown
    }

    pub fn is_restored(&self) {
        assert!(self.is_as_before(), "the terminal is not as it was: {:?}", tcgetattr(&self.slave).unwrap());
    }

    /// Whether the program has made the terminal raw.
    pub fn is_raw(&self) -> bool {
        !self.is_as_before()
    }

    fn is_as_before(&self) -> bool {
        tcgetattr(&self.slave).unwrap() == self.before
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }
}

fn resize(master: &OwnedFd, rows: u16, columns: u16) {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: an open descriptor, and a structure that outlives the call.
    Errno::result(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }).unwrap();
}

impl Drop for Tty {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.slave, SetArg::TCSANOW, &self.before);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
