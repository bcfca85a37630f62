//! A port name that no container can have.

use super::*;

/// Documentation of the finding.
pub static CODE: Code =
    Code::error("bad-port-name", include_str!("bad_port_name.diff")).what("A named port has an invalid name.").why(
        "The API server refuses it. In quotes, `\"80\"` is a name and not a number, and a name must contain a \
         letter.",
    );

/// The name has the wrong syntax.
pub(crate) fn at(origin: FieldOrigin, name: &str, why: &str) -> Diagnostic {
    let found = Diagnostic::at(&CODE, origin, format!("{} is not a valid port name: it {why}", quote(name)));
    match (name.parse::<u16>(), name.split_once('-')) {
        (Ok(number), _) => found.label("a string is a name").help(format!("remove the quotes: `{number}`")),
        (_, Some((first, last))) if first.parse::<u16>().is_ok() && last.parse::<u16>().is_ok() => {
            found.help(format!("write the range as `port: {first}` and `endPort: {last}`"))
        }
        _ => found.help("write the name of a container port, like `http`"),
    }
}
