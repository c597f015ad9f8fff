//! Good files made bad: bytes changed or cut, and JSON that is still JSON and means something else.

use crate::oracle::TestRng;
use serde_json::{Value, json};

/// A file with some bytes changed, put in, left out or cut off.
pub fn hostile_bytes(file: &[u8], rng: &mut TestRng) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for _ in 0..rng.roll(1, 4) {
        let place = rng.roll(0, bytes.len());
        let end = (place + rng.roll(0, 40)).min(bytes.len());
        match rng.roll(0, 5) {
            0 => bytes.truncate(place),
            1 => drop(bytes.drain(place..end)),
            2 => drop(bytes.splice(place..end, (0..rng.roll(0, 12)).map(|_| rng.roll(0, 255) as u8))),
            3 if bytes.len() >= 8 => {
                let len = [u64::MAX, 1 << 62, 1 << 40, 1 << 24, 7, 0][rng.roll(0, 5)];
                bytes[..8].copy_from_slice(&len.to_le_bytes());
            }
            _ => bytes[place..end].iter_mut().take(3).for_each(|byte| *byte ^= 1 << rng.roll(0, 7)),
        }
    }
    bytes
}

/// A changed text of a JSON file: as bytes, or with some parts changed, left out or there twice.
pub fn hostile_json(text: &[u8], rng: &mut TestRng) -> Vec<u8> {
    if rng.roll(0, 3) == 0 {
        return hostile_bytes(text, rng);
    }
    let mut json: Value = serde_json::from_slice(text).unwrap();
    for _ in 0..rng.roll(1, 3) {
        let other = any_part(&mut json, rng).clone();
        match (rng.roll(0, 7), any_part(&mut json, rng)) {
            (0, Value::Object(fields)) => fields.retain(|_, _| rng.roll(0, 3) > 0),
            (0, Value::Array(items)) => items.truncate(rng.roll(0, items.len())),
            (1, Value::Object(fields)) => drop(fields.insert(strange_text(rng), other)),
            (1, Value::Array(items)) => items.push(other),
            (2, part) => *part = other,
            // Of the same type, to come further than the parser.
            (3..=5, part @ Value::Number(_)) => *part = json!([0, 1, 2, 3, 8, 1000, u32::MAX][rng.roll(0, 6)]),
            (3..=5, Value::String(text)) => *text = strange_text(rng),
            (3..=5, Value::Bool(yes)) => *yes = !*yes,
            (_, part) => *part = strange_value(rng),
        }
    }
    json.to_string().into_bytes()
}

/// Any part, near the top as likely as deep down.
fn any_part<'v>(json: &'v mut Value, rng: &mut TestRng) -> &'v mut Value {
    let n_parts = match json {
        Value::Object(fields) => fields.len(),
        Value::Array(items) => items.len(),
        _ => 0,
    };
    if n_parts == 0 || rng.roll(0, 3) == 0 {
        return json;
    }
    let chosen = rng.roll(0, n_parts - 1);
    let part = match json {
        Value::Object(fields) => fields.values_mut().nth(chosen),
        Value::Array(items) => items.get_mut(chosen),
        _ => None,
    };
    any_part(part.expect("one of the parts"), rng)
}

fn strange_value(rng: &mut TestRng) -> Value {
    let numbers = [0, 1, 2, 7, 64, 1 << 16, 1 << 24, 1 << 31, 1 << 32, 1 << 53, i64::MAX, -1, i64::MIN];
    match rng.roll(0, 5) {
        0 => [json!(null), json!(true), json!([]), json!({}), json!(u64::MAX)][rng.roll(0, 4)].take(),
        1 => json!([1e308, 1e-300, -0.5, 1e39][rng.roll(0, 3)]),
        2 => json!(strange_text(rng)),
        3 => (0..rng.roll(1, 200)).fold(Value::Null, |inside, _| json!([inside])),
        _ => json!(numbers[rng.roll(0, numbers.len() - 1)]),
    }
}

fn strange_text(rng: &mut TestRng) -> String {
    let texts = ["", "\0", "\u{1b}[2J", "🐉", "../..", "B", "$A", "default", "nan", "a\nb", "(((((", "\u{202e}x"];
    match rng.roll(0, texts.len()) {
        0 => "long ".repeat(10_000),
        text => texts[text - 1].into(),
    }
}

/// A changed safetensors file: any of its bytes, or its header alone, with the right length.
pub fn hostile_tensors(file: &[u8], rng: &mut TestRng) -> Vec<u8> {
    if rng.roll(0, 2) == 0 {
        return hostile_bytes(file, rng);
    }
    let header_end = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    let header = hostile_json(&file[8..header_end], rng);
    [&(header.len() as u64).to_le_bytes(), &header[..], &file[header_end..]].concat()
}

/// A saved cache with its checksums made right, as far as it has a header and the record that this announces.
pub fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let put = |bytes: &mut [u8], sum: u32| bytes.copy_from_slice(&sum.to_le_bytes());
    if let Some((header, record)) = bytes.split_first_chunk_mut::<64>() {
        let sum = crc32fast::hash(&header[..60]);
        put(&mut header[60..], sum);
        let tokens = u64::from_le_bytes(*header[20..].first_chunk().unwrap()) as usize;
        let end = tokens.checked_mul(4).and_then(|bytes| bytes.checked_add(24));
        if let Some(end) = end.filter(|end| *end <= record.len()) {
            let sum = crc32fast::hash(&record[end..]);
            put(&mut record[4..8], sum);
            let sum = crc32fast::hash(&[&header[..60], &record[4..end]].concat());
            put(&mut record[..4], sum);
        }
    }
    bytes
}
