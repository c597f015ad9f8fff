//! Pages are read from a file while others compute: only the sequence that they belong to waits for a slow disk.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use grading::checkpoints::Folder;
use grading::pools::{setup, with_prefix_cache};
use page_by_page::disk::memory_disk::MemoryDisk;
use page_by_page::disk::{Disk, PageFileError};
use page_by_page::generation::sampler::{Sampler, SamplingParams};
use page_by_page::model::Model;
use page_by_page::serving::Engine;
use page_by_page::serving::disk_tier::DiskTier;

use crate::serving::engine;

/// A disk that can be read when its gate is open. A read that waits for long gets an error.
#[derive(Clone)]
struct Gated {
    disk: MemoryDisk,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl Gated {
    fn open(disk: &MemoryDisk) -> Self {
        Gated { disk: disk.clone(), gate: Arc::new((Mutex::new(true), Condvar::new())) }
    }

    fn set(&self, is_open: bool) {
        *self.gate.0.lock().unwrap() = is_open;
        self.gate.1.notify_all();
    }
}

impl Disk for Gated {
    fn len(&mut self) -> io::Result<u64> {
        self.disk.len()
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let (is_open, changed) = &*self.gate;
        let shut = |is_open: &mut bool| !*is_open;
        let (is_open, _) = changed.wait_timeout_while(is_open.lock().unwrap(), Duration::from_secs(20), shut).unwrap();
        if !*is_open {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.disk.read(offset, bytes)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.write(offset, bytes)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.disk.truncate(len)
    }
}

/// An empty memory whose pages go to this file.
fn serve<'m>(model: &'m Model, disk: &Gated) -> (Engine<'m>, DiskTier) {
    let setup = with_prefix_cache(setup(60, 16, 4));
    let tier = DiskTier::open(disk.clone(), model, setup.page_size, 1 << 24).unwrap();
    (engine(model, setup, &[]).0, tier)
}

fn generate_one(engine: &mut Engine<'_>, tier: &mut DiskTier, prompt: &[u32]) -> Vec<u32> {
    engine.submit(prompt.to_vec(), 9, Sampler::new(SamplingParams::GREEDY)).unwrap();
    let mut tokens = Vec::new();
    while !engine.is_done() {
        let step = engine.step().unwrap();
        tier.store(engine, &step.finished).unwrap();
        assert!(tier.take_loaded(engine, false).unwrap().is_empty(), "nothing comes through a gate that is shut");
        tokens.extend(step.finished.into_iter().flat_map(|finished| finished.sequence.tokens));
    }
    tokens
}

#[test]
fn others_compute_while_pages_are_read() {
    let pages = MemoryDisk::default();
    let model = Model::open(&grading::root().join("assets/storyteller")).unwrap();
    let [prompt, other] = [(40..80).collect::<Vec<u32>>(), (90..107).collect()];
    let expected = {
        let (mut engine, mut tier) = serve(&model, &Gated::open(&pages));
        assert_eq!(tier.prefetch(&mut engine, &prompt).unwrap(), None, "there is nothing to wait for in a new file");
        generate_one(&mut engine, &mut tier, &prompt)
    };
    let disk = Gated::open(&pages);
    let (mut engine, mut tier) = serve(&model, &disk);
    disk.set(false);
    let first = tier.prefetch(&mut engine, &prompt).unwrap().expect("pages to wait for");
    let second = tier.prefetch(&mut engine, &prompt).unwrap().expect("the same pages to wait for");
    assert_eq!(tier.counters().read, 9, "of 40 tokens all but one, in pages of 4, and none twice");
    let tokens = generate_one(&mut engine, &mut tier, &other);
    assert_eq!((tokens.len(), tier.counters().restored), (other.len() + 9, 0));
    disk.set(true);
    let mut tickets = tier.take_loaded(&mut engine, true).unwrap();
    while tickets.len() < 2 {
        let more = tier.take_loaded(&mut engine, true).unwrap();
        assert!(!more.is_empty(), "{tickets:?} of two have come");
        tickets.extend(more);
    }
    assert_eq!((tickets, tier.counters().restored), (vec![first, second], 9));
    assert_eq!(generate_one(&mut engine, &mut tier, &prompt), expected);
    assert_eq!(engine.totals().cached_tokens, 36);
}

#[test]
fn rows_of_weights_that_were_written_over_are_not_kept() {
    let folder = Folder::copy_of("storyteller-draft");
    let model = Model::open(folder.path().as_ref()).unwrap();
    let (mut engine, mut tier) = serve(&model, &Gated::open(&MemoryDisk::default()));
    generate_one(&mut engine, &mut tier, &[5; 20]);
    let written = tier.counters().written;
    assert!(written > 4 && tier.failed().is_none());
    let mut weights = File::options().write(true).open(folder.file("model.safetensors")).unwrap();
    weights.write_all(&folder.read("model.safetensors")[..8]).unwrap();
    generate_one(&mut engine, &mut tier, &[7; 20]);
    assert!(matches!(tier.failed(), Some(PageFileError::WeightsChanged)));
    assert_eq!(tier.counters().written, written);
}
