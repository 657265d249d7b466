//! `spool.json`: the index of an allocation's output, beside its files. A line with version and
//! checksum, then JSON.

use crate::output_index::{Index, VERSION};
use lattice_runtime::shim::ShimDir;
use std::fs::{self, File};
use std::io::{self, Write};

const MAGIC: &str = "lattice-spool";

/// The index as it was last written; `None`: never.
pub fn read(dir: &ShimDir) -> io::Result<Option<Index>> {
    let bytes = match fs::read(dir.spool()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    decode(&bytes).map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged", dir.spool().display())))
}

fn decode(bytes: &[u8]) -> Option<Index> {
    let line = bytes.iter().position(|b| *b == b'\n')?;
    let body = &bytes[line + 1..];
    if bytes[..line] != *header(body).as_bytes() {
        return None;
    }
    let index: Index = serde_json::from_slice(body).ok()?;
    (index.version == VERSION && index.streams.iter().all(|s| !s.segments.is_empty())).then_some(index)
}

fn header(body: &[u8]) -> String {
    format!("{MAGIC} {VERSION} {:08x}", crc32fast::hash(body))
}

/// Whether the write must survive a power failure at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    Now,
    Later,
}

/// Replaces the file so that it appears complete; with [`Sync::Now`] it is on the disk when this
/// returns.
pub fn write(dir: &ShimDir, index: &Index, sync: Sync) -> io::Result<()> {
    let body = serde_json::to_vec(index)?;
    let (path, new) = (dir.spool(), dir.spool().with_extension("new"));
    let mut file = File::create(&new)?;
    file.write_all(header(&body).as_bytes())?;
    file.write_all(b"\n")?;
    file.write_all(&body)?;
    if sync == Sync::Now {
        file.sync_data()?;
    }
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_record_is_read_and_a_damaged_one_is_refused() {
        let path = std::env::temp_dir().join(format!("lattice-spool-record-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        let dir = ShimDir(path.clone());
        assert_eq!(read(&dir).unwrap(), None);
        let index = Index {
            version: VERSION,
            allocation: "00000000-0000-4000-8000-000000000001".parse().unwrap(),
            epoch: lattice_model::Epoch(3),
            node: "n1".parse().unwrap(),
            nodes: Vec::new(),
            tenant: String::new(),
            project: String::new(),
            owner_uid: 0,
            owner: "root".into(),
            complete: true,
            streams: Vec::new(),
        };
        write(&dir, &index, Sync::Now).unwrap();
        assert_eq!(read(&dir).unwrap(), Some(index));
        let good = fs::read(dir.spool()).unwrap();
        for at in [0, 20, good.len() - 2] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(dir.spool(), &bad).unwrap();
            assert_eq!(read(&dir).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        fs::write(dir.spool(), &good[..good.len() / 2]).unwrap();
        assert!(read(&dir).is_err());
        fs::remove_dir_all(path).unwrap();
    }
}
