use super::*;

const POLICY: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: shop}
spec:
  podSelector: {}
  ingress:
  - from:
    - podSelector: {matchLabels: {app: db}}
";
const POD: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
status: {podIP: 10.0.0.1}
";

fn look(files: &[(&str, &str)]) -> Result<DirectoryLook, String> {
    look_at((1, 2), files)
}

fn look_at(directory: DirectoryId, files: &[(&str, &str)]) -> Result<DirectoryLook, String> {
    let content = |text: &str| FileContent::Bytes(text.as_bytes().to_vec());
    Ok(DirectoryLook {
        directory,
        files: files.iter().map(|(name, text)| ((*name).to_owned(), content(text))).collect(),
    })
}

/// The events of looks until nothing changes any more, in words.
fn settle(set: &mut FileSet, files: &[(&str, &str)]) -> Vec<String> {
    (0..4).flat_map(|_| set.update(look(files))).map(|event| words(&event)).collect()
}

fn words(event: &ApiEvent) -> String {
    match event {
        ApiEvent::Applied(object) => format!("+{}", in_words(&Key::of(object))),
        ApiEvent::Deleted(key) => format!("-{}", in_words(key)),
        ApiEvent::Malformed(it) => format!("!{}: {}", in_words(&it.key), it.message),
        ApiEvent::Listed { kind, names, order } => format!("={kind} {} {order}", names.names().len()),
        ApiEvent::Partial { .. } => "partial".to_owned(),
    }
}

/// A set that has listed a policy and a pod.
fn listed() -> FileSet {
    let mut set = FileSet::new("near".to_owned(), false);
    let events = settle(&mut set, &[("pod.yaml", POD), ("policy.yaml", POLICY)]);
    for event in ["+NetworkPolicy shop/deny", "+Pod shop/web", "+Namespace shop", "=Pod 1 0", "=NetworkPolicy 1 0"] {
        assert!(events.iter().any(|it| it == event), "{event} is not in {events:?}");
    }
    set
}

#[test]
fn content_counts_when_two_looks_find_it() {
    let mut set = FileSet::new("near".to_owned(), false);
    assert!(set.update(look(&[("policy.yaml", POLICY)])).is_empty());
    assert!(!set.update(look(&[("policy.yaml", POLICY)])).is_empty());
    let other = POLICY.replace("db", "cron");
    assert!(set.update(look(&[("policy.yaml", &other)])).is_empty());
    assert!(set.update(look(&[("policy.yaml", POLICY)])).is_empty(), "it was changed back");
    assert_eq!(settle(&mut set, &[("policy.yaml", &other)]), ["+NetworkPolicy shop/deny"]);
}

#[test]
fn no_prefix_of_a_file_changes_what_is_in_force() {
    for (length, _) in POLICY.char_indices() {
        let mut set = listed();
        let events = settle(&mut set, &[("pod.yaml", POD), ("policy.yaml", &POLICY[..length])]);
        let is_whole_line = POLICY[..length].ends_with('\n');
        let changes = events.iter().filter(|it| !it.starts_with('!'));
        assert!(is_whole_line || changes.count() == 0, "{length}: {events:?}");
        assert_eq!(set.unreadable().count(), usize::from(!events.is_empty() && events[0].starts_with('!')));
    }
    let mut set = listed();
    let (cut, _) = POLICY.rsplit_once("- podSelector").expect("a peer");
    let events = settle(&mut set, &[("pod.yaml", POD), ("policy.yaml", cut)]);
    assert!(events[0].contains("half-written"), "{events:?}");
}

#[test]
fn broken_file_keeps_its_objects_until_it_is_fixed() {
    let mut set = listed();
    for broken in ["", "kind: [\n", "# nothing\n", &POLICY.replace("podSelector: {}", "podSelectr: {}")] {
        let events = settle(&mut set, &[("pod.yaml", POD), ("policy.yaml", broken)]);
        assert!(events.len() == 1 && events[0].starts_with("!File policy.yaml: "), "{broken}: {events:?}");
    }
    assert_eq!(set.unreadable().collect::<Vec<_>>(), ["policy.yaml"]);
    assert_eq!(settle(&mut set, &[("pod.yaml", POD), ("policy.yaml", POLICY)]), ["-File policy.yaml"]);
    assert_eq!(settle(&mut set, &[("pod.yaml", POD)]), ["-NetworkPolicy shop/deny"]);
}

#[test]
fn file_that_is_missing_once_is_not_deleted() {
    let mut set = listed();
    assert!(set.update(look(&[("pod.yaml", POD)])).is_empty());
    assert_eq!(settle(&mut set, &[("pod.yaml", POD), ("policy.yaml", POLICY)]), [""; 0]);
    let unreadable = set.update(Err("no such directory".to_owned()));
    assert_eq!(unreadable.iter().map(words).collect::<Vec<_>>(), ["!File .: no such directory"]);
    assert_eq!(settle(&mut set, &[("pod.yaml", POD), ("policy.yaml", POLICY)]), ["-File ."]);
}

#[test]
fn directory_without_files_is_an_error_and_deletes_nothing() {
    let error = format!("!File .: {NO_FILES}");
    for has_generation in [false, true] {
        let mut set = FileSet::new("near".to_owned(), has_generation);
        assert_eq!(settle(&mut set, &[]), [error.as_str()], "it may not be mounted yet");
        assert!(settle(&mut set, &[("pod.yaml", POD)]).contains(&"=Pod 1 0".to_owned()));
    }
    let mut set = listed();
    assert_eq!(settle(&mut set, &[]), [error.as_str()]);
    assert_eq!(settle(&mut set, &[("pod.yaml", POD), ("policy.yaml", POLICY)]), ["-File ."]);
    assert_eq!(set.take_gone(), []);
    assert_eq!(settle(&mut set, &[("pod.yaml", POD)]), ["-NetworkPolicy shop/deny"]);
    assert_eq!(set.take_gone(), [("policy.yaml".to_owned(), 1)]);
}

#[test]
fn other_directory_needs_two_equal_looks() {
    let (mut set, pod) = (listed(), [("pod.yaml", POD)]);
    for directory in [(3, 2), (1, 2), (1, 9)] {
        assert!(set.update(look_at(directory, &pod)).is_empty(), "{directory:?} was seen once");
    }
    assert!(set.update(look_at((1, 9), &pod)).iter().map(words).eq(["-NetworkPolicy shop/deny"]));
    let mut set = FileSet::new("near".to_owned(), false);
    for directory in [(1, 2), (3, 2)] {
        assert!(set.update(look_at(directory, &pod)).is_empty(), "{directory:?} was seen once");
    }
    assert!(!set.update(look_at((3, 2), &pod)).is_empty());
}

#[test]
fn object_in_two_files_stays_where_it_was() {
    let mut set = listed();
    let open = POLICY.replace("- podSelector: {matchLabels: {app: db}}", "- podSelector: {}");
    let both = [("a.yaml", &*open), ("pod.yaml", POD), ("policy.yaml", POLICY)];
    assert_eq!(settle(&mut set, &both), ["!File a.yaml: NetworkPolicy shop/deny is also in policy.yaml"]);
    let moved = settle(&mut set, &[("a.yaml", &open), ("pod.yaml", POD)]);
    assert_eq!(moved, ["-File a.yaml", "+NetworkPolicy shop/deny"]);
}

#[test]
fn with_a_generation_in_force_nothing_is_listed_until_every_file_is_read() {
    let files = [("pod.yaml", POD), ("policy.yaml", "kind: [\n")];
    let mut set = FileSet::new("near".to_owned(), true);
    let events = settle(&mut set, &files);
    assert!(events.len() == 1 && events[0].starts_with("!File policy.yaml"), "{events:?}");
    assert!(settle(&mut set, &[("pod.yaml", POD), ("policy.yaml", POLICY)]).contains(&"=Pod 1 0".to_owned()));
    let mut set = FileSet::new("near".to_owned(), false);
    assert!(settle(&mut set, &files).contains(&"=Pod 1 0".to_owned()), "what can be read is better than nothing");
}

#[test]
fn orders_are_obeyed_with_their_numbers() {
    let service =
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.9.0.1}\n";
    let mut set = listed();
    let files = [("pod.yaml", POD), ("policy.yaml", POLICY), ("service.yaml", service)];
    assert_eq!(settle(&mut set, &files), [""; 0], "services are not followed");
    let order = FollowOrder { scope: WatchScope::All, number: 3 };
    let events: Vec<String> = set.obey("Service", order).iter().map(words).collect();
    assert_eq!(events, ["+Service shop/web", "=Service 1 3"]);
    assert_eq!(set.list("Service").len(), 2);
    assert_eq!(settle(&mut set, &files[..2]), ["-Service shop/web"]);
}

#[test]
fn pods_without_a_node_are_of_this_host() {
    let set = listed();
    let key = Key { kind: "Pod".to_owned(), namespace: "shop".to_owned(), name: "web".to_owned() };
    let Some(Body::Pod(pod)) = set.sent.get(&key).map(|it| &it.body) else { panic!("it was sent") };
    assert_eq!(pod.node.as_deref(), Some("near"));
    let ended = POD.replace("status: {", "status: {phase: Succeeded, ");
    assert!(decoded("pod.yaml", ended.into_bytes(), "near").is_err());
}
