//! Model folders to be damaged: copies of the golden checkpoints, taken apart and put together again.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// A copy of a model folder, which goes away with this.
pub struct Folder {
    dir: tempfile::TempDir,
}

#[derive(Clone)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub data: Vec<u8>,
}

impl Folder {
    /// A copy of `assets/golden/NAME` or `assets/NAME`.
    pub fn copy_of(name: &str) -> Self {
        let root = crate::root();
        let source = ["assets/golden", "assets"].map(|parent| root.join(parent).join(name));
        let source = source.iter().find(|dir| dir.join("config.json").exists()).expect("a golden or bundled model");
        let dir = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(source).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
        }
        Folder { dir }
    }

    pub fn path(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.file(name), content).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.file(name)).unwrap()
    }

    pub fn set(&self, file: &str, field: &str, value: Value) {
        let mut json: Value = serde_json::from_slice(&self.read(file)).unwrap();
        json[field] = value;
        self.write(file, json.to_string());
    }

    pub fn tensors(&self) -> BTreeMap<String, Tensor> {
        let bytes = self.read("model.safetensors");
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.iter().map(|(name, view)| {
            let tensor = Tensor { dtype: view.dtype(), shape: view.shape().into(), data: view.data().into() };
            (name.to_string(), tensor)
        });
        tensors.collect()
    }

    pub fn set_tensors(&self, tensors: &BTreeMap<String, Tensor>) {
        let views = tensors
            .iter()
            .map(|(name, tensor)| (name, TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.data).unwrap()));
        self.write("model.safetensors", safetensors::serialize(views, None).unwrap());
    }

    pub fn change_tensor(&self, name: &str, change: impl FnOnce(&mut Tensor)) {
        let mut tensors = self.tensors();
        change(tensors.get_mut(name).expect("a tensor of this name"));
        self.set_tensors(&tensors);
    }
}
