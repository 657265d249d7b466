//! The fuzz target for files on a damaged disk. `docs/fuzzing.md` lists all targets.

use crate::record;
use lattice_fuzz::Target;

/// Records of a log segment.
#[test]
fn records() {
    let mut segment = Vec::new();
    for payload in [&b"one"[..], b"", b"three"] {
        let synced_before = segment.len() as u64;
        record::write(&mut segment, record::KIND_ENTRY, synced_before, payload);
    }
    Target::new("store-records", vec![segment]).fuzz(|bytes| {
        let (found, _) = record::scan(bytes, 0);
        assert!(found.iter().all(|record| record.offset + record::HEADER + record.length <= bytes.len()));
        let _payload = record::payload(bytes);
    });
}
