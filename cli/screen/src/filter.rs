//! Which rows are shown.

/// Words that a row must have, in upper or lower case.
#[derive(Debug, Default)]
pub struct Filter {
    words: Vec<String>,
}

impl Filter {
    /// The words of a typed text; an empty text matches everything.
    pub fn of(text: &str) -> Self {
        Self { words: text.split_whitespace().map(str::to_lowercase).collect() }
    }

    /// Whether each word is in one of the texts.
    pub fn matches<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> bool {
        if self.words.is_empty() {
            return true;
        }
        let texts: Vec<String> = texts.into_iter().map(str::to_lowercase).collect();
        self.words.iter().all(|word| texts.iter().any(|text| text.contains(word)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_must_be_somewhere() {
        let texts = ["Running", "ada", "n12"];
        let matches = |text: &str| Filter::of(text).matches(texts);
        assert!(matches("") && matches(" run ADA") && matches("n1"));
        assert!(!matches("ada bob") && !matches("n3"));
    }
}
