use super::*;
use lattice_checkpoint::Listener;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

struct Bed {
    root: PathBuf,
    owner: Principal,
}

impl Bed {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("lattice-page-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        let bed = Self { root, owner: Principal { name: "u".to_owned(), uid, gid, groups: vec![] } };
        make(&bed.path(), &bed.root.join("aside"), &bed.owner).unwrap();
        bed
    }

    fn path(&self) -> PathBuf {
        self.root.join("page")
    }

    fn page(&self) -> Page {
        Page::open(self.path(), &self.owner).unwrap()
    }

    fn listener(&self) -> Listener {
        Listener::open(&self.path(), &self.root).unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn the_application_is_asked_and_its_answer_is_to_that_request_alone() {
    let bed = Bed::new("asked");
    let (page, listener) = (bed.page(), bed.listener());
    let first = page.ask("aa-1", 77).unwrap();
    assert_eq!((page.ask("aa-1", 77).unwrap(), page.asked("aa-1").unwrap(), page.asked("aa-2").unwrap()), (first, Some(first), None));
    assert_eq!((page.answer(first).unwrap(), page.progress(first).unwrap()), (None, None));
    let request = listener.asked().unwrap();
    assert_eq!((request.token.as_str(), request.deadline_ms), ("aa-1", 77));
    request.progress(30, Some(Duration::from_secs(2)));
    assert_eq!(page.progress(first).unwrap(), Some(Progress { percent: Some(30), left_ms: Some(2000) }));
    // The first request was given up meanwhile: its answer does not count for the second.
    let second = page.ask("aa-2", 78).unwrap();
    request.done(lattice_checkpoint::Done { step: Some(5), ..Default::default() });
    assert_eq!(page.answer(second).unwrap(), None);
    listener.asked().unwrap().failed("no space\nleft");
    assert_eq!(page.answer(second).unwrap(), Some(Answer::Failed { why: "no spaceleft".to_owned() }));
    let third = page.ask("aa-3", 79).unwrap();
    listener.asked().unwrap().defer(Duration::MAX);
    assert_eq!(page.answer(third).unwrap(), Some(Answer::Deferred { for_ms: DAY_MS }));
}

#[test]
fn a_waiting_process_is_woken() {
    let bed = Bed::new("woken");
    let (page, listener) = (bed.page(), bed.listener());
    let waiter = Arc::new(AtomicI32::new(0));
    let tid = Arc::clone(&waiter);
    let waits = std::thread::spawn(move || {
        tid.store(nix::unistd::gettid().as_raw(), Ordering::Relaxed);
        let request = listener.wait(Duration::from_secs(60)).unwrap();
        request.done(lattice_checkpoint::Done { files: Some(3), time_seconds: Some(0.5), ..Default::default() });
    });
    let sleeps = || {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", waiter.load(Ordering::Relaxed))).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S'))
    };
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while !sleeps() {
        assert!(std::time::Instant::now() < until, "it does not wait");
        std::thread::yield_now();
    }
    let number = page.ask("aa-1", 1).unwrap();
    let asked_at = std::time::Instant::now();
    waits.join().unwrap();
    assert!(asked_at.elapsed() < Duration::from_secs(20), "it was found when the time was over, and nobody was woken");
    let time = "0.5".parse().ok();
    assert_eq!(page.answer(number).unwrap(), Some(Answer::Done(Claims { files: Some(3), time, ..Claims::default() })));
}

#[test]
fn an_impossible_time_is_no_answer_and_a_listener_is_seen_at_once() {
    let bed = Bed::new("time");
    let (page, listener) = (bed.page(), bed.listener());
    for (time, taken) in [(f64::NAN, false), (-1.0, false), (1e27, true)] {
        let number = page.ask(&format!("aa-{time}"), 1).unwrap();
        assert_eq!(page.progress(number).unwrap(), None);
        let token = page.ask("aa-1", 1).unwrap();
        let request = listener.asked().unwrap();
        assert_eq!(page.progress(token).unwrap(), Some(Progress::default()), "it says no more than that it has heard");
        request.progress(30, None);
        assert_eq!(page.progress(token).unwrap().unwrap().percent, Some(30));
        let again = listener.asked().unwrap();
        assert_eq!(page.progress(token).unwrap().unwrap().percent, Some(30), "it looks twice");
        again.done(lattice_checkpoint::Done { time_seconds: Some(time), ..Default::default() });
        let answer = page.answer(token);
        assert_eq!(answer.is_ok(), taken, "{answer:?}");
        page.ask(&format!("bb-{taken}"), 1).unwrap();
    }
}

#[test]
fn a_withdrawn_request_is_not_shown_on_the_page() {
    let bed = Bed::new("withdrawn");
    let (page, listener) = (bed.page(), bed.listener());
    let first = page.ask("aa-1", 1).unwrap();
    page.withdraw("aa-2").unwrap();
    let request = listener.asked().unwrap();
    page.withdraw("aa-1").unwrap();
    assert!(listener.asked().is_none() && listener.wait(Duration::from_millis(5)).is_none());
    assert_eq!(page.asked("aa-1").unwrap(), None);
    // An application that had begun to answer is late; that does no harm.
    request.done(lattice_checkpoint::Done::default());
    let again = page.ask("aa-1", 1).unwrap();
    assert!(again != first && page.answer(again).unwrap().is_none());
    listener.asked().unwrap().done(lattice_checkpoint::Done::default());
    page.withdraw("aa-1").unwrap();
    assert_eq!(page.asked("aa-1").unwrap(), Some(again), "what was answered stays");
}

#[test]
fn the_page_shows_at_any_moment_whether_somebody_listens() {
    let bed = Bed::new("listens");
    let page = bed.page();
    assert!(!page.is_listened().unwrap());
    let (one, other) = (bed.listener(), bed.listener());
    assert!(page.is_listened().unwrap());
    drop(one);
    assert!(page.is_listened().unwrap());
    drop(other);
    assert!(!page.is_listened().unwrap());
}

#[test]
fn a_page_that_is_shortened_or_full_of_rubbish_harms_nobody() {
    let bed = Bed::new("rubbish");
    let page = bed.page();
    page.ask("aa-1", 1).unwrap();
    bed.page().file.write_all_at(&[0xff; BYTES], 0).unwrap();
    let number = page.ask("aa-2", 2).unwrap();
    assert_eq!((number, page.asked("aa-2").unwrap()), (1, Some(1)));
    assert_eq!(page.answer(number).unwrap(), None);
    bed.page().write(AT_ANSWERED, &number.to_ne_bytes()).unwrap();
    assert!(page.answer(number).unwrap_err().to_string().contains("4294967295"));
    bed.page().write(AT_ANSWER, &FAILED.to_ne_bytes()).unwrap();
    assert_eq!(page.answer(number).unwrap(), Some(Answer::Failed { why: "the application says that it failed".to_owned() }));
    page.file.set_len(0).unwrap();
    assert!(page.count_up(1).is_err(), "the page that the kernel is to count up is not there");
    for why in [page.ask("aa-3", 3).unwrap_err(), page.answer(number).unwrap_err()] {
        assert!(why.to_string().contains("shorter"), "{why}");
    }
}

#[test]
fn an_existing_page_stays_and_the_page_of_another_owner_is_refused() {
    let bed = Bed::new("stays");
    bed.page().ask("aa-1", 1).unwrap();
    make(&bed.path(), &bed.root.join("aside"), &bed.owner).unwrap();
    assert_eq!(bed.page().asked("aa-1").unwrap(), Some(1));
    let other = Principal { uid: bed.owner.uid + 1, ..bed.owner.clone() };
    assert!(Page::open(bed.path(), &other).is_err());
}
