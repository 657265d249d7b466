//! What a metric is.

use std::fmt;

/// What kind of number it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only rises, until the process (or the allocation) begins anew.
    Counter,
    /// It rises and falls.
    Gauge,
    /// How often values were in which range, with their sum.
    Histogram,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// Base units alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Bytes,
    BytesPerSecond,
    /// Processors that are busy: 1 is one whole one.
    Cores,
    /// How many there are, or how often it happened.
    Count,
    /// A part of a whole, 0 to 1.
    Ratio,
    /// The same, 0 to 100, where the documents' name requires it.
    Percent,
    Watts,
    Joules,
    Celsius,
    Hertz,
    /// Seconds since 1970.
    Timestamp,
    /// 1 where it is so, 0 where it is not; or always 1, if the labels have the information.
    Truth,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Seconds => "seconds",
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "bytes/s",
            Self::Cores => "cores",
            Self::Count => "count",
            Self::Ratio => "0 to 1",
            Self::Percent => "0 to 100",
            Self::Watts => "watts",
            Self::Joules => "joules",
            Self::Celsius => "°C",
            Self::Hertz => "hertz",
            Self::Timestamp => "seconds since 1970",
            Self::Truth => "0 or 1",
        })
    }
}

/// Which processes have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Agent,
    Quorum,
    Both,
}

/// One metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    /// Their values are given in this order.
    pub labels: &'static [&'static str],
    pub of: Of,
    /// Where the numbers come from.
    pub source: &'static str,
    /// One sentence.
    pub help: &'static str,
}

/// The upper ends of the ranges of every histogram of latencies here, in seconds: from a tenth of a millisecond to half a minute.
pub const LATENCY_SECONDS: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Declares families, and the list of them.
macro_rules! families {
    ($($id:ident = $kind:ident $name:literal, $unit:ident, [$($label:literal),*], $of:ident, $source:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $id: $crate::catalogue::Family = $crate::catalogue::Family {
                name: $name,
                kind: $crate::catalogue::Kind::$kind,
                unit: $crate::catalogue::Unit::$unit,
                labels: &[$($label),*],
                of: $crate::catalogue::Of::$of,
                source: $source,
                help: $help,
            };
        )*
        /// All of this part, in the order of the page.
        pub static ALL: &[&$crate::catalogue::Family] = &[$(&$id),*];
    };
}
pub(crate) use families;
