//! Decodes MessagePack with field names, as [`super::to_bytes`] writes it.
//!
//! rmp-serde's own decoder ignores which kind of value a type expects: for each of a thousand types
//! the compiler generated code for all kinds, more than half of the code of the crates that decode
//! messages. This decoder reads the expected kind, by rmp's markers, from a `dyn Read`, so that a
//! type's code is generated once.

use rmp::Marker;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};
use std::fmt;
use std::io::{self, Read};
use thiserror::Error;

/// How many bytes of a text or of binary data are read at once: an announced length alone costs
/// nothing.
const PIECE_BYTES: usize = 64 * 1024;

/// Bytes that are not the encoding of the expected type.
#[derive(Debug, Error)]
pub enum DecodeError {
    /// The bytes end within a value, or cannot be read.
    #[error("the bytes cannot be read, or end within a value")]
    Read(#[source] io::Error),
    /// Another kind of value than the type has.
    #[error("{found:?} where {expected} was expected")]
    Kind {
        /// The first byte of the value.
        found: Marker,
        /// What the type has there.
        expected: &'static str,
    },
    /// A list or a map has more elements than the type.
    #[error("a list or map of {left} elements too many")]
    Length {
        /// How many.
        left: u32,
    },
    /// Values are nested deeper than any of ours.
    #[error("values are nested too deeply")]
    Depth,
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text(#[source] std::str::Utf8Error),
    /// The type refuses the value.
    #[error("{0}")]
    Value(String),
}

impl serde::de::Error for DecodeError {
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self::Value(why.to_string())
    }
}

/// A number, as it is encoded.
enum Number {
    Unsigned(u64),
    Signed(i64),
}

/// Reads one value after the other.
pub struct Decoder<'r> {
    input: &'r mut dyn Read,
    /// A marker that was read without its value.
    peeked: Option<Marker>,
    /// How many more levels of values may be nested.
    depth: usize,
    /// The last text or binary data.
    scratch: Vec<u8>,
}

impl<'r> Decoder<'r> {
    /// Decodes from `input`, values of at most `depth` levels.
    pub fn new(input: &'r mut dyn Read, depth: usize) -> Self {
        Self { input, peeked: None, depth, scratch: Vec::new() }
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes).map_err(DecodeError::Read)?;
        Ok(bytes)
    }

    fn marker(&mut self) -> Result<Marker, DecodeError> {
        match self.peeked.take() {
            Some(marker) => Ok(marker),
            None => self.bytes::<1>().map(|[byte]| Marker::from_u8(byte)),
        }
    }

    fn peek(&mut self) -> Result<Marker, DecodeError> {
        let marker = self.marker()?;
        self.peeked = Some(marker);
        Ok(marker)
    }

    fn length_1(&mut self) -> Result<u32, DecodeError> {
        self.bytes::<1>().map(|[byte]| byte.into())
    }

    fn length_2(&mut self) -> Result<u32, DecodeError> {
        self.bytes().map(|bytes| u16::from_be_bytes(bytes).into())
    }

    fn length_4(&mut self) -> Result<u32, DecodeError> {
        self.bytes().map(u32::from_be_bytes)
    }

    fn number(&mut self, marker: Marker) -> Result<Number, DecodeError> {
        Ok(match marker {
            Marker::FixPos(value) => Number::Unsigned(value.into()),
            Marker::U8 => Number::Unsigned(self.length_1()?.into()),
            Marker::U16 => Number::Unsigned(self.length_2()?.into()),
            Marker::U32 => Number::Unsigned(self.length_4()?.into()),
            Marker::U64 => Number::Unsigned(u64::from_be_bytes(self.bytes()?)),
            Marker::FixNeg(value) => Number::Signed(value.into()),
            Marker::I8 => Number::Signed(i8::from_be_bytes(self.bytes()?).into()),
            Marker::I16 => Number::Signed(i16::from_be_bytes(self.bytes()?).into()),
            Marker::I32 => Number::Signed(i32::from_be_bytes(self.bytes()?).into()),
            Marker::I64 => Number::Signed(i64::from_be_bytes(self.bytes()?)),
            found => return Err(DecodeError::Kind { found, expected: "a number" }),
        })
    }

    fn float(&mut self, marker: Marker) -> Result<Option<f64>, DecodeError> {
        Ok(match marker {
            Marker::F32 => Some(f32::from_be_bytes(self.bytes()?).into()),
            Marker::F64 => Some(f64::from_be_bytes(self.bytes()?)),
            _ => None,
        })
    }

    fn truth(&mut self, marker: Marker) -> Result<bool, DecodeError> {
        match marker {
            Marker::True => Ok(true),
            Marker::False => Ok(false),
            found => Err(DecodeError::Kind { found, expected: "true or false" }),
        }
    }

    /// The length of a text or of binary data.
    fn data_length(&mut self, marker: Marker) -> Result<usize, DecodeError> {
        let length = match marker {
            Marker::FixStr(length) => length.into(),
            Marker::Str8 | Marker::Bin8 => self.length_1()?,
            Marker::Str16 | Marker::Bin16 => self.length_2()?,
            Marker::Str32 | Marker::Bin32 => self.length_4()?,
            found => return Err(DecodeError::Kind { found, expected: "a text or bytes" }),
        };
        usize::try_from(length).map_err(DecodeError::custom)
    }

    /// Reads data into the scratch buffer.
    fn data(&mut self, marker: Marker) -> Result<(), DecodeError> {
        let length = self.data_length(marker)?;
        self.scratch.clear();
        while self.scratch.len() < length {
            let begin = self.scratch.len();
            self.scratch.resize(length.min(begin + PIECE_BYTES), 0);
            self.input.read_exact(&mut self.scratch[begin..]).map_err(DecodeError::Read)?;
        }
        Ok(())
    }

    fn text(&mut self, marker: Marker) -> Result<&str, DecodeError> {
        if !is_text(marker) {
            return Err(DecodeError::Kind { found: marker, expected: "a text" });
        }
        self.data(marker)?;
        std::str::from_utf8(&self.scratch).map_err(DecodeError::Text)
    }

    fn list_length(&mut self, marker: Marker) -> Result<u32, DecodeError> {
        match marker {
            Marker::FixArray(length) => Ok(length.into()),
            Marker::Array16 => self.length_2(),
            Marker::Array32 => self.length_4(),
            found => Err(DecodeError::Kind { found, expected: "a list" }),
        }
    }

    fn map_length(&mut self, marker: Marker) -> Result<u32, DecodeError> {
        match marker {
            Marker::FixMap(length) => Ok(length.into()),
            Marker::Map16 => self.length_2(),
            Marker::Map32 => self.length_4(),
            found => Err(DecodeError::Kind { found, expected: "a map" }),
        }
    }

    fn enter(&mut self) -> Result<(), DecodeError> {
        self.depth = self.depth.checked_sub(1).ok_or(DecodeError::Depth)?;
        Ok(())
    }

    /// Ends a list or map with this many unread elements.
    fn leave(&mut self, left: u32) -> Result<(), DecodeError> {
        self.depth += 1;
        if left == 0 { Ok(()) } else { Err(DecodeError::Length { left }) }
    }

    /// Skips one value.
    fn skip(&mut self) -> Result<(), DecodeError> {
        let marker = self.marker()?;
        let values = match marker {
            Marker::Null | Marker::True | Marker::False => 0,
            Marker::F32 | Marker::F64 => self.float(marker).map(|_| 0)?,
            _ if is_text(marker) || is_binary(marker) => self.data(marker).map(|()| 0)?,
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => self.list_length(marker)?.into(),
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => 2 * u64::from(self.map_length(marker)?),
            _ => self.number(marker).map(|_| 0)?,
        };
        if values > 0 {
            self.enter()?;
            for _ in 0..values {
                self.skip()?;
            }
            self.leave(0)?;
        }
        Ok(())
    }
}

fn is_text(marker: Marker) -> bool {
    matches!(marker, Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32)
}

fn is_binary(marker: Marker) -> bool {
    matches!(marker, Marker::Bin8 | Marker::Bin16 | Marker::Bin32)
}

macro_rules! numbers {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            let marker = self.marker()?;
            match self.number(marker)? {
                Number::Unsigned(value) => visitor.visit_u64(value),
                Number::Signed(value) => visitor.visit_i64(value),
            }
        })*
    };
}

macro_rules! texts {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            let marker = self.marker()?;
            visitor.visit_str(self.text(marker)?)
        })*
    };
}

macro_rules! floats {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            let marker = self.marker()?;
            match self.float(marker)? {
                Some(value) => visitor.visit_f64(value),
                None => Err(DecodeError::Kind { found: marker, expected: "a number with a fraction" }),
            }
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Decoder<'_> {
    type Error = DecodeError;

    numbers! { deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 }
    texts! { deserialize_char deserialize_str deserialize_string deserialize_identifier }
    floats! { deserialize_f32 deserialize_f64 }

    fn is_human_readable(&self) -> bool {
        false
    }

    /// For the few types that do not say what they expect.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.peek()? {
            Marker::Null => self.deserialize_unit(visitor),
            Marker::True | Marker::False => self.deserialize_bool(visitor),
            Marker::F32 | Marker::F64 => self.deserialize_f64(visitor),
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => self.deserialize_seq(visitor),
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => self.deserialize_map(visitor),
            marker if is_text(marker) => self.deserialize_str(visitor),
            marker if is_binary(marker) => self.deserialize_bytes(visitor),
            _ => self.deserialize_u64(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let marker = self.marker()?;
        visitor.visit_bool(self.truth(marker)?)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let marker = self.marker()?;
        self.data(marker)?;
        visitor.visit_bytes(&self.scratch)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        if self.peek()? == Marker::Null {
            self.peeked = None;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.marker()? {
            Marker::Null | Marker::FixArray(0) => visitor.visit_unit(),
            found => Err(DecodeError::Kind { found, expected: "nothing" }),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let marker = self.marker()?;
        let mut left = self.list_length(marker)?;
        self.enter()?;
        let value = visitor.visit_seq(Elements { decoder: self, left: &mut left })?;
        self.leave(left)?;
        Ok(value)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _length: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(self, _name: &'static str, _length: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let marker = self.marker()?;
        let mut left = self.map_length(marker)?;
        self.enter()?;
        let value = visitor.visit_map(Elements { decoder: self, left: &mut left })?;
        self.leave(left)?;
        Ok(value)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_map(visitor)
    }

    /// A variant without a value is its name; one with a value is a map of the name to the value.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let marker = self.marker()?;
        if is_text(marker) {
            let name = self.text(marker)?;
            return visitor.visit_enum(name.into_deserializer());
        }
        match self.map_length(marker)? {
            1 => {}
            left => return Err(DecodeError::Length { left }),
        }
        self.enter()?;
        let value = visitor.visit_enum(Variant { decoder: self })?;
        self.leave(0)?;
        Ok(value)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.skip()?;
        visitor.visit_unit()
    }
}

/// The elements of a list or map.
struct Elements<'a, 'r> {
    decoder: &'a mut Decoder<'r>,
    left: &'a mut u32,
}

impl<'de> SeqAccess<'de> for Elements<'_, '_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        if *self.left == 0 {
            return Ok(None);
        }
        *self.left -= 1;
        seed.deserialize(&mut *self.decoder).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        usize::try_from(*self.left).ok()
    }
}

impl<'de> MapAccess<'de> for Elements<'_, '_> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        seed.deserialize(&mut *self.decoder)
    }

    fn size_hint(&self) -> Option<usize> {
        usize::try_from(*self.left).ok()
    }
}

/// A variant with a value.
struct Variant<'a, 'r> {
    decoder: &'a mut Decoder<'r>,
}

impl<'de> EnumAccess<'de> for Variant<'_, '_> {
    type Error = DecodeError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), DecodeError> {
        Ok((seed.deserialize(&mut *self.decoder)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, '_> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        Err(DecodeError::invalid_type(Unexpected::Map, &"a variant without a value"))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, DecodeError> {
        seed.deserialize(self.decoder)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _length: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.decoder.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _fields: &'static [&'static str], visitor: V) -> Result<V::Value, DecodeError> {
        self.decoder.deserialize_map(visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{from_bytes, to_bytes};
    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};
    use std::collections::BTreeMap;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    enum Shape {
        Nothing,
        One(Option<i64>),
        Two(u8, String),
        Named { list: Vec<Shape>, map: BTreeMap<String, u32> },
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Unit;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Everything {
        unit: Unit,
        flag: bool,
        number: i32,
        fraction: f64,
        small_fraction: f32,
        letter: char,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        array: [u8; 3],
        id: uuid::Uuid,
        pair: (u16, Option<String>),
        wait: std::time::Duration,
        address: std::net::IpAddr,
        shape: Shape,
    }

    fn shapes() -> impl Strategy<Value = Shape> {
        let leaf = prop_oneof![
            Just(Shape::Nothing),
            any::<Option<i64>>().prop_map(Shape::One),
            (any::<u8>(), ".{0,40}").prop_map(|(number, text)| Shape::Two(number, text)),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            let maps = proptest::collection::btree_map("[a-z]{1,3}", any::<u32>(), 0..20);
            (proptest::collection::vec(inner, 0..20), maps).prop_map(|(list, map)| Shape::Named { list, map })
        })
    }

    fn everything() -> impl Strategy<Value = Everything> {
        let numbers = (any::<bool>(), any::<i32>(), any::<f64>().prop_filter("equals itself", |f| !f.is_nan()), -1e6_f32..1e6);
        let data = (any::<char>(), proptest::collection::vec(any::<u8>(), 0..400), any::<[u8; 3]>(), any::<u128>());
        let rest = (any::<(u16, Option<String>)>(), any::<u32>(), any::<[u8; 16]>(), shapes());
        (numbers, data, rest).prop_map(
            |((flag, number, fraction, small_fraction), (letter, bytes, array, id), (pair, wait, address, shape))| {
                let (id, wait) = (uuid::Uuid::from_u128(id), std::time::Duration::from_micros(wait.into()));
                Everything {
                    unit: Unit,
                    flag,
                    number,
                    fraction,
                    small_fraction,
                    letter,
                    bytes,
                    array,
                    id,
                    pair,
                    wait,
                    address: address.into(),
                    shape,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn every_value_is_decoded_as_it_was_encoded(value in everything()) {
            let bytes = to_bytes(&value).unwrap();
            prop_assert_eq!(&from_bytes::<Everything>(&bytes).unwrap(), &value);
            // An unknown field is skipped, whatever it holds.
            #[derive(Deserialize)]
            struct Number { number: i32 }
            prop_assert_eq!(from_bytes::<Number>(&bytes).unwrap().number, value.number);
        }

        /// rmp-serde accepts all accepted bytes too, with the same value.
        #[test]
        fn damaged_bytes_give_no_other_value_than_rmp_serde_gives(value in shapes(), place in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = to_bytes(&value).unwrap();
            let place = place.index(bytes.len());
            bytes[place] = byte;
            if let Ok(decoded) = from_bytes::<Shape>(&bytes) {
                prop_assert_eq!(rmp_serde::from_slice::<Shape>(&bytes).unwrap(), decoded);
            }
            prop_assert!(from_bytes::<Shape>(&bytes[..place]).is_err(), "cut short");
        }
    }

    fn refusal<T: for<'de> Deserialize<'de> + std::fmt::Debug>(bytes: &[u8]) -> String {
        lattice_model::with_causes(&from_bytes::<T>(bytes).unwrap_err())
    }

    #[test]
    fn values_that_do_not_fit_the_type_are_refused_in_words() {
        assert_eq!(refusal::<u8>(&[0xcd, 1, 0]), "a message cannot be decoded: invalid value: integer `256`, expected u8");
        assert_eq!(refusal::<String>(&[0xc3]), "a message cannot be decoded: True where a text was expected");
        assert_eq!(refusal::<(u8, u8)>(&[0x93, 1, 2, 3]), "a message cannot be decoded: a list or map of 1 elements too many");
        assert!(refusal::<Shape>(&[0xa3, b'X', b'Y', b'Z']).contains("unknown variant `XYZ`"));
        assert!(refusal::<Shape>(&[0x81, 0xa7, b'N', b'o', b't', b'h', b'i', b'n', b'g', 1]).contains("without a value"));
        assert!(refusal::<String>(&[0xa1, 0xff]).contains("not UTF-8"));
    }

    #[test]
    fn an_announced_length_costs_nothing_and_nesting_is_bounded() {
        assert!(refusal::<String>(&[0xdb, 0xff, 0xff, 0xff, 0xff]).contains("end within a value"));
        assert!(refusal::<Vec<u64>>(&[0xdd, 0xff, 0xff, 0xff, 0xff]).contains("end within a value"));
        #[derive(Debug, Deserialize)]
        struct Nest(#[expect(dead_code, reason = "only its depth matters")] Vec<Nest>);
        assert!(refusal::<Nest>(&[0x91; 4096]).contains("nested too deeply"));
        let unknown = [[0x81, 0xa1, b'x'].as_slice(), &[0x91; 4096]].concat();
        #[derive(Debug, Deserialize)]
        struct Empty {}
        assert!(refusal::<Empty>(&unknown).contains("nested too deeply"));
    }
}
