//! Numbers that cannot be: too large for any memory or for a row's format, or asked of too few tokens. They are refused
//! by name.

use grading::checkpoints::Folder;
use grading::story::assets;
use page_by_page::cache::attention::AttentionBackend;
use page_by_page::cache::{CacheError, KvCache, KvLayout};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::{ch03_contiguous::ContiguousCache, ch06_paged::PageSlab};
use page_by_page::kernels::KvDtype;
use page_by_page::model::{Model, StepError};

#[test]
#[should_panic(expected = "no memory holds 6148914691236517206 slots with a row of 6 numbers in each of 1 layers")]
fn a_slab_or_a_reservation_that_no_memory_holds_is_refused() {
    let layout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 6 };
    // 6,148,914,691,236,517,206 slots of 6 numbers wrap to 4.
    for (page_size, n_pages) in [(6_148_914_691_236_517_206usize, 1), (1 << 40, 1 << 40), (1 << 40, 1 << 20)] {
        let slots = page_size.saturating_mul(n_pages);
        let refused = CacheError::TooManySlots { slots, n_layers: 1, kv_width: 6 };
        assert_eq!(PageSlab::new(layout, page_size, n_pages).err(), Some(refused));
    }
    ContiguousCache::new(layout, 6_148_914_691_236_517_206);
}

#[test]
fn what_a_step_cannot_compute_is_refused_before_room_is_made() {
    let model = Model::open(&assets().join("storyteller-draft")).unwrap();
    let too_long = |len| Err(StepError::TooLong { len, max_positions: 1024 });
    assert_eq!(model.validate(&[1, 2], usize::MAX), too_long(usize::MAX));
    assert_eq!(model.validate(&[1, 2], 1023), too_long(1025));
    assert_eq!(model.validate(&[1, 2], 1022), Ok(()));
    let mut cache = FlatCache::new(model.config().kv_layout());
    let refused = model.prepare_chunk(&[1, 2, 3], Some(&mut cache), 4).err();
    assert_eq!(refused, Some(StepError::TooFewTokens { wanted: 4, tokens: 3 }));
    assert_eq!(cache.len(), 0);
    for n in 0..=3 {
        let logits = model.forward(vec![model.prepare_chunk(&[1, 2, 3], None, n).unwrap()]).unwrap();
        assert_eq!(logits.len(), n * model.config().vocab_size);
    }
}

/// Values of 100,000: f16 cannot hold them, which is an error; the others compute.
#[test]
fn what_a_format_cannot_hold_is_noticed() {
    let folder = Folder::copy_of("f32-bias-gqa7");
    folder.change_tensor("model.layers.0.self_attn.v_proj.bias", |tensor| {
        tensor.data = 100_000.0_f32.to_le_bytes().repeat(tensor.shape[0]);
    });
    for dtype in KvDtype::ALL {
        for attention in [AttentionBackend::Gather, AttentionBackend::Paged, AttentionBackend::Loops] {
            let mut model = Model::open(folder.path().as_ref()).unwrap();
            (model.kv_dtype, model.attention) = (dtype, attention);
            let mut cache = ContiguousCache::new(model.cache_layout(), 9);
            for stepped in [model.step(&[1, 2, 3], None), model.step(&[1, 2, 3], Some(&mut cache))] {
                match dtype {
                    KvDtype::F16 => {
                        assert!(matches!(stepped, Err(StepError::NotFinite { position: 2, token: 3 })), "{stepped:?}");
                    }
                    _ => assert!(stepped.is_ok(), "{dtype}, {attention:?}: {stepped:?}"),
                }
            }
        }
    }
}
