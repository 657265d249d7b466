//! Values in a file of steps.

use lattice_model::config::Spanned;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// An option, or what a step runs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: u64,
    pub(super) value: Value,
}

/// A value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Nothing,
    Flag(bool),
    /// A whole number in decimal digits, however it was written.
    Number(String),
    Text(String),
    List(Vec<Value>),
    Pairs(Vec<(String, String)>),
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, true, false, or a list of these")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Nothing)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Nothing)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Flag(flag))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.to_string()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.to_string()))
    }

    // Its digits would not be those that were written.
    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Err(E::custom(format!("{number} is read as a number with a fraction: write it in quotes")))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Value::Pairs(pairs))
    }
}

/// A value that may have parts with lines of their own, such as `resources: {nodes: 4}`.
#[derive(Debug)]
pub(super) enum Node {
    Value(Value),
    /// Names with values.
    Parts(Vec<Part>),
    /// A list; its items have no keys.
    Items(Vec<Part>),
}

/// A part of a [`Node`].
#[derive(Debug)]
pub(super) struct Part {
    pub(super) key: String,
    pub(super) line: u64,
    pub(super) node: Node,
}

impl Part {
    fn new(key: String, spanned: Spanned<Node>) -> Self {
        Self { key, line: spanned.referenced.line(), node: spanned.value }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, true, false, a list, or names with values")
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        ValueVisitor.visit_unit().map(Node::Value)
    }

    fn visit_none<E: Error>(self) -> Result<Node, E> {
        ValueVisitor.visit_none().map(Node::Value)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Node, E> {
        ValueVisitor.visit_bool(flag).map(Node::Value)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Node, E> {
        ValueVisitor.visit_i64(number).map(Node::Value)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Node, E> {
        ValueVisitor.visit_u64(number).map(Node::Value)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Node, E> {
        ValueVisitor.visit_f64(number).map(Node::Value)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Node, E> {
        ValueVisitor.visit_str(text).map(Node::Value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut parts = Vec::new();
        while let Some(item) = items.next_element()? {
            parts.push(Part::new(String::new(), item));
        }
        Ok(Node::Items(parts))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut parts = Vec::new();
        while let Some(key) = map.next_key()? {
            parts.push(Part::new(key, map.next_value()?));
        }
        Ok(Node::Parts(parts))
    }
}
