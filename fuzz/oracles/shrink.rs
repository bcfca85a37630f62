//! A smaller case that still fails.

use weir_objects::k8s::Object;

/// Removes objects as long as `fails` still returns a failure; returns the remaining objects and their failure.
pub fn smallest(mut objects: Vec<Object>, fails: impl Fn(&[Object]) -> Option<String>) -> (Vec<Object>, String) {
    let mut index = 0;
    while index < objects.len() {
        let mut fewer = objects.clone();
        fewer.remove(index);
        match fails(&fewer) {
            Some(_) => objects = fewer,
            None => index += 1,
        }
    }
    let text = fails(&objects).unwrap_or_default();
    (objects, text)
}

/// A failing case as text: what differs, then the objects, one a line.
pub fn report(text: &str, objects: &[Object]) -> String {
    let objects: Vec<String> = objects.iter().map(|it| format!("{it:?}")).collect();
    format!("{text}\n\n{}\n", objects.join("\n"))
}
