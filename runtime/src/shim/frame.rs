//! Frames on the stream between agent and shim: length (u32, little endian) and MessagePack with field names.

use super::FRAME_BYTES_MAX;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor, value};
use serde::{Deserialize, Serialize, forward_to_deserialize_any};
use std::fmt;
use std::marker::PhantomData;
use thiserror::Error;

/// Errors that make a connection unusable: it is dropped, and the peer may make a new one.
#[derive(Debug, Error)]
pub enum FrameError {
    /// A length beyond [`FRAME_BYTES_MAX`].
    #[error("a frame of {bytes} bytes; at most {FRAME_BYTES_MAX} are accepted")]
    TooLarge {
        /// The announced or needed length.
        bytes: usize,
    },
    /// The bytes are not a message, or a message of a known kind has the wrong shape.
    #[error("a frame of {bytes} bytes is no message")]
    Malformed {
        /// Its length in bytes.
        bytes: usize,
        /// The decoder's error.
        #[source]
        source: rmp_serde::decode::Error,
    },
    /// A message that cannot be encoded (never for the messages of this module).
    #[error("the message cannot be encoded")]
    Encode(#[source] rmp_serde::encode::Error),
}

/// Encodes one message as the bytes to send, length first.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; 4];
    let mut serializer = rmp_serde::Serializer::new(&mut frame).with_struct_map();
    message.serialize(&mut serializer).map_err(FrameError::Encode)?;
    let bytes = frame.len() - 4;
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= FRAME_BYTES_MAX).ok_or(FrameError::TooLarge { bytes })?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Decodes messages from a stream that arrives in any fragments. Holds at most one incomplete frame and the bytes
/// pushed after it.
#[derive(Debug)]
pub struct Decoder<T> {
    pending: Vec<u8>,
    consumed: usize,
    skipped: u64,
    message: PhantomData<fn() -> T>,
}

impl<T> Default for Decoder<T> {
    fn default() -> Self {
        Self { pending: Vec::new(), consumed: 0, skipped: 0, message: PhantomData }
    }
}

impl<T: DeserializeOwned> Decoder<T> {
    /// Adds bytes that were read. Read more only when [`Self::next`] returns nothing.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.consumed > 0 {
            self.pending.drain(..self.consumed);
            self.consumed = 0;
        }
        self.pending.extend_from_slice(bytes);
    }

    /// The next complete message. Messages of an unknown kind are skipped and counted.
    #[expect(clippy::should_implement_trait, reason = "an iterator would have to go on after an error")]
    pub fn next(&mut self) -> Result<Option<T>, FrameError> {
        loop {
            let Some((head, rest)) = self.pending[self.consumed..].split_first_chunk::<4>() else { return Ok(None) };
            let bytes = u32::from_le_bytes(*head) as usize;
            if bytes > FRAME_BYTES_MAX {
                return Err(FrameError::TooLarge { bytes });
            }
            let Some(body) = rest.get(..bytes) else { return Ok(None) };
            let outcome = rmp_serde::from_slice::<T>(body);
            let unknown = outcome.is_err() && is_unknown_kind::<T>(body);
            self.consumed += 4 + bytes;
            if self.consumed == self.pending.len() {
                // A shim with little memory must not keep the buffer of a fence of many megabytes.
                self.pending = Vec::new();
                self.consumed = 0;
            }
            match outcome {
                Ok(message) => return Ok(Some(message)),
                Err(_) if unknown => self.skipped += 1,
                Err(source) => return Err(FrameError::Malformed { bytes, source }),
            }
        }
    }

    /// How many messages of unknown kinds were skipped.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

/// Whether `body` is a well-formed message (a text, or a map with one text key) of a kind that `T` lacks.
fn is_unknown_kind<T: DeserializeOwned>(body: &[u8]) -> bool {
    let mut known = Variants(&[]);
    let _ = T::deserialize(&mut known);
    rmp_serde::from_slice::<Kind>(body).is_ok_and(|kind| !known.0.contains(&kind.0.as_str()))
}

/// The name of a message's kind; its contents are ignored.
struct Kind(String);

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KindVisitor;
        impl<'de> Visitor<'de> for KindVisitor {
            type Value = Kind;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a message")
            }

            fn visit_str<E>(self, kind: &str) -> Result<Kind, E> {
                Ok(Kind(kind.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kind, A::Error> {
                let Some((kind, _)) = map.next_entry::<String, IgnoredAny>()? else {
                    return Err(serde::de::Error::custom("an empty map is no message"));
                };
                match map.next_entry::<IgnoredAny, IgnoredAny>()? {
                    None => Ok(Kind(kind)),
                    Some(_) => Err(serde::de::Error::custom("a map of several entries is no message")),
                }
            }
        }
        deserializer.deserialize_any(KindVisitor)
    }
}

/// Collects the names of an enum's variants: the enum passes them to its deserializer.
struct Variants(&'static [&'static str]);

impl<'de> Deserializer<'de> for &mut Variants {
    type Error = value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(serde::de::Error::custom("only asked for its variants"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0 = variants;
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FromShim, StopReason, ToShim};
    use super::*;

    #[derive(Serialize)]
    enum Later {
        Quit,
        Teleport { to: String },
        Hum,
    }

    fn messages() -> Vec<ToShim> {
        vec![
            ToShim::Hello { protocol: 1 },
            ToShim::Go { walltime_ms: 5 },
            ToShim::StartScript { text: "#!/bin/sh\n".into(), args: vec!["a".into()], env: vec![], working_dir: "/".into() },
            ToShim::Stop { why: StopReason::Requested, grace_ms: 30_000 },
            ToShim::Quit,
        ]
    }

    #[test]
    fn messages_come_whole_out_of_any_fragments() {
        let stream: Vec<u8> = messages().iter().flat_map(|m| encode(m).unwrap()).collect();
        for size in [1, 2, 3, 7, 64, stream.len()] {
            let mut decoder = Decoder::<ToShim>::default();
            let mut got = Vec::new();
            for fragment in stream.chunks(size) {
                decoder.push(fragment);
                while let Some(message) = decoder.next().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, messages(), "in fragments of {size}");
            assert!(decoder.pending.is_empty());
        }
    }

    #[test]
    fn a_message_of_an_unknown_kind_is_skipped_and_counted() {
        let mut decoder = Decoder::<ToShim>::default();
        for message in [Later::Teleport { to: "Mars".into() }, Later::Hum, Later::Quit] {
            decoder.push(&encode(&message).unwrap());
        }
        assert_eq!(decoder.next().unwrap(), Some(ToShim::Quit));
        assert_eq!(decoder.next().unwrap(), None);
        assert_eq!(decoder.skipped(), 2);
    }

    #[test]
    fn hostile_bytes_are_refused_and_never_panic() {
        let mut decoder = Decoder::<ToShim>::default();
        decoder.push(&u32::MAX.to_le_bytes());
        assert!(matches!(decoder.next(), Err(FrameError::TooLarge { .. })));
        // Known kinds with a wrong shape, data that is not a message, and every damaged byte of real messages.
        for body in [
            &b""[..],
            b"\xc1",
            b"\x80",
            b"\x81\xa2Go\xc0",
            b"\x82\xa1a\xc0\xa1b\xc0",
            b"\x05",
            b"\xdf\xff\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff",
        ] {
            let mut decoder = Decoder::<ToShim>::default();
            decoder.push(&u32::try_from(body.len()).unwrap().to_le_bytes());
            decoder.push(body);
            assert!(matches!(decoder.next(), Err(FrameError::Malformed { .. })), "{body:x?}");
        }
        for message in messages() {
            let good = encode(&message).unwrap();
            for at in 4..good.len() {
                for value in [0, 0x7f, 0x80, 0xc1, 0xd9, 0xdf, 0xff] {
                    let mut bad = good.clone();
                    bad[at] = value;
                    let mut decoder = Decoder::<ToShim>::default();
                    decoder.push(&bad);
                    let _ = decoder.next();
                }
            }
        }
    }

    #[test]
    fn a_message_that_is_too_large_is_not_encoded() {
        let blob = vec![7; FRAME_BYTES_MAX];
        let launch = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
        assert!(matches!(encode(&FromShim::Fence { launch, number: 1, blob }), Err(FrameError::TooLarge { .. })));
    }
}
