//! What the version before this one wrote: the audit chain in one file, `audit.log`, and once more in each snapshot.
//!
//! ```text
//!   "LATTICE-AUDIT\0\0\1" | length u32 | crc u32 | record, MessagePack | …
//! ```
//!
//! Read, put into segments and removed at the first start of this version.

use super::audit::AuditChain;
use super::directory::sync_parent;
use super::{StoreError, snapshot_file};
use crate::pack;
use lattice_model::AuditRecord;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

const MAGIC: &[u8; 16] = b"LATTICE-AUDIT\0\0\x01";
/// The longest record that is believed.
const RECORD_BYTES_MAX: u32 = 64 * 1024;
/// Records that are put into the chain at once.
const BATCH: usize = 4096;

/// Takes over what a folder's `audit.log` holds, and removes it.
pub fn take_over_file(dir: &Path, chain: &mut AuditChain) -> Result<(), StoreError> {
    let path = dir.join("audit.log");
    let fail = |what| StoreError::io(&path, what);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail("cannot be opened")(error)),
    };
    tracing::info!(file = %path.display(), "the audit chain is put into segments");
    // What is torn at its end comes again with the log; what is missing before that is in the snapshot.
    append(&path, 0, BufReader::new(file), chain)?;
    let checked = chain.checkpoint()?.run()?;
    chain.checked(checked);
    std::fs::remove_file(&path).map_err(fail("cannot be removed"))?;
    sync_parent(&path)
}

/// Takes over the audit chain that a snapshot of the version before carries.
pub fn take_over_section(path: &Path, section: snapshot_file::Section, chain: &mut AuditChain) -> Result<(), StoreError> {
    let mut file = File::open(path).map_err(StoreError::io(path, "cannot be opened"))?;
    file.seek(SeekFrom::Start(section.at)).map_err(StoreError::io(path, "cannot be read"))?;
    append(path, section.at, BufReader::new(file.take(section.length)), chain)?;
    let checked = chain.checkpoint()?.run()?;
    chain.checked(checked);
    Ok(())
}

fn append(path: &Path, at: u64, mut from: impl Read, chain: &mut AuditChain) -> Result<(), StoreError> {
    let mut magic = [0; MAGIC.len()];
    let begins = from.read_exact(&mut magic).is_ok();
    if begins && magic != *MAGIC {
        return Err(StoreError::corrupt(path, at, "it does not begin as an audit file of the version before this one"));
    }
    let mut batch = Vec::new();
    while let Some(record) = begins.then(|| read(&mut from)).flatten() {
        batch.push(record);
        if batch.len() == BATCH {
            chain.append(&std::mem::take(&mut batch))?;
        }
    }
    chain.append(&batch)
}

/// The next record; `None` at the end or where what follows is not whole.
fn read(from: &mut impl Read) -> Option<AuditRecord> {
    let mut header = [0; 8];
    from.read_exact(&mut header).ok()?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let crc = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    if length > RECORD_BYTES_MAX {
        return None;
    }
    let mut payload = vec![0; length as usize];
    from.read_exact(&mut payload).ok()?;
    (crc32fast::hash(&payload) == crc).then(|| pack::from_bytes(&payload).ok()).flatten()
}
