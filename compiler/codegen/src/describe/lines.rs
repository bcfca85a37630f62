//! The source lines of instructions, from the origins of rules.

use weir_artifact::{LineTable, SourceLine};
use weir_classes::Sources;
use weir_ebpf::asm::{Assembled, Tag};
use weir_model::Cluster;
use weir_objects::origin::{FieldOrigin, ObjectId};

/// The line of an object that came without a file: its name, and the field.
pub fn line_of_object(cluster: &Cluster, origin: &FieldOrigin) -> SourceLine {
    SourceLine::new(&object_name(cluster, origin.object), &origin.path.to_string(), 0)
}

/// `NetworkPolicy shop/web`
fn object_name(cluster: &Cluster, object: ObjectId) -> String {
    let name = |kind: &str, namespace: Option<weir_model::NamespaceId>, name: &str| {
        let namespace = namespace.map(|id| format!("{}/", cluster.namespaces[id.index()].name));
        format!("{kind} {}{name}", namespace.unwrap_or_default())
    };
    let policies = cluster
        .policies
        .iter()
        .chain(&cluster.audit)
        .map(|it| ("NetworkPolicy", it.object, Some(it.namespace), &it.name));
    let lists = cluster.lists.iter().map(|it| ("CidrList", it.object, None, &it.name));
    let services = cluster.services.iter().map(|it| ("Service", it.object, Some(it.namespace), &it.name));
    let nodes = cluster.nodes.iter().filter_map(|it| Some(("Node", it.object?, None, &it.name)));
    let mut all = policies.chain(lists).chain(services).chain(nodes);
    let found = all.find(|(_, it, _, _)| *it == object);
    found.map_or_else(|| object.to_string(), |(kind, _, namespace, its)| name(kind, namespace, its))
}

/// The lines of newly emitted programs, whose tags are 0 or a source's number plus one. Replaces these tags with
/// the table's.
pub fn line_table(
    programs: &mut [Assembled; 2],
    sources: &Sources,
    line: &mut dyn FnMut(&FieldOrigin) -> SourceLine,
) -> LineTable {
    let mut of_tag = |tag: Tag| {
        let source = (tag.0 as usize).checked_sub(1).and_then(|source| sources.origins.get(source));
        Some(source.map_or_else(SourceLine::datapath, &mut *line))
    };
    let tags = programs.iter_mut().map(|program| &mut program.tags);
    LineTable::numbered(tags, &mut of_tag).unwrap_or_default()
}
