//! Sets the user's terminal to raw mode while another terminal is shown in it, and restores it in every case.

use nix::sys::signal::{Signal, raise};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

/// The terminal's state before it was made raw.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);
/// Whether the terminal shows its alternate screen.
static IS_ALTERNATE: AtomicBool = AtomicBool::new(false);

/// Control codes of xterm, which all terminals in use understand: the alternate screen, with the cursor hidden.
const ENTER_SCREEN: &[u8] = b"\x1b[?1049h\x1b[?25l";
/// No colours, the cursor shown, the usual screen.
const LEAVE_SCREEN: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// While this lives, the terminal of standard input is raw. A panic restores it before its message is printed.
pub struct RawMode(());

impl RawMode {
    /// Makes it raw; does nothing if standard input is not a terminal.
    pub fn enter() -> io::Result<Option<Self>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let usual = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                restore();
                usual(info);
            }));
        });
        make_raw()?;
        Ok(Some(Self(())))
    }

    /// Stops this process as its shell expects it, with the terminal restored meanwhile.
    pub fn stop_process(&self) -> io::Result<()> {
        restore();
        raise(Signal::SIGSTOP)?;
        make_raw()
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// While this lives, the terminal is raw and shows its alternate screen. A panic restores both before its message is
/// printed.
pub struct FullScreen(RawMode);

impl FullScreen {
    /// Enters it; does nothing if standard input is not a terminal.
    pub fn enter() -> io::Result<Option<Self>> {
        let Some(raw) = RawMode::enter()? else { return Ok(None) };
        enter_screen()?;
        Ok(Some(Self(raw)))
    }

    /// Stops this process as its shell expects it, with the usual screen meanwhile. Afterwards the alternate screen is
    /// empty.
    pub fn stop_process(&self) -> io::Result<()> {
        self.0.stop_process()?;
        enter_screen()
    }
}

fn enter_screen() -> io::Result<()> {
    IS_ALTERNATE.store(true, Ordering::Relaxed);
    write_codes(ENTER_SCREEN)
}

fn write_codes(codes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(codes)?;
    out.flush()
}

fn make_raw() -> io::Result<()> {
    let mut before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    let now = tcgetattr(io::stdin())?;
    let mut raw = now.clone();
    cfmakeraw(&mut raw);
    tcsetattr(io::stdin(), SetArg::TCSADRAIN, &raw)?;
    *before = Some(now);
    Ok(())
}

fn restore() {
    if IS_ALTERNATE.swap(false, Ordering::Relaxed) {
        // A terminal that is gone needs nothing.
        let _ = write_codes(LEAVE_SCREEN);
    }
    if let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // TCSANOW does not wait for pending output: a stopped screen would block us for ever.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &before);
    }
}

/// Whether a [`FullScreen`] is on the terminal.
pub fn is_full_screen() -> bool {
    IS_ALTERNATE.load(Ordering::Relaxed)
}

/// The line end for standard error: on a raw terminal a bare LF does not return to column one.
pub fn line_end() -> &'static str {
    if BEFORE.lock().unwrap_or_else(PoisonError::into_inner).is_some() { "\r\n" } else { "\n" }
}

/// Rows and columns of our terminal, if there is one.
pub fn size() -> Option<(u32, u32)> {
    [io::stdin().as_raw_fd(), io::stdout().as_raw_fd(), io::stderr().as_raw_fd()].into_iter().find_map(size_of)
}

/// Whether standard output is a terminal on which text can be placed.
pub fn is_screen() -> bool {
    io::stdout().is_terminal() && std::env::var("TERM").is_ok_and(|term| !term.is_empty() && term != "dumb")
}

/// Columns of standard output: from `COLUMNS`, else from its terminal. `None`: unlimited.
pub fn columns() -> Option<usize> {
    let from_variable = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|columns| *columns > 0);
    from_variable.or_else(|| size_of(io::stdout().as_raw_fd()).map(|(_, columns)| columns as usize))
}

fn size_of(fd: i32) -> Option<(u32, u32)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: a descriptor, open or not, and a structure that outlives the call.
    let done = unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size) } == 0;
    (done && size.ws_row > 0 && size.ws_col > 0).then(|| (u32::from(size.ws_row), u32::from(size.ws_col)))
}
