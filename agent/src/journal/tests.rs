use super::*;
use lattice_model::Incarnation;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lattice-journal-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    fn open(&self) -> Result<Opened, JournalError> {
        self.open_as("n1", "00000000-0000-4000-8000-000000000000")
    }

    fn state(&self) -> Result<StateDir, JournalError> {
        StateDir::take(&self.0, &self.0.join("agent-state.json"))
    }

    /// Opens the existing state, or begins one.
    fn open_as(&self, node: &str, boot: &str) -> Result<Opened, JournalError> {
        let (state, node, boot) = (self.state()?, node.parse().unwrap(), boot.parse().unwrap());
        if let Some(opened) = state.open(&node, boot)? {
            return Ok(opened);
        }
        let brain = Brain::new(node);
        Ok(Opened { journal: state.begin(&brain, boot, 1)?, brain, same_boot: true, torn_bytes: 0 })
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn registered(n: u64) -> Record {
    Record::Registered { incarnation: Incarnation(n) }
}

#[test]
fn appended_records_are_read_again_and_a_torn_tail_is_cut_at_every_byte() {
    let dir = Dir::new("torn");
    let mut opened = dir.open().unwrap();
    opened.journal.append(&[registered(1)]).unwrap();
    let one = opened.journal.end;
    opened.journal.append(&[registered(2)]).unwrap();
    let two = opened.journal.end;
    drop(opened);
    let whole = fs::read(dir.0.join("journal")).unwrap();
    let state = fs::read(dir.0.join("agent-state.json")).unwrap();
    for cut in one..=two {
        fs::write(dir.0.join("journal"), &whole[..usize::try_from(cut).unwrap()]).unwrap();
        fs::write(dir.0.join("agent-state.json"), &state).unwrap();
        let opened = dir.open().unwrap();
        assert_eq!(opened.brain.incarnation().0, if cut == two { 2 } else { 1 }, "cut at {cut}");
        assert_eq!(opened.torn_bytes, if cut == two { 0 } else { cut - one });
    }
}

#[test]
fn damage_before_the_end_refuses_to_start() {
    let dir = Dir::new("damage");
    let mut opened = dir.open().unwrap();
    opened.journal.append(&[registered(1), registered(2)]).unwrap();
    drop(opened);
    let mut bytes = fs::read(dir.0.join("journal")).unwrap();
    bytes[HEADER_BYTES as usize + 10] ^= 0xff;
    fs::write(dir.0.join("journal"), &bytes).unwrap();
    assert!(matches!(dir.open(), Err(JournalError::Damaged { .. })));
}

#[test]
fn a_power_failure_may_leave_any_pages_of_unsynced_records() {
    let dir = Dir::new("power");
    let mut opened = dir.open().unwrap();
    opened.journal.append(&[registered(1)]).unwrap();
    let synced_end = opened.journal.end;
    opened.journal.append(&[registered(2)]).unwrap();
    opened.journal.append(&[registered(3)]).unwrap();
    drop(opened);
    let mut bytes = fs::read(dir.0.join("journal")).unwrap();
    bytes[usize::try_from(synced_end).unwrap()..][..8].fill(0);
    fs::write(dir.0.join("journal"), &bytes).unwrap();
    let opened = dir.open_as("n1", "00000000-0000-4000-8000-000000000001").unwrap();
    assert_eq!(opened.brain.incarnation().0, 1);
    assert!(!opened.same_boot && opened.torn_bytes > 0);
}

#[test]
fn a_checkpoint_moved_in_before_the_journal_was_cut_does_not_count_its_records_twice() {
    let dir = Dir::new("between");
    let mut opened = dir.open().unwrap();
    opened.journal.append(&[registered(1), Record::ReportQueued(report())]).unwrap();
    opened.brain.replay(registered(1));
    opened.brain.replay(Record::ReportQueued(report()));
    let old = fs::read(dir.0.join("journal")).unwrap();
    opened.journal.checkpoint(&opened.brain).unwrap();
    drop(opened);
    fs::write(dir.0.join("journal"), old).unwrap();
    assert_eq!(dir.open().unwrap().brain.reports().count(), 1);
}

fn report() -> lattice_model::ReportItem {
    lattice_model::ReportItem::Released {
        allocation: "00000000-0000-4000-8000-000000000009".parse().unwrap(),
        epoch: lattice_model::Epoch(1),
        usage: None,
    }
}

#[test]
fn a_state_that_is_not_ours_newer_or_garbage_is_refused_by_name() {
    let dir = Dir::new("foreign");
    drop(dir.open().unwrap());
    assert!(matches!(dir.open_as("n2", "00000000-0000-4000-8000-000000000000"), Err(JournalError::ForeignNode { .. })));
    assert!(!dir.open_as("n1", "00000000-0000-4000-8000-000000000001").unwrap().same_boot);
    let opened = dir.open().unwrap();
    assert!(matches!(dir.open(), Err(JournalError::Busy { .. })));
    drop(opened);
    let (state, journal) = (dir.0.join("agent-state.json"), dir.0.join("journal"));
    let (whole_state, whole_journal) = (fs::read(&state).unwrap(), fs::read(&journal).unwrap());
    let newer = |dir: &Dir| assert!(matches!(dir.open(), Err(JournalError::Newer { .. })), "{:?}", dir.open());
    let damaged = |dir: &Dir| assert!(matches!(dir.open(), Err(JournalError::Damaged { .. })), "{:?}", dir.open());
    let text = String::from_utf8(whole_state.clone()).unwrap();
    fs::write(&state, "{\"version\": 99}").unwrap();
    newer(&dir);
    for bad in ["garbage", "", "{}", "{\"version\": 0}", &text[..text.len() / 2], &text.replace("\"incarnation\": 0", "\"incarnation\": 7")]
    {
        fs::write(&state, bad).unwrap();
        damaged(&dir);
    }
    fs::remove_file(&state).unwrap();
    damaged(&dir);
    fs::write(&state, &whole_state).unwrap();
    let of_form = |form: u8| [&whole_journal[..7], &[form], &whole_journal[8..]].concat();
    fs::write(&journal, of_form(b'9')).unwrap();
    newer(&dir);
    for bad in [of_form(b'1'), b"something else".to_vec(), vec![7; 100], whole_journal[..20].to_vec(), vec![]] {
        fs::write(&journal, bad).unwrap();
        damaged(&dir);
    }
    // A complete entry with a valid checksum that is no known record.
    let body = rmp_serde::to_vec_named(&std::collections::BTreeMap::from([("Invented", 1)])).unwrap();
    let length = u32::try_from(body.len()).unwrap().to_le_bytes();
    fs::write(&journal, [&whole_journal[..], &length, &crc32fast::hash(&body).to_le_bytes(), &body].concat()).unwrap();
    newer(&dir);
    fs::write(&journal, &whole_journal).unwrap();
    dir.open().unwrap();
}

#[test]
fn a_lock_that_is_about_to_be_released_is_waited_for() {
    let dir = Dir::new("lock");
    let held = dir.state().unwrap();
    let file = File::open(&dir.0).unwrap();
    assert!(matches!(lock(&file, &dir.0, Duration::ZERO), Err(JournalError::Busy { .. })));
    let releasing = std::thread::spawn(move || {
        std::thread::sleep(LOCK_RETRY_PAUSE * 3);
        drop(held);
    });
    // The agent's own wait is shorter than a busy machine may stall.
    lock(&file, &dir.0, Duration::from_secs(120)).unwrap();
    releasing.join().unwrap();
}

#[test]
fn a_damaged_journal_can_be_salvaged() {
    let dir = Dir::new("aside");
    let mut opened = dir.open().unwrap();
    let first = opened.journal.life();
    opened.journal.append(&[registered(4), Record::ReportQueued(report())]).unwrap();
    let good = opened.journal.end;
    opened.journal.append(&[registered(5), registered(6)]).unwrap();
    drop(opened);
    let mut bytes = fs::read(dir.0.join("journal")).unwrap();
    bytes[usize::try_from(good).unwrap() + 10] ^= 0xff;
    fs::write(dir.0.join("journal"), &bytes).unwrap();
    assert!(matches!(dir.open(), Err(JournalError::Damaged { .. })));
    let state = dir.state().unwrap();
    let salvaged = state.salvage(&"n1".parse().unwrap());
    assert_eq!((salvaged.incarnation.0, &salvaged.outbox[..]), (4, &[report()][..]));
    assert!(salvaged.life >= first);
    assert!(state.salvage(&"n2".parse().unwrap()).outbox.is_empty(), "another node's reports are not ours");
    let kept = state.set_aside().unwrap();
    assert_eq!(fs::read(&kept[0]).unwrap(), bytes);
    assert_eq!(kept.len(), 2);
    assert!(state.open(&"n1".parse().unwrap(), "00000000-0000-4000-8000-000000000000".parse().unwrap()).unwrap().is_none());
    assert_eq!(state.set_aside().unwrap().len(), 1, "the empty journal; under another name in the same second");
}

#[test]
fn a_full_disk_postpones_the_checkpoint_and_nothing_is_lost() {
    let dir = Dir::new("full");
    let full = || std::os::unix::fs::symlink("/dev/full", dir.0.join("agent-state.json.part")).unwrap();
    let mut opened = dir.open().unwrap();
    opened.journal.append(&[registered(1)]).unwrap();
    let first = opened.journal.life();
    drop(opened);
    full();
    let mut opened = dir.open().unwrap();
    assert_eq!(opened.brain.incarnation().0, 1);
    let second = opened.journal.life();
    opened.journal.append(&[registered(2)]).unwrap();
    opened.brain.replay(registered(2));
    full();
    opened.journal.checkpoint(&opened.brain).unwrap();
    drop(opened);
    full();
    let opened = dir.open().unwrap();
    assert_eq!(opened.brain.incarnation().0, 2);
    assert!(first < second && second < opened.journal.life(), "a new life each time");
}

#[test]
fn a_checkpoint_without_space_is_not_tried_with_each_record() {
    let dir = Dir::new("again");
    let mut opened = dir.open().unwrap();
    opened.journal.end = CHECKPOINT_AFTER_BYTES + 1;
    assert!(opened.journal.wants_checkpoint());
    std::os::unix::fs::symlink("/dev/full", dir.0.join("agent-state.json.part")).unwrap();
    opened.journal.checkpoint(&opened.brain).unwrap();
    assert!(!opened.journal.wants_checkpoint());
    opened.journal.end += CHECKPOINT_AGAIN_BYTES + 1;
    assert!(opened.journal.wants_checkpoint());
}

#[test]
fn only_lack_of_space_postpones_a_checkpoint() {
    for (errno, off) in [(libc::ENOSPC, true), (libc::EDQUOT, true), (libc::EIO, false), (libc::EROFS, false), (libc::EMFILE, false)] {
        assert_eq!(no_space(&io::Error::from_raw_os_error(errno)), off, "{errno}");
    }
}

#[test]
fn the_journals_blocks_are_reserved_also_behind_a_checkpoint() {
    use std::os::unix::fs::MetadataExt;
    let dir = Dir::new("reserved");
    let mut opened = dir.open().unwrap();
    opened.journal.append(&[registered(1)]).unwrap();
    opened.journal.checkpoint(&opened.brain).unwrap();
    let meta = fs::metadata(dir.0.join("journal")).unwrap();
    assert_eq!(meta.len(), HEADER_BYTES);
    assert!(meta.blocks() * 512 >= CHECKPOINT_AFTER_BYTES + GROWTH_BYTES_MAX, "{} blocks", meta.blocks());
}

#[test]
fn a_new_boot_counts_only_after_its_effects_are_stored() {
    const NEW: &str = "00000000-0000-4000-8000-000000000001";
    let dir = Dir::new("boot");
    drop(dir.open().unwrap());
    assert!(!dir.open_as("n1", NEW).unwrap().same_boot);
    let mut opened = dir.open_as("n1", NEW).unwrap();
    assert!(!opened.same_boot, "killed before it was written down");
    // Also without a checkpoint: the disk may be full.
    opened.journal.append(&[registered(1)]).unwrap();
    opened.journal.resumed().unwrap();
    drop(opened);
    assert!(dir.open_as("n1", NEW).unwrap().same_boot);
}

#[test]
fn a_header_that_a_disk_changed_refuses_to_start() {
    let dir = Dir::new("header");
    drop(dir.open().unwrap());
    let mut bytes = fs::read(dir.0.join("journal")).unwrap();
    bytes[20] ^= 1;
    fs::write(dir.0.join("journal"), &bytes).unwrap();
    assert!(matches!(dir.open(), Err(JournalError::Damaged { .. })));
}
