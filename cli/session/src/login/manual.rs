//! A login by a browser on any machine, whose address the user copies here. It needs nothing of the provider but the
//! usual flow, and no port of this machine.

use super::provider::{Provider, Tokens};
use super::redirect::{self, Redirected};
use crate::failure::{Exit, Failure};
use crate::message::write_message;
use std::io::{self, BufRead, Read};

/// The address to which the provider sends the browser; nothing listens there.
const REDIRECT: &str = "http://127.0.0.1/";
/// Longest address that is read, in bytes.
const ADDRESS_BYTES_MAX: u64 = 64 * 1024;

/// Shows the provider's page, and reads the address at which the browser ends.
pub async fn log_in(provider: &Provider) -> Result<Tokens, Failure> {
    let authorization = provider.authorization(REDIRECT)?;
    write_message(format_args!(
        "Open this page in a browser on any machine, and log in there:\n\n{}\n\n\
         Then the browser cannot show a page of {REDIRECT}. Copy that page's whole address here:\n",
        authorization.url
    ));
    let address = read_address(&mut io::stdin().lock())?;
    match redirect::read(&address, &authorization.state, &provider.issuer.issuer) {
        Redirected::Code(code) => Box::pin(provider.exchange(code, authorization)).await,
        Redirected::Refused(why) => Err(Failure::new(Exit::Refused, format!("the identity provider refused the login: {why}"))),
        Redirected::Foreign => Err(Failure::new(Exit::Refused, "this address is not the end of this login")
            .hint(format!("copy the whole address after the login: it begins with {REDIRECT}?"))),
    }
}

fn read_address(input: &mut impl BufRead) -> Result<String, Failure> {
    let mut line = String::new();
    let read = input.take(ADDRESS_BYTES_MAX).read_line(&mut line);
    read.map_err(|error| Failure::other(format!("cannot read the address: {error}")))?;
    match line.trim() {
        "" => Err(Failure::new(Exit::Refused, "no address was given, so nobody is logged in")),
        address => Ok(address.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_read() {
        let of = |text: &str| read_address(&mut text.as_bytes()).ok();
        assert_eq!(of("  http://127.0.0.1/?code=x \nmore\n").as_deref(), Some("http://127.0.0.1/?code=x"));
        assert_eq!((of(""), of("\n")), (None, None));
    }
}
