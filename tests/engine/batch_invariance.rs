//! A row has the same bits in whatever company it is computed: the property on which all other tests rest.

use grading::oracle::TestRng;
use grading::rows::bits;
use grading::story::assets;
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::kernels::MatmulDtype;
use page_by_page::model::{Chunk, Model};

/// Logits after every token, all in one pass, without a cache.
fn at_once(model: &Model, tokens: &[u32]) -> Vec<f32> {
    model.forward(vec![model.prepare_chunk(tokens, None, tokens.len()).unwrap()]).unwrap()
}

/// Cuts each text into pieces of its own sizes and computes them turn by turn: in each turn the next piece of every
/// text that has one left, in one batch. Returns the logits of each text.
fn in_turns(model: &Model, texts: &[(Vec<u32>, Vec<usize>)]) -> Vec<Vec<f32>> {
    let vocab_size = model.config().vocab_size;
    let mut caches: Vec<FlatCache> = texts.iter().map(|_| FlatCache::new(model.config().kv_layout())).collect();
    let mut logits: Vec<Vec<f32>> = vec![Vec::new(); texts.len()];
    for turn in 0.. {
        let mut batch: Vec<Chunk<'_>> = Vec::new();
        let mut rows = Vec::new();
        for (index, ((tokens, sizes), cache)) in texts.iter().zip(&mut caches).enumerate() {
            let start = cache.len();
            if start < tokens.len() {
                let end = (start + sizes[turn % sizes.len()]).min(tokens.len());
                rows.push((index, end - start));
                batch.push(model.prepare_chunk(&tokens[start..end], Some(cache), end - start).unwrap());
            }
        }
        if batch.is_empty() {
            break;
        }
        let all = model.forward(batch).unwrap();
        let mut rest = all.as_slice();
        for (index, rows) in rows {
            let (own, others) = rest.split_at(rows * vocab_size);
            logits[index].extend_from_slice(own);
            rest = others;
        }
    }
    logits
}

/// Up to three sequences, each with the sizes of the pieces it is cut into.
fn sequences(rng: &mut TestRng, vocab_size: usize) -> Vec<(Vec<u32>, Vec<usize>)> {
    let many = |rng: &mut TestRng, most: usize, low: usize, high: usize| -> Vec<usize> {
        (0..rng.roll(1, most)).map(|_| rng.roll(low, high)).collect()
    };
    let tokens = |numbers: Vec<usize>| numbers.into_iter().map(|number| number as u32).collect();
    (0..rng.roll(1, 3)).map(|_| (tokens(many(rng, 39, 0, vocab_size - 1)), many(rng, 5, 1, 11))).collect()
}

fn check(model: &Model) {
    for seed in 0..24 {
        let sequences = sequences(&mut TestRng::new(seed), model.config().vocab_size);
        for ((tokens, sizes), found) in sequences.iter().zip(in_turns(model, &sequences)) {
            let expected = at_once(model, tokens);
            assert!(bits(&found) == bits(&expected), "seed {seed}: {} tokens in pieces of {sizes:?}", tokens.len());
        }
    }
}

/// In the second model nothing is a multiple of sixteen.
#[test]
fn any_pieces_in_any_company_give_the_same_bits() {
    for matmul_dtype in MatmulDtype::ALL {
        for folder in [assets().join("storyteller-draft"), grading::root().join("assets/golden/one-layer-odd")] {
            let mut model = Model::open(&folder).unwrap();
            model.matmul_dtype = matmul_dtype;
            check(&model);
        }
    }
}

#[test]
fn neither_single_tokens_nor_the_number_of_threads_change_a_bit() {
    let mut model = Model::open(&assets().join("storyteller")).unwrap();
    let tokens: Vec<u32> = (0..300).map(|i| i * 37 % 4096).collect();
    let both = MatmulDtype::ALL.map(|matmul_dtype| {
        model.matmul_dtype = matmul_dtype;
        let expected = bits(&at_once(&model, &tokens));
        let one_by_one = in_turns(&model, &[(tokens.clone(), vec![1])]);
        assert!(bits(&one_by_one[0]) == expected, "300 tokens, decoded one by one, products in {matmul_dtype:?}");
        for threads in [1, 2, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let found = pool.install(|| bits(&at_once(&model, &tokens)));
            assert!(found == expected, "{threads} threads, products in {matmul_dtype:?}");
        }
        expected
    });
    assert!(both[0] != both[1], "the products are the same");
}
