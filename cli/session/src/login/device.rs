//! A login by a browser on any machine: the user types a code there (RFC 8628).

use super::provider::{Provider, Tokens, minutes, time_for_device};
use super::redirect::printable;
use crate::failure::Failure;
use crate::message::write_message;
use oauth2::StandardDeviceAuthorizationResponse;

/// Shows the code, and waits until the user has confirmed it.
pub async fn log_in(provider: &Provider) -> Result<Tokens, Failure> {
    let begun = Box::pin(provider.begin_device()).await?;
    write_message(instructions(&begun));
    Box::pin(provider.wait_for_device(&begun)).await
}

fn instructions(begun: &StandardDeviceAuthorizationResponse) -> String {
    let page = printable(begun.verification_uri());
    let code = printable(begun.user_code().secret());
    let whole = match begun.verification_uri_complete() {
        Some(whole) => format!("or this one, which has the code in it:\n\n{}\n\n", printable(whole.secret())),
        None => String::new(),
    };
    let minutes = minutes(time_for_device(begun));
    format!("Open this page in a browser on any machine, and type the code {code}\nwithin {minutes} minutes:\n\n{page}\n\n{whole}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(more: &str) -> String {
        let text = format!(
            r#"{{"device_code": "secret", "user_code": "ABCD-EFGH", "verification_uri": "https://idp/device", "expires_in": 601{more}}}"#
        );
        instructions(&serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn the_user_reads_the_page_and_the_code_and_not_the_secret() {
        let want = "Open this page in a browser on any machine, and type the code ABCD-EFGH\nwithin 11 minutes:\n\nhttps://idp/device\n\n";
        assert_eq!(shown(""), want);
        let whole = shown(r#", "verification_uri_complete": "https://idp/device?c=ABCD-EFGH""#);
        assert_eq!(whole, format!("{want}or this one, which has the code in it:\n\nhttps://idp/device?c=ABCD-EFGH\n\n"));
    }
}
