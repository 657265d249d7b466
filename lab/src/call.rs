//! `lattice-lab call`: calls of an agent's API with given bytes, one after the other. The agent sees the account of this
//! process, so a test runs it as the user that it simulates.
//!
//! Each line of the file names a method and its request in hexadecimal digits: `AllocationService/Get 0a04…`. Each line
//! of the output has the method, the name of the status, and the first line of its message, separated by tabs. Of an
//! answer that is a stream, the first message counts. A call that is answered with `Unavailable` is made again, in the
//! first minute of the run: the agent or its quorum may be busy with something else.

use anyhow::{Context, Result};
use futures::stream;
use prost::bytes::{Buf, BufMut};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// How long one call may take until its answer begins.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait for the first message of an open stream: a stream that sends nothing yet was not refused.
const FIRST_MESSAGE_WAIT: Duration = Duration::from_secs(1);

/// For how long after the first call a call is repeated if its answer is `Unavailable`.
const RETRIES_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause before it is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// The options of the calls.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The agent's endpoint: unix:/path/of/agent.sock
    endpoint: String,
    /// The file with the calls
    file: PathBuf,
}

/// Makes all calls, and prints a line for each.
pub fn run(options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(all(options))
}

async fn all(options: &Options) -> Result<()> {
    let text = std::fs::read_to_string(&options.file).with_context(|| format!("cannot read {}", options.file.display()))?;
    let endpoint = Endpoint::from_shared(options.endpoint.clone())?;
    let channel = endpoint.connect().await.with_context(|| format!("no agent answers at {}", options.endpoint))?;
    let retry_until = Instant::now() + RETRIES_TIMEOUT;
    for line in text.lines() {
        let (method, digits) = line.split_once(' ').with_context(|| format!("no request in {line:?}"))?;
        let path = PathAndQuery::try_from(format!("/lattice.v1.{method}"))?;
        let request = bytes(digits)?;
        let status = repeated(&channel, &path, &request, retry_until).await;
        println!("{method}\t{:?}\t{}", status.code(), status.message().lines().next().unwrap_or_default());
    }
    Ok(())
}

/// Repeats a call until its status is not `Unavailable`, or until this moment. Returns the last status.
async fn repeated(channel: &Channel, path: &PathAndQuery, request: &[u8], retry_until: Instant) -> Status {
    loop {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, call(channel.clone(), path.clone(), request.to_vec())).await;
        let status = answer.unwrap_or_else(|_| Status::deadline_exceeded("no answer"));
        if status.code() != Code::Unavailable || Instant::now() >= retry_until {
            return status;
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// The status of one call; `Ok` with an empty message if it is not refused.
async fn call(channel: Channel, path: PathAndQuery, request: Vec<u8>) -> Status {
    let mut client = Grpc::new(channel);
    if let Err(error) = client.ready().await {
        return Status::unavailable(error.to_string());
    }
    // On the wire, a call with one message is the same whether it may have several or not.
    let requests = Request::new(stream::iter([request]));
    let answer = match client.streaming(requests, path, Raw).await {
        Ok(answer) => answer,
        Err(refused) => return refused,
    };
    let mut messages = answer.into_inner();
    match tokio::time::timeout(FIRST_MESSAGE_WAIT, messages.message()).await {
        Ok(Err(refused)) => refused,
        Ok(Ok(_)) | Err(_) => Status::ok(""),
    }
}

/// The bytes that a text of hexadecimal digits names.
fn bytes(digits: &str) -> Result<Vec<u8>> {
    let byte = |two: &[u8]| -> Result<u8> { Ok(u8::from_str_radix(std::str::from_utf8(two)?, 16)?) };
    digits.as_bytes().chunks(2).map(byte).collect::<Result<_>>().with_context(|| format!("{digits:?} is no request in hexadecimal digits"))
}

/// Requests as bytes; the contents of answers are discarded.
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        from.advance(from.remaining());
        Ok(Some(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_from_its_digits_and_all_else_is_refused() {
        assert_eq!(bytes("").unwrap(), Vec::<u8>::new());
        assert_eq!(bytes("0a04ff").unwrap(), [0x0a, 4, 0xff]);
        for bad in ["0g", "é", "0a 4"] {
            assert!(bytes(bad).is_err(), "{bad:?}");
        }
    }
}
