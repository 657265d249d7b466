//! A login by a browser on this machine: the provider sends it to a port that only this machine reaches (RFC 8252,
//! section 7.3).

use super::provider::{Authorization, Provider, Tokens};
use super::redirect::{self, Redirected};
use crate::failure::{Exit, Failure};
use crate::message::write_message;
use std::env;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long the user may take.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a connection may take: a browser also opens connections on which it sends nothing.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that are served at once.
const CONNECTIONS_MAX: usize = 16;
/// Largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Whether a browser of this machine can be shown to its user.
pub fn has_display() -> bool {
    ["WAYLAND_DISPLAY", "DISPLAY"].iter().any(|name| env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// Opens the provider's page, and waits until the user has logged in there.
pub async fn log_in(provider: &Provider) -> Result<Tokens, Failure> {
    let cannot = |error: io::Error| Failure::other(format!("cannot wait for the browser: {error}"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(cannot)?;
    let port = listener.local_addr().map_err(cannot)?.port();
    let authorization = provider.authorization(&format!("http://127.0.0.1:{port}/"))?;
    let opened = has_display() && open(&authorization.url);
    let how = if opened { "A browser opens this page; otherwise open it" } else { "Open this page in a browser" };
    write_message(format_args!("{how} on this machine:\n\n{}\n\n", authorization.url));
    let login = Arc::new(Expected::of(&authorization, &provider.issuer.issuer));
    match timeout(LOGIN_TIMEOUT, receive(&listener, &login)).await {
        Ok(Redirected::Code(code)) => provider.exchange(code, authorization).await,
        Ok(Redirected::Refused(why)) => Err(Failure::new(Exit::Refused, format!("the identity provider refused the login: {why}"))),
        Ok(Redirected::Foreign) => Err(Failure::other("the browser came with another login")),
        Err(_) => {
            let text = format!("nobody has logged in within {} minutes", LOGIN_TIMEOUT.as_secs() / 60);
            Err(Failure::new(Exit::Unavailable, text).hint("`lattice login --flow manual` or `--flow device` needs no browser here"))
        }
    }
}

/// Starts the user's browser, which Ctrl-C here does not end.
fn open(url: &str) -> bool {
    let mut command = Command::new("xdg-open");
    command.arg(url).process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().is_ok()
}

/// The login for which this process waits.
struct Expected {
    state: String,
    issuer: String,
}

impl Expected {
    fn of(authorization: &Authorization, issuer: &str) -> Self {
        Self { state: authorization.state.clone(), issuer: issuer.to_owned() }
    }
}

/// Serves connections until one has the provider's answer to this login. Any program of this machine may connect, but
/// only the answer has an effect.
async fn receive(listener: &TcpListener, expected: &Arc<Expected>) -> Redirected {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => drop(connections.spawn(timeout(CONNECTION_TIMEOUT, serve(stream, expected.clone())))),
                // The descriptors may be used up, for example: do not retry at once.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
            Some(served) = connections.join_next() => if let Ok(Ok(Ok(answer @ (Redirected::Code(_) | Redirected::Refused(_))))) = served {
                return answer;
            },
        }
    }
}

/// Reads one request and answers it.
async fn serve(mut stream: TcpStream, expected: Arc<Expected>) -> io::Result<Redirected> {
    let head = read_head(&mut stream).await?;
    let answer = match target(&head) {
        Some(target) => redirect::read(&format!("http://127.0.0.1{target}"), &expected.state, &expected.issuer),
        None => Redirected::Foreign,
    };
    let (status, text) = match &answer {
        Redirected::Code(_) => ("200 OK", "The login has arrived. The terminal says whether it succeeded; this page can be closed."),
        Redirected::Refused(_) => ("200 OK", "The login was refused. The terminal says why; this page can be closed."),
        Redirected::Foreign => ("404 Not Found", "This page belongs to no login."),
    };
    // The answer counts even if the browser has gone away without reading ours.
    if stream.write_all(page(status, text).as_bytes()).await.is_ok() {
        let _ = stream.shutdown().await;
    }
    Ok(answer)
}

/// The head of a request, up to its empty line.
async fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let (mut head, mut piece) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let n = stream.read(&mut piece).await?;
        if n == 0 || head.len() + n > HEAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.extend_from_slice(&piece[..n]);
    }
    Ok(head)
}

/// The target in the request of a browser that was sent to our address: `/` with the provider's parameters.
fn target(head: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(head).ok()?.lines().next()?;
    let target = line.strip_prefix("GET ")?.split(' ').next()?;
    target.starts_with("/?").then_some(target)
}

fn page(status: &str, text: &str) -> String {
    let body = format!("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>lattice login</title><p>{text}</p></html>\n");
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         Content-Security-Policy: default-src 'none'\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_for_our_address_is_read() {
        assert_eq!(target(b"GET /?code=x&state=y HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"), Some("/?code=x&state=y"));
        for other in ["GET /favicon.ico HTTP/1.1\r\n\r\n", "POST /?code=x HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "\r\n\r\n", "GET"] {
            assert_eq!(target(other.as_bytes()), None, "{other:?}");
        }
        assert_eq!(target(b"GET /?\xff HTTP/1.1\r\n\r\n"), None);
    }

    #[test]
    fn foreign_requests_and_silent_connections_do_not_end_a_login() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let address = listener.local_addr().unwrap();
            let expected = Arc::new(Expected { state: "s1".into(), issuer: "https://idp".into() });
            let ask = async |target: &str| {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                answer
            };
            let browser = async {
                let silent = TcpStream::connect(address).await.unwrap();
                let mut answers = Vec::new();
                for target in ["/favicon.ico", "/?code=x&state=other", "/?code=x&state=s1"] {
                    answers.push(ask(target).await.lines().next().unwrap_or_default().to_owned());
                }
                drop(silent);
                answers
            };
            let (received, answers) = tokio::join!(receive(&listener, &expected), browser);
            assert_eq!(received, Redirected::Code("x".to_owned()));
            assert_eq!(answers, ["HTTP/1.1 404 Not Found", "HTTP/1.1 404 Not Found", "HTTP/1.1 200 OK"]);
        });
    }
}
