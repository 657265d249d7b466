//! `lattice quorum ca revoke` and `revoked`.

use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::filled;
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::args::quorum::Revoke;
use lattice_model::Timestamp;

/// How the list is made narrower.
const FIT: Fit<'_> = Fit { left_out: &[], shortened: &[("ISSUED BEFORE", 20), ("BY", 10)], wrapped: &[("REASON", 16)], left_out_last: &[] };

pub async fn revoke(session: &Session, args: Revoke) -> Result<(), Failure> {
    let client = session.connect().await?;
    let Revoke { name, reason } = args;
    let asked = v1::RevokeCertificatesRequest { name: name.clone(), reason };
    let before_ms = answer(client.admin().revoke_certificates(asked)).await?.before_ms;
    match session.format() {
        Format::Table => print(&format!(
            "Certificates of {name} that were issued before {} are revoked. The gossip key is being replaced\n\
             (`lattice gossip keys`). To let {name} come back, issue a new certificate: `lattice quorum ca issue`.\n",
            Timestamp(before_ms)
        )),
        Format::Data(notation) => notation.print(&serde_json::json!({ "name": name, "before": Timestamp(before_ms).to_string() })),
        Format::Name => print_names([name.as_str()]),
    }
}

pub async fn list(session: &Session) -> Result<(), Failure> {
    let client = session.connect().await?;
    let revocations = answer(client.admin().list_revocations(v1::ListRevocationsRequest {})).await?.revocations;
    match session.format() {
        Format::Table if revocations.is_empty() => {
            session.note("no certificate was revoked");
            Ok(())
        }
        Format::Table => {
            let mut table = Table::new(&["NAME", "ISSUED BEFORE", "BY", "REASON"]);
            for r in &revocations {
                table.row(vec![r.name.clone(), Timestamp(r.before_ms).to_string(), r.by.clone(), r.reason.clone()]);
            }
            print(&table.on_screen(&[], &FIT, session.table_size()))
        }
        Format::Data(notation) => {
            let one = |r: &v1::Revocation| serde_json::json!({ "name": r.name, "before": Timestamp(r.before_ms).to_string(), "by": r.by, "reason": filled(&r.reason) });
            notation.print(&revocations.iter().map(one).collect::<Vec<_>>())
        }
        Format::Name => print_names(revocations.iter().map(|r| r.name.as_str())),
    }
}
