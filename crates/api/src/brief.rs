//! What users wrote, as errors repeat it: enough of it to know it by, however long it is.

use std::borrow::Cow;

/// Characters that are repeated. The longest name of a resource has 63, the longest field of a spec about as many.
const CHARS_MAX: usize = 80;

/// The text, or its beginning and an ellipsis.
pub fn brief(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(CHARS_MAX) {
        None => Cow::Borrowed(text),
        Some(_) => Cow::Owned(text.chars().take(CHARS_MAX - 1).chain(['…']).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_is_cut_between_characters() {
        let longest = "ü".repeat(CHARS_MAX);
        assert_eq!(brief(&longest), longest);
        let cut = brief(&format!("{longest}ü")).into_owned();
        assert_eq!((cut.chars().count(), cut.ends_with("ü…")), (CHARS_MAX, true));
    }
}
