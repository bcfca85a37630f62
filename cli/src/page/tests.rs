use annotate_snippets::Level;

use super::*;

const HOSTILE: &str = "a\n::error::b\r\u{1b}[2J\u{202e}##[error]c";

#[test]
fn hostile_text_stays_on_its_line() {
    let mut page = OutputPage::new();
    page.line(format_args!("pod {HOSTILE}"));
    page.line("::error::x");
    assert_eq!(page.as_str(), "pod a\\n::error::b\\r\\u{1b}[2J\\u{202e}#\\u{23}[error]c\n\\u{3a}:error::x\n");
}

#[test]
fn only_the_page_colours() {
    let mut page = OutputPage::colored(true);
    page.pieces(&[(Style::Red, &"-"), (Style::Plain, &" \u{1b}[32mx")]);
    assert_eq!(page.as_str(), "\u{1b}[31m-\u{1b}[0m \\u{1b}[32mx\n");
}

#[test]
fn a_drawing_with_hidden_characters_is_escaped_without_colours() {
    let draw = |title: &str| {
        let mut page = OutputPage::colored(true);
        page.drawn(2, Group::with_title(Level::ERROR.primary_title(title.to_owned())));
        page.text
    };
    assert!(draw("plain").contains('\u{1b}'));
    let hostile = draw("a\u{1b}[2J\u{200b}");
    assert!(!hostile.contains(|it| it != '\n' && escape::is_hidden(it)), "{hostile:?}");
}
