//! Who may connect: processes of the launch's user.
//!
//! The library listens on the loopback interface, where anybody on the machine can come, and believes who comes which user he
//! is. TCP names no peer; but the kernel's table has both ends of a connection, and each one's owner. The library has no call to
//! look there. So its `accept` is ours: an executable's symbols are found before libc's where the executable exports them
//! (`build.rs`). Somebody else's connection is closed unread, and was none for the library.

use crate::prompt;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

/// Whether the library finds [`accept`]: a way of linking that does not export it must not be served with.
pub fn stands() -> bool {
    let ours: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int = accept;
    // SAFETY: a look at a table of names.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"accept".as_ptr()) };
    std::ptr::eq(found, ours as *const c_void)
}

/// As of libc, but for strangers: who waits next is then asked for again.
///
/// # Safety
/// As of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(listener: c_int, address: *mut libc::sockaddr, length: *mut libc::socklen_t) -> c_int {
    // SAFETY: with what the caller gives to accept.
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
    // SAFETY: this thread's own. Of all errors both versions of the library go on after this one.
    unsafe { *libc::__errno_location() = libc::EAGAIN };
    -1
}

/// The user of a connection's other end; `None`: it is gone, or not on this machine.
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

/// An address as the table has it: the bytes of the address as one number of this machine, and the port, in hexadecimal.
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

    /// Debian's `nobody`, but any other user would do.
    const STRANGER: u32 = 65_534;

    #[test]
    fn a_stranger_is_not_let_in() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let let_in = || {
            // SAFETY: nothing is asked for but the connection.
            let accepted = unsafe { accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) };
            // SAFETY: it is ours, where there is one.
            (accepted >= 0).then(|| unsafe { OwnedFd::from_raw_fd(accepted) }).ok_or_else(io::Error::last_os_error)
        };
        let own = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let_in().unwrap();
        drop(own);
        // It ends when it was refused.
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
