//! `lattice audit export`: a signed bundle. Its format is in `docs/audit.md`.

use super::filter::filter;
use super::part::next_part;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::args::audit::AuditExport;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// The name and version of the format.
const FORMAT: &str = "lattice-audit-export/1";

/// Writes to stdout, or to a file that appears only when it is complete.
pub async fn run(session: &Session, args: AuditExport) -> Result<(), Failure> {
    let filter = filter(session, args.filter)?;
    let client = session.connect().await?;
    let mut pages = answer(client.admin().export_audit(v1::ExportAuditRequest { filter: Some(filter) })).await?;
    let mut out = Out::open(args.file.as_deref())?;
    let mut next = next_part(pages.message()).await?;
    write!(out.to, "{{\"format\":{FORMAT:?},\"pages\":[")?;
    let mut between = "\n";
    let begins = next.as_ref().map_or(1, begins);
    while let Some(page) = next {
        let line = serde_json::json!({ "body": page.body, "member": page.member, "key": page.key, "signature": page.signature });
        write!(out.to, "{between}{line}")?;
        between = ",\n";
        next = next_part(pages.message()).await?;
    }
    out.to.write_all(b"\n]}\n")?;
    out.finish()?;
    if begins > 1 {
        session.note(&format!("records 1 to {} are only in the archive; the export has those after them", begins - 1));
    }
    Ok(())
}

/// The first record of an export, according to its first page.
fn begins(page: &v1::SignedAuditPage) -> u64 {
    let body: Option<serde_json::Value> = serde_json::from_str(&page.body).ok();
    body.and_then(|body| body["begins"].as_u64()).unwrap_or(1)
}

/// Stdout, or a file that appears only when it is complete.
pub(in crate::command) struct Out {
    pub(in crate::command) to: Box<dyn Write + Send>,
    /// The temporary name of the file, and its final one.
    file: Option<(PathBuf, PathBuf)>,
}

impl Out {
    pub(in crate::command) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self { to: Box::new(BufWriter::new(io::stdout())), file: None }) };
        let mut name: OsString = path.into();
        name.push(".partial");
        let partial = PathBuf::from(name);
        let file = File::create(&partial).map_err(|e| Failure::other(format!("cannot write {}: {e}", partial.display())))?;
        Ok(Self { to: Box::new(BufWriter::new(file)), file: Some((partial, path.to_owned())) })
    }

    pub(in crate::command) fn finish(mut self) -> Result<(), Failure> {
        self.to.flush()?;
        if let Some((partial, path)) = self.file {
            std::fs::rename(&partial, &path).map_err(|e| Failure::other(format!("cannot write {}: {e}", path.display())))?;
        }
        Ok(())
    }
}
