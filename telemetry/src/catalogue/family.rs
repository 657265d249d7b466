//! The definition of a metric.

use std::fmt;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only rises, until the process (or the allocation) restarts.
    Counter,
    /// It rises and falls.
    Gauge,
    /// Counts of values by range, with their sum.
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

/// Only base units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Bytes,
    BytesPerSecond,
    /// Busy processors: 1 is one whole processor.
    Cores,
    /// A number of things or events.
    Count,
    /// A fraction, 0 to 1.
    Ratio,
    /// The same, 0 to 100, where the requirement's name needs it.
    Percent,
    Watts,
    Joules,
    Celsius,
    Hertz,
    /// Seconds since 1970.
    Timestamp,
    /// 1 for true, 0 for false; or always 1, if the labels have the information.
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

/// The processes that export it.
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
    /// Samples give label values in this order.
    pub labels: &'static [&'static str],
    pub of: Of,
    /// The source of the values.
    pub source: &'static str,
    /// One sentence.
    pub help: &'static str,
}

/// The upper bounds of the ranges of all latency histograms, in seconds: from a tenth of a millisecond to half a
/// minute.
pub const LATENCY_SECONDS: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Declares metrics, and the list of them.
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
        /// All metrics of this part, in the order of the page.
        pub static ALL: &[&$crate::catalogue::Family] = &[$(&$id),*];
    };
}
pub(crate) use families;
