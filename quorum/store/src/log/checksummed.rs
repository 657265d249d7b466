//! Small files with a checksum: the vote, and the end of the purged part of the log.

use crate::StoreError;
use crate::directory::replace;
use lattice_api::pack;
use std::io;
use std::path::Path;

pub(super) fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    match std::fs::read(path) {
        Ok(bytes) => {
            let body = bytes.split_first_chunk::<4>().filter(|(crc, body)| u32::from_le_bytes(**crc) == crc32fast::hash(body));
            let (_, body) = body.ok_or_else(|| StoreError::corrupt(path, 0, "it does not have its checksum"))?;
            pack::from_bytes(body).map(Some).map_err(|e| StoreError::corrupt(path, 4, lattice_model::with_causes(&e)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io(path, "cannot be read")(error)),
    }
}

pub(super) fn write<T: serde::Serialize>(path: &Path, value: &T) -> Result<(), StoreError> {
    let body = pack::to_bytes(value).map_err(StoreError::Encode)?;
    let mut bytes = crc32fast::hash(&body).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    replace(path, &bytes)
}
