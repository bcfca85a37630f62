//! Writes a table of the generation in force, for [`crate::runtime`]'s extension of a generation.

use weir_artifact::Artifact;
use weir_artifact::map_image::MapImage;

use super::written::{TableDifference, WrittenTable, WrittenTables};
use super::{LoadedGeneration, write};
use crate::error::{Doing as _, Error};
use crate::system::System;

/// Gives a table of the generation in force the content of an image, by the difference from its known content. Entries
/// are removed after all others are written. After an error, its content is unknown.
pub(crate) fn extend(
    system: &System,
    loaded: &LoadedGeneration,
    image: &MapImage,
    artifact: &Artifact,
    written: &WrittenTables,
) -> Result<(), Error> {
    let name = image.name.name();
    let Some((map, number)) = loaded.map(image.name).zip(loaded.generation.maps.get(name)) else { return Ok(()) };
    let table = written.take(*number).ok_or_else(|| Error::NotSingle(name.to_owned()))?;
    let TableDifference { removed, written: changed } = table.difference(&image.entries);
    write(system, map, image.name, &changed, artifact)?;
    for key in &removed {
        system.delete(map, key).doing(format!("write the map {name}"))?;
    }
    written.put(*number, WrittenTable::new(image.entries.clone()));
    Ok(())
}
