//! Access control: only processes of the launch's user may connect.
//!
//! The library listens on the loopback interface, where every user of the machine can connect, and
//! trusts the user id that a client sends. TCP itself does not identify the peer, but the kernel's
//! connection table contains both ends of a connection with their owners. The library has no hook
//! for such a check. So this program replaces the `accept` that the library calls: symbols that an
//! executable exports take precedence over libc's (`build.rs`). A connection of another user is
//! closed unread, and the library never sees it.

use crate::prompt;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

/// Whether the library uses our [`accept`]. If the program was linked in a way that does not export
/// it, it must not serve.
pub fn is_in_use() -> bool {
    let ours: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int = accept;
    // SAFETY: only looks up a symbol.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"accept".as_ptr()) };
    std::ptr::eq(found, ours as *const c_void)
}

/// As libc's `accept`, but it closes connections of other users and then fails with an error after
/// which the library tries again. The new descriptor is close-on-exec.
///
/// # Safety
/// As of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(listener: c_int, address: *mut libc::sockaddr, length: *mut libc::socklen_t) -> c_int {
    // SAFETY: the caller fulfils the conditions of libc's `accept`.
    let accepted = unsafe { libc::accept4(listener, address, length, libc::SOCK_CLOEXEC) };
    if accepted < 0 {
        return accepted;
    }
    // SAFETY: it was opened just now, and nobody else knows it.
    let stream = TcpStream::from(unsafe { OwnedFd::from_raw_fd(accepted) });
    // SAFETY: it always succeeds.
    let ours = unsafe { libc::geteuid() };
    if owner(&stream).is_ok_and(|owner| owner == Some(ours)) {
        prompt::connected(&stream);
        return stream.into_raw_fd();
    }
    drop(stream);
    // SAFETY: this thread's own errno. Both versions of the library continue after this error.
    unsafe { *libc::__errno_location() = libc::EAGAIN };
    -1
}

/// The user at the other end of a connection; `None`: that end is gone, or not on this machine.
fn owner(stream: &TcpStream) -> io::Result<Option<u32>> {
    let (SocketAddr::V4(theirs), SocketAddr::V4(ours)) = (stream.peer_addr()?, stream.local_addr()?) else { return Ok(None) };
    let (theirs, ours) = (in_table(theirs), in_table(ours));
    for line in BufReader::new(File::open("/proc/self/net/tcp")?).lines() {
        let line = line?;
        // sl local_address rem_address st tx:rx tr:when retrnsmt uid …
        let mut fields = line.split_ascii_whitespace().skip(1);
        if fields.next() == Some(&theirs) && fields.next() == Some(&ours) {
            return Ok(fields.nth(4).and_then(|uid| uid.parse().ok()));
        }
    }
    Ok(None)
}

/// An address in the table's format: the bytes of the address as a number in this machine's byte
/// order, and the port, in hexadecimal.
fn in_table(address: SocketAddrV4) -> String {
    format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    /// Debian's `nobody`; any other user would do as well.
    const STRANGER: u32 = 65_534;

    #[test]
    fn a_connection_of_another_user_is_closed() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let let_in = || {
            // SAFETY: no address is requested, so both pointers may be null.
            let accepted = unsafe { accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) };
            // SAFETY: the descriptor, if there is one, was just opened and belongs to us.
            (accepted >= 0).then(|| unsafe { OwnedFd::from_raw_fd(accepted) }).ok_or_else(io::Error::last_os_error)
        };
        let own = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let_in().unwrap();
        drop(own);
        // The command ends when the connection is refused.
        let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{} && read -r line <&3", listener.local_addr().unwrap().port());
        let mut stranger = match Command::new("bash").args(["-c", &connect]).uid(STRANGER).spawn() {
            Ok(stranger) => stranger,
            Err(error) => {
                assert!(std::env::var_os("LATTICE_TEST_REQUIRE_ALL").is_none(), "no process of another user: {error}");
                return eprintln!("cannot run here: no process of another user: {error}");
            }
        };
        assert_eq!(let_in().unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        assert_eq!(stranger.wait().unwrap().code(), Some(1), "it was not cut off");
    }
}
