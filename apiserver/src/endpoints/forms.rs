//! The forms in which objects are answered: themselves, rows of a table, their metadata alone.

use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use jiff::Timestamp;
use panda_store::Revision;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::endpoints::{Call, list_head};
use crate::negotiate::{Form, MetaVersion};
use crate::query::invalid;
use crate::registry::{Error, Kind};
use crate::respond::{Failure, JSON, bytes_response};

/// What stands in `row.object`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    pub(crate) fn of(call: &Call) -> Result<Self, Failure> {
        match call.params.get("includeObject") {
            None | Some("" | "Metadata") => Ok(Self::Metadata),
            Some("None") => Ok(Self::None),
            Some("Object") => Ok(Self::Object),
            Some(_) => Err(invalid(
                "TableOptions",
                "includeObject",
                "FieldValueNotSupported",
                "Unsupported value: supported values: \"None\", \"Metadata\", \"Object\"",
            )),
        }
    }
}

/// How one request wants its objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    pub(crate) kind: Kind,
    pub(crate) form: Form,
    pub(crate) include: Include,
    pub(crate) now: Timestamp,
}

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow)]
    metadata: &'a RawValue,
}

/// The metadata of an object, as it is stored.
fn raw_metadata(json: &[u8]) -> Result<&str, Error> {
    let raw: Raw<'_> = serde_json::from_slice(json).map_err(|error| Error::Damaged {
        key: "an object".to_owned(),
        detail: error.to_string(),
    })?;
    Ok(raw.metadata.get())
}

impl Printer {
    /// One object, in its form.
    pub(crate) fn object(&self, json: &Bytes) -> Result<Bytes, Error> {
        match self.form {
            Form::Object => Ok(json.clone()),
            Form::Partial(version) => Ok(partial(raw_metadata(json)?, version).into()),
            Form::Table(version) => {
                let revision = revision_of(json)?;
                let metadata = json!({"resourceVersion": revision});
                self.table(version, &metadata, json, true)
            }
        }
    }

    /// An object of a watch; `first`: nothing was sent before it.
    pub(crate) fn event(&self, json: &Bytes, first: bool) -> Result<Bytes, Error> {
        match self.form {
            Form::Table(version) => {
                let metadata = json!({"resourceVersion": revision_of(json)?});
                self.table(version, &metadata, json, first)
            }
            _ => self.object(json),
        }
    }

    /// What a bookmark carries; `initial`: the end of the objects that were there.
    pub(crate) fn bookmark(&self, revision: Revision, initial: bool) -> Value {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        match self.form {
            Form::Object => {
                json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata})
            }
            Form::Partial(version) => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": version.api_version(), "metadata": metadata})
            }
            Form::Table(version) => json!({
                "kind": "Table", "apiVersion": version.api_version(), "metadata": metadata,
                "columnDefinitions": [], "rows": [],
            }),
        }
    }

    /// What a list begins with; its items follow, with commas, and `]}`.
    pub(crate) fn list_head(&self, metadata: &Value) -> String {
        match self.form {
            Form::Object => list_head(self.kind, &metadata.to_string()),
            Form::Table(version) => self.table_head(version, metadata, true),
            Form::Partial(version) => format!(
                "{{\"kind\":\"PartialObjectMetadataList\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
                version.api_version()
            ),
        }
    }

    /// One item of a list.
    pub(crate) fn item(&self, json: &Bytes) -> Result<Bytes, Error> {
        match self.form {
            Form::Object => Ok(json.clone()),
            Form::Table(version) => {
                let mut out = BytesMut::new();
                self.row(&mut out, version, json)?;
                Ok(out.freeze())
            }
            Form::Partial(version) => Ok(partial(raw_metadata(json)?, version).into()),
        }
    }

    /// A table of one object.
    fn table(
        &self,
        version: MetaVersion,
        metadata: &Value,
        json: &Bytes,
        columns: bool,
    ) -> Result<Bytes, Error> {
        let mut out = BytesMut::new();
        out.extend_from_slice(self.table_head(version, metadata, columns).as_bytes());
        self.row(&mut out, version, json)?;
        out.extend_from_slice(b"]}");
        Ok(out.freeze())
    }

    fn table_head(&self, version: MetaVersion, metadata: &Value, columns: bool) -> String {
        let columns: Vec<Value> = self
            .kind
            .columns
            .iter()
            .filter(|_| columns)
            .map(|column| {
                json!({
                    "name": column.name, "type": column.type_, "format": column.format,
                    "description": column.description, "priority": column.priority,
                })
            })
            .collect();
        format!(
            "{{\"kind\":\"Table\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"columnDefinitions\":{},\"rows\":[",
            version.api_version(),
            Value::from(columns)
        )
    }

    fn row(&self, out: &mut BytesMut, version: MetaVersion, json: &Bytes) -> Result<(), Error> {
        let value: Value = serde_json::from_slice(json).map_err(|error| Error::Damaged {
            key: "an object".to_owned(),
            detail: error.to_string(),
        })?;
        let cells = Value::from(self.kind.cells(&value, self.now));
        out.extend_from_slice(format!("{{\"cells\":{cells}").as_bytes());
        match self.include {
            Include::None => {}
            Include::Metadata => {
                out.extend_from_slice(b",\"object\":");
                out.extend_from_slice(partial(raw_metadata(json)?, version).as_bytes());
            }
            Include::Object => {
                out.extend_from_slice(b",\"object\":");
                out.extend_from_slice(json);
            }
        }
        out.extend_from_slice(b"}");
        Ok(())
    }

    /// An answer that is one object.
    pub(crate) fn answer(&self, code: StatusCode, json: &Bytes) -> Result<Response, Failure> {
        Ok(bytes_response(code, JSON, self.object(json)?))
    }
}

fn partial(metadata: &str, version: MetaVersion) -> String {
    format!(
        "{{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"{}\",\"metadata\":{metadata}}}",
        version.api_version()
    )
}

fn revision_of(json: &[u8]) -> Result<String, Error> {
    let metadata: Value = serde_json::from_str(raw_metadata(json)?).map_err(|error| Error::Damaged {
        key: "an object".to_owned(),
        detail: error.to_string(),
    })?;
    Ok(metadata["resourceVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned())
}
