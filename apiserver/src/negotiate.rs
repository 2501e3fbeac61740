//! Which form of an object a client wants, and in which form it sends one.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};
use panda_api::meta::Reason;

use crate::respond::Failure;

/// What `meta.k8s.io` forms look like in an `Accept` entry.
const META_GROUP: &str = "meta.k8s.io";

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The object itself.
    Object,
    /// A table of rows, for people.
    Table(MetaVersion),
    /// Only the metadata.
    Partial(MetaVersion),
}

/// Version of the `meta.k8s.io` forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetaVersion {
    V1,
    V1Beta1,
}

impl MetaVersion {
    pub(crate) const fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// One entry of an `Accept` header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Entry<'a> {
    pub(crate) fn parameter(&self, name: &str) -> Option<&'a str> {
        self.parameters
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| *value)
    }

    pub(crate) fn is_json(&self) -> bool {
        ["application/json", "application/*", "*/*"]
            .iter()
            .any(|json| self.media.eq_ignore_ascii_case(json))
    }
}

/// The entries of all `Accept` headers, in order. None: everything is fine.
pub(crate) fn accept(headers: &HeaderMap) -> Vec<Entry<'_>> {
    let texts = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    texts
        .flat_map(|text| text.split(','))
        .filter_map(|entry| {
            let mut parts = entry.split(';').map(str::trim);
            let media = parts.next().filter(|media| !media.is_empty())?;
            let parameters = parts.filter_map(|part| part.split_once('=')).collect();
            Some(Entry { media, parameters })
        })
        .collect()
}

/// The first form in the client's order that can be had.
pub(crate) fn form(headers: &HeaderMap) -> Result<Form, Failure> {
    let entries = accept(headers);
    if entries.is_empty() {
        return Ok(Form::Object);
    }
    entries.iter().find_map(one_form).ok_or_else(|| {
        Failure::new(
            Reason::NotAcceptable,
            "only the following media types can be produced: application/json, \
             application/json;as=Table;v=v1;g=meta.k8s.io, \
             application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        )
    })
}

/// Whether the client takes JSON of something that has no other form.
pub(crate) fn plain(headers: &HeaderMap) -> Result<(), Failure> {
    let entries = accept(headers);
    let plain = |entry: &Entry<'_>| entry.is_json() && entry.parameter("as").is_none();
    if entries.is_empty() || entries.iter().any(plain) {
        return Ok(());
    }
    Err(Failure::new(
        Reason::NotAcceptable,
        "only the following media types can be produced: application/json",
    ))
}

fn one_form(entry: &Entry<'_>) -> Option<Form> {
    if !entry.is_json() {
        return None;
    }
    let Some(wanted) = entry.parameter("as") else {
        return Some(Form::Object);
    };
    if entry.parameter("g") != Some(META_GROUP) {
        return None;
    }
    let version = match entry.parameter("v")? {
        "v1" => MetaVersion::V1,
        "v1beta1" => MetaVersion::V1Beta1,
        _ => return None,
    };
    match wanted {
        "Table" => Some(Form::Table(version)),
        "PartialObjectMetadata" | "PartialObjectMetadataList" => Some(Form::Partial(version)),
        _ => None,
    }
}

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
    /// Kubernetes' protobuf, for the kinds that upstream's own clients send in it.
    Protobuf,
}

/// The media type of a body, without parameters, lower case; nothing when the header is absent.
pub(crate) fn content_type(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let media = text
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    (!media.is_empty()).then_some(media)
}

/// The encoding of an object in a body; JSON when the client does not say.
pub(crate) fn encoding(headers: &HeaderMap) -> Result<Encoding, Failure> {
    match content_type(headers).as_deref() {
        None | Some("application/json") => Ok(Encoding::Json),
        Some("application/yaml" | "application/x-yaml" | "text/yaml") => Ok(Encoding::Yaml),
        Some("application/vnd.kubernetes.protobuf") => Ok(Encoding::Protobuf),
        Some(other) => Err(unsupported(
            other,
            "application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

/// 415.
pub(crate) fn unsupported(found: &str, accepted: &str) -> Failure {
    let found: String = found.chars().take(128).collect();
    Failure::new(
        Reason::UnsupportedMediaType,
        format!(
            "the body of the request was in an unknown format ({found}) - accepted media types include: {accepted}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn wants(text: &'static str) -> Option<Form> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(text));
        form(&headers).ok()
    }

    #[test]
    fn the_first_possible_entry_wins() {
        use MetaVersion::{V1, V1Beta1};
        for (text, want) in [
            ("application/json", Some(Form::Object)),
            ("*/*", Some(Form::Object)),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                Some(Form::Table(V1)),
            ),
            (
                "application/json;as=Table;v=v2;g=meta.k8s.io, application/json",
                Some(Form::Object),
            ),
            ("application/json;as=Table;v=v2;g=meta.k8s.io", None),
            (
                "application/json;as=Table;v=v1beta1;g=meta.k8s.io",
                Some(Form::Table(V1Beta1)),
            ),
            (
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                Some(Form::Partial(V1)),
            ),
            (
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                Some(Form::Partial(V1)),
            ),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                Some(Form::Object),
            ),
            ("application/vnd.kubernetes.protobuf", None),
            ("text/html, application/xml;q=0.9", None),
        ] {
            assert_eq!(wants(text), want, "{text}");
        }
        assert_eq!(form(&HeaderMap::new()).unwrap(), Form::Object);
    }

    #[test]
    fn a_body_without_a_type_is_json_and_unknown_types_are_refused() {
        let mut headers = HeaderMap::new();
        assert_eq!(encoding(&headers).unwrap(), Encoding::Json);
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("Application/JSON; charset=utf-8"),
        );
        assert_eq!(encoding(&headers).unwrap(), Encoding::Json);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
        assert_eq!(encoding(&headers).unwrap(), Encoding::Yaml);
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/vnd.kubernetes.protobuf"),
        );
        assert_eq!(encoding(&headers).unwrap(), Encoding::Protobuf);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html"));
        assert_eq!(encoding(&headers).unwrap_err().status().code, 415);
    }
}
