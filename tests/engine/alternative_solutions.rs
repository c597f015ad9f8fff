//! What the book's pages of solutions show as another way: it is right too.

// ANCHOR: argmax
fn argmax(logits: &[f32]) -> u32 {
    let highest = |best: usize, id: usize| if logits[id] > logits[best] { id } else { best };
    (0..logits.len()).fold(0, highest) as u32
}
// ANCHOR_END: argmax

#[test]
fn argmax_as_a_fold_takes_the_lowest_id_of_the_highest_logits() {
    let low = f32::NEG_INFINITY;
    let cases: [(&[f32], u32); 8] = [
        (&[0.5, 2.0, -1.0, 2.0], 1),
        (&[42.0], 0),
        (&[-3.0, -0.5, -2.0], 1),
        (&[low, low], 0),
        (&[low, f32::MIN], 1),
        (&[-0.0, 0.0], 0),
        (&[0.0, -0.0], 0),
        (&[-1.0, -0.0, 0.0], 1),
    ];
    for (logits, expected) in cases {
        assert_eq!(argmax(logits), expected, "argmax({logits:?})");
    }
}

#[test]
fn max_by_with_the_total_order_takes_the_second_of_equal_zeros() {
    let logits = [-0.0f32, 0.0];
    let forwards = (0..2).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    let backwards = (0..2).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    assert_eq!((forwards, backwards), (Some(1), Some(1)));
}
