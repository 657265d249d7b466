//! Output of ranks as JSON.

use lattice_api::v1;
use lattice_model::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A piece of one rank's output, in its order. It is whole lines if the program wrote whole lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Output)]
pub(super) struct OutputJson {
    node: String,
    /// The launch's number; 0 is the script.
    launch: u32,
    rank: u32,
    stream: OutputStream,
    /// The piece, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The piece, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    /// Of the attempt that wrote it.
    epoch: u64,
    /// How many times the program had truncated this output before.
    segment: u32,
    /// The end of this piece, counted from the beginning of the segment.
    bytes: u64,
    /// When its lines were written, to about a second, if that was requested and is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    written_at: Option<String>,
}

/// One of the two outputs of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum OutputStream {
    Stdout,
    Stderr,
}

impl OutputStream {
    /// As in a request.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

impl From<v1::LogChunk> for OutputJson {
    fn from(chunk: v1::LogChunk) -> Self {
        let (text, base64) = match String::from_utf8(chunk.data) {
            Ok(text) => (Some(text), None),
            Err(error) => (None, Some(base64(error.as_bytes()))),
        };
        Self {
            node: chunk.node,
            launch: chunk.launch,
            rank: chunk.rank,
            stream: if chunk.stderr { OutputStream::Stderr } else { OutputStream::Stdout },
            text,
            base64,
            epoch: chunk.epoch,
            segment: chunk.segment,
            bytes: chunk.bytes,
            written_at: (chunk.written_ms > 0).then(|| Timestamp(chunk.written_ms).to_string()),
        }
    }
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for place in 0..4 {
            let index = ((bits >> (18 - 6 * place)) & 63) as usize;
            // One byte makes two characters, two bytes make three.
            text.push(if place <= three.len() { char::from(BASE64[index]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(data: &[u8]) -> v1::LogChunk {
        v1::LogChunk { node: "n1".into(), rank: 2, stderr: true, data: data.to_vec(), epoch: 1, bytes: 7, ..Default::default() }
    }

    #[test]
    fn output_is_text_or_else_base64() {
        let json = serde_json::to_value(OutputJson::from(chunk("é\n".as_bytes()))).unwrap();
        let want = serde_json::json!({
            "node": "n1", "launch": 0, "rank": 2, "stream": "stderr", "text": "é\n", "epoch": 1, "segment": 0, "bytes": 7,
        });
        assert_eq!(json, want);
        let bytes = OutputJson::from(chunk(&[0xff, 0xfe]));
        assert_eq!((bytes.text, bytes.base64.as_deref()), (None, Some("//4=")));
        let dated = OutputJson::from(v1::LogChunk { written_ms: 1_772_704_812_034, ..chunk(b"x") });
        assert_eq!(dated.written_at.as_deref(), Some("2026-03-05T10:00:12.034Z"));
    }

    #[test]
    fn base64_is_that_of_the_standard() {
        // The test vectors of RFC 4648, section 10.
        let vectors = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (bytes, text) in vectors {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xbf]), "+/+/");
    }
}
