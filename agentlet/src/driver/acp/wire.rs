//! The envelope: JSON-RPC 2.0, one message a line. What comes from the agent is believed in nothing.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::driver::turn::RpcError;

/// The method does not exist, or is not offered.
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters are not what the method takes.
pub(super) const INVALID_PARAMS: i64 = -32602;

/// Longest id that is echoed.
const MAX_ID: usize = 1 << 10;

/// What a message is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// Wants an answer.
    Request { id: Value, method: String },
    /// Wants none.
    Notification { method: String },
    /// Answers one of ours, if the id is one of ours.
    Response {
        id: Value,
        result: Result<Value, RpcError>,
    },
}

/// Reads one line. The parameters stay in the message.
pub(super) fn parse(line: &[u8]) -> Result<(Value, Kind), String> {
    let mut message: Value =
        serde_json::from_slice(line).map_err(|e| format!("a message is no JSON: {e}"))?;
    let Some(fields) = message.as_object_mut() else {
        return Err("a message is no JSON object".into());
    };
    let id = fields.get("id").cloned();
    let method = fields.get("method").map(|m| m.as_str().map(str::to_owned));
    let kind = match (method, id) {
        (Some(None), _) => return Err("the method of a message is no text".into()),
        (Some(Some(method)), None) => Kind::Notification { method },
        (Some(Some(method)), Some(id)) => Kind::Request {
            id: echoable(id)?,
            method,
        },
        (None, Some(id)) => Kind::Response {
            id,
            result: match (fields.remove("result"), fields.get("error")) {
                (_, Some(error)) if !error.is_null() => Err(rpc_error(error)),
                (Some(result), _) => Ok(result),
                (None, _) => return Err("an answer has neither result nor error".into()),
            },
        },
        (None, None) => return Err("a message has neither method nor id".into()),
    };
    Ok((message, kind))
}

fn echoable(id: Value) -> Result<Value, String> {
    match &id {
        Value::Null | Value::Number(_) => Ok(id),
        Value::String(text) if text.len() <= MAX_ID => Ok(id),
        Value::String(_) | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            Err("the id of a request is neither a number nor a short text".into())
        }
    }
}

fn rpc_error(error: &Value) -> RpcError {
    RpcError {
        code: error["code"].as_i64().unwrap_or_default(),
        message: error["message"].as_str().unwrap_or_default().to_owned(),
        data: error["data"].clone(),
    }
}

pub(super) fn request(id: u64, method: &str, params: &Value) -> Bytes {
    line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

pub(super) fn notification(method: &str, params: &Value) -> Bytes {
    line(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
}

pub(super) fn result(id: &Value, result: &Value) -> Bytes {
    line(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

pub(super) fn refusal(id: &Value, code: i64, message: &str) -> Bytes {
    line(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}))
}

fn line(message: &Value) -> Bytes {
    // JSON has no line break of its own in it.
    Bytes::from(format!("{message}\n"))
}
