//! Chapter 14: a page of four tokens in eight bits, with one scale for all of its rows and with one for each.

use page_by_page::chapters::ch14_kv_quantization::{decode, encode};
use page_by_page::kernels::KvDtype;

use super::prelude::*;

/// The first head is the one that the page does by hand.
const HEADS: [(&str, [f32; 4]); 4] = [
    ("once", [1.0, -0.3, 0.1, 0.002]),
    ("upon", [0.5, 0.2, -0.9, 0.4]),
    ("a", [3.0, -0.4, 0.7, 1.2]),
    ("time", [0.2, -0.1, 0.01, 0.05]),
];

/// A row as it is stored, and as it is read.
struct Row {
    scale: f32,
    bytes: [i8; 4],
    read: [f32; 4],
}

fn is_right(row: &Row, head: &[f32; 4], i: usize) -> bool {
    (row.read[i] - head[i]).abs() <= row.scale / 2.0
}

/// Each head with a scale of its own, by the chapter's code.
fn of_each() -> [Row; 4] {
    HEADS.map(|(_, head)| {
        let (mut words, mut read) = ([0.0; 2], [0.0; 4]);
        encode(KvDtype::Int8, &head, &mut words);
        decode(KvDtype::Int8, &words, &mut read);
        Row { scale: words[0], bytes: words[1].to_bits().to_le_bytes().map(u8::cast_signed), read }
    })
}

/// The first `n` heads with one scale, which grows with the largest number so far.
fn of_page(n: usize) -> Vec<Row> {
    let mut scale = 0.0_f32;
    let mut write = |head: [f32; 4]| {
        scale = head.iter().fold(scale, |scale, x| scale.max(x.abs() / 127.0));
        head.map(|x| (x / scale).round_ties_even() as i8)
    };
    let bytes: Vec<[i8; 4]> = HEADS[..n].iter().map(|(_, head)| write(*head)).collect();
    bytes.into_iter().map(|bytes| Row { scale, bytes, read: bytes.map(|byte| f32::from(byte) * scale) }).collect()
}

pub fn figure() -> Result<Figure> {
    let (all, own) = (of_page(HEADS.len()), of_each());
    let wrong = |row: usize| (0..4).filter(|i| !is_right(&all[row], &HEADS[row].1, *i)).count();
    ensure!([0, 1, 2, 3].map(wrong) == [3, 4, 0, 0], "the first two rows are wrong, but for a 0");
    let (before, after) = (of_page(2)[0].scale, all[0].scale);
    let mut figure = Figure {
        label: format!(
            "A page of four rows, twice. With one scale for the page, {before:.4} becomes {after:.4} when the third token \
             arrives, and the bytes of the first two mean three times as much. With a scale for each head, no row changes."
        ),
        headline: "When the page\u{2019}s scale grows, bytes that nobody touched mean different numbers.".into(),
        setup: "Four tokens with a head of four numbers each. A cell has the byte that is stored and, below it, the \
                number that is read."
            .into(),
        legend: vec![
            (held('a', ""), "reads as it was written, rounded"),
            (held('d', ""), "reads as something else"),
            (held('c', ""), "scale"),
        ],
        ..Figure::default()
    };
    let [first, kept, lost] = [all[0].read[0], 127.0 * before, own[3].read[2]];
    let texts = [
        format!("\u{201c}once\u{201d} is the head that you did by hand. Either way, its scale is {before:.4}."),
        "\u{201c}upon\u{201d} has nothing larger than 1.0, and the page keeps its scale.".into(),
        format!(
            "\u{201c}a\u{201d} brings 3.0. The page\u{2019}s scale grows to {after:.4}, and the 127 that was 1.0 now reads \
             {first:.4}. (Keep the scale, and the 3.0 reads {kept:.1}.) Where each head has its own, nothing moves."
        ),
        format!(
            "\u{201c}time\u{201d} is small. By the page\u{2019}s scale, its 0.01 falls to 0. By its own, it is {lost:.4}."
        ),
    ];
    for (n, text) in (1..).zip(texts) {
        let (page, own) = (of_page(n), &own[..n]);
        figure.frame(text, |picture| {
            picture.labelled("upon");
            picture.beside(2, |picture, side| draw(picture, [1, 4][side], [&page[..], own][side]));
        });
    }
    Ok(figure)
}

fn draw(picture: &mut Picture, scales: usize, rows: &[Row]) {
    const PITCH: f64 = 42.0;
    picture.heading(if scales == 1 { "one scale for the page" } else { "one scale for each head" }, "");
    let (left, top) = (picture.left + picture.labels, picture.y);
    let width = (picture.right() - left) / 5.0;
    let area = |column: usize, row: usize, rows: usize| Area {
        x: left + column as f64 * width,
        y: top + row as f64 * PITCH,
        width: width - 2.5,
        height: rows as f64 * PITCH - 2.5,
    };
    for n in 0..scales {
        let cell = rows.get(n).map_or(free(""), |row| held('c', format!("{:.4}", row.scale)));
        picture.cell(area(0, n, HEADS.len() / scales), cell);
    }
    for (n, (word, head)) in HEADS.iter().enumerate() {
        picture.text(picture.left, area(0, n, 1).baseline(), Anchor::Start, word);
        for i in 0..4 {
            let cell = rows.get(n).map_or(free(""), |row| {
                let owner = if is_right(row, head, i) { 'a' } else { 'd' };
                held(owner, format!("{}\n{:.4}", row.bytes[i], row.read[i]))
            });
            picture.cell(area(i + 1, n, 1), cell);
        }
    }
    picture.y += HEADS.len() as f64 * PITCH;
}
