//! The metrics that a daemon exports.

use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long a daemon may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The page at this address, with this token if the daemon requires one. It is up to a second old.
pub(super) fn page(address: &str, token: Option<&str>) -> Result<String> {
    let mut stream = TcpStream::connect(address).with_context(|| address.to_owned())?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n{authorization}\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, page)) if head.contains(" 200 ") => Ok(page.to_owned()),
        _ => bail!("{address} answers: {}", answer.chars().take(200).collect::<String>()),
    }
}

/// The value of the first series with this name; `None`: the page has none.
pub(super) fn value(page: &str, name: &str) -> Option<f64> {
    let is_series = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
    page.lines().find(is_series)?.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_that_of_the_whole_name() {
        let page = "# HELP a_total x\na_total_more 1\na_total{member=\"2\"} 17\nb 0.5\n";
        assert_eq!((value(page, "a_total"), value(page, "b"), value(page, "a")), (Some(17.0), Some(0.5), None));
    }
}
