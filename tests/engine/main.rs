//! The engine's own tests: what is around the chapters. Run by name, `cargo test --features solution --test engine`.

mod alternative_solutions;
mod attention_errors;
mod batch_invariance;
mod beams;
mod broken_stories;
mod damaged_models;
mod damaged_saved_caches;
mod disk_tier;
mod golden;
mod graders;
mod hostile_files;
mod large_pages;
mod numbers;
mod page_index;
mod page_metadata;
mod policies;
mod prefix_caches;
mod prompt_logprobs;
mod samples;
mod saved_cache;
mod serving;
mod simulation;
mod spoiled;
mod workload;
mod workload_serving;
