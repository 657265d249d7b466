//! `lattice service`.

use lattice_api::json::{EndpointJson, ServiceJson};
use lattice_api::v1;
use lattice_api::v1::lookup_service_response::Endpoint;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::short;
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::args::of_tenant::OfTenant;
use lattice_cli_syntax::args::service::ServiceCommand;

/// How the lists are made narrower.
const FIT: Fit<'_> =
    Fit { left_out: &[], shortened: &[("TENANT", 8), ("NODE", 12)], wrapped: &[("SERVICE", 24), ("ENDPOINT", 24)], left_out_last: &[] };

pub async fn run(session: &Session, command: ServiceCommand) -> Result<(), Failure> {
    let client = session.connect().await?;
    match command {
        ServiceCommand::List(args) => {
            let request = v1::ListServicesRequest { tenant: tenant(session, args) };
            let v1::ListServicesResponse { services, more } = answer(client.admin().list_services(request)).await?;
            report_more(session, "services", more);
            match session.format() {
                Format::Table => {
                    let mut table = Table::new(&["SERVICE", "TENANT", "ENDPOINTS", "ALLOCATIONS"]);
                    for s in services {
                        table.row(vec![s.name, s.tenant, s.endpoints.to_string(), s.allocations.to_string()]);
                    }
                    print(&table.on_screen(&["TENANT"], &FIT, session.table_size()))
                }
                Format::Data(notation) => notation.print(&services.iter().map(ServiceJson::from).collect::<Vec<_>>()),
                Format::Name => print_names(services.iter().map(|s| s.name.as_str())),
            }
        }
        ServiceCommand::Lookup(args) => {
            let request = v1::LookupServiceRequest { tenant: tenant(session, args.of), name: args.name };
            let v1::LookupServiceResponse { endpoints, more } = answer(client.admin().lookup_service(request)).await?;
            report_more(session, "endpoints", more);
            match session.format() {
                Format::Table => {
                    let mut table = Table::new(&["ENDPOINT", "PROTOCOL", "NODE", "ALLOCATION", "TENANT"]);
                    for e in &endpoints {
                        let allocation = short(&e.allocation).to_owned();
                        table.row(vec![address(e), e.protocol.clone(), e.node.clone(), allocation, e.tenant.clone()]);
                    }
                    print(&table.on_screen(&["TENANT"], &FIT, session.table_size()))
                }
                Format::Data(notation) => notation.print(&endpoints.iter().map(EndpointJson::from).collect::<Vec<_>>()),
                Format::Name => print_names(endpoints.iter().map(address).collect::<Vec<_>>().iter().map(String::as_str)),
            }
        }
    }
}

fn address(e: &Endpoint) -> String {
    format!("{}:{}", e.host, e.port)
}

fn report_more(session: &Session, what: &str, more: bool) {
    if more {
        session.note(&format!("there are more {what} than one answer can hold"));
    }
}

/// The tenant of a request: `--tenant`, else the tenant of submissions. None with `--all`, or inside an allocation.
pub fn tenant(session: &Session, of: OfTenant) -> Option<String> {
    let within = std::env::var_os("LATTICE_ALLOC_ID").is_some();
    of.tenant.or_else(|| Some(session.settings.tenant.clone()).filter(|tenant| !of.all && !within && !tenant.is_empty()))
}
