//! The objects in an artifact have the same meaning as the objects that it was compiled from.

use weir_analysis::diff::compare;
use weir_artifact::objects;
use weir_model::resolve::resolve;
use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};

use crate::{for_each_cluster, resolved};

#[test]
fn objects_that_are_written_are_read_as_they_were() {
    let mut rules = 0;
    for_each_cluster(150, |written, assume, _| {
        let input = Input { name: "x".to_owned(), bytes: objects(&written).into_bytes(), kind: InputKind::Manifest };
        let (decoded, found) =
            decode(vec![input], &DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false });
        assert!(!found.has_errors(), "{found:#?}");
        assert_eq!(decoded.objects.len(), written.len());
        let (before, after) = (resolved(&written, assume), resolve(&decoded.objects, assume).0);
        rules += before.policies.len();
        assert_eq!(before.endpoints.len(), after.endpoints.len());
        let diff = compare(&before, &after).expect("comparable");
        assert!(diff.rows.is_empty() && diff.isolation.is_empty(), "{:?}", diff.rows);
        let differs = diff.endpoints.iter().any(|it| it.ids.iter().any(Option::is_none));
        assert!(!differs);
    });
    assert!(rules > 300, "only {rules} policies");
}
