//! The part of a generation's artifact that reconciling and extending need: the values of its endpoints, and its maps.
//!
//! Problem: every change begins with a comparison of the kernel and the record, and to read the artifact for it from the
//! kernel costs more than everything else of the comparison. Strategy: an agent keeps this part, under the digest of the
//! artifact. The entries of maps are shared with the content that the agent remembers anyway. Commands read the
//! artifact, which is the only source that they have.

use std::sync::{Arc, PoisonError};

use weir_artifact::layout::MapName;
use weir_artifact::map_image::MapImage;
use weir_artifact::{Artifact, NamedEndpoint};

use super::Runtime;
use crate::error::Error;
use crate::generation::LoadedGeneration;

/// The endpoints of an artifact, and its maps.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndpointTable {
    pub(crate) endpoints: Vec<NamedEndpoint>,
    pub(crate) maps: Arc<[MapImage]>,
}

/// The table of the last generation that was looked at, with the generation's digest.
pub(crate) type LatestTable = Option<(String, Arc<EndpointTable>)>;

impl From<&Artifact> for EndpointTable {
    fn from(artifact: &Artifact) -> Self {
        Self { endpoints: artifact.endpoints.clone(), maps: artifact.maps.clone().into() }
    }
}

impl EndpointTable {
    /// The image of a map.
    pub(crate) fn map(&self, name: MapName) -> Option<&MapImage> {
        self.maps.iter().find(|image| image.name == name)
    }
}

impl Runtime {
    /// The table of a generation, with the pods that came or left since its artifact was made. `given` is the artifact,
    /// if it is at hand.
    pub(crate) fn endpoint_table(
        &self,
        loaded: &LoadedGeneration,
        given: Option<&Artifact>,
    ) -> Result<Arc<EndpointTable>, Error> {
        let table = self.stored_table(loaded, given)?;
        let pods = &loaded.generation.pods;
        if pods.is_empty() {
            return Ok(table);
        }
        let mut table = EndpointTable::clone(&table);
        pods.apply(&mut table.endpoints);
        Ok(table.into())
    }

    /// The table of a generation's artifact.
    pub(crate) fn stored_table(
        &self,
        loaded: &LoadedGeneration,
        given: Option<&Artifact>,
    ) -> Result<Arc<EndpointTable>, Error> {
        let digest = &loaded.generation.digest;
        let latest = self.latest_table.as_ref().map(|latest| latest.lock().unwrap_or_else(PoisonError::into_inner));
        let known = latest.as_ref().and_then(|latest| latest.as_ref().filter(|(of, _)| of == digest));
        if let Some((_, table)) = known {
            return Ok(Arc::clone(table));
        }
        let table = match given {
            Some(artifact) => EndpointTable::from(artifact),
            None => EndpointTable::from(&self.stored_artifact(loaded)?),
        };
        let table = Arc::new(table);
        latest.into_iter().for_each(|mut latest| *latest = Some((digest.clone(), Arc::clone(&table))));
        Ok(table)
    }
}
