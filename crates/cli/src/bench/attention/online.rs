//! An online softmax, to see by how much its results differ from those of two passes.

use page_by_page::kernels::{Heads, KvDtype, Run, SequenceRows, add_scaled, attend, dot};

use crate::bench::Row;

// ANCHOR: online
/// Attention of one query head in one walk, which sees `keys` and `values` once,
/// `block` rows at a time. Beside the sum of the values, it carries the highest
/// score so far and the sum of the weights. When a block brings a higher score,
/// both sums shrink.
fn online(query: &[f32], keys: &[f32], values: &[f32], block: usize, out: &mut [f32]) {
    let dim = query.len();
    let scale = 1.0 / (dim as f32).sqrt();
    let (mut highest, mut total) = (f32::NEG_INFINITY, 0.0);
    out.fill(0.0);
    for (keys, values) in keys.chunks(block * dim).zip(values.chunks(block * dim)) {
        let score = |key| dot(query, key) * scale;
        let scores: Vec<f32> = keys.chunks(dim).map(score).collect();
        let highest_now = scores.iter().copied().fold(highest, f32::max);
        let shrink = (highest - highest_now).exp();
        total *= shrink;
        out.iter_mut().for_each(|x| *x *= shrink);
        for (score, value) in scores.iter().zip(values.chunks(dim)) {
            let weight = (score - highest_now).exp();
            total += weight;
            add_scaled(out, weight, value);
        }
        highest = highest_now;
    }
    out.iter_mut().for_each(|x| *x /= total);
}
// ANCHOR_END: online

/// Random numbers from -1 to 1, the same everywhere.
pub struct RandomNumbers(pub u64);

impl RandomNumbers {
    pub fn take(&mut self, n: usize) -> Vec<f32> {
        let next = |_| {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(next).collect()
    }
}

/// An online softmax over blocks of 16 positions and over blocks of 256, against two passes and against each other.
pub fn differences(heads: Heads, tokens: usize) -> Vec<Row> {
    let Heads { n_heads, head_dim, .. } = heads;
    // Each query head has keys and values of its own: these are only random numbers.
    let heads = Heads { n_kv_heads: n_heads, ..heads };
    let mut numbers = RandomNumbers(2);
    let rows = n_heads * head_dim;
    let (q, dense) = (numbers.take(rows), [numbers.take(tokens * rows), numbers.take(tokens * rows)]);
    let runs = [Run { start: 0, rows: tokens }];
    let sequence = SequenceRows { queries: 1, keys: &dense[0], values: &dense[1], runs: &runs };
    let mut two_passes = vec![0.0; rows];
    attend(heads, KvDtype::F32, &[sequence], &q, &mut two_passes);
    let [by_16, by_256] = [16, 256].map(|block| {
        let mut out = vec![0.0; rows];
        for head in 0..n_heads {
            let numbers = head * head_dim..(head + 1) * head_dim;
            let of_head = |rows: &[f32]| -> Vec<f32> {
                rows.chunks(n_heads * head_dim).flat_map(|row| row[numbers.clone()].to_vec()).collect()
            };
            online(&q[numbers.clone()], &of_head(&dense[0]), &of_head(&dense[1]), block, &mut out[numbers.clone()]);
        }
        out
    });
    [
        ("in blocks of 16", &by_16, &two_passes),
        ("in blocks of 256", &by_256, &two_passes),
        ("blocks of 16 against blocks of 256", &by_16, &by_256),
    ]
    .map(|(blocks, a, b)| {
        let largest = a.iter().zip(b).fold(0.0_f32, |largest, (a, b)| (a - b).abs().max(largest));
        let different = a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        Row::default()
            .text("online softmax", blocks)
            .count("tokens", tokens)
            .cell("largest difference", largest, format!("{largest:.1e}"))
            .cell("other bits", different, format!("{different} of {}", a.len()))
    })
    .into()
}
