//! Tests of files with invalid bytes: the readers return only what was written, and trust no length
//! that exceeds the file. `PROPTEST_CASES` sets the number of cases.

use crate::audit::AuditChain;
use crate::crash_tests::{Scratch, id};
use crate::raft::SnapshotMeta;
use crate::record::{self, Ending};
use crate::segments::Segments;
use crate::snapshot_file::{self, About};
use crate::test_builders::{harm, harmed};
use lattice_ledger::test_builders::full_ledger;
use lattice_model::{AuditRecord, Timestamp};
use proptest::prelude::*;
use std::path::PathBuf;

/// Writes a chain with these records, and returns the path of its only segment.
fn written_chain(scratch: &Scratch, records: &[AuditRecord]) -> PathBuf {
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    chain.append(records).unwrap();
    std::fs::read_dir(&scratch.0).unwrap().next().unwrap().unwrap().path()
}

proptest! {
    #[test]
    fn a_log_segment_is_cut_or_refused_and_gives_no_entry_that_was_not_written(
        harms in prop::collection::vec(harm(), 1..4), lengths in prop::collection::vec(0..300usize, 1..8), noted: bool
    ) {
        let scratch = Scratch::new();
        let written: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0x5a; *length]).collect();
        let mut segments = Segments::open(&scratch.0, |_| Ok(())).unwrap();
        for (index, payload) in (1..).zip(&written) {
            segments.append(index, std::slice::from_ref(payload)).unwrap();
            segments.sync().unwrap();
        }
        if noted {
            segments.note_synced();
        }
        drop(segments);
        let file = scratch.0.join(format!("{:020}.log", 1));
        let whole = std::fs::read(&file).unwrap();
        let end = whole.iter().rposition(|b| *b != 0).unwrap() + 1;
        let bytes = harmed(&whole[..end], &harms);
        std::fs::write(&file, &bytes).unwrap();
        let mut found = Vec::new();
        let opened = Segments::open(&scratch.0, |stored| {
            found.push(stored.payload);
            Ok(())
        });
        prop_assert!(found.len() <= written.len() && found == written[..found.len()], "another entry than was written");
        match opened {
            // After the repair, the log can be appended to.
            Ok(mut segments) => {
                prop_assert!(!noted || found.len() == written.len(), "an entry that was noted as synced is gone");
                segments.append(found.len() as u64 + 1, &[b"more".to_vec()]).unwrap();
                segments.sync().unwrap();
            }
            Err(_) => prop_assert_eq!(std::fs::read(&file).unwrap(), bytes, "what is refused is left as it is"),
        }
    }

    #[test]
    fn records(bytes in prop::collection::vec(any::<u8>(), 0..512), start in 0..64usize) {
        let (found, ending) = record::scan(&bytes, start);
        for record in found {
            prop_assert!(record.offset + record::HEADER + record.length <= bytes.len());
        }
        match ending {
            Ending::Clean => {}
            Ending::Torn { offset } | Ending::Damaged { offset } => prop_assert!(offset <= bytes.len().max(start)),
        }
        let _payload = record::payload(&bytes);
    }

    #[test]
    fn a_snapshot_is_whole_or_refused(harms in prop::collection::vec(harm(), 1..4)) {
        let scratch = Scratch::new();
        let meta = SnapshotMeta { last_log_id: Some(id(4)), snapshot_id: "4".into(), ..SnapshotMeta::default() };
        let (ledger, _) = full_ledger();
        let path = snapshot_file::write(&scratch.0, &About::of(meta, &ledger, Timestamp(1)), &ledger).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let bytes = harmed(&whole, &harms);
        std::fs::write(&path, &bytes).unwrap();
        prop_assert!(snapshot_file::load(&path).is_err() || bytes == whole);
    }

    #[test]
    fn an_audit_segment_gives_no_record_that_was_not_written(harms in prop::collection::vec(harm(), 1..4)) {
        let scratch = Scratch::new();
        let (_, written) = full_ledger();
        let path = written_chain(&scratch, &written);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, harmed(&whole, &harms)).unwrap();
        if let Ok(chain) = AuditChain::open(&scratch.0) {
            let found: Vec<AuditRecord> = chain.records(0, u64::MAX).map_while(Result::ok).collect();
            prop_assert!(found.len() <= written.len() && found == written[..found.len()]);
        }
    }
}
