//! Tables that the server prints (`meta.k8s.io/v1` Table).

use panda_api::meta::ListMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What asks for tables, and takes plain objects from a server that has none.
pub(crate) const ACCEPT_TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// Objects as rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Table {
    /// `meta.k8s.io/v1`.
    pub api_version: String,
    /// `Table`; another kind means that the server has no tables.
    pub kind: String,
    /// Version of the snapshot, and the next page's token.
    pub metadata: ListMeta,
    /// The columns; of a watch, only the first event must have them.
    pub column_definitions: Vec<Column>,
    /// One row an object.
    pub rows: Vec<Row>,
}

/// A column of a [`Table`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Column {
    /// Heading.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    #[serde(rename = "type")]
    pub type_: String,
    /// For example `name`.
    pub format: String,
    /// What it shows.
    pub description: String,
    /// 0: always shown; higher: only in wide output.
    pub priority: i32,
}

/// A row of a [`Table`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Row {
    /// One value a column.
    pub cells: Vec<Value>,
    /// At least the metadata of the object.
    pub object: Value,
}
