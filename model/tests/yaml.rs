//! Values written as YAML are read back unchanged, whatever their strings look like.

use lattice_model::config::write;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use serde_json::Value;

fn texts() -> impl Strategy<Value = String> {
    // Strings that a parser might read as another type, besides arbitrary ones.
    let odd =
        ["", "~", "null", "no", "Yes", "on", "y", "0x1f", "1e3", "-", "- a", "? a", ": a", "a: b", "a #b", "#", "12:30:45", ".5", "1_000"];
    let more = [
        "2026-03-05",
        "2026-03-05T10:00:00.000Z",
        "'",
        "\"",
        "'a",
        "&a",
        "*a",
        "!a",
        "%a",
        "@a",
        "`a",
        "[a",
        "{a",
        "a\nb\n",
        " a",
        "a ",
        "---",
        "...",
    ];
    prop_oneof![
        proptest::sample::select([&odd[..], &more[..]].concat()).prop_map(str::to_owned),
        any::<String>(),
        "[ -~]{0,200}",
        "[a-z :#,\n\t-]{0,30}",
    ]
}

fn values() -> impl Strategy<Value = Value> {
    let leaves = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1.0e6..1.0e6f64).prop_map(Value::from),
        texts().prop_map(Value::from),
    ];
    leaves.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(texts(), inner, 0..5).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest::proptest! {
    #[test]
fn what_is_written_is_what_is_read(value in values()) {
        let text = write(&value).unwrap();
        let read: Value = lattice_model::config::parse("written", &text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        proptest::prop_assert_eq!(read, value, "{}", text);
    }
}
