//! Chapter 14: the numbers of a key of the storyteller, and the nearest ones that each format has.

use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch14_kv_quantization::{decode, encode, words_per_head};
use page_by_page::kernels::KvDtype;

use super::prelude::*;
use crate::chart::circle;

const PROMPT: &str = "Once upon a time";
const FORMATS: [KvDtype; 3] = [KvDtype::F16, KvDtype::Bf16, KvDtype::Int8];
/// How much of the number line is shown, around zero and up to the largest number.
const SHOWN: f32 = 0.21;

/// The sizes of the numbers of a key of the prompt's newest token, in layer 0 and head 0, as it is computed.
fn key() -> Result<Vec<f32>> {
    let (model, prompt) = (model(STORYTELLER)?, tokenizer()?.encode(PROMPT)?);
    let (layout, head_dim) = (model.config().kv_layout(), model.config().head_dim);
    let mut cache = ContiguousCache::new(layout, prompt.len());
    model.step(&prompt, Some(&mut cache))?;
    let newest = (prompt.len() - 1) * layout.kv_width();
    Ok(cache.gather(0).0[newest..newest + head_dim].iter().map(|number| number.abs()).collect())
}

/// The words of a head, and the numbers that are read from them.
fn packed(dtype: KvDtype, head: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let (mut words, mut again) = (vec![0.0; words_per_head(dtype, head.len())], vec![0.0; head.len()]);
    encode(dtype, head, &mut words);
    decode(dtype, &words, &mut again);
    (words, again)
}

/// The numbers that a format has in the stretch, in a head with this largest number.
fn between(dtype: KvDtype, from: f32, largest: f32) -> Vec<f32> {
    const SAMPLES: usize = 1000;
    let sample = |n: usize| from + SHOWN * n as f32 / SAMPLES as f32;
    let mut found: Vec<f32> = (0..=SAMPLES).map(|n| packed(dtype, &[largest, sample(n).min(largest)]).1[1]).collect();
    found.retain(|number| (from..=from + SHOWN).contains(number));
    found.dedup();
    found
}

pub fn figure() -> Result<Figure> {
    let key = key()?;
    let largest = key.iter().copied().fold(0.0, f32::max);
    let bytes = |dtype| size_of_val(&packed(dtype, &key).0[..]);
    let sizes = listed(&FORMATS.map(|dtype| format!("{} as {}", bytes(dtype), dtype.name())));
    let (n, in_f32, apart) = (key.len(), bytes(KvDtype::F32), largest / 127.0);
    let lost = packed(KvDtype::Int8, &key).1.iter().filter(|again| **again == 0.0).count();
    let figure = Figure {
        label: format!(
            "Two stretches of the number line, up from zero and up to the key\u{2019}s largest number, {largest:.2}, with the \
             numbers that each format has there. Near zero those of f16 and bf16 lie close together. Those of int8 are \
             {apart:.3} apart everywhere, and the number nearest to zero becomes 0, {lost} of {n}."
        ),
        headline: "f16 and bf16 round small numbers more finely, while int8 rounds all numbers of a head alike.".into(),
        setup: format!(
            "A key after \u{201c}{PROMPT}\u{201d}, {n} numbers in {in_f32} bytes as f32, {sizes}. A dot is one of its \
             numbers, without its sign; a line leads to the nearest number that the format has."
        ),
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        picture.labelled("bf16");
        let stretches =
            [(0.0, "near zero".into()), (largest - 0.98 * SHOWN, format!("near the largest, {largest:.2}"))];
        picture.beside(stretches.len(), |picture, place| {
            let (from, title) = &stretches[place];
            picture.heading(title, "");
            draw(picture, &key, largest, *from);
        });
    }))
}

fn draw(picture: &mut Picture, key: &[f32], largest: f32, from: f32) {
    let (left, width) = (picture.left + picture.labels, picture.width - picture.labels - 8.0);
    let x = |number: f32| left + f64::from((number - from) / SHOWN) * width;
    for (place, dtype) in FORMATS.into_iter().enumerate() {
        let (dots, bars) = (picture.y + 10.0, picture.y + 34.0);
        picture.bold(picture.left, bars + 14.0, Anchor::Start, dtype.name());
        let pairs = key.iter().zip(packed(dtype, key).1).filter(|(number, _)| (from..=from + SHOWN).contains(*number));
        for (number, again) in pairs {
            picture.path("line", format!("M{:.1} {dots:.1}L{:.1} {bars:.1}", x(*number), x(again)));
            picture.path(format!("fill o{place}"), circle(x(*number), dots, 3.0));
            if again == 0.0 {
                picture.path("mark", circle(x(*number), dots, 7.0));
                picture.text(x(0.0), bars + 32.0, Anchor::Start, format!("{number:.4} becomes 0"));
            }
        }
        // Those that lie too close together are one bar, and a long one says what it is.
        let found: Vec<f64> = between(dtype, from, largest).into_iter().map(x).collect();
        let bar =
            |run: &[f64]| format!("M{:.1} {bars:.1}h{:.1}v18H{0:.1}z", run[0] - 1.0, run[run.len() - 1] - run[0] + 2.0);
        let runs = || found.chunk_by(|a, b| b - a < 3.0);
        picture.path(format!("fill o{place}"), runs().map(bar).collect());
        for run in runs().filter(|run| run.len() > 100) {
            let middle = (run[0] + run[run.len() - 1]) / 2.0;
            picture.text(middle, bars + 13.0, Anchor::Middle, "too close to draw");
        }
        picture.y += 58.0;
    }
    for tenth in (0..50).map(|tenth| tenth as f32 / 10.0).filter(|tenth| (from..=from + SHOWN).contains(tenth)) {
        picture.text(x(tenth), picture.y + 20.0, Anchor::Middle, format!("{tenth:.1}"));
    }
    picture.y += 28.0;
}
