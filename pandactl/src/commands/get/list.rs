//! Lists, page by page; named objects, one by one.

use std::cmp::Ordering;
use std::collections::HashMap;

use panda_client::DynamicApi;
use panda_client::params::ListParams;
use panda_client::table::Table;
use serde_json::Value;

use crate::args::Target;
use crate::error::{Error, Kind, Result};
use crate::output::jsonpath::Template;

/// The table of a target, and why named objects are missing from it.
pub(super) async fn table(
    api: &DynamicApi,
    target: &Target,
    params: &ListParams,
    sort: Option<&Template>,
    ignore_not_found: bool,
) -> Result<(Table, Vec<Error>)> {
    let mut missing = Vec::new();
    let mut table = if target.names.is_empty() {
        pages(api, params).await?
    } else {
        let mut table = Table::default();
        for name in &target.names {
            match api.get_table(name).await {
                Ok(one) => append(&mut table, one),
                Err(error) if error.is_not_found() && ignore_not_found => {}
                Err(error) => missing.push(error.into()),
            }
        }
        table
    };
    if let Some(sort_by) = sort {
        let (objects, _) = objects(api, target, params, true).await?;
        let mut keyed: Vec<(String, Value)> = objects
            .into_iter()
            .map(|object| {
                (
                    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
                    object,
                )
            })
            .collect();
        sort_values(&mut keyed, sort_by, |(_, object)| object)?;
        let places: HashMap<&str, usize> = keyed
            .iter()
            .enumerate()
            .map(|(place, (uid, _))| (uid.as_str(), place))
            .collect();
        table.rows.sort_by_key(|row| {
            row.object["metadata"]["uid"]
                .as_str()
                .and_then(|uid| places.get(uid))
                .copied()
                .unwrap_or(usize::MAX)
        });
    }
    Ok((table, missing))
}

/// All pages of a list as one table; once over when the snapshot was forgotten half-way.
pub(super) async fn pages(api: &DynamicApi, params: &ListParams) -> Result<Table> {
    match chunked(api, params).await {
        Err(panda_client::Error::Api(status)) if status.code == 410 => Ok(chunked(
            api,
            &ListParams {
                limit: None,
                ..params.clone()
            },
        )
        .await?),
        other => Ok(other?),
    }
}

async fn chunked(api: &DynamicApi, params: &ListParams) -> Result<Table, panda_client::Error> {
    let mut params = params.clone();
    let mut table = Table::default();
    loop {
        let page = api.list_table(&params).await?;
        let next = page.metadata.continue_.clone();
        append(&mut table, page);
        if next.is_empty() {
            return Ok(table);
        }
        params.continue_token = Some(next);
    }
}

fn append(table: &mut Table, page: Table) {
    if table.column_definitions.is_empty() {
        table.column_definitions = page.column_definitions;
    }
    table.metadata = page.metadata;
    table.rows.extend(page.rows);
}

/// The objects of a target, and why named ones are missing.
pub(super) async fn objects(
    api: &DynamicApi,
    target: &Target,
    params: &ListParams,
    ignore_not_found: bool,
) -> Result<(Vec<Value>, Vec<Error>)> {
    let resource = api.resource();
    let mut missing = Vec::new();
    let mut objects = Vec::new();
    if target.names.is_empty() {
        let list = match api.list_all(params).await {
            Err(error) if error.is_gone() => api.list_all(params).await?,
            other => other?,
        };
        objects = list.items;
    } else {
        for name in &target.names {
            match api.get(name).await {
                Ok(object) => objects.push(object),
                Err(error) if error.is_not_found() && ignore_not_found => {}
                Err(error) => missing.push(Error::from(error)),
            }
        }
    }
    for object in &mut objects {
        typed(object, resource);
    }
    Ok((objects, missing))
}

/// Items of a list do not say what they are; alone they must.
pub(super) fn typed(object: &mut Value, resource: &panda_client::ApiResource) {
    if let Some(fields) = object.as_object_mut() {
        fields
            .entry("apiVersion")
            .or_insert_with(|| resource.api_version().into());
        fields
            .entry("kind")
            .or_insert_with(|| resource.kind.clone().into());
    }
}

/// Sorts by what a path gives: numbers by value, text by its letters, what has nothing first.
pub(super) fn sort<T>(items: &mut [T], by: &Template, object: impl Fn(&T) -> &Value) -> Result<()> {
    sort_values(items, by, object)
}

fn sort_values<T>(items: &mut [T], by: &Template, object: impl Fn(&T) -> &Value) -> Result<()> {
    let key = |item: &T| -> Result<Option<Value>> {
        let values = by
            .values(object(item))
            .map_err(|error| Error::user(error.to_string()))?;
        Ok(values.first().map(|value| (*value).clone()))
    };
    for item in items.iter() {
        key(item)?;
    }
    items.sort_by(|a, b| match (key(a).ok().flatten(), key(b).ok().flatten()) {
        (Some(Value::Number(a)), Some(Value::Number(b))) => {
            a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal)
        }
        (Some(a), Some(b)) => words(&a).cmp(&words(&b)),
        (a, b) => a.is_some().cmp(&b.is_some()),
    });
    Ok(())
}

fn words(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Whether a failure may go away by itself.
pub(super) fn may_recover(error: &Error) -> bool {
    error.kind == Kind::Connect
}
