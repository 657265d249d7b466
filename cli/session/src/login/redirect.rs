//! The address to which the identity provider sends the browser after a login (RFC 6749, section 4.1.2).

use oauth2::url::Url;

/// Longest text of the provider that is shown, in characters.
const TEXT_LEN_MAX: usize = 1000;

/// What such an address says.
#[derive(Debug, PartialEq, Eq)]
pub enum Redirected {
    /// The provider's code, to be exchanged for tokens.
    Code(String),
    /// The provider refused the login, for this reason.
    Refused(String),
    /// The address belongs to no login, or to another login.
    Foreign,
}

/// Reads an address: of the login with this `state`, at this provider.
pub fn read(address: &str, state: &str, issuer: &str) -> Redirected {
    let Ok(url) = Url::parse(address) else { return Redirected::Foreign };
    // Each parameter occurs once: otherwise nobody knows which one the provider meant.
    let one = |name: &str| {
        let mut values = url.query_pairs().filter(|(key, _)| key == name).map(|(_, value)| value.into_owned());
        values.next().filter(|_| values.next().is_none())
    };
    let is_other_issuer = one("iss").is_some_and(|iss| !is_same_issuer(&iss, issuer));
    if one("state").is_none_or(|given| given != state) || is_other_issuer {
        return Redirected::Foreign;
    }
    match (one("code"), one("error")) {
        (Some(code), None) if !code.is_empty() => Redirected::Code(code),
        (None, Some(error)) => Redirected::Refused(printable(&match one("error_description") {
            Some(description) => format!("{error}: {description}"),
            None => error,
        })),
        _ => Redirected::Foreign,
    }
}

/// Whether two texts name the same issuer.
pub fn is_same_issuer(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}

/// A text from elsewhere, without characters that control the terminal.
pub fn printable(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(TEXT_LEN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUER: &str = "https://idp.example.org";

    fn of(query: &str) -> Redirected {
        read(&format!("http://127.0.0.1:4711/?{query}"), "s1", ISSUER)
    }

    #[test]
    fn a_code_counts_only_with_the_state_of_this_login_and_from_its_provider() {
        assert_eq!(of("code=a%2Fb&state=s1"), Redirected::Code("a/b".to_owned()));
        assert_eq!(of("code=x&state=s1&iss=https%3A%2F%2Fidp.example.org%2F"), Redirected::Code("x".to_owned()));
        for foreign in [
            "code=x",
            "code=x&state=s2",
            "code=x&state=",
            "code=x&state=s1&state=s1",
            "code=x&code=y&state=s1",
            "code=&state=s1",
            "code=x&error=y&state=s1",
            "code=x&state=s1&iss=https%3A%2F%2Fevil.example.org",
            "error=access_denied",
            "",
        ] {
            assert_eq!(of(foreign), Redirected::Foreign, "{foreign}");
        }
        assert_eq!(read("no address", "s1", ISSUER), Redirected::Foreign);
    }

    #[test]
    fn a_refusal_is_shown_without_control_characters() {
        let refused = of("error=access_denied&error_description=not+you%1b%5B31m%0A&state=s1");
        assert_eq!(refused, Redirected::Refused("access_denied: not you[31m".to_owned()));
    }
}
