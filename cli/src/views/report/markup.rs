//! HTML that is written so that text from the input cannot become a tag.
//!
//! Tags are string literals of this program ([`Markup::raw`] takes only `&'static str`); everything else is escaped
//! ([`Markup::text`]). All of it is one line: a line break in a text is written out.

use crate::views::words;

/// A piece of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Markup {
    html: String,
}

impl Markup {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Tags.
    pub(crate) fn raw(&mut self, html: &'static str) -> &mut Self {
        self.html.push_str(html);
        self
    }

    /// Text between tags, or inside of a quoted attribute.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        // Two number signs could begin a command to a CI system.
        self.html.push_str(&words::xml(text).replace("&#39;", "&apos;").replace('#', "&num;"));
        self
    }

    /// An element with a text: `open` is its first tag and `close` its last.
    pub(crate) fn element(&mut self, open: &'static str, text: &str, close: &'static str) -> &mut Self {
        self.raw(open).text(text).raw(close)
    }

    pub(crate) fn number(&mut self, number: usize) -> &mut Self {
        self.html.push_str(&number.to_string());
        self
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.html
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_never_a_tag_a_line_or_a_command() {
        let mut markup = Markup::new();
        markup.raw("<p title=\"").text("\"><script>'").raw("\">").text("a\n##[error]<&\u{202e}").raw("</p>");
        assert_eq!(
            markup.as_str(),
            "<p title=\"&quot;&gt;&lt;script&gt;&apos;\">a\\n&num;&num;[error]&lt;&amp;\\u{202e}</p>"
        );
    }
}
