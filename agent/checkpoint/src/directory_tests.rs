use super::*;
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

struct Bed {
    root: PathBuf,
    directories: Directories,
    owner: Principal,
    id: AllocationId,
}

impl Bed {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("lattice-ckpt-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        DirBuilder::new().mode(0o711).create(&root).unwrap();
        let directories = Directories::below(root.clone()).unwrap();
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        let owner = Principal { name: "u".to_owned(), uid, gid, groups: vec![] };
        let id: AllocationId = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
        directories.make(id, &owner).unwrap();
        Self { root, directories, owner, id }
    }

    fn ask(&self, token: &str, deadline_ms: u64) -> Result<(), PlaceError> {
        self.place().make_room(token)?;
        self.place().request(token, deadline_ms)
    }

    fn place(&self) -> Place {
        self.directories.open(self.id, &self.owner).unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.directories.of(self.id).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Sets the age of a file.
    fn set_age(&self, name: &str, age: Duration) {
        let file = fs::File::options().write(true).open(self.directories.of(self.id).join(name)).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }

    /// Reads the answer, whose file is made old enough to be read.
    fn answer(&self, token: &str) -> Result<Option<Answer>, PlaceError> {
        for ending in ["done", "failed", "deferred"] {
            let name = format!("{token}.{ending}");
            if self.directories.of(self.id).join(&name).exists() {
                self.set_age(&name, Duration::from_secs(2));
            }
        }
        self.place().answer(token)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn tokens() -> (String, String) {
    let id: CheckpointId = "2f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
    (token(id, 1), token(id, 2))
}

#[test]
fn a_request_file_appears_complete_and_leftovers_are_removed() {
    let bed = Bed::new("ask");
    let (first, second) = tokens();
    bed.ask(&first, 77).unwrap();
    let at = bed.directories.of(bed.id);
    assert_eq!(fs::read_to_string(at.join("request")).unwrap(), format!("{first}\n77\n"));
    bed.write(&format!("{first}/a/b"), "x");
    bed.write(&format!("{first}.done"), "");
    bed.write("own", "the user's");
    bed.ask(&first, 77).unwrap();
    assert!(at.join(&first).join("a/b").exists(), "asked again, nothing is lost");
    bed.ask(&second, 78).unwrap();
    assert!(at.join(&first).join("a/b").exists(), "it is asked for before anything is removed");
    bed.place().forget_all_but(&second).unwrap();
    assert!(!at.join(&first).exists() && !at.join(format!("{first}.done")).exists() && at.join("own").exists());
    assert!(at.join(&second).is_dir());
}

/// The shell makes the file empty, and writes into it later.
#[test]
fn an_empty_answer_is_read_a_second_after_it_was_written() {
    let bed = Bed::new("empty");
    let (token, _) = tokens();
    let name = format!("{token}.done");
    let answer = |text: &str, age: Duration| {
        bed.write(&name, text);
        bed.set_age(&name, age);
        bed.place().answer(&token).unwrap()
    };
    // A machine that stalls for most of a second makes the file old before it is read.
    assert!((0..100).any(|_| answer("", Duration::from_millis(200)).is_none()), "it is read at once");
    assert!(answer("step=5", Duration::from_millis(200)).is_some());
    assert_eq!(answer("", Duration::from_secs(2)), Some(Answer::Done(Claims::default())));
}

#[test]
fn answers_are_read_and_malformed_ones_are_reported() {
    let (first, second) = tokens();
    for (ending, text, want) in [
        ("done", "", Answer::Done(Claims::default())),
        (
            "done",
            "step=5\nfiles = 2\n\nbytes=9\ntime=1e-3",
            Answer::Done(Claims { step: Some(5), time: "0.001".parse().ok(), files: Some(2), bytes: Some(9), ..Claims::default() }),
        ),
        ("failed", "no space\n", Answer::Failed { why: "no space".to_owned() }),
        ("deferred", "1.5\n", Answer::Deferred { for_ms: 1500 }),
    ] {
        let bed = Bed::new("answers");
        bed.write(&format!("{first}.{ending}"), text);
        assert_eq!(bed.answer(&first).unwrap(), Some(want));
        assert_eq!(bed.place().answer(&second).unwrap(), None, "an answer to another round");
    }
    for (ending, text, expected) in [
        ("done", "step=x", "step=x"),
        ("done", "time=-1", "0 to 1e28"),
        ("done", "all is well", "none of"),
        ("deferred", "soon", "seconds"),
    ] {
        let bed = Bed::new("odd");
        bed.write(&format!("{first}.{ending}"), text);
        let why = bed.answer(&first).unwrap_err().to_string();
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn no_link_is_followed_out_of_the_directory() {
    let bed = Bed::new("links");
    let (first, _) = tokens();
    bed.ask(&first, 1).unwrap();
    bed.write(&format!("{first}/sub/a"), "12345");
    bed.write(&format!("{first}/b"), "1");
    let paths: Vec<_> = bed.place().saved(&first).unwrap().into_iter().map(|f| (f.path, f.size)).collect();
    assert_eq!(paths, [("b".to_owned(), Some(1)), ("sub".to_owned(), None), ("sub/a".to_owned(), Some(5))]);
    let at = bed.directories.of(bed.id);
    symlink("/etc/passwd", at.join(&first).join("c")).unwrap();
    assert!(bed.place().saved(&first).unwrap_err().to_string().contains("symbolic link"));
    fs::remove_file(at.join(&first).join("c")).unwrap();
    let (found, place) = (bed.place().saved(&first).unwrap(), bed.place());
    // Between look and read, a directory is replaced by a link.
    fs::rename(at.join(&first).join("sub"), at.join("aside")).unwrap();
    symlink(at.join("aside"), at.join(&first).join("sub")).unwrap();
    assert!(place.file(&first, &found[2]).is_err() && place.file(&first, &found[0]).is_ok());
    symlink("/etc/passwd", at.join(format!("{first}.done"))).unwrap();
    assert!(bed.place().answer(&first).is_err());
    fs::remove_file(at.join(format!("{first}.done"))).unwrap();
    nix::unistd::mkfifo(&at.join(format!("{first}.done")), Mode::S_IRWXU).unwrap();
    assert!(bed.place().answer(&first).unwrap_err().to_string().contains("not a regular file"), "a pipe is not waited for");
    // Now the round's own directory.
    fs::remove_dir_all(at.join(&first)).unwrap();
    symlink("/etc", at.join(&first)).unwrap();
    assert!(bed.ask(&first, 1).is_err() && bed.place().saved(&first).is_err());
}

#[test]
fn files_of_a_manifest_are_restored_below_the_directory_or_refused() {
    let bed = Bed::new("lay");
    let root = bed.directories.restoring(bed.id).unwrap();
    for bad in ["", "/etc/x", "../x", "a/../../x", "a//b", "."] {
        assert!(lay_down(&root, bad, 0o600, false).is_err(), "{bad}");
    }
    lay_down(&root, "d", 0o750, true).unwrap();
    lay_down(&root, "d/f", 0o640, false).unwrap().unwrap().write_all(b"x").unwrap();
    let entries = [Found { path: "d".to_owned(), mode: 0o750, size: None }, Found { path: "d/f".to_owned(), mode: 0o640, size: Some(1) }];
    give_all(&root, &entries, &bed.owner).unwrap();
    bed.directories.restored(bed.id, &root).unwrap();
    assert_eq!(fs::read(bed.directories.restore_of(bed.id).join("d/f")).unwrap(), b"x");
    bed.directories.sweep(|_| false);
    assert!(!bed.directories.restore_of(bed.id).exists() && !bed.directories.of(bed.id).exists());
}

#[test]
fn an_answer_that_came_in_a_call_is_read_as_the_applications_own() {
    let (first, second) = tokens();
    let listed = BTreeMap::from([
        ("a b=c".to_owned(), Listed { bytes: Some(3), blake3: None }),
        ("d".to_owned(), Listed { bytes: None, blake3: Some("0f".repeat(32)) }),
    ]);
    for answer in [
        Answer::Done(Claims { step: Some(1), time: Some("0.25".parse().unwrap()), files: None, bytes: Some(2), listed }),
        Answer::Failed { why: "no space".to_owned() },
        Answer::Deferred { for_ms: 1250 },
    ] {
        let bed = Bed::new("called");
        assert_eq!(bed.place().requested().unwrap(), None);
        bed.ask(&first, 1).unwrap();
        assert_eq!((bed.place().requested().unwrap(), bed.place().answered(&first).unwrap()), (Some(first.clone()), None));
        bed.place().put_answer(&first, &answer).unwrap();
        assert_eq!((bed.place().answered(&first).unwrap(), bed.place().answered(&second).unwrap()), (Some(answer.clone()), None));
        assert_eq!(bed.answer(&first).unwrap(), Some(answer));
    }
    let long = BTreeMap::from([("x".repeat(70_000), Listed::default())]);
    let refused = Bed::new("long").place().put_answer(&first, &Answer::Done(Claims { listed: long, ..Claims::default() }));
    assert!(refused.unwrap_err().to_string().contains("64 KiB"));
}

#[test]
fn a_token_is_no_path_and_no_answer_leaves_the_directory() {
    let (first, second) = tokens();
    assert!(is_token(&first) && is_token(&second));
    let id = first.split_once('-').unwrap().0;
    for bad in ["", "a/foo", "../x", id, &format!("{id}-"), &format!("{id}-1/x"), &format!("{id}-1.done"), &format!("{id}-12345678901")] {
        assert!(!is_token(bad), "{bad}");
    }
    let bed = Bed::new("path");
    bed.write("victim/foo.answer", "another's");
    symlink(bed.directories.of(bed.id).join("victim"), bed.directories.of(bed.id).join(".a")).unwrap();
    bed.place().put_answer("a/foo", &Answer::Failed { why: "x".to_owned() }).unwrap_err();
    assert_eq!(fs::read_to_string(bed.directories.of(bed.id).join("victim/foo.answer")).unwrap(), "another's");
}

#[test]
fn a_withdrawn_request_is_removed() {
    let bed = Bed::new("withdrawn");
    let (first, second) = tokens();
    bed.place().withdraw(&first).unwrap();
    bed.ask(&second, 1).unwrap();
    bed.place().withdraw(&first).unwrap();
    assert_eq!(bed.place().requested().unwrap(), Some(second.clone()));
    bed.place().withdraw(&second).unwrap();
    assert_eq!(bed.place().requested().unwrap(), None);
}

#[test]
fn the_applications_file_list_is_compared_with_the_directory() {
    let found = [("a", Some(3)), ("d", None), ("d/b", Some(4))].map(|(path, size)| Found { path: path.to_owned(), mode: 0o600, size });
    let claims = |listed: &[(&str, Option<u64>)]| {
        let listed = listed.iter().map(|(path, bytes)| ((*path).to_owned(), Listed { bytes: *bytes, blake3: None })).collect();
        Claims { listed, ..Claims::default() }
    };
    for right in [claims(&[]), claims(&[("a", Some(3)), ("d/b", None)]), Claims { files: Some(2), bytes: Some(7), ..Claims::default() }] {
        assert_eq!(right.wrong(&found), None);
    }
    for (wrong, about) in [
        (claims(&[("a", Some(3))]), "d/b is there"),
        (claims(&[("a", Some(9)), ("d/b", None)]), "9 bytes in a"),
        (claims(&[("a", None), ("d/b", None), ("c", None)]), "c, which is not there"),
        (Claims { files: Some(3), ..Claims::default() }, "3 files"),
    ] {
        assert!(wrong.wrong(&found).is_some_and(|why| why.contains(about)), "{about}");
    }
}
