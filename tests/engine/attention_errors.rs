//! The checks of a batch's page metadata: what is refused, with which numbers, and in which order.

use page_by_page::cache::attention::{AttentionError, Run, SequenceRows, check_attention};
use page_by_page::kernels::Heads;

const HEADS: Heads = Heads { n_heads: 6, n_kv_heads: 2, head_dim: 5 };

/// Numbers in a row of queries.
const Q: usize = 30;

fn run(start: usize, rows: usize) -> Run {
    Run { start, rows }
}

/// A sequence whose keys and values lie in a memory of `numbers` numbers.
fn rows(queries: usize, numbers: usize, runs: &[Run]) -> SequenceRows<'_> {
    static MEMORY: [f32; 200] = [0.0; 200];
    SequenceRows { queries, keys: &MEMORY[..numbers], values: &MEMORY[..numbers], runs }
}

#[track_caller]
fn check(sequences: &[SequenceRows<'_>], q: usize, out: usize, expected: Result<(), AttentionError>) {
    let (q, out) = (vec![0.0; q], vec![0.0; out]);
    assert_eq!(check_attention(HEADS, HEADS.head_dim, sequences, &q, &out), expected, "{sequences:?}");
}

fn beyond(sequence: usize, end: usize, numbers: usize) -> Result<(), AttentionError> {
    Err(AttentionError::RunBeyondMemory { sequence, end, numbers })
}

fn wrong_queries(queries: usize, given: usize) -> Result<(), AttentionError> {
    Err(AttentionError::WrongQueries { queries, given, width: Q })
}

#[test]
fn queries_and_output_are_whole_rows_as_many_as_the_sequences_have() {
    let (six, three) = ([run(0, 6)], [run(0, 3)]);
    let batch = [rows(2, 100, &six), rows(1, 100, &three)];
    check(&batch, 3 * Q, 3 * Q, Ok(()));
    check(&[], 0, 0, Ok(()));
    for given in [0, 2, 4] {
        check(&batch, given * Q, given * Q, wrong_queries(3, given));
    }
    for numbers in [1, Q - 1, 3 * Q + 1] {
        check(&batch, numbers, numbers, Err(AttentionError::NotRows { numbers, width: Q }));
    }
    for found in [0, 3 * Q - 1, 3 * Q + 1] {
        check(&batch, 3 * Q, found, Err(AttentionError::WrongOutput { found, expected: 3 * Q }));
    }
    // 30 times 2^63 is 0 in 64 bits, and usize::MAX and 2 more are 1.
    check(&[rows(1 << 63, 100, &six)], 0, 0, wrong_queries(1 << 63, 0));
    check(&[rows(usize::MAX, 100, &six), rows(2, 100, &six)], Q, Q, wrong_queries(usize::MAX, 1));
}

#[test]
fn every_run_lies_in_its_memory() {
    for (runs, end) in [
        (&[run(0, 10), run(91, 1)][..], 101),
        (&[run(50, 5), run(99, 1), run(200, 1)], 109),
        (&[run(101, 0), run(0, 1)], 101),
        (&[run((1 << 32) + 5, 1)], (1 << 32) + 15),
        // None of these wraps.
        (&[run(usize::MAX, 1)], usize::MAX),
        (&[run(usize::MAX - 9, 1)], usize::MAX),
        (&[run(0, usize::MAX / 10 + 1)], usize::MAX),
        (&[run(16, usize::MAX / 10)], usize::MAX),
    ] {
        check(&[rows(1, 100, runs)], Q, Q, beyond(0, end, 100));
    }
    check(&[rows(1, 100, &[run(90, 1), run(0, 4), run(100, 0)])], Q, Q, Ok(()));
    // The shorter of keys and values counts.
    for (keys, values) in [(99, 100), (100, 99)] {
        let runs = [run(0, 10)];
        let sequence = SequenceRows { keys: rows(1, keys, &runs).keys, ..rows(1, values, &runs) };
        check(&[sequence], Q, Q, beyond(0, 100, 99));
    }
    // Sequences without queries are checked too.
    let (six, wrong) = ([run(0, 6)], [run(0, 1)]);
    check(&[rows(2, 100, &six), rows(0, 0, &wrong)], 2 * Q, 2 * Q, beyond(1, 10, 0));
    check(&[rows(0, 100, &six), rows(0, 0, &wrong)], 0, 0, beyond(1, 10, 0));
    // In a packed format, a head takes fewer words than it has numbers.
    for (words, expected) in [(3, Ok(())), (4, beyond(0, 80, 60)), (1 << 62, beyond(0, usize::MAX, 60))] {
        let runs = [run(0, 10)];
        let sequences = &[rows(1, 60, &runs)];
        assert_eq!(check_attention(HEADS, words, sequences, &[0.0; Q], &[0.0; Q]), expected, "{words} words");
    }
}

#[test]
fn the_first_mistake_is_reported() {
    let (six, three) = ([run(0, 4), run(80, 2)], [run(0, 3)]);
    let (long, short) = (rows(7, 100, &six), rows(1, 7, &three));
    let too_few = Err(AttentionError::TooFewTokens { sequence: 0, queries: 7, tokens: 6 });
    check(&[long, short], 8 * Q, 8 * Q, too_few);
    check(&[short, long], 8 * Q, 8 * Q, beyond(0, 30, 7));
    check(&[long], 31, 5, Err(AttentionError::NotRows { numbers: 31, width: Q }));
    check(&[long], 2 * Q, 5, wrong_queries(7, 2));
    check(&[long], 7 * Q, 5, Err(AttentionError::WrongOutput { found: 5, expected: 7 * Q }));
}
