//! A cache for the engine's own tests, independent of any chapter: rows pushed on plain vectors.

use std::borrow::Cow;

use page_by_page::cache::in_place::InPlace;
use page_by_page::cache::{CacheError, KvCache, KvLayout, Rewind, Usage};

pub struct DenseCache {
    layout: KvLayout,
    len: usize,
    layers: Vec<[Vec<f32>; 2]>,
}

impl DenseCache {
    pub fn new(layout: KvLayout) -> Self {
        DenseCache { layout, len: 0, layers: vec![Default::default(); layout.n_layers] }
    }
}

impl KvCache for DenseCache {
    fn layout(&self) -> KvLayout {
        self.layout
    }

    fn len(&self) -> usize {
        self.len
    }

    fn extend(&mut self, n: usize) -> Result<(), CacheError> {
        self.len += n;
        Ok(())
    }

    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        let [keys, values] = &mut self.layers[layer];
        keys.extend_from_slice(k);
        values.extend_from_slice(v);
    }

    fn gather(&self, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>) {
        let [keys, values] = &self.layers[layer];
        (keys.into(), values.into())
    }

    fn usage(&self) -> Usage {
        Usage { tokens: self.len, slots: self.len, bytes: 0, rows_copied: 0 }
    }
}

impl Rewind for DenseCache {
    fn rewind(&mut self, _: usize) -> Result<(), CacheError> {
        unimplemented!("no test rewinds it")
    }
}

impl InPlace for DenseCache {}
