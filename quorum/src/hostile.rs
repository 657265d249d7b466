//! Tests of decoders with invalid bytes from a network or a disk: no decoder panics, trusts a
//! length that exceeds the input, or keeps anything of a refused input. `PROPTEST_CASES` makes the
//! tests longer.

mod decoders;
mod values;

pub(crate) use decoders::{Decoder, decoders};

use crate::raft::SnapshotMeta;
use crate::store::audit::AuditChain;
use crate::store::record::{self, Ending};
use crate::store::segments::Segments;
use crate::store::snapshot_file::{self, About};
use lattice_api::pack::{from_bytes, to_bytes};
use lattice_ledger::Ledger;
use lattice_model::{AuditRecord, Timestamp};
use proptest::prelude::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use values::{ledger, log_id};

/// A modification of valid bytes.
#[derive(Clone, Debug)]
enum Harm {
    Flip {
        at: prop::sample::Index,
        by: u8,
    },
    Cut {
        at: prop::sample::Index,
    },
    Insert {
        at: prop::sample::Index,
        bytes: Vec<u8>,
    },
    /// A MessagePack length that announces far more than the input contains.
    Boast {
        at: prop::sample::Index,
        kind: usize,
    },
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        (any::<prop::sample::Index>(), 1..=255u8).prop_map(|(at, by)| Harm::Flip { at, by }),
        any::<prop::sample::Index>().prop_map(|at| Harm::Cut { at }),
        (any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 1..16)).prop_map(|(at, bytes)| Harm::Insert { at, bytes }),
        (any::<prop::sample::Index>(), 0..4usize).prop_map(|(at, kind)| Harm::Boast { at, kind }),
    ]
}

fn harmed(bytes: &[u8], harms: &[Harm]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for harm in harms {
        match harm {
            Harm::Flip { at, by } if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] ^= by;
            }
            Harm::Flip { .. } => {}
            Harm::Cut { at } => bytes.truncate(at.index(bytes.len() + 1)),
            Harm::Insert { at, bytes: more } => {
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..at, more.iter().copied());
            }
            Harm::Boast { at, kind } => {
                // str 32, bin 32, array 32, map 32: each announces four billion elements.
                let head = [0xdb, 0xc6, 0xdd, 0xdf][*kind];
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..at, [head, 0xff, 0xff, 0xff, 0xff]);
            }
        }
    }
    bytes
}

#[test]
fn every_decoder_reads_what_is_written() {
    for decoder in decoders() {
        for truth in &decoder.truths {
            assert!((decoder.decode)(truth), "{}", decoder.name);
        }
    }
}

#[test]
fn depth_is_bounded() {
    // Nested arrays, in an ignored field and in one that is read.
    for head in [&[][..], &[0x81, 0xa1, b'x'][..], &[0x81, 0xa6, b'S', b't', b'a', b't', b'u', b's'][..]] {
        let mut bytes = head.to_vec();
        bytes.resize(head.len() + 1_000_000, 0x91);
        for decoder in decoders() {
            assert!(!(decoder.decode)(&bytes), "{}", decoder.name);
        }
    }
}

proptest! {
    #[test]
    fn messages(bytes in prop::collection::vec(any::<u8>(), 0..256), which in any::<prop::sample::Index>(), harms in prop::collection::vec(harm(), 1..4)) {
        for decoder in decoders() {
            let _read = (decoder.decode)(&bytes);
            let truth = &decoder.truths[which.index(decoder.truths.len())];
            let _read = (decoder.decode)(&harmed(truth, &harms));
        }
    }

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
            // After the repair, the rest can be read again and appended to.
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
}

/// A directory that is removed after the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("lattice-hostile-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// The chain in a directory of its own, and the file of its only segment.
fn written_chain(scratch: &Scratch, records: &[AuditRecord]) -> PathBuf {
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    chain.append(records).unwrap();
    std::fs::read_dir(&scratch.0).unwrap().next().unwrap().unwrap().path()
}

#[test]
fn no_room_is_made_for_four_billion_entries_that_a_ledger_promises() {
    let bytes = to_bytes(&Ledger::default()).unwrap();
    for at in 0..bytes.len() {
        for head in [0xdb, 0xc6, 0xdd, 0xdf] {
            let mut boasts = bytes.clone();
            boasts.splice(at..=at, [head, 0xff, 0xff, 0xff, 0xff]);
            // The result does not matter: a decoder that trusts the length runs out of memory here.
            let _read = from_bytes::<Ledger>(&boasts);
        }
    }
}

proptest! {
    #[test]
    fn a_snapshot_is_whole_or_refused(harms in prop::collection::vec(harm(), 1..4)) {
        let scratch = Scratch::new();
        let meta = SnapshotMeta { last_log_id: Some(log_id(4)), snapshot_id: "4".into(), ..SnapshotMeta::default() };
        let (ledger, _) = ledger();
        let path = snapshot_file::write(&scratch.0, &About::of(meta, &ledger, Timestamp(1)), &ledger).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let bytes = harmed(&whole, &harms);
        std::fs::write(&path, &bytes).unwrap();
        prop_assert!(snapshot_file::load(&path).is_err() || bytes == whole);
    }

    #[test]
    fn an_audit_segment_gives_no_record_that_was_not_written(harms in prop::collection::vec(harm(), 1..4)) {
        let scratch = Scratch::new();
        let (_, written) = ledger();
        let path = written_chain(&scratch, &written);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, harmed(&whole, &harms)).unwrap();
        if let Ok(chain) = AuditChain::open(&scratch.0) {
            let found: Vec<AuditRecord> = chain.records(0, u64::MAX).map_while(Result::ok).collect();
            prop_assert!(found.len() <= written.len() && found == written[..found.len()]);
        }
    }
}
