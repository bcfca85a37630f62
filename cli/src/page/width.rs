//! The width of the output.

/// Narrower output would be one word a line.
const NARROWEST: usize = 40;

/// The columns of stdout: `COLUMNS` if it is set, or else the terminal's. Without both, lines are as long as their text:
/// programs that read lines must not depend on a width.
pub(crate) fn of_stdout() -> Option<usize> {
    let columns = std::env::var("COLUMNS").ok().and_then(|it| it.parse::<usize>().ok()).filter(|it| *it > 0);
    columns.or_else(of_terminal).map(|it| it.max(NARROWEST))
}

#[cfg(unix)]
fn of_terminal() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|it| *it > 0)
}

#[cfg(not(unix))]
fn of_terminal() -> Option<usize> {
    None
}
