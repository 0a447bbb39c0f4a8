//! Sums of states: what a proxy of several origins says of all of them together.

use serde_json::{Map, Value, json};

/// Endings of the names of numbers of which the largest counts, and not the sum.
const LARGEST: [&str; 5] = ["_max_ms", "_age_ms", "unanswered_ms", "p50_us", "p99_us"];

/// The values under these names, over all states.
pub fn of<'v>(states: impl Iterator<Item = &'v Value>, names: &[&str]) -> Value {
    let mut total = Map::new();
    for state in states {
        for name in names {
            if let Some(value) = state.get(name) {
                add(total.entry(*name).or_insert(Value::Null), value, name);
            }
        }
    }
    Value::Object(total)
}

/// One state with the fields of both.
pub fn join(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
}

fn add(total: &mut Value, value: &Value, name: &str) {
    match (&mut *total, value) {
        (_, Value::Null) => {}
        (Value::Object(total), Value::Object(fields)) => {
            for (name, value) in fields {
                add(total.entry(name.clone()).or_insert(Value::Null), value, name);
            }
        }
        (Value::Bool(total), Value::Bool(value)) => *total |= value,
        (Value::Number(sum), Value::Number(value)) => {
            let (sum, value) = (sum.as_u64().unwrap_or(0), value.as_u64().unwrap_or(0));
            let is_largest = LARGEST.iter().any(|ending| name.ends_with(ending));
            *total = json!(if is_largest { sum.max(value) } else { sum.saturating_add(value) });
        }
        (total, value) => *total = value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_added_and_of_times_the_longest_counts() {
        let states = [
            json!({ "link": { "calls": 2, "unanswered_ms": null }, "cache": { "away": false, "data": { "hits": 1 } }, "x": 1 }),
            json!({ "link": { "calls": 3, "unanswered_ms": 70 }, "cache": { "away": true, "data": { "hits": 4 } } }),
            json!({ "link": { "calls": 0, "unanswered_ms": 9 }, "awaited_ms": 5 }),
        ];
        let wanted = json!({
            "link": { "calls": 5, "unanswered_ms": 70 },
            "cache": { "away": true, "data": { "hits": 5 } },
        });
        assert_eq!(of(states.iter(), &["link", "cache"]), wanted);
        assert_eq!(of([].into_iter(), &["link"]), json!({}));
    }
}
