//! The HTML report.
use crate::read::Read;
use anyhow::Result;
use weir_compiler::reach::Reach;
pub(crate) fn page(_: &Read, _: &Reach<'_>, _: Option<()>) -> Result<String> {
    Ok(String::new())
}
