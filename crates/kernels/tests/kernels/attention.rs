//! Attention, wherever the rows lie and however many queries come together.

use page_by_page_kernels::{Heads, KvDtype, Run, SequenceRows, attend};

use crate::definition::{self, bits, dot, numbers};
use crate::on_three_threads;

/// Query by query, position by position.
fn by_definition(heads: Heads, dtype: KvDtype, sequences: &[SequenceRows<'_>], q: &[f32]) -> Vec<f32> {
    let Heads { n_heads, n_kv_heads, head_dim } = heads;
    let words = words_per_head(dtype, head_dim);
    let head_at = |memory: &[f32], place: usize| unpacked(dtype, &memory[place..][..words], head_dim);
    let mut out = Vec::new();
    let mut queries = q.chunks_exact(head_dim);
    for sequence in sequences {
        let places: Vec<usize> = sequence
            .runs
            .iter()
            .flat_map(|run| (0..run.rows).map(|row| run.start + row * n_kv_heads * words))
            .collect();
        for row in 0..sequence.queries {
            let seen = &places[..places.len() - sequence.queries + row + 1];
            for head in 0..n_heads {
                let at = head / (n_heads / n_kv_heads) * words;
                let query = queries.next().expect("a query for each head");
                let key = |place: &usize| head_at(sequence.keys, place + at);
                let mut weights: Vec<f32> = seen.iter().map(|place| dot(query, &key(place))).collect();
                definition::softmax(&mut weights, 1.0 / (head_dim as f32).sqrt());
                let mut sums = vec![0.0_f32; head_dim];
                for (weight, place) in weights.iter().zip(seen) {
                    for (sum, value) in sums.iter_mut().zip(head_at(sequence.values, place + at)) {
                        *sum = weight.mul_add(value, *sum);
                    }
                }
                out.extend(sums);
            }
        }
    }
    out
}

fn words_per_head(dtype: KvDtype, dim: usize) -> usize {
    match dtype {
        KvDtype::F32 => dim,
        KvDtype::F16 | KvDtype::Bf16 => dim.div_ceil(2),
        KvDtype::Int8 => 1 + dim.div_ceil(4),
    }
}

fn unpacked(dtype: KvDtype, words: &[f32], dim: usize) -> Vec<f32> {
    let halves = words.iter().flat_map(|word| [word.to_bits() as u16, (word.to_bits() >> 16) as u16]);
    let bytes = words.iter().skip(1).flat_map(|word| word.to_le_bytes());
    match dtype {
        KvDtype::F32 => words.to_vec(),
        KvDtype::F16 => halves.map(|half| half::f16::from_bits(half).to_f32()).take(dim).collect(),
        KvDtype::Bf16 => halves.map(|half| half::bf16::from_bits(half).to_f32()).take(dim).collect(),
        KvDtype::Int8 => bytes.map(|byte| f32::from(byte as i8) * words[0]).take(dim).collect(),
    }
}

/// A head as a cache stores it. What is left of the last word is NaN, or -128, since it must not be read.
fn pack(dtype: KvDtype, numbers: &[f32], words: &mut [f32]) {
    let half = |number: f32| match dtype {
        KvDtype::F16 => half::f16::from_f32(number).to_bits(),
        _ => half::bf16::from_f32(number).to_bits(),
    };
    match dtype {
        KvDtype::F32 => words.copy_from_slice(numbers),
        KvDtype::F16 | KvDtype::Bf16 => {
            for (word, pair) in words.iter_mut().zip(numbers.chunks(2)) {
                let high = pair.get(1).map_or(0x7fff, |number| half(*number));
                *word = f32::from_bits(u32::from(half(pair[0])) | u32::from(high) << 16);
            }
        }
        KvDtype::Int8 => {
            words[0] = 0.5 / 127.0;
            for (word, four) in words[1..].iter_mut().zip(numbers.chunks(4)) {
                let mut bytes = [0x80; 4];
                for (byte, number) in bytes.iter_mut().zip(four) {
                    *byte = (number * 254.0) as i8 as u8;
                }
                *word = f32::from_bits(u32::from_le_bytes(bytes));
            }
        }
    }
}

/// A memory of rows in pages that lie in no order, and NaN between them.
struct Pages {
    keys: Vec<f32>,
    values: Vec<f32>,
    runs: Vec<Run>,
}

impl Pages {
    fn new(heads: Heads, dtype: KvDtype, n: usize, page_size: usize, seed: u32) -> Self {
        let words = words_per_head(dtype, heads.head_dim);
        let width = heads.n_kv_heads * words;
        let n_pages = n.div_ceil(page_size);
        let gap = 3;
        let page = page_size * width + gap;
        let (mut keys, mut values) = (vec![f32::NAN; n_pages * page], vec![f32::NAN; n_pages * page]);
        let mut runs = Vec::new();
        for i in 0..n_pages {
            // Each page once: 7 and the number of pages have no common factor, or the order is kept.
            let place = if n_pages.is_multiple_of(7) { i } else { i * 7 % n_pages };
            let rows = page_size.min(n - i * page_size);
            let run = Run { start: place * page + gap, rows };
            for (memory, seed) in [(&mut keys, seed), (&mut values, seed + 1)] {
                let numbers = numbers(rows * heads.n_kv_heads * heads.head_dim, seed + 2 * i as u32);
                for (head, numbers) in numbers.chunks_exact(heads.head_dim).enumerate() {
                    pack(dtype, numbers, &mut memory[run.start + head * words..][..words]);
                }
            }
            runs.push(run);
        }
        Pages { keys, values, runs }
    }

    fn rows(&self, queries: usize) -> SequenceRows<'_> {
        SequenceRows { queries, keys: &self.keys, values: &self.values, runs: &self.runs }
    }
}

/// A batch of sequences: tokens, queries, page size.
type Batch = [(usize, usize, usize)];

fn check(heads: Heads, dtype: KvDtype, batch: &Batch) {
    let pages = |(i, (n, _, page_size)): (usize, &(usize, usize, usize))| {
        Pages::new(heads, dtype, *n, *page_size, 100 * i as u32 + 1)
    };
    let pages: Vec<Pages> = batch.iter().enumerate().map(pages).collect();
    let sequences: Vec<SequenceRows<'_>> = pages.iter().zip(batch).map(|(pages, of)| pages.rows(of.1)).collect();
    let queries: usize = sequences.iter().map(|sequence| sequence.queries).sum();
    let q = numbers(queries * heads.n_heads * heads.head_dim, 5);
    let mut out = vec![f32::NAN; q.len()];
    attend(heads, dtype, &sequences, &q, &mut out);
    let expected = by_definition(heads, dtype, &sequences, &q);
    assert!(bits(&out) == bits(&expected), "{heads:?}, {dtype:?}, {batch:?}: {out:?}, not {expected:?}");
}

/// Groups of 1 to 7 query heads; vectors of a head that are full and not.
const SHAPES: [Heads; 8] = [
    Heads { n_heads: 6, n_kv_heads: 2, head_dim: 10 },
    Heads { n_heads: 7, n_kv_heads: 1, head_dim: 32 },
    Heads { n_heads: 3, n_kv_heads: 3, head_dim: 16 },
    Heads { n_heads: 8, n_kv_heads: 4, head_dim: 65 },
    Heads { n_heads: 2, n_kv_heads: 1, head_dim: 128 },
    Heads { n_heads: 4, n_kv_heads: 4, head_dim: 48 },
    Heads { n_heads: 4, n_kv_heads: 1, head_dim: 80 },
    Heads { n_heads: 5, n_kv_heads: 1, head_dim: 144 },
];

const BATCHES: [&Batch; 6] = [
    &[(1, 1, 1)],
    &[(50, 1, 16)],
    &[(37, 37, 3)],
    &[(70, 9, 16), (5, 5, 1), (33, 1, 4)],
    &[(19, 1, 3), (64, 1, 16), (1, 1, 256), (40, 2, 7), (45, 0, 5), (3, 3, 3)],
    &[(21, 4, 5), (150, 6, 16)],
];

#[test]
fn a_batch_in_pages_is_attention_by_its_definition() {
    for heads in SHAPES {
        for dtype in KvDtype::ALL {
            for batch in BATCHES {
                check(heads, dtype, if cfg!(miri) { &batch[..1] } else { batch });
            }
        }
    }
}

#[test]
fn a_long_sequence_is_attention_by_its_definition() {
    if cfg!(miri) {
        return;
    }
    let heads = Heads { n_heads: 2, n_kv_heads: 1, head_dim: 16 };
    for sequence in [(9000, 1, 16), (9000, 30, 16), (300, 300, 64)] {
        check(heads, KvDtype::F32, &[sequence]);
    }
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "there is one thread")]
fn several_threads_fill_one_output() {
    let heads = Heads { n_heads: 4, n_kv_heads: 2, head_dim: 6 };
    // Enough work to be shared.
    on_three_threads(|| check(heads, KvDtype::F32, &[(20, 1, 4), (24, 20, 4), (20, 1, 4)]));
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "a panic ends the program")]
fn what_cannot_be_attended_is_refused() {
    let heads = Heads { n_heads: 2, n_kv_heads: 1, head_dim: 2 };
    let memory = [1.0; 8];
    let refusal = |queries, runs: &[Run], q: usize, out: usize| {
        let sequences = [SequenceRows { queries, keys: &memory, values: &memory, runs }];
        let mut out = vec![0.0; out];
        let attended = std::panic::AssertUnwindSafe(|| {
            attend(heads, KvDtype::F32, &sequences, &vec![1.0; q], &mut out);
        });
        let panic = std::panic::catch_unwind(attended).err()?;
        Some(*panic.downcast::<String>().expect("a message"))
    };
    let right = &[Run { start: 4, rows: 2 }, Run { start: 8, rows: 0 }][..];
    assert_eq!(refusal(1, right, 4, 4), None, "runs that end where the memory does");
    // Some of these come back to small numbers if they are multiplied or added without a check.
    for (start, rows, end) in
        [(5, 2, 9), (9, 0, 9), (4, 1 << (usize::BITS - 1), usize::MAX), (usize::MAX - 1, 1, usize::MAX)]
    {
        let said = refusal(1, &[Run { start, rows }], 4, 4);
        assert_eq!(said, Some(format!("a run ends at {end}, beyond the memory")), "{rows} rows from {start} on");
    }
    for queries in [3, 1 << (usize::BITS - 1), usize::MAX] {
        let said = refusal(queries, right, 12, 12);
        assert_eq!(said, Some(format!("{queries} queries in a sequence of 2 tokens")));
    }
    for (q, out) in [(8, 8), (4, 3)] {
        let said = refusal(1, right, q, out).expect("a refusal");
        assert!(said.ends_with("1 queries of 4 numbers"), "{q} numbers of queries, {out} of output: {said}");
    }
}
