//! Prevents ranks from waiting for TCP timers.
//!
//! A rank's library sends several short messages in a row, of which only the last is answered, and
//! leaves Nagle's algorithm on: the second message waits for the acknowledgement of the first.
//! After the first answer, the kernel on this side considers the connection interactive and delays
//! acknowledgements by 40 ms, to send them together with data. So the end of each MPI program took
//! that long. We cannot set options on the ranks' sockets. Instead this program replaces the
//! library's `writev`, as it does with `accept` ([`crate::gate`]): after each answer it leaves
//! interactive mode (tcp(7), TCP_QUICKACK), and the next data is acknowledged at once.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, RawFd};

/// Disables Nagle's algorithm on a connection that a rank has made, so that data to it is not
/// delayed either.
pub fn connected(socket: &impl AsRawFd) {
    set(socket.as_raw_fd(), libc::TCP_NODELAY);
}

/// As libc's `writev`.
///
/// # Safety
/// As of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
    // SAFETY: with the arguments of the caller of writev.
    let written = unsafe { libc::syscall(libc::SYS_writev, fd, parts, count) };
    let why = io::Error::last_os_error().raw_os_error();
    // Other kinds of descriptors refuse the option and stay unchanged.
    set(fd, libc::TCP_QUICKACK);
    if let Some(why) = why {
        // SAFETY: this thread's own errno.
        unsafe { *libc::__errno_location() = why };
    }
    written as isize
}

fn set(fd: RawFd, option: c_int) {
    let on: c_int = 1;
    let length = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the option is a number that lives during the call.
    unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, option, (&raw const on).cast::<c_void>(), length) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    /// Below the 40 ms for which Linux delays an acknowledgement.
    const AT_ONCE: Duration = Duration::from_millis(20);

    /// Times an answered question followed by two messages, of which the last is answered.
    fn took(answer: impl Fn(&TcpStream)) -> Duration {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut rank = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut byte = [0];
        for _ in 0..20 {
            rank.write_all(b"?").unwrap();
            server.read_exact(&mut byte).unwrap();
            answer(&server);
            rank.read_exact(&mut byte).unwrap();
        }
        let began = Instant::now();
        rank.write_all(b"a").unwrap();
        rank.write_all(b"b").unwrap();
        for _ in 0..2 {
            server.read_exact(&mut byte).unwrap();
        }
        began.elapsed()
    }

    fn one(send: unsafe extern "C" fn(c_int, *const libc::iovec, c_int) -> isize, to: &TcpStream) {
        let part = libc::iovec { iov_base: c".".as_ptr().cast_mut().cast(), iov_len: 1 };
        // SAFETY: one part, which lives during the call.
        assert_eq!(unsafe { send(to.as_raw_fd(), &part, 1) }, 1);
    }

    #[test]
    fn data_after_an_answer_is_acknowledged_at_once() {
        // The minimum of several runs, because the machine may be busy.
        let least = |answer: fn(&TcpStream)| (0..5).map(|_| took(answer)).min().unwrap();
        let kept_back = least(|to| {
            // SAFETY: one byte.
            assert_eq!(unsafe { libc::write(to.as_raw_fd(), c".".as_ptr().cast(), 1) }, 1);
        });
        assert!(kept_back > AT_ONCE, "the kernel kept nothing back, in {kept_back:?}: this is not needed any more");
        let prompt = |_| took(|to| one(writev, to));
        assert!((0..100).map(prompt).any(|took| took < AT_ONCE), "each of a hundred took at least {AT_ONCE:?}");
    }

    #[test]
    fn an_error_is_returned_as_by_libc() {
        // SAFETY: no buffers are passed.
        assert_eq!(unsafe { writev(-1, std::ptr::null(), 0) }, -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
    }
}
