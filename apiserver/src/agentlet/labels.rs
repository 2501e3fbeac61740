//! Labels that a device reports of itself, beside those that people set.
//!
//! A label that a person set, changed or removed stays so, however often the device reports: what the device said last
//! is kept in an annotation, and only what is new in its report is taken over. The standard labels are facts, and
//! always those of the device.

use std::collections::BTreeMap;

use panda_api::meta::ObjectMeta;

/// What the device said last.
const REPORTED: &str = "panda.dev/reported-labels";
/// Facts; nobody else's to say.
const FACTS: [&str; 3] = ["kubernetes.io/os", "kubernetes.io/arch", "panda.dev/device-class"];
/// Prefixes under which a device may say nothing but facts.
const RESERVED: [&str; 2] = ["kubernetes.io/", "panda.dev/"];

/// Takes over the labels of a report.
pub(crate) fn take(meta: &mut ObjectMeta, reported: impl IntoIterator<Item = (String, String)>) {
    let is_fact = |key: &str| FACTS.contains(&key);
    let reported: BTreeMap<String, String> = reported
        .into_iter()
        .filter(|(key, _)| is_fact(key) || !RESERVED.iter().any(|prefix| key.starts_with(prefix)))
        .collect();
    let before: BTreeMap<String, String> = meta
        .annotations
        .get(REPORTED)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    for (key, value) in &before {
        if !reported.contains_key(key) && meta.labels.get(key) == Some(value) {
            meta.labels.remove(key);
        }
    }
    for (key, value) in &reported {
        let said = before.get(key);
        let is_news = said != Some(value);
        let untouched = meta.labels.get(key) == said;
        if is_fact(key) || (is_news && untouched) {
            meta.labels.insert(key.clone(), value.clone());
        }
    }
    let own: BTreeMap<&String, &String> = reported.iter().filter(|(key, _)| !is_fact(key)).collect();
    if own.is_empty() {
        meta.annotations.remove(REPORTED);
    } else if let Ok(text) = serde_json::to_string(&own) {
        meta.annotations.insert(REPORTED.to_owned(), text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(meta: &mut ObjectMeta, labels: &[(&str, &str)]) {
        take(
            meta,
            labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())),
        );
    }

    #[test]
    fn what_people_say_stands_and_news_are_taken_over() {
        let mut meta = ObjectMeta::default();
        meta.labels.insert("room".into(), "lab".into());
        report(
            &mut meta,
            &[("room", "attic"), ("gpu", "yes"), ("kubernetes.io/os", "linux")],
        );
        assert_eq!(meta.labels["room"], "lab", "set before the device spoke");
        assert_eq!(meta.labels["gpu"], "yes");
        // Changed and removed by a person: the same report does not bring it back.
        meta.labels.insert("gpu".into(), "broken".into());
        meta.labels.insert("kubernetes.io/os".into(), "plan9".into());
        report(&mut meta, &[("gpu", "yes"), ("kubernetes.io/os", "linux")]);
        assert_eq!(meta.labels["gpu"], "broken");
        assert_eq!(meta.labels["kubernetes.io/os"], "linux", "a fact");
        meta.labels.remove("gpu");
        report(&mut meta, &[("gpu", "yes")]);
        assert!(!meta.labels.contains_key("gpu"));
    }

    #[test]
    fn what_the_device_says_no_longer_goes_unless_somebody_changed_it() {
        let mut meta = ObjectMeta::default();
        report(&mut meta, &[("a", "1"), ("b", "1"), ("c", "1")]);
        meta.labels.insert("b".into(), "2".into());
        report(&mut meta, &[("c", "2")]);
        assert!(!meta.labels.contains_key("a"));
        assert_eq!((meta.labels["b"].as_str(), meta.labels["c"].as_str()), ("2", "2"));
    }

    #[test]
    fn reserved_labels_are_not_the_devices_to_set() {
        let mut meta = ObjectMeta::default();
        report(
            &mut meta,
            &[("panda.dev/trusted", "yes"), ("kubernetes.io/role", "x")],
        );
        assert!(meta.labels.is_empty() && meta.annotations.is_empty());
    }
}
