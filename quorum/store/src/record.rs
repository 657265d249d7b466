//! The format of records in the segments of the log and of the audit chain.
//!
//! ```text
//!   0        4     5      8                16           20            24
//!   | length | kind | zero | synced_before | header crc | payload crc | payload …
//! ```
//!
//! Numbers are little-endian, checksums are CRC-32. `synced_before` is the offset in the file up to
//! which everything was known to be on disk when this record was written. It distinguishes a torn
//! tail from damage: if a later, valid record states that an invalid record was on disk, that one
//! was once complete. For the log's last records, [`super::synced_end`] does this. The last record
//! is followed by zeros, written in advance so that most syncs need not change the file's size.

/// Size of the header before the payload, in bytes.
pub const HEADER: usize = 24;
/// Largest size of a payload, in bytes.
pub const PAYLOAD_MAX: usize = 64 * 1024 * 1024;

/// A log entry, MessagePack.
pub const KIND_ENTRY: u8 = 1;
/// An audit record, MessagePack.
pub const KIND_AUDIT: u8 = 2;
/// The seal of a segment of the audit chain, MessagePack.
pub const KIND_AUDIT_SEAL: u8 = 3;

/// A record found in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its offset.
    pub offset: usize,
    /// The length of its payload.
    pub length: usize,
    /// Its kind.
    pub kind: u8,
}

/// How the records of a file end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Only zeros follow the last record.
    Clean,
    /// A record that was being written at a crash begins here.
    Torn { offset: usize },
    /// A record that was once complete is damaged here.
    Damaged { offset: usize },
}

/// Appends one record to `out`.
pub fn write(out: &mut Vec<u8>, kind: u8, synced_before: u64, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("payloads are bounded by PAYLOAD_MAX");
    let start = out.len();
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&[kind, 0, 0, 0]);
    out.extend_from_slice(&synced_before.to_le_bytes());
    let header_crc = crc32fast::hash(&out[start..]);
    out.extend_from_slice(&header_crc.to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    out.extend_from_slice(payload);
}

struct Header {
    length: usize,
    kind: u8,
    synced_before: u64,
    payload_crc: u32,
}

fn header(bytes: &[u8], offset: usize) -> Option<Header> {
    let bytes = bytes.get(offset..offset + HEADER)?;
    let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if number(16) != crc32fast::hash(&bytes[..16]) {
        return None;
    }
    let length = number(0) as usize;
    let synced_before = u64::from(number(8)) | u64::from(number(12)) << 32;
    (length <= PAYLOAD_MAX).then_some(Header { length, kind: bytes[4], synced_before, payload_crc: number(20) })
}

fn whole(bytes: &[u8], offset: usize) -> Option<Header> {
    let header = header(bytes, offset)?;
    let payload = bytes.get(offset + HEADER..offset + HEADER + header.length)?;
    (crc32fast::hash(payload) == header.payload_crc).then_some(header)
}

/// All records from `start`, and how they end.
pub fn scan(bytes: &[u8], start: usize) -> (Vec<Found>, Ending) {
    let mut found = Vec::new();
    let mut at = start;
    while let Some(header) = whole(bytes, at) {
        found.push(Found { offset: at, length: header.length, kind: header.kind });
        at += HEADER + header.length;
    }
    let written = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    if written <= at {
        return (found, Ending::Clean);
    }
    // The length may be damaged too, so a record may begin at every later byte; the header's own
    // checksum makes this search cheap.
    let once_whole =
        (at + 1..written).any(|later| header(bytes, later).is_some_and(|h| h.synced_before > at as u64) && whole(bytes, later).is_some());
    (found, if once_whole { Ending::Damaged { offset: at } } else { Ending::Torn { offset: at } })
}

/// The payload of the record in `bytes`, which contains exactly one record.
pub fn payload(bytes: &[u8]) -> Option<&[u8]> {
    whole(bytes, 0).map(|h| &bytes[HEADER..HEADER + h.length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_again_and_zeros_end_them() {
        let mut bytes = Vec::new();
        write(&mut bytes, KIND_ENTRY, 0, b"one");
        let second = bytes.len();
        write(&mut bytes, KIND_ENTRY, second as u64, b"");
        bytes.extend_from_slice(&[0; 40]);
        let (found, ending) = scan(&bytes, 0);
        assert_eq!(found.iter().map(|f| (f.offset, f.length)).collect::<Vec<_>>(), [(0, 3), (second, 0)]);
        assert_eq!(ending, Ending::Clean);
        assert_eq!(payload(&bytes[..second]), Some(&b"one"[..]));
    }

    #[test]
    fn an_invalid_record_is_torn_if_unsynced_and_damaged_if_synced() {
        for (synced, want) in [(0, Ending::Torn { offset: 0 }), (HEADER as u64 + 3, Ending::Damaged { offset: 0 })] {
            let mut bytes = Vec::new();
            write(&mut bytes, KIND_ENTRY, 0, b"one");
            write(&mut bytes, KIND_ENTRY, synced, b"two");
            for at in 0..HEADER + 3 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 0x10;
                assert_eq!(scan(&flipped, 0).1, want, "byte {at}");
            }
        }
    }
}
