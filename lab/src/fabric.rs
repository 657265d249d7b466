//! `lattice-lab fabric-manager`: simulates a Slingshot fabric's manager, for machines without such a fabric. It makes
//! services and keys, checks who may request them, stores them in a file, and enforces nothing.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of a request's line and headers, and of its body.
const HEAD_BYTES_MAX: u64 = 16 * 1024;
const BODY_BYTES_MAX: usize = 1024 * 1024;
/// How long a client may take to send its request.
const CLIENT_MAX: Duration = Duration::from_secs(5);

/// The options of the simulated manager.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: String,
    /// The file with its state
    #[arg(long)]
    pub state: PathBuf,
    /// The token that callers must send
    #[arg(long)]
    pub token: String,
    /// Milliseconds between an action and its answer
    #[arg(long, default_value_t = 0)]
    pub answer_after_ms: u64,
}

/// Its services, in the order of the requests.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct State {
    pub services: Vec<Service>,
}

/// One service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Service {
    pub id: String,
    /// A repeated request with the same name gets the same service.
    pub name: String,
    pub vni: u64,
    pub allocation_id: String,
    pub nodes: Vec<String>,
    pub auth_key: String,
    pub revoked: bool,
}

impl State {
    /// Loads the file; without a file there are no services.
    pub fn load(path: &Path) -> Result<Self> {
        match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| format!("{}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("{}", path.display())),
        }
    }

    fn save(&self, path: &Path) -> Result<()> {
        let part = path.with_extension("part");
        fs::write(&part, serde_json::to_vec_pretty(self)?)?;
        fs::rename(&part, path).with_context(|| format!("{}", path.display()))
    }

    /// The services that were not revoked.
    pub fn valid_services(&self) -> impl Iterator<Item = &Service> {
        self.services.iter().filter(|service| !service.revoked)
    }
}

/// Serves one request after the other until it is killed.
pub fn run(options: &Options) -> Result<()> {
    let listener = TcpListener::bind(&options.listen).with_context(|| format!("cannot listen at {}", options.listen))?;
    for stream in listener.incoming() {
        if let Err(error) = stream.map_err(Into::into).and_then(|stream| serve(options, stream)) {
            eprintln!("a request failed: {error:#}");
        }
    }
    Ok(())
}

struct Request {
    method: String,
    path: String,
    token: String,
    name: String,
    body: Vec<u8>,
}

fn serve(options: &Options, stream: TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(CLIENT_MAX))?;
    let request = read(&stream)?;
    let (status, answer) = match request.token == format!("Bearer {}", options.token) {
        true => answer(options, &request)?,
        false => ("401 Unauthorized", json!({"error": "the token is missing or wrong"})),
    };
    std::thread::sleep(Duration::from_millis(options.answer_after_ms));
    let body = answer.to_string();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    (&stream).write_all((head + &body).as_bytes()).context("answering")
}

fn read(stream: &TcpStream) -> Result<Request> {
    let mut lines = BufReader::new(stream.take(HEAD_BYTES_MAX + BODY_BYTES_MAX as u64));
    let mut line = String::new();
    lines.read_line(&mut line)?;
    let mut words = line.split_ascii_whitespace().map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else { bail!("not an HTTP request: {line:?}") };
    let mut request = Request { method, path, token: String::new(), name: String::new(), body: Vec::new() };
    let mut length = 0;
    loop {
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let Some((key, value)) = line.trim_end().split_once(':') else { break };
        match key.to_ascii_lowercase().as_str() {
            "authorization" => value.trim().clone_into(&mut request.token),
            "idempotency-key" => value.trim().clone_into(&mut request.name),
            "content-length" => length = value.trim().parse()?,
            _ => {}
        }
    }
    if length > BODY_BYTES_MAX {
        bail!("a body of {length} bytes");
    }
    request.body.resize(length, 0);
    lines.read_exact(&mut request.body)?;
    Ok(request)
}

fn answer(options: &Options, request: &Request) -> Result<(&'static str, Value)> {
    let mut state = State::load(&options.state)?;
    let none = ("404 Not Found", json!({"error": "there is no such service"}));
    let Some(rest) = request.path.strip_prefix("/fabric/cxi/services") else { return Ok(none) };
    let id = rest.trim_start_matches('/').trim_end_matches("/auth");
    match (request.method.as_str(), rest) {
        ("POST", "") => {
            let asked: Value = serde_json::from_slice(&request.body)?;
            if let Some(known) = state.services.iter().find(|service| !request.name.is_empty() && service.name == request.name) {
                return Ok(("200 OK", json!({"id": known.id})));
            }
            let nodes = asked["nodes"].as_array().cloned().unwrap_or_default();
            let (Some(vni), Some(allocation)) = (asked["vni"].as_u64(), asked["allocation_id"].as_str()) else {
                return Ok(("400 Bad Request", json!({"error": "vni and allocation_id are required"})));
            };
            let service = Service {
                id: format!("svc-{}", state.services.len() + 1),
                name: request.name.clone(),
                vni,
                allocation_id: allocation.to_owned(),
                nodes: nodes.iter().filter_map(|node| node.as_str().map(str::to_owned)).collect(),
                auth_key: uuid::Uuid::new_v4().simple().to_string(),
                revoked: false,
            };
            let made = json!({"id": service.id});
            state.services.push(service);
            state.save(&options.state)?;
            Ok(("201 Created", made))
        }
        ("GET", _) if rest.ends_with("/auth") => {
            let found = state.valid_services().find(|service| service.id == id);
            Ok(found.map_or(none, |service| ("200 OK", json!({"auth_key": service.auth_key}))))
        }
        ("DELETE", _) => match state.services.iter_mut().find(|service| service.id == id && !service.revoked) {
            Some(service) => {
                service.revoked = true;
                state.save(&options.state)?;
                Ok(("200 OK", json!({})))
            }
            None => Ok(none),
        },
        (_, _) => Ok(("405 Method Not Allowed", json!({"error": "POST, GET …/auth and DELETE are served"}))),
    }
}
