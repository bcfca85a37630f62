//! The objects in an artifact have the same meaning as the objects that it was compiled from.

use weir_analysis::diff::compare;
use weir_artifact::objects;
use weir_model::resolve::resolve;
use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};

use crate::{generated, resolved};

#[test]
fn objects_that_are_written_are_read_as_they_were() {
    let mut rules = 0;
    for seed in 0..150 {
        let (written, assume, _) = generated(seed);
        let input = Input { name: "x".to_owned(), bytes: objects(&written).into_bytes(), kind: InputKind::Manifest };
        let (decoded, found) = decode(vec![input], &DecodeOptions { default_namespace: "default".to_owned() });
        assert!(!found.has_errors(), "seed {seed}: {found:#?}");
        assert_eq!(decoded.objects.len(), written.len(), "seed {seed}");
        let (before, after) = (resolved(&written, assume), resolve(&decoded.objects, assume).0);
        rules += before.policies.len();
        assert_eq!(before.endpoints.len(), after.endpoints.len(), "seed {seed}");
        let diff = compare(&before, &after).expect("comparable");
        assert!(diff.rows.is_empty() && diff.isolation.is_empty(), "seed {seed}: {:?}", diff.rows);
        let differs = diff.endpoints.iter().any(|it| it.ids.iter().any(Option::is_none));
        assert!(!differs, "seed {seed}");
    }
    assert!(rules > 300, "only {rules} policies");
}
