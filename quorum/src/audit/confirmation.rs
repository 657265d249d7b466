//! Proves that audit records are in the archive: reads them back and follows every link.

use lattice_ledger::{AuditFault, AuditHead};
use lattice_model::AuditRecord;
use std::io::{self, BufRead, BufReader, Read};
use thiserror::Error;

/// Largest size of a segment's text, in bytes: 32,768 of the largest records are smaller.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// Why an object of the archive does not prove its records.
#[derive(Debug, Error)]
pub enum Unproven {
    #[error("it cannot be decompressed")]
    Read(#[from] io::Error),
    #[error("a line is no record")]
    Decode(#[from] serde_json::Error),
    #[error(transparent)]
    Chain(#[from] AuditFault),
    #[error("it ends with record {found}, not {wanted}")]
    End { found: u64, wanted: u64 },
}

/// Follows the records of a compressed segment from `head` to record `upto`, where the segment must
/// end.
pub fn follow_segment(compressed: &[u8], head: &mut AuditHead, upto: u64) -> Result<(), Unproven> {
    let text = zstd::Decoder::new(compressed)?.take(SEGMENT_BYTES_MAX);
    for line in BufReader::new(text).split(b'\n') {
        let record: AuditRecord = serde_json::from_slice(&line?)?;
        head.follow(&record)?;
    }
    if head.seq == upto { Ok(()) } else { Err(Unproven::End { found: head.seq, wanted: upto }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{AuditAction, Revision, Timestamp};

    fn segment(records: &[AuditRecord]) -> Vec<u8> {
        let lines: String = records.iter().map(|record| serde_json::to_string(record).unwrap() + "\n").collect();
        zstd::encode_all(lines.as_bytes(), 3).unwrap()
    }

    #[test]
    fn a_changed_missing_or_truncated_record_proves_nothing() {
        let mut end = AuditHead::default();
        let mut next = || end.link(Revision(1), Timestamp(1), "u", None, AuditAction::LeaseGranted, None, None, None, "x".to_owned());
        let records = [next(), next(), next()];
        let follow = |bytes: &[u8], upto| {
            let mut head = AuditHead::default();
            follow_segment(bytes, &mut head, upto).map(|()| head)
        };
        let whole = segment(&records);
        assert_eq!(follow(&whole, 3).unwrap().hash, records[2].hash);
        assert!(matches!(follow(&whole, 4), Err(Unproven::End { found: 3, wanted: 4 })));
        assert!(matches!(follow(&segment(&records[1..]), 3), Err(Unproven::Chain(_))));
        let mut changed = records.clone();
        changed[1].detail.push('!');
        assert!(matches!(follow(&segment(&changed), 3), Err(Unproven::Chain(_))));
        for length in 0..whole.len() {
            assert!(follow(&whole[..length], 3).is_err(), "cut to {length} bytes");
        }
    }
}
