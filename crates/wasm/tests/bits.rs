//! The logits have these bits, wherever the engine runs: compiled for this processor, or for a browser.

use page_by_page::cache_kind::{CacheKind, CacheSize};
use page_by_page::generation::{CachedModel, LanguageModel};
use page_by_page::kernels::{ARITHMETIC_VERSION, MatmulDtype};
use page_by_page::model::checkpoint::Checkpoint;
use page_by_page::model::{Model, ModelConfig};

/// The arithmetic's number, and checksums of the logits at every position: with products in 32 bits, and in 16.
///
/// If this fails, give [`ARITHMETIC_VERSION`] the next number: files of rows are told apart by it.
const CHECKSUMS: (u32, [u32; 2]) = (0, [4_237_521_297, 687_573_320]);

#[test]
fn logits_have_the_same_bits_everywhere() {
    let config = include_bytes!("../../../assets/storyteller/config.json");
    let weights = include_bytes!("../../../assets/storyteller/model.safetensors");
    let config = ModelConfig::parse("".as_ref(), config, b"{}").unwrap();
    let mut model = Model::from_checkpoint(config, &Checkpoint::from_bytes(weights.to_vec()).unwrap()).unwrap();
    let (n, vocab_size) = (model.config().max_positions, model.config().vocab_size as u32);
    let tokens: Vec<u32> = (0..n as u32).map(|token| token.wrapping_mul(2_654_435_761) % vocab_size).collect();
    let size = CacheSize::for_tokens(n, 16).unwrap();
    let checksums = MatmulDtype::ALL.map(|matmul_dtype| {
        model.matmul_dtype = matmul_dtype;
        let mut cache = CacheKind::Paged.new_cache(model.cache_layout(), size).unwrap().unwrap();
        let mut cached = CachedModel::new(&model, cache.as_mut());
        let mut checksum = crc32fast::Hasher::new();
        // A long prompt, in chunks of several sizes, then token by token.
        for len in [1, 8, 45, 300, 700].into_iter().chain(701..=n) {
            let logits = cached.next_logits(&tokens[..len]).unwrap();
            logits.iter().for_each(|logit| checksum.update(&logit.to_le_bytes()));
        }
        checksum.finalize()
    });
    assert_eq!((ARITHMETIC_VERSION, checksums), CHECKSUMS);
}
