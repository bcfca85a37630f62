//! Writes a table of the generation in force, for [`crate::runtime`]'s extension of a generation.

use weir_artifact::Artifact;
use weir_artifact::map_image::MapImage;

use super::written::{TableDifference, WrittenTable, WrittenTables};
use super::{LoadedGeneration, write};
use crate::error::{Doing as _, Error};
use crate::system::System;

/// Gives a table of the generation in force the content of an image, from which it has this difference. Entries are
/// removed after all others are written. After an error, its content is unknown.
pub(crate) fn extend(
    system: &System,
    loaded: &LoadedGeneration,
    (image, difference): (&MapImage, &TableDifference<'_>),
    artifact: &Artifact,
    tables: &WrittenTables,
) -> Result<(), Error> {
    let name = image.name.name();
    let there = loaded.map(image.name).zip(loaded.generation.maps.get(name));
    let (map, number) = there.ok_or_else(|| Error::NotSingle(name.to_owned()))?;
    tables.take(*number);
    write(system, map, image.name, &difference.written, artifact)?;
    for key in &difference.removed {
        system.delete(map, key).doing(format!("write the map {name}"))?;
    }
    tables.put(*number, WrittenTable::new(image.entries.clone()));
    Ok(())
}
