//! Rows in fewer bits, around chapter 14: they are rounded before they are read, and what does not fit is noticed.

use page_by_page::cache::attention::AttentionBackend;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::kernels::RowFormat;
use page_by_page::model::{Model, StepError};

use grading::checkpoints::Folder;

const TOKENS: [u32; 5] = [5, 46, 0, 1, 43];

fn open(folder: &Folder, format: RowFormat) -> Model {
    let mut model = Model::open(folder.path().as_ref()).unwrap();
    model.row_format = format;
    model
}

/// Values of 100,000: f16 cannot hold them, which is an error; the others compute.
#[test]
fn what_a_format_cannot_hold_is_noticed() {
    let folder = Folder::copy_of("f32-bias-gqa7");
    folder.change_tensor("model.layers.0.self_attn.v_proj.bias", |tensor| {
        tensor.data = 100_000.0_f32.to_le_bytes().repeat(tensor.shape[0]);
    });
    for format in RowFormat::ALL {
        for attention in [AttentionBackend::Gather, AttentionBackend::PagedKernel, AttentionBackend::PagedLoops] {
            let mut model = open(&folder, format);
            model.attention = attention;
            let mut cache = ContiguousCache::new(model.kv_layout(), 9);
            for stepped in [model.step(&[1, 2, 3], None), model.step(&[1, 2, 3], Some(&mut cache))] {
                match format {
                    RowFormat::F16 => {
                        assert!(matches!(stepped, Err(StepError::NotFinite { position: 2, token: 3 })), "{stepped:?}");
                    }
                    _ => assert!(stepped.is_ok(), "{format}, {attention:?}: {stepped:?}"),
                }
            }
        }
    }
}

/// Fresh rows are rounded before they are read: a prefill computes what the same tokens compute one by one.
#[test]
fn rows_are_rounded_before_they_are_first_read() {
    let folder = Folder::copy_of("f32-bias-gqa7");
    for format in RowFormat::ALL {
        let model = open(&folder, format);
        let mut cache = ContiguousCache::new(model.kv_layout(), 9);
        let one_by_one = TOKENS.iter().map(|token| model.step(&[*token], Some(&mut cache)).unwrap()).last();
        assert_eq!(model.step(&TOKENS, None).unwrap(), one_by_one.unwrap(), "{format}");
    }
}
