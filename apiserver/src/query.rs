//! Query parameters of the API, checked.

use axum::extract::Query;
use http::Uri;
use panda_api::meta::{Reason, Status, StatusCause, StatusDetails};
use panda_store::Revision;

use crate::registry::{AtVersion, FieldValidation, Filter, Kind};
use crate::request::truth;
use crate::respond::Failure;

/// Longest name of a field manager.
const MAX_MANAGER: usize = 128;

/// The parameters as they came; unknown ones are ignored, as upstream does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    pub(crate) fn of(uri: &Uri) -> Result<Self, Failure> {
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| Failure::bad_request(format!("the query cannot be read: {error}")))?;
        Ok(Self(pairs))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// A parameter that is there and not empty.
    fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(truth)
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Failure> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let number = text.parse();
        number.map(Some).map_err(|_| {
            Failure::bad_request(format!(
                "invalid value {text:?} of parameter {name}: want a number that is not negative"
            ))
        })
    }

    pub(crate) fn limit(&self) -> Result<Option<usize>, Failure> {
        Ok(self
            .number("limit")?
            .map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)))
    }

    pub(crate) fn timeout_seconds(&self) -> Result<Option<u64>, Failure> {
        self.number("timeoutSeconds")
    }

    pub(crate) fn continue_token(&self) -> Option<String> {
        self.text("continue").map(ToOwned::to_owned)
    }

    /// `resourceVersion`; nothing when it is absent or empty.
    pub(crate) fn version(&self) -> Result<Option<Revision>, Failure> {
        let Some(text) = self.text("resourceVersion") else {
            return Ok(None);
        };
        let version = text.parse();
        version.map(Some).map_err(|_| {
            Failure::bad_request(format!(
                "invalid resourceVersion {text:?}: want one that the server gave"
            ))
        })
    }

    pub(crate) fn filter(&self, kind: Kind) -> Result<Filter, Failure> {
        let text = |name| self.get(name).unwrap_or_default();
        Ok(Filter::parse(kind, text("labelSelector"), text("fieldSelector"))?)
    }

    /// Which state a list shows.
    pub(crate) fn list_version(&self) -> Result<AtVersion, Failure> {
        if self.get("sendInitialEvents").is_some() {
            return Err(invalid(
                "ListOptions",
                "sendInitialEvents",
                "FieldValueForbidden",
                "Forbidden: only a watch sends initial events",
            ));
        }
        let version = self.version()?;
        if self.text("continue").is_some() {
            return self.continued(version);
        }
        match (self.text("resourceVersionMatch"), version) {
            (None, None | Some(Revision::ZERO)) => Ok(AtVersion::Newest),
            (None, Some(version)) => Ok(AtVersion::NotOlderThan(version)),
            (Some(_), None) => Err(invalid(
                "ListOptions",
                "resourceVersionMatch",
                "FieldValueForbidden",
                "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            )),
            (Some("NotOlderThan"), Some(Revision::ZERO)) => Ok(AtVersion::Newest),
            (Some("NotOlderThan"), Some(version)) => Ok(AtVersion::NotOlderThan(version)),
            (Some("Exact"), Some(Revision::ZERO)) => Err(invalid(
                "ListOptions",
                "resourceVersionMatch",
                "FieldValueForbidden",
                "Forbidden: resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
            )),
            (Some("Exact"), Some(version)) => Ok(AtVersion::Exact(version)),
            (Some(other), Some(_)) => Err(not_supported(
                "ListOptions",
                "resourceVersionMatch",
                other,
                &["NotOlderThan", "Exact"],
            )),
        }
    }

    /// A page after the first is of the version that its token names, and of no other.
    fn continued(&self, version: Option<Revision>) -> Result<AtVersion, Failure> {
        if self.text("resourceVersionMatch").is_some() {
            return Err(invalid(
                "ListOptions",
                "resourceVersionMatch",
                "FieldValueForbidden",
                "Forbidden: resourceVersionMatch is forbidden when continue is provided",
            ));
        }
        match version {
            None | Some(Revision::ZERO) => Ok(AtVersion::Newest),
            Some(_) => Err(Failure::bad_request(
                "specifying resource version is not allowed when using continue",
            )),
        }
    }

    pub(crate) fn dry_run(&self) -> Result<bool, Failure> {
        let values: Vec<&str> = self
            .0
            .iter()
            .filter(|(key, _)| key == "dryRun")
            .map(|(_, value)| value.as_str())
            .collect();
        dry_run(&values)
    }

    /// What is to happen to odd fields; nothing when the client does not say.
    pub(crate) fn field_validation(&self) -> Result<Option<FieldValidation>, Failure> {
        match self.text("fieldValidation") {
            None => Ok(None),
            Some("Strict") => Ok(Some(FieldValidation::Strict)),
            Some("Warn") => Ok(Some(FieldValidation::Warn)),
            Some("Ignore") => Ok(Some(FieldValidation::Ignore)),
            Some(other) => Err(not_supported(
                "PatchOptions",
                "fieldValidation",
                other,
                &["Ignore", "Warn", "Strict"],
            )),
        }
    }

    /// Checks what is accepted and has no meaning yet.
    pub(crate) fn check_manager(&self) -> Result<(), Failure> {
        match self.text("fieldManager") {
            Some(name) if name.len() > MAX_MANAGER => Err(invalid(
                "PatchOptions",
                "fieldManager",
                "FieldValueTooLong",
                "Too long: may not be more than 128 bytes",
            )),
            Some(name) if name.chars().any(char::is_control) => Err(invalid(
                "PatchOptions",
                "fieldManager",
                "FieldValueInvalid",
                "Invalid value: must be printable",
            )),
            _ => Ok(()),
        }
    }
}

/// `All` or nothing.
pub(crate) fn dry_run(values: &[&str]) -> Result<bool, Failure> {
    match values.iter().find(|value| !value.is_empty() && **value != "All") {
        Some(other) => Err(not_supported("PatchOptions", "dryRun", other, &["All"])),
        None => Ok(values.contains(&"All")),
    }
}

fn not_supported(kind: &str, field: &str, found: &str, known: &[&str]) -> Failure {
    let found: String = found.chars().take(128).collect();
    let known: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
    let text = format!(
        "Unsupported value: {found:?}: supported values: {}",
        known.join(", ")
    );
    invalid(kind, field, "FieldValueNotSupported", &text)
}

/// 422 about an option of a request.
pub(crate) fn invalid(kind: &str, field: &str, reason: &str, text: &str) -> Failure {
    let mut status = Status::failure(
        Reason::Invalid,
        format!("{kind}.meta.k8s.io \"\" is invalid: {field}: {text}"),
    );
    let cause = StatusCause {
        reason: reason.to_owned(),
        message: text.to_owned(),
        field: field.to_owned(),
    };
    status.details = Some(StatusDetails {
        group: "meta.k8s.io".to_owned(),
        kind: kind.to_owned(),
        causes: vec![cause],
        ..StatusDetails::default()
    });
    status.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(query: &str) -> Params {
        Params::of(&format!("/x?{query}").parse().unwrap()).unwrap()
    }

    #[test]
    fn versions_and_matches_follow_the_rules_of_lists() {
        let ok = |query: &str| params(query).list_version().unwrap();
        assert_eq!(ok(""), AtVersion::Newest);
        assert_eq!(ok("resourceVersion=0"), AtVersion::Newest);
        assert_eq!(ok("continue=t&resourceVersion=0"), AtVersion::Newest);
        assert_eq!(ok("resourceVersion=7"), AtVersion::NotOlderThan(Revision(7)));
        assert_eq!(
            ok("resourceVersion=7&resourceVersionMatch=Exact"),
            AtVersion::Exact(Revision(7))
        );
        for (query, code) in [
            ("resourceVersionMatch=Exact", 422),
            ("resourceVersion=0&resourceVersionMatch=Exact", 422),
            ("resourceVersion=7&resourceVersionMatch=Maybe", 422),
            ("resourceVersion=x", 400),
            ("continue=t&resourceVersion=7", 400),
            ("continue=t&resourceVersion=7&resourceVersionMatch=Exact", 422),
            ("sendInitialEvents=true", 422),
        ] {
            assert_eq!(
                params(query).list_version().unwrap_err().status().code,
                code,
                "{query}"
            );
        }
    }

    #[test]
    fn options_are_checked() {
        assert!(params("dryRun=All").dry_run().unwrap());
        assert!(!params("").dry_run().unwrap());
        assert_eq!(params("dryRun=Some").dry_run().unwrap_err().status().code, 422);
        assert_eq!(
            params("fieldValidation=Loud")
                .field_validation()
                .unwrap_err()
                .status()
                .code,
            422
        );
        assert_eq!(params("limit=-1").limit().unwrap_err().status().code, 400);
        assert!(params("watch=True").flag("watch"));
        assert!(!params("watch=0").flag("watch"));
    }
}
