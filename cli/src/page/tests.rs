use annotate_snippets::Level;

use super::*;

const HOSTILE: &str = "a\n::error::b\r\u{1b}[2J\u{202e}##[error]c";

#[test]
fn a_line_is_one_line_whatever_stands_in_it() {
    let mut page = Page::new();
    page.line(format_args!("pod {HOSTILE}"));
    page.line("::error::x");
    assert_eq!(page.as_str(), "pod a\\n::error::b\\r\\u{1b}[2J\\u{202e}#\\u{23}[error]c\n\\u{3a}:error::x\n");
}

#[test]
fn only_the_page_colours() {
    let mut page = Page::colored(true);
    page.pieces(&[(Style::Red, &"-"), (Style::Plain, &" \u{1b}[32mx")]);
    assert_eq!(page.as_str(), "\u{1b}[31m-\u{1b}[0m \\u{1b}[32mx\n");
}

#[test]
fn a_drawing_with_hidden_letters_loses_its_colours_and_not_the_escapes() {
    let draw = |title: &str| {
        let mut page = Page::colored(true);
        page.drawn(2, Group::with_title(Level::ERROR.primary_title(title.to_owned())));
        page.text
    };
    assert!(draw("plain").contains('\u{1b}'));
    let hostile = draw("a\u{1b}[2J\u{200b}");
    assert!(!hostile.contains(|it| it != '\n' && escape::is_hidden(it)), "{hostile:?}");
}
