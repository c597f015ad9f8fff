//! Weights that were copied into large pages: the same model, whether the system had large pages or not.

use grading::checkpoints::Folder;
use page_by_page::model::Model;
use page_by_page::model::checkpoint::Weight;

/// Several shards, several types of numbers, an output matrix of its own.
const MODELS: [&str; 3] = ["sharded", "mixed-dtypes", "f16-mha-untied"];

fn logit_bits(model: &Model) -> Vec<u32> {
    let tokens: Vec<u32> = (0..40).map(|i| i * 7 % model.config().vocab_size as u32).collect();
    model.step(&tokens, None).unwrap().iter().map(|logit| logit.to_bits()).collect()
}

fn copied_is_as_mapped() {
    for name in MODELS {
        let folder = Folder::copy_of(name);
        let mut model = Model::open(folder.path().as_ref()).unwrap();
        let (bits, fingerprint) = (logit_bits(&model), model.fingerprint());
        model.copy_weights().unwrap();
        assert!(model.weights().all(Weight::is_copied), "{name}");
        assert_eq!((logit_bits(&model), model.fingerprint()), (bits, fingerprint), "{name}");
        let large = model.weight_bytes_in_large_pages();
        assert!(large.is_none_or(|large| large <= model.weight_bytes()), "{name}: {large:?} in large pages");
    }
}

#[test]
fn copied_weights_give_the_same_bits() {
    copied_is_as_mapped();
}

/// A process that was refused large pages is one to which the system gives none.
#[test]
#[cfg(target_os = "linux")]
fn without_large_pages_nothing_changes_but_the_time() {
    let refuse = |refuse: libc::c_ulong| {
        let none: libc::c_ulong = 0;
        // SAFETY: this call reads and writes no memory of ours.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, refuse, none, none, none) }, 0);
    };
    refuse(1);
    copied_is_as_mapped();
    let mut model = Model::open(Folder::copy_of("storyteller-draft").path().as_ref()).unwrap();
    model.copy_weights().unwrap();
    assert_eq!(model.weight_bytes_in_large_pages(), Some(0));
    refuse(0);
}

#[test]
fn copied_weights_stay_as_they_were_when_their_file_is_written_over() {
    let folder = Folder::copy_of("storyteller-draft");
    let mut model = Model::open(folder.path().as_ref()).unwrap();
    model.copy_weights().unwrap();
    let bits = logit_bits(&model);
    let len = folder.read("model.safetensors").len();
    folder.write("model.safetensors", vec![0; len]);
    assert_eq!(logit_bits(&model), bits);
}
