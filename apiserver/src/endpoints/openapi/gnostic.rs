//! The OpenAPI 2.0 document as protobuf: message `openapi.v2.Document` of the public gnostic project, whose field
//! numbers stand here. Extensions, defaults and enum values travel as YAML text, for which JSON does.

use prost::encoding::encode_varint;
use serde_json::{Map, Value};

/// The document, encoded.
pub(super) fn document(document: &Value) -> Vec<u8> {
    let mut out = Out::default();
    out.text(1, &document["swagger"]);
    out.message(2, |out| {
        out.text(1, &document["info"]["title"]);
        out.text(2, &document["info"]["version"]);
    });
    out.message(8, |out| {
        for (url, item) in entries(&document["paths"]) {
            out.named(2, url, |out| path(out, item));
        }
    });
    out.message(9, |out| {
        for (name, definition) in entries(&document["definitions"]) {
            out.named(1, name, |out| schema(out, definition));
        }
    });
    out.0
}

/// Bytes of a message.
#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn tag(&mut self, field: u64, wire: u64) {
        encode_varint(field << 3 | wire, &mut self.0);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.tag(field, 2);
        encode_varint(bytes.len() as u64, &mut self.0);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }

    /// An entry of a map: its name and the message that it names.
    fn named(&mut self, field: u64, name: &str, fill: impl FnOnce(&mut Self)) {
        self.message(field, |out| {
            out.bytes(1, name.as_bytes());
            out.message(2, fill);
        });
    }

    fn text(&mut self, field: u64, value: &Value) {
        if let Some(text) = value.as_str() {
            self.bytes(field, text.as_bytes());
        }
    }

    fn texts(&mut self, field: u64, value: &Value) {
        for text in value.as_array().into_iter().flatten() {
            self.text(field, text);
        }
    }

    fn flag(&mut self, field: u64, value: &Value) {
        if value.as_bool() == Some(true) {
            self.tag(field, 0);
            encode_varint(1, &mut self.0);
        }
    }

    fn whole(&mut self, field: u64, value: &Value) {
        if let Some(number) = value.as_i64() {
            self.tag(field, 0);
            encode_varint(number.cast_unsigned(), &mut self.0);
        }
    }

    fn double(&mut self, field: u64, value: &Value) {
        if let Some(number) = value.as_f64() {
            self.tag(field, 1);
            self.0.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// Message `Any`, as YAML.
    fn any(&mut self, field: u64, value: &Value) {
        self.message(field, |out| out.bytes(2, value.to_string().as_bytes()));
    }

    fn extensions(&mut self, field: u64, object: &Value) {
        for (name, value) in entries(object) {
            if name.starts_with("x-") {
                self.message(field, |out| {
                    out.bytes(1, name.as_bytes());
                    out.any(2, value);
                });
            }
        }
    }
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn path(out: &mut Out, item: &Value) {
    for (method, field) in [("get", 2), ("put", 3), ("post", 4), ("delete", 5), ("patch", 8)] {
        if let Some(body) = item.get(method) {
            out.message(field, |out| operation(out, body));
        }
    }
    parameters(out, 9, &item["parameters"]);
}

fn operation(out: &mut Out, item: &Value) {
    out.texts(1, &item["tags"]);
    out.text(5, &item["operationId"]);
    out.texts(6, &item["produces"]);
    out.texts(7, &item["consumes"]);
    parameters(out, 8, &item["parameters"]);
    out.message(9, |out| {
        for (code, response) in entries(&item["responses"]) {
            out.named(1, code, |out| {
                out.message(1, |out| {
                    out.text(1, &response["description"]);
                    if let Some(body) = response.get("schema") {
                        out.message(2, |out| out.message(1, |out| schema(out, body)));
                    }
                });
            });
        }
    });
    out.texts(10, &item["schemes"]);
    out.extensions(13, item);
}

fn parameters(out: &mut Out, field: u64, list: &Value) {
    for item in list.as_array().into_iter().flatten() {
        out.message(field, |out| out.message(1, |out| parameter(out, item)));
    }
}

fn parameter(out: &mut Out, item: &Value) {
    if item["in"] == "body" {
        return out.message(1, |out| {
            out.text(1, &item["description"]);
            out.text(2, &item["name"]);
            out.text(3, &item["in"]);
            out.flag(4, &item["required"]);
            out.message(5, |out| schema(out, &item["schema"]));
        });
    }
    // The two messages differ by one field that only a query parameter has.
    let (which, shift) = if item["in"] == "path" { (4, 0) } else { (3, 1) };
    out.message(2, |out| {
        out.message(which, |out| {
            out.flag(1, &item["required"]);
            out.text(2, &item["in"]);
            out.text(3, &item["description"]);
            out.text(4, &item["name"]);
            out.text(5 + shift, &item["type"]);
            out.flag(19 + shift, &item["uniqueItems"]);
        });
    });
}

fn schema(out: &mut Out, item: &Value) {
    out.text(1, &item["$ref"]);
    out.text(2, &item["format"]);
    out.text(4, &item["description"]);
    if let Some(default) = item.get("default") {
        out.any(5, default);
    }
    out.double(7, &item["maximum"]);
    out.double(9, &item["minimum"]);
    out.whole(11, &item["maxLength"]);
    out.whole(12, &item["minLength"]);
    out.text(13, &item["pattern"]);
    out.whole(14, &item["maxItems"]);
    out.whole(15, &item["minItems"]);
    out.whole(17, &item["maxProperties"]);
    out.whole(18, &item["minProperties"]);
    out.texts(19, &item["required"]);
    for word in item["enum"].as_array().into_iter().flatten() {
        out.any(20, word);
    }
    match item.get("additionalProperties") {
        Some(all @ Value::Bool(_)) => out.message(21, |out| out.flag(2, all)),
        Some(inner) => out.message(21, |out| out.message(1, |out| schema(out, inner))),
        None => {}
    }
    if item["type"].is_string() {
        out.message(22, |out| out.text(1, &item["type"]));
    }
    if let Some(inner) = item.get("items") {
        out.message(23, |out| out.message(1, |out| schema(out, inner)));
    }
    if item["properties"].is_object() {
        out.message(25, |out| {
            for (name, inner) in entries(&item["properties"]) {
                out.named(1, name, |out| schema(out, inner));
            }
        });
    }
    out.extensions(31, item);
}

#[cfg(test)]
mod tests {
    use panda_api::scheme;
    use prost::Message;

    use super::super::v2;
    use super::*;

    /// As much of the public messages as the tests look at; decoding passes over the rest.
    #[derive(Clone, PartialEq, Message)]
    struct Document {
        #[prost(string, tag = "1")]
        swagger: String,
        #[prost(message, optional, tag = "8")]
        paths: Option<Paths>,
        #[prost(message, optional, tag = "9")]
        definitions: Option<Schemas>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Paths {
        #[prost(message, repeated, tag = "2")]
        path: Vec<Named>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Named {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(message, optional, tag = "2")]
        value: Option<Item>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Item {
        #[prost(message, optional, tag = "8")]
        patch: Option<Operation>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Operation {
        #[prost(string, tag = "5")]
        id: String,
        #[prost(message, repeated, tag = "8")]
        parameters: Vec<One>,
        #[prost(message, repeated, tag = "13")]
        extensions: Vec<Extension>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct One {
        #[prost(message, optional, tag = "1")]
        inner: Option<Parameter>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Parameter {
        #[prost(message, optional, tag = "2")]
        free: Option<NonBody>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct NonBody {
        #[prost(message, optional, tag = "3")]
        query: Option<Query>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Query {
        #[prost(string, tag = "4")]
        name: String,
        #[prost(string, tag = "6")]
        type_: String,
        #[prost(bool, tag = "20")]
        unique: bool,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Extension {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(message, optional, tag = "2")]
        value: Option<Any>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Any {
        #[prost(string, tag = "2")]
        yaml: String,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Schemas {
        #[prost(message, repeated, tag = "1")]
        all: Vec<NamedSchema>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct NamedSchema {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(message, optional, tag = "2")]
        value: Option<Schema>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Schema {
        #[prost(string, tag = "2")]
        format: String,
        #[prost(double, tag = "7")]
        maximum: f64,
        #[prost(string, repeated, tag = "19")]
        required: Vec<String>,
        #[prost(message, repeated, tag = "20")]
        words: Vec<Any>,
        #[prost(message, optional, tag = "22")]
        type_: Option<Texts>,
        #[prost(message, optional, boxed, tag = "23")]
        items: Option<Box<Items>>,
        #[prost(message, optional, tag = "25")]
        properties: Option<Schemas>,
        #[prost(message, repeated, tag = "31")]
        extensions: Vec<Extension>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Items {
        #[prost(message, optional, boxed, tag = "1")]
        schema: Option<Box<Schema>>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Texts {
        #[prost(string, repeated, tag = "1")]
        value: Vec<String>,
    }

    /// What a decoded schema says, in JSON again.
    fn back(schema: &Schema) -> Value {
        let mut out = Map::new();
        let mut put = |key: &str, value: Value| drop(out.insert(key.to_owned(), value));
        if !schema.format.is_empty() {
            put("format", schema.format.clone().into());
        }
        if schema.maximum != 0.0 {
            put("maximum", schema.maximum.into());
        }
        if !schema.required.is_empty() {
            put("required", schema.required.clone().into());
        }
        if !schema.words.is_empty() {
            let words = schema.words.iter();
            put("enum", words.map(|word| json(&word.yaml)).collect());
        }
        if let Some(type_) = &schema.type_ {
            put("type", type_.value.concat().into());
        }
        if let Some(inner) = schema.items.as_ref().and_then(|items| items.schema.as_ref()) {
            put("items", back(inner));
        }
        if let Some(properties) = &schema.properties {
            let all = properties.all.iter().map(|named| {
                let inner = named.value.as_ref().map_or(Value::Null, back);
                (named.name.clone(), inner)
            });
            put("properties", Value::Object(all.collect()));
        }
        for extension in &schema.extensions {
            let value = extension
                .value
                .as_ref()
                .map_or(Value::Null, |any| json(&any.yaml));
            put(&extension.name, value);
        }
        out.into()
    }

    fn json(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    /// The same, of the document that was encoded.
    fn seen(schema: &Value) -> Value {
        let keep = ["format", "maximum", "required", "enum", "type"];
        let mut out = Map::new();
        for (key, value) in entries(schema) {
            let value = match key.as_str() {
                "items" => seen(value),
                "properties" => entries(value).map(|(k, v)| (k.clone(), seen(v))).collect(),
                "maximum" => value.as_f64().into(),
                key if keep.contains(&key) || key.starts_with("x-") => value.clone(),
                _ => continue,
            };
            if value != Value::Array(Vec::new()) {
                out.insert(key.clone(), value);
            }
        }
        out.into()
    }

    #[test]
    fn the_protobuf_says_what_the_json_says() {
        let kinds: Vec<_> = scheme::served().collect();
        let value = v2::document(&kinds);
        let decoded = Document::decode(document(&value).as_slice()).unwrap();
        assert_eq!(decoded.swagger, "2.0");
        let definitions = decoded.definitions.unwrap().all;
        assert_eq!(definitions.len(), value["definitions"].as_object().unwrap().len());
        for named in definitions {
            let want = seen(&value["definitions"][&named.name]);
            assert_eq!(back(&named.value.unwrap()), want, "{}", named.name);
        }
        let paths = decoded.paths.unwrap().path;
        assert_eq!(paths.len(), value["paths"].as_object().unwrap().len());
        let task = "/apis/panda.dev/v1alpha1/namespaces/{namespace}/tasks/{name}";
        let task = paths.into_iter().find(|named| named.name == task).unwrap();
        let patch = task.value.unwrap().patch.unwrap();
        assert_eq!(patch.id, "patchPandaDevV1alpha1NamespacedTask");
        let query: Vec<Query> = patch
            .parameters
            .into_iter()
            .filter_map(|one| one.inner?.free?.query)
            .collect();
        let names: Vec<&str> = query.iter().map(|query| query.name.as_str()).collect();
        assert_eq!(names, ["dryRun", "fieldManager", "fieldValidation", "force"]);
        assert!(query.iter().all(|query| query.unique && !query.type_.is_empty()));
        let kind = patch
            .extensions
            .iter()
            .find(|extension| extension.name == "x-kubernetes-group-version-kind");
        let kind = json(&kind.unwrap().value.as_ref().unwrap().yaml);
        assert_eq!(kind["kind"], "Task");
    }
}
