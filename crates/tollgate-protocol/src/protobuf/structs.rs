//! JSON objects as messages.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde_json::Map;

/// Converts the fields of an object. Numbers become doubles, as in every such message.
#[must_use]
pub fn json_struct(fields: &Map<String, serde_json::Value>) -> Struct {
    Struct { fields: fields.iter().map(|(key, value)| (key.clone(), json_value(value))).collect() }
}

fn json_value(value: &serde_json::Value) -> Value {
    let kind = match value {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(value) => Kind::BoolValue(*value),
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(0.0)),
        serde_json::Value::String(text) => Kind::StringValue(text.clone()),
        serde_json::Value::Array(values) => {
            Kind::ListValue(ListValue { values: values.iter().map(json_value).collect() })
        }
        serde_json::Value::Object(fields) => Kind::StructValue(json_struct(fields)),
    };
    Value { kind: Some(kind) }
}
