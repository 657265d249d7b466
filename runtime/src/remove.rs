//! Removing a directory that a user filled. Nothing in it is trusted: not its depth, not its links, not its size.

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Names read at a time.
const NAMES_MAX: usize = 4096;

/// Removes `path` and everything below it; does nothing if it does not exist. Symlinks are removed, never followed.
/// Needs a few descriptors and no recursion at any depth: directories inside directories are first moved up to the
/// first level. Nobody may write into the tree meanwhile. A mount inside it is an error, and stays.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    remove_at_most(path, &mut u64::MAX.clone()).map(drop)
}

/// The same for a tree in which somebody may write meanwhile: removes at most `names_left` names, subtracts them from
/// `names_left`, and leaves the rest. Returns whether nothing is left.
pub fn remove_at_most(path: &Path, names_left: &mut u64) -> io::Result<bool> {
    match remove(path, names_left) {
        Ok(()) => Ok(true),
        Err(error) if *names_left == 0 || error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
        Err(error) => Err(error),
    }
}

fn remove(path: &Path, names_left: &mut u64) -> io::Result<()> {
    let mut count = || {
        *names_left = names_left.saturating_sub(1);
        if *names_left == 0 { Err(io::Error::from(io::ErrorKind::QuotaExceeded)) } else { Ok(()) }
    };
    let top = match openat(AT_FDCWD, path, directory_flags(), Mode::empty()) {
        Ok(top) => top,
        Err(Errno::ENOENT) => return Ok(()),
        // Not a directory; a symlink, for example.
        Err(Errno::ENOTDIR | Errno::ELOOP) => return fs::remove_file(path),
        Err(errno) => return Err(errno.into()),
    };
    // Names that nobody can have made beforehand.
    let mut moved = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos().into());
    take_out_each(top.as_fd(), |name| {
        count()?;
        if !unlink_unless_directory(top.as_fd(), name)? {
            let inner = openat(&top, name.as_c_str(), directory_flags(), Mode::empty())?;
            take_out_each(inner.as_fd(), |name| {
                count()?;
                if unlink_unless_directory(inner.as_fd(), name)? { Ok(()) } else { move_up(&inner, name, &top, &mut moved, &mut count) }
            })?;
            unlinkat(&top, name.as_c_str(), UnlinkatFlags::RemoveDir)?;
        }
        Ok(())
    })?;
    fs::remove_dir(path)
}

fn directory_flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

/// Applies `take_out` to every name in a directory until none is left. `take_out` removes the name from the directory.
fn take_out_each(directory: BorrowedFd<'_>, mut take_out: impl FnMut(&CString) -> io::Result<()>) -> io::Result<()> {
    loop {
        let names = some_names(directory)?;
        if names.is_empty() {
            return Ok(());
        }
        for name in &names {
            take_out(name)?;
        }
    }
}

fn some_names(at: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    // Opened again: a new descriptor reads from the beginning.
    let mut stream = Dir::from_fd(openat(at, c".", directory_flags(), Mode::empty())?)?;
    let mut names = Vec::new();
    for entry in stream.iter().take(NAMES_MAX + 2) {
        let name = entry?.file_name().to_owned();
        if name.as_c_str() != c"." && name.as_c_str() != c".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Unlinks the name, unless it is a directory.
fn unlink_unless_directory(at: BorrowedFd<'_>, name: &CString) -> io::Result<bool> {
    match unlinkat(at, name.as_c_str(), UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(true),
        Err(Errno::EISDIR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn move_up(from: &OwnedFd, name: &CString, top: &OwnedFd, moved: &mut u64, count: &mut impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        *moved += 1;
        let new = CString::new(format!(".lattice-removing-{moved}"))?;
        match renameat(from, name.as_c_str(), top, new.as_c_str()) {
            Ok(()) => return Ok(()),
            // The name exists already.
            Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => count()?,
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_not_followed_and_no_depth_or_number_is_too_much() {
        let base = std::env::temp_dir().join(format!("lattice-remove-{}", std::process::id()));
        let (victim, tree) = (base.join("victim"), base.join("tree"));
        fs::create_dir_all(&victim).unwrap();
        fs::write(victim.join("kept"), "kept").unwrap();
        fs::create_dir_all(tree.join("a/b/.lattice-removing-1/x")).unwrap();
        fs::write(tree.join(".lattice-removing-2"), "").unwrap();
        symlink(&victim, tree.join("a/link")).unwrap();
        symlink(&victim, tree.join("link")).unwrap();
        for n in 0..NAMES_MAX + 10 {
            fs::write(tree.join(format!("a/b/{n}")), "").unwrap();
        }
        // Deeper than a path can express, and than recursion or descriptors could follow.
        let mut at = openat(AT_FDCWD, &tree, directory_flags(), Mode::empty()).unwrap();
        for _ in 0..3000 {
            nix::sys::stat::mkdirat(&at, c"d", Mode::S_IRWXU).unwrap();
            at = openat(&at, c"d", directory_flags(), Mode::empty()).unwrap();
        }
        drop(at);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && victim.join("kept").exists());
        remove_tree(&tree).unwrap();
        symlink(&victim, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(fs::symlink_metadata(&tree).is_err() && victim.join("kept").exists());
        fs::remove_dir_all(&base).unwrap();
    }
}
