//! How likely a token was, of all: from the logits that it was chosen from.

use super::talk::Likely;

/// Tells how likely `chosen` was, and the `top` likeliest tokens. `logits`: `[vocab_size]`, finite. Of equals the lower id is
/// the likelier.
pub fn likely(logits: &[f32], chosen: u32, top: usize) -> Likely {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
    // As vLLM has it: no JSON number is lower than all.
    let logprob = |id: u32| (f64::from(logits[id as usize] - max) - sum.ln()).max(-9999.0) as f32;
    let likelier = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    if top > 0 && top < ids.len() {
        ids.select_nth_unstable_by(top, likelier);
    }
    ids.truncate(top);
    ids.sort_unstable_by(likelier);
    Likely { logprob: logprob(chosen), top: ids.into_iter().map(|id| (id, logprob(id))).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_and_the_likeliest_come_first() {
        let logits = [1.0, 3.0, 2.0, 3.0, -1.0];
        let all = likely(&logits, 2, 5);
        assert_eq!(all.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 2, 0, 4]);
        let sum: f64 = all.top.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert!((all.logprob.exp() - 0.1459).abs() < 1e-4);
        for top in 0..=7 {
            assert_eq!(likely(&logits, 4, top).top, all.top[..top.min(5)]);
        }
        assert_eq!(likely(&[f32::MAX, f32::MIN], 0, 1).top, [(0, 0.0)]);
    }
}
