use super::*;

/// The features of each node, and the rest as an expression.
fn read(text: &str) -> (String, String) {
    let Expression { features, choice } = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let shown = choice.map(|choice| {
        choice.validate().unwrap();
        let shown = choice.to_string();
        assert_eq!(parse(&shown).unwrap().choice, Some(choice), "{shown}");
        shown
    });
    (features.into_iter().collect::<Vec<_>>().join(" "), shown.unwrap_or_default())
}

#[test]
fn expressions_are_brought_into_one_form() {
    for (text, features, rest) in [
        ("", "", ""),
        ("a", "a", ""),
        (" a & b,c ", "a b c", ""),
        ("gpu_type:GH200&a", "a gpu_type=GH200", ""),
        ("a|b", "", "a|b"),
        ("a&b|c", "", "(a&b)|c"),
        ("(a|b)&c", "", "(a&c)|(b&c)"),
        ("a|(b&c)|a", "", "a|(b&c)"),
        ("(a|b)&(c|d)", "", "(a&c)|(a&d)|(b&c)|(b&d)"),
        ("a|gpu_type=NVIDIA GH200", "", "a|gpu_type=NVIDIA GH200"),
        ("[a|b|c]", "", "[a|b|c]"),
        ("[a|b]&c", "c", "[a|b]"),
        ("[a|b]&(c|d)", "", "(c|d)&[a|b]"),
        ("[a|b]&[c|d]", "", "[(a&c)|(a&d)|(b&c)|(b&d)]"),
        ("[a&b]", "a b", ""),
        ("a*2&b*4", "", "[a*2&b*4]"),
        ("[a*2&b*4]", "", "[a*2&b*4]"),
        ("[(a&b)*4&c*1]", "", "[(a&b)*4&c*1]"),
        ("x&a*2", "x", "[a*2]"),
        ("(c|d)&a*2", "", "(c|d)&[a*2]"),
    ] {
        assert_eq!(read(text), (features.to_owned(), rest.to_owned()), "{text}");
    }
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let many = (0..=ALTERNATIVES_MAX).map(|n| format!("f{n}")).collect::<Vec<_>>().join("|");
    let deep = "(".repeat(DEPTH_MAX + 1);
    for (text, error) in [
        ("a&", "at character 3: a feature such as nvme_scratch is expected"),
        ("a&&b", "at character 3: '&' is not expected: join features with & or |"),
        ("(a|b", "at character 1: this '(' is never closed"),
        ("a)", "at character 2: ')' is not expected: join features with & or |"),
        ("(a]", "at character 3: ']' is not expected: join features with & or |"),
        ("a|b&c", "at character 4: & after | can mean two things: write a|(b&c), or (a|b)&c"),
        ("a&!b", "at character 3: ! is not supported: name the features that are wanted, and leave nodes out with --exclude"),
        ("ä|b", "at character 1: \"ä\" is not a feature: give a word such as nvme_scratch, or gpu_type=GH200"),
        (
            "a|memory_gb>=512",
            "at character 3: memory_gb>=512 is not a feature: join it with & or a comma to the whole, as in '(a|b)&memory_gb>=512'",
        ),
        (
            "(a|prefer_same_numa)",
            "at character 4: prefer_same_numa is not a feature: join it with & or a comma to the whole, as in '(a|b)&memory_gb>=512'",
        ),
        ("a|gpu_type", "at character 3: \"gpu_type\" is not a feature: give a word such as nvme_scratch, or gpu_type=GH200"),
        ("a*x", "at character 3: a number of nodes is expected after *, as in a*2"),
        ("a*0", "at character 3: a number of nodes is expected after *, as in a*2"),
        ("(a|b)*2", "at character 1: only a feature, or features in parentheses with & between them, can have a number of nodes"),
        ("a*2*3", "at character 1: only a feature, or features in parentheses with & between them, can have a number of nodes"),
        ("a*2|b", "at character 4: a part with a number of nodes cannot be an alternative: join it with &, as in a*2&b*4"),
        ("[a|b]|c", "at character 6: [...] cannot be an alternative or inside of another [...]: join it with &, as in [a|b]&c"),
        ("[[a|b]&c]", "at character 1: [...] cannot be an alternative or inside of another [...]: join it with &, as in [a|b]&c"),
        ("[a|b]&c*2", "at character 6: numbers of nodes and [a|b] are not possible together: give one of them"),
        (many.as_str(), "at character 118: more than 32 alternatives; parentheses multiply them"),
        (deep.as_str(), "at character 9: more than 8 parentheses inside of each other"),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), error, "{text}");
    }
    assert_eq!(parse(&"a".repeat(EXPRESSION_BYTES_MAX + 1)).unwrap_err().problem, Problem::TooLong);
}

#[test]
fn a_multiplied_out_expression_may_be_as_long_as_a_written_one() {
    let of = |each: &str, count: usize| (0..count).map(|n| format!("{each}{n}")).collect::<Vec<_>>();
    // 32 alternatives, each with 20 features: more than 4096 bytes.
    let long = format!("({})&{}", of("f", 32).join("|"), of("longfeature", 20).join("&"));
    assert_eq!(parse(&long).unwrap_err().problem, Problem::TooLongMultiplied);
    let squared = format!("({0})&({0})", of("f", 32).join("|"));
    assert_eq!(parse(&squared).unwrap_err().problem, Problem::TooMany);
    let all = parse(&of("f", 33).join("&")).unwrap_err();
    assert_eq!((all.at, all.problem), (118, Problem::TooManyFeatures));
}

#[test]
fn blanks_and_empty_parts_are_read_in_characters() {
    assert_eq!(read(" ( a | b )  "), (String::new(), "a|b".to_owned()));
    // A blank of three bytes.
    assert_eq!(read("\u{2003}a\u{2003}&\u{2003}b"), ("a b".to_owned(), String::new()));
    for (text, at) in [("\u{2003}a&", 4), ("()", 2), ("[]", 2), ("a||b", 3), ("|a", 1), ("a*", 3), ("a*99999999999", 3), ("a&\u{2003}ä", 4)]
    {
        assert_eq!(parse(text).unwrap_err().at, at, "{text}");
    }
}
