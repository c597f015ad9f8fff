//! Grader of chapter 14: half the bytes. Its caches rewind too, with `ch07_rewind`, and `Engine` is on top of
//! `chapters::ch12_scheduler` and `chapters::ch11_prefix_cache`.

grading::grader!();

#[cfg(not(stub = "ch14_kv_quantization"))]
mod checks {
    use page_by_page::cache::attention::{AttentionBackend, AttentionCache, HeadReader};
    use page_by_page::cache::{KvLayout, Rewind};
    use page_by_page::chapters::ch02_flat::FlatCache;
    use page_by_page::chapters::ch03_contiguous::ContiguousCache;
    use page_by_page::chapters::ch10_fork::ForkCache;
    use page_by_page::chapters::ch13_paged_attention::attend_batch;
    use page_by_page::chapters::ch14_kv_quantization::{
        PackedHeads, decode, encode, encode_rows, packed, token_bytes, words_per_head,
    };
    use page_by_page::generation::sampler::Sampler;
    use page_by_page::kernels::{Heads, KvDtype, SequenceRows, attend};
    use page_by_page::model::Model;
    use page_by_page::prefix_cache::PrefixCacheKind;
    use page_by_page::serving::Engine;
    use page_by_page::serving::schedule::StepLimits;

    use grading::attention::{INITIAL_OUTPUT, POISON, ScatteredRows, check_batch, kv_width, q_width, same_bits};
    use grading::packed::{self as plain, PACKED, hex, kernel_reads, numbers};
    use grading::paged::cache;
    use grading::pools::slab_of;
    use grading::prelude::*;

    /// Asks for the words of a head. What the words were before must not matter.
    fn encoded(dtype: KvDtype, head: &[f32]) -> Vec<f32> {
        let mut out = vec![POISON; plain::words_per_head(dtype, head.len())];
        let question = format!("encode({dtype:?}) of {}", shown(head));
        in_call(question.as_str(), || encode(dtype, head, &mut out));
        assert_written(&out, "word", &question);
        out
    }

    /// Asks for the numbers of a head.
    fn decoded(dtype: KvDtype, words: &[f32], head_dim: usize) -> Vec<f32> {
        let mut head = vec![POISON; head_dim];
        let question = format!("decode({dtype:?}) of {} from the words {}", plural(head_dim, "number"), hex(words));
        in_call(question.as_str(), || decode(dtype, words, &mut head));
        assert_written(&head, "number", &question);
        head
    }

    /// Every place has something new.
    fn assert_written(out: &[f32], noun: &str, question: &str) {
        let unwritten = out.iter().position(|x| x.to_bits() == POISON.to_bits());
        assert!(unwritten.is_none(), "{question}: {noun} {} of {} is never written", unwritten.unwrap(), out.len());
    }

    /// A head for a message, the beginning of it if it is long.
    fn shown(head: &[f32]) -> String {
        let numbers = head.iter().take(8).map(|x| format!("{x:?}")).collect::<Vec<_>>().join(", ");
        if head.len() > 8 { format!("{} numbers, [{numbers}, …]", head.len()) } else { format!("[{numbers}]") }
    }

    /// Compares words, in hexadecimal.
    fn same_words(yours: &[f32], expected: &[f32], what: &str) {
        same!(yours.len(), expected.len(), "words of {what}");
        let differ = yours.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
        if let Some(place) = differ {
            let (found, expected) = (&yours[place..=place], &expected[place..=place]);
            panic!("{what}, word {place}\n  expected: {}\n  yours:    {}", hex(expected), hex(found));
        }
    }

    /// Compares numbers bit for bit; NaN is NaN.
    fn same_numbers(yours: &[f32], expected: &[f32], what: &str) {
        same!(yours.len(), expected.len(), "numbers of {what}");
        if let Some(at) = (0..yours.len()).find(|at| !same_bits(&yours[*at..=*at], &expected[*at..=*at])) {
            panic!("{what}, number {at}\n  expected: {:?}\n  yours:    {:?}", expected[at], yours[at]);
        }
    }

    // Task 1: how many words

    #[test]
    fn task_1_a_head_in_words() {
        for dtype in KvDtype::ALL {
            for head_dim in 1..=300 {
                let expected = plain::words_per_head(dtype, head_dim);
                same!(words_per_head(dtype, head_dim), expected, "words_per_head({dtype:?}, {head_dim})");
            }
        }
    }

    #[test]
    fn task_1_layouts_that_a_cache_is_made_with() {
        let layout = KvLayout { n_layers: 300, n_kv_heads: 7, head_dim: 5 };
        for (dtype, head_dim) in KvDtype::ALL.into_iter().zip([5, 3, 3, 3]) {
            same!(packed(dtype, layout), KvLayout { head_dim, ..layout }, "packed({dtype:?}) of {layout:?}");
        }
    }

    #[test]
    fn task_1_token_bytes_of_all_layers() {
        let storyteller = KvLayout { n_layers: 6, n_kv_heads: 2, head_dim: 32 };
        let qwen3 = KvLayout { n_layers: 28, n_kv_heads: 8, head_dim: 128 };
        let odd = KvLayout { n_layers: 3, n_kv_heads: 5, head_dim: 7 };
        for (layout, expected) in [
            (storyteller, [3_072, 1_536, 1_536, 864]),
            (qwen3, [229_376, 114_688, 114_688, 59_136]),
            (odd, [840, 480, 480, 360]),
        ] {
            for (dtype, expected) in KvDtype::ALL.into_iter().zip(expected) {
                same!(token_bytes(dtype, layout), expected, "token_bytes({dtype:?}) of {layout:?}");
            }
        }
    }

    // Task 2: 16 bits

    const HALVES: [KvDtype; 2] = [KvDtype::F16, KvDtype::Bf16];

    /// A head whose numbers these words are, without loss.
    fn check_head(dtype: KvDtype, head: &[f32], words: &[f32]) {
        same_words(&encoded(dtype, head), words, &format!("encode({dtype:?}) of {}", shown(head)));
        let what = format!("decode({dtype:?}) of {}, encoded as {}", shown(head), hex(words));
        same_numbers(&decoded(dtype, words, head.len()), head, &what);
    }

    #[test]
    fn task_2_a_head_and_its_words() {
        let three = [1.0, -2.0, 0.5];
        check_head(KvDtype::F16, &three, &[0xC000_3C00, 0x0000_3800].map(f32::from_bits));
        check_head(KvDtype::Bf16, &three, &[0xC000_3F80, 0x3F00].map(f32::from_bits));
        let as_it_is = [1.5, -0.0, f32::from_bits(0x7FC0_1234), 1e-40, f32::MAX];
        check_head(KvDtype::F32, &as_it_is, &as_it_is);
        for (dtype, head_dim) in HALVES.into_iter().flat_map(|dtype| (1..=257).chain([1100]).map(move |n| (dtype, n))) {
            let head: Vec<f32> = (0..head_dim).map(|i| (i % 251) as f32 - 100.0).collect();
            check_head(dtype, &head, &plain::encode(dtype, &head));
        }
    }

    /// All 65,536 of them.
    #[test]
    fn task_2_every_half_is_read_as_it_is() {
        let step = if cfg!(miri) { 997 } else { 1 };
        for dtype in HALVES {
            let halves: Vec<u16> = (0..=u16::MAX).step_by(step).collect();
            let word = |pair: &[u16]| {
                f32::from_bits(u32::from(pair[0]) | u32::from(pair.get(1).copied().unwrap_or_default()) << 16)
            };
            let words: Vec<f32> = halves.chunks(2).map(word).collect();
            let mut found = vec![POISON; halves.len()];
            in_call(format!("decode({dtype:?}) of all halves there are"), || decode(dtype, &words, &mut found));
            let kernel = kernel_reads(dtype, &words, halves.len());
            for ((half, found), kernel) in halves.iter().zip(&found).zip(kernel) {
                let what = format!("decode({dtype:?}) of the half 0x{half:04X}");
                same_numbers(&[*found], &[plain::of_half(dtype, *half)], &what);
                // The kernel adds the number to 0, and -0.0 is 0.0 then.
                same_numbers(&[found + 0.0], &[kernel], &format!("{what}, against the engine's kernel"));
            }
        }
    }

    #[test]
    fn task_2_numbers_are_rounded_to_the_nearest_and_ties_to_even() {
        let mut rng = TestRng::new(14);
        let (ulp, bulp) = (1.0 / 1024.0, 1.0 / 128.0);
        // Ties to an even and to an odd number, the largest and the smallest.
        let mut head: Vec<f32> = vec![1.0 + ulp / 2.0, 1.0 + 1.5 * ulp, 1.0 + bulp / 2.0, 1.0 + 1.5 * bulp];
        head.extend([65_504.0, 65_519.9, 65_520.0, 6e-8, 2.9e-8, 3.1e-8, 1e-40, f32::MAX, 3.38e38, f32::INFINITY]);
        for _ in 0..if cfg!(miri) { 50 } else { 4000 } {
            let x = f32::from_bits((rng.roll(0, 0xFFFF) << 16 | rng.roll(0, 0xFFFF)) as u32);
            head.push(if x.is_nan() { 0.7 } else { x });
        }
        for dtype in HALVES {
            for pair in head.chunks_exact(2) {
                let found = encoded(dtype, pair)[0].to_bits();
                for (x, found) in pair.iter().zip([found as u16, (found >> 16) as u16]) {
                    let expected = plain::half(dtype, *x);
                    assert!(
                        found == expected,
                        "encode({dtype:?}) of {x:?}, as a half of 16 bits\n  expected: 0x{expected:04X}, {:?}\n  \
                         yours:    0x{found:04X}, {:?}",
                        plain::of_half(dtype, expected),
                        plain::of_half(dtype, found)
                    );
                }
            }
        }
    }

    #[test]
    fn task_2_what_is_nan_stays_nan() {
        // The last has its mark where the upper half of the bits does not reach.
        for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7FC0_0001), f32::from_bits(0x7F80_0001)] {
            for dtype in HALVES {
                for place in 0..3 {
                    let mut head = [1.0, 2.0, 3.0];
                    head[place] = nan;
                    let found = decoded(dtype, &encoded(dtype, &head), 3);
                    let is_nan: Vec<usize> = (0..3).filter(|at| found[*at].is_nan()).collect();
                    same!(is_nan, [place], "numbers that are NaN, of {} in {dtype:?}", shown(&head));
                }
            }
        }
    }

    // Task 3: 8 bits and a scale

    /// The bytes of an encoded head.
    fn bytes(words: &[f32], head_dim: usize) -> Vec<i8> {
        let bytes = words[1..].iter().flat_map(|word| word.to_bits().to_le_bytes());
        bytes.map(|byte| byte as i8).take(head_dim).collect()
    }

    /// Encodes a head of finite numbers, looks at each byte, and decodes it.
    fn check_bytes(head: &[f32]) {
        let found = encoded(KvDtype::Int8, head);
        let (scale, what) = (plain::scale(head), format!("encode(Int8) of {}", shown(head)));
        same!(found[0], scale, "{what}: the scale, which is the largest number, whatever its sign, divided by 127");
        let right = plain::encode(KvDtype::Int8, head);
        let highest_first = found[1..].iter().zip(&right[1..]).all(|(a, b)| a.to_bits().swap_bytes() == b.to_bits());
        let [bytes, expected] = [&found, &right].map(|words| bytes(words, head.len()));
        for (i, (byte, expected)) in bytes.iter().zip(expected).enumerate() {
            let (x, reciprocal) = (head[i], 1.0 / scale);
            let is_multiplied = reciprocal.is_finite() && (x * reciprocal).round_ties_even() as i8 == *byte;
            let hint = match *byte {
                byte if byte == expected => "",
                _ if highest_first => "\n  the first byte is the highest of its word: it should be the lowest",
                -128 => "\n  bytes go from -127 to 127",
                _ if scale == 0.0 => "\n  the scale is 0: all bytes are 0, and nothing is divided",
                _ if is_multiplied => "\n  x * (1.0 / scale) is rounded twice: divide, x / scale",
                _ => "",
            };
            let scales = f64::from(x) / f64::from(scale);
            same!(*byte, expected, "{what}: the byte of number {i}, {x:?}, which is {scales:.3} scales{hint}");
        }
        same_words(&found, &right, &format!("{what}, with zeros after the last number"));
        let again = decoded(KvDtype::Int8, &found, head.len());
        // No scale is negative, so no zero has a sign.
        let expected = plain::decode(KvDtype::Int8, &right, head.len());
        same_numbers(&again, &expected, &format!("decode(Int8) of {}, each its byte times the scale", shown(head)));
        let kernel = kernel_reads(KvDtype::Int8, &found, head.len());
        same_numbers(&again, &kernel, &format!("decode(Int8) of {}, against the engine's kernel", shown(head)));
    }

    #[test]
    fn task_3_a_head_is_a_scale_and_then_the_bytes() {
        let head = [0.5, -2.0, 1.0];
        check_bytes(&head);
        let expected = [2.0 / 127.0, f32::from_bits(0x0040_8120)];
        let what = format!("encode(Int8) of {}", shown(&head));
        same_words(&encoded(KvDtype::Int8, &head), &expected, &what);
    }

    #[test]
    fn task_3_heads_of_all_sizes() {
        for head in [
            // The scale is of the largest number, whatever its sign.
            &[3.0, 1.0, -1.0][..],
            &[1.0, -3.0, 2.0],
            &[-3.0, -1.0, -2.0],
            &[0.001, 0.0005, -0.0007],
            &[2.0, 2.0, 3e5],
            &[0.0, -0.0, 0.0],
            // The largest numbers.
            &[1e38, -2e38, 3e37, 0.0],
            &[3e38, 1.0, -3e38, 2.0],
            // Ties go to the even byte.
            &[127.0, 0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, -3.5, 125.5, -125.5, 126.5, -126.5],
            &[-31.75, 0.125, 0.375, 0.625, -0.125, -0.375],
            // One division for each number: a scale's reciprocal is rounded, and so is the product.
            &[889.0, -885.5, 3.5, 10.5],
        ] {
            check_bytes(head);
        }
        check_bytes(&(-127..=127).map(|byte| byte as f32).collect::<Vec<f32>>());
        // The largest number comes last, after many.
        check_bytes(&[&[1.0; 1099][..], &[-254.0]].concat());
        let mut rng = TestRng::new(31);
        for _ in 0..if cfg!(miri) { 5 } else { 500 } {
            // Halves of scales: each lies between two bytes.
            let scale = rng.roll(1, 1 << 12) as f32;
            let head: Vec<f32> = (0..8).map(|_| (rng.roll(0, 253) as f32 - 126.5) * scale).collect();
            check_bytes(&[&[127.0 * scale], &head[..]].concat());
        }
        for head_dim in (1..=70).chain([128, 256, 1100]) {
            check_bytes(&numbers(head_dim, &mut rng));
        }
    }

    /// A scale so small that it is rounded itself: 127 of them are less than the largest number, or more.
    #[test]
    fn task_3_the_smallest_numbers() {
        let tiny = |n: u32| f32::from_bits(n);
        for largest in [1, 63, 64, 126, 127, 128, 180, 190, 191, 700, 50_000] {
            let head = [tiny(largest), -tiny(largest), tiny(largest / 2), -tiny(largest / 3), 0.0];
            check_bytes(&head);
            let bytes = bytes(&encoded(KvDtype::Int8, &head), 5);
            same!(bytes[1], -bytes[0], "the byte of -x, where x = {:?}: bytes go from -127 to 127", head[0]);
        }
    }

    /// What computes with such a head must give NaN.
    #[test]
    fn task_3_nothing_hides_nan_and_infinities() {
        for number in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for (head_dim, places) in [(1, &[0][..]), (5, &[0]), (5, &[2, 3]), (5, &[4]), (32, &[31]), (1100, &[1099])]
            {
                let mut head: Vec<f32> = (0..head_dim).map(|i| 1.0 + i as f32).collect();
                places.iter().for_each(|place| head[*place] = number);
                let found = decoded(KvDtype::Int8, &encoded(KvDtype::Int8, &head), head_dim);
                let n_nan = found.iter().filter(|x| x.is_nan()).count();
                let what = format!("{}, where number {places:?} is {number:?}", shown(&head));
                same!(n_nan, head_dim, "numbers that are NaN when {what} is encoded in Int8 and decoded");
            }
        }
    }

    /// Each head has a scale of its own, in each row.
    #[test]
    fn task_3_rows_head_by_head() {
        let layout = KvLayout { n_layers: 9, n_kv_heads: 3, head_dim: 5 };
        let sizes = [1000.0, 0.001, 1.0, 0.5, 30.0, 0.0];
        let many = if cfg!(miri) { 60 } else { 18_000 };
        for (dtype, n_heads) in KvDtype::ALL.into_iter().flat_map(|dtype| [6, many].map(|n| (dtype, n))) {
            let rows: Vec<f32> = (0..n_heads * 5).map(|i| ((i % 30) as f32 - 14.5) * sizes[i / 5 % 6]).collect();
            let what = format!("encode_rows({dtype:?}) of {} rows of 3 heads of 5 numbers", n_heads / 3);
            let n_words = plain::words_per_head(dtype, 5);
            let (most, why) = (8 * 4 * n_heads * n_words, "a few times the words of all rows");
            let pack = || assert_allocates(most, &what, why, || encode_rows(dtype, layout, &rows));
            let found = assert_one_pass(&what, pack);
            same!(found.len(), n_heads * n_words, "words of {what}");
            let heads = found.chunks_exact(n_words).zip(rows.chunks_exact(5)).enumerate();
            for (i, (found, head)) in heads.step_by(1 + n_heads / 100) {
                let what = format!("encode_rows({dtype:?}), row {}, head {}, {}", i / 3, i % 3, shown(head));
                if dtype == KvDtype::Int8 {
                    same!(found[0], plain::scale(head), "{what}: the scale");
                }
                same_words(found, &plain::encode(dtype, head), &what);
            }
            same!(encode_rows(dtype, layout, &[]).len(), 0, "words that encode_rows({dtype:?}) gives for no row");
        }
    }

    // Task 4: attention

    /// Packed rows of a sequence.
    fn pages(heads: Heads, dtype: KvDtype, tokens: usize, page_size: usize, rng: &mut TestRng) -> ScatteredRows {
        let rounded = |head: &[f32]| plain::decode(dtype, &plain::encode(dtype, head), head.len());
        let dense = [0, 1].map(|_| {
            numbers(tokens * kv_width(heads), rng).chunks_exact(heads.head_dim).flat_map(rounded).collect::<Vec<f32>>()
        });
        ScatteredRows::encoded(heads, dense, page_size, plain::words_per_head(dtype, heads.head_dim), |head| {
            plain::encode(dtype, head)
        })
    }

    const SHAPES: [Heads; 4] = [
        Heads { n_heads: 6, n_kv_heads: 2, head_dim: 10 },
        Heads { n_heads: 7, n_kv_heads: 1, head_dim: 33 },
        Heads { n_heads: 3, n_kv_heads: 3, head_dim: 16 },
        Heads { n_heads: 4, n_kv_heads: 2, head_dim: 1 },
    ];

    /// One reader reads head after head: what it gave before must not matter.
    #[test]
    fn task_4_a_reader_gives_the_numbers_of_each_head() {
        for (dtype, head_dim) in KvDtype::ALL.into_iter().flat_map(|dtype| [1, 5, 32].map(|n| (dtype, n))) {
            let mut reader = PackedHeads::new(dtype, head_dim);
            let what = format!("PackedHeads::new({dtype:?}, {head_dim})");
            same!(reader.words_per_head(), plain::words_per_head(dtype, head_dim), "words_per_head() of {what}");
            for seed in 0..3 {
                let words = plain::encode(dtype, &numbers(head_dim, &mut TestRng::new(seed)));
                let question = format!("read({}) of {what}", hex(&words));
                let found = assert_allocates(0, question, "it has room for a head", || reader.read(&words));
                let expected = plain::decode(dtype, &words, head_dim);
                same_numbers(found, &expected, &format!("head {seed} that {what} reads"));
            }
        }
    }

    #[test]
    fn task_4_attention_has_the_bits_of_the_engines_kernel() {
        let mut rng = TestRng::new(47);
        let batches: [&[(usize, usize, usize)]; 3] =
            [&[(1, 1, 1)], &[(70, 9, 16), (5, 5, 1), (33, 1, 4)], &[(19, 1, 3), (300, 2, 256), (45, 0, 5)]];
        for heads in SHAPES {
            for (dtype, batch) in PACKED.into_iter().flat_map(|dtype| batches.map(|batch| (dtype, batch))) {
                let sequence = |&(tokens, queries, size): &_| (pages(heads, dtype, tokens, size, &mut rng), queries);
                let sequences: Vec<(ScatteredRows, usize)> = batch.iter().map(sequence).collect();
                let rows: Vec<SequenceRows<'_>> = sequences.iter().map(|(rows, queries)| rows.rows(*queries)).collect();
                let queries: usize = batch.iter().map(|(_, queries, _)| queries).sum();
                let q = numbers(queries * q_width(heads), &mut rng);
                let (mut found, mut expected) = (vec![INITIAL_OUTPUT; q.len()], vec![INITIAL_OUTPUT; q.len()]);
                let what = format!(
                    "attend_batch with PackedHeads, {heads:?}, {dtype:?}, (tokens, queries, page size) {batch:?}"
                );
                let mut reader = PackedHeads::new(dtype, heads.head_dim);
                expect_ok(&what, || attend_batch(heads, &mut reader, &rows, &q, &mut found));
                check_batch(&sequences, &q, &found, &what);
                attend(heads, dtype, &rows, &q, &mut expected);
                same_numbers(&found, &expected, &format!("{what}, against the engine's kernel"));
            }
        }
    }

    // All tasks

    /// The storyteller, with rows in this format.
    fn storyteller(dtype: KvDtype, attention: AttentionBackend) -> Storyteller {
        let mut storyteller = Storyteller::open();
        storyteller.model.kv_dtype = dtype;
        storyteller.model.attention = attention;
        storyteller
    }

    /// The layout of the model's packed rows.
    fn kv_layout(model: &Model) -> KvLayout {
        let layout = model.config().kv_layout();
        in_call(format!("packed({:?}) of {layout:?}", model.kv_dtype), || model.cache_layout())
    }

    /// `n` tokens that begin with the prompt.
    fn tokens(storyteller: &Storyteller, n: usize) -> Vec<u32> {
        let prompt = storyteller.prompt();
        let vocab = storyteller.model.config().vocab_size as u32;
        (0..n as u32).map(|i| prompt.get(i as usize).copied().unwrap_or(3 + i * 37 % (vocab - 3))).collect()
    }

    /// Computes the tokens in chunks; the logits after each.
    fn read(model: &Model, cache: &mut dyn AttentionCache, tokens: &[u32], chunk: usize, what: &str) -> Vec<f32> {
        let mut all = Vec::new();
        for part in tokens.chunks(chunk) {
            let chunk = expect_ok(what, || model.prepare_chunk(part, Some(&mut *cache), part.len()));
            all.extend(expect_ok(what, || model.forward(vec![chunk])));
        }
        all
    }

    #[test]
    fn whole_all_caches_of_one_format_agree_bit_for_bit() {
        let n = 61;
        for dtype in PACKED {
            let storyteller = storyteller(dtype, AttentionBackend::Paged);
            let (model, sequence) = (&storyteller.model, tokens(&storyteller, n));
            let (layout, vocab) = (kv_layout(model), model.config().vocab_size);
            let expected = expect_ok(format!("a step of the model without a cache, {dtype:?}"), || {
                model.prepare_chunk(&sequence, None, sequence.len()).and_then(|chunk| model.forward(vec![chunk]))
            });
            let paged = |page_size: usize| {
                let slab = slab_of(layout, page_size, 200usize.div_ceil(page_size));
                expect_ok("ForkCache::new of chapter 10", || ForkCache::new(&slab))
            };
            let check = |cache: &mut dyn AttentionCache, chunk: usize, what: &str| {
                let skip = cache.len();
                let found = read(model, cache, &sequence[skip..], chunk, what);
                let logits = format!("{what}: the logits, against those that {dtype:?} gives without a cache");
                same_numbers(&found, &expected[skip * vocab..], &logits);
                let bytes = || cache.usage().slots * token_bytes(dtype, model.config().kv_layout());
                same!(cache.usage().bytes, bytes(), "bytes of {what}");
            };
            for chunk in [n, 37, 1] {
                let what = |cache: &str| format!("the {cache} cache, {dtype:?}, {n} tokens in chunks of {chunk}");
                check(&mut FlatCache::new(layout), chunk, &what("flat"));
                check(&mut ContiguousCache::new(layout, n), chunk, &what("contiguous"));
                check(&mut paged(3), chunk, &what("paged"));
            }
            // Both grow after a fork, in pages of their own: the scale is copied with its head.
            let what = format!("a fork at token 40, page size 16, {dtype:?}");
            let mut first = paged(16);
            read(model, &mut first, &sequence[..40], 40, &what);
            let mut second = expect_ok(&what, || first.fork());
            read(model, &mut first, &sequence[50..60], 10, &what);
            check(&mut second, 7, &what);
            expect_ok("rewind(20)", || first.rewind(20));
            check(&mut first, 1, &format!("the sequence that was forked: {what}"));
        }
    }

    #[test]
    fn whole_story() {
        let mut storyteller = Storyteller::open();
        for dtype in KvDtype::ALL {
            for attention in [AttentionBackend::Loops, AttentionBackend::Gather, AttentionBackend::Paged] {
                (storyteller.model.kv_dtype, storyteller.model.attention) = (dtype, attention);
                let slab = slab_of(kv_layout(&storyteller.model), 3, 20);
                let what = format!("paged cache in {dtype:?}, attention {attention:?}");
                storyteller.assert_through(&mut cache(&slab), &what, 12, || {});
            }
        }
    }

    /// Generated together in a pool that is too small: the output is that of each request alone in the same format.
    #[test]
    fn whole_a_preempted_sequence_generates_the_same_story() {
        for (dtype, attention) in [(KvDtype::Int8, AttentionBackend::Paged), (KvDtype::F16, AttentionBackend::Loops)] {
            let storyteller = storyteller(dtype, attention);
            let begin = storyteller.prompt();
            let prompts = [&[][..], &[12, 77, 301], &[12, 77, 44, 8]].map(|end| [&begin[..], end].concat());
            let slab = slab_of(kv_layout(&storyteller.model), 3, 8);
            let prefix_cache = expect_ok("PrefixTrie::new", || PrefixCacheKind::Trie.new_cache(3));
            let limits = StepLimits { token_budget: 5, max_running: 3 };
            let mut engine =
                expect_ok("Scheduler::new", || Engine::new(&storyteller.model, &slab, prefix_cache, limits, &[]));
            for prompt in &prompts {
                expect_ok("submit", || engine.submit(prompt.clone(), 10, Sampler::new(SAMPLING)));
            }
            let mut n_finished = 0;
            for step in 0..300 {
                for finished in expect_ok(format!("step {step} in {dtype:?}"), || engine.step()).finished {
                    let alone = storyteller.alone(&prompts[finished.sequence.id.0 as usize], 10);
                    let alone: Vec<u32> = alone.iter().map(|(token, _)| *token).collect();
                    storyteller.assert_same_story(finished.sequence.new_tokens(), &alone);
                    n_finished += 1;
                }
            }
            same!(n_finished, 3, "stories generated in {dtype:?} after 300 steps");
            assert!(engine.totals().preemptions > 0, "no request was preempted: the example is badly chosen");
        }
    }

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        let bytes_of = |word: &f32| word.to_bits().to_le_bytes().map(|byte| format!("{byte:02x}")).join(" ");
        let tell = |transcript: &mut Transcript, dtype: KvDtype, head: &[f32]| {
            let words: Vec<String> = encoded(dtype, head).iter().map(bytes_of).collect();
            transcript.line(format!("{dtype:<4} {}", words.join(" | ")));
        };
        transcript.line("the bytes of a word, the lowest first; | between words");
        let exact = [1.0, -2.0, 0.5, 0.25, 3.0];
        for head in [&exact[..], &[0.1, -0.3, 127.0, 0.5, 1.5, -126.6], &[0.0, 0.0]] {
            transcript.line("");
            transcript.line(format!("encode {}", shown(head)));
            for dtype in KvDtype::ALL {
                tell(&mut transcript, dtype, head);
            }
        }
        transcript.line("");
        let head = [1.0, -0.3, 0.1, 0.002];
        transcript.line(format!("decode {} again", shown(&head)));
        for dtype in PACKED {
            let found = decoded(dtype, &encoded(dtype, &head), 4);
            transcript.line(format!("{dtype:<4} {}", shown(&found)));
        }
        transcript.line("");
        let layout = KvLayout { n_layers: 6, n_kv_heads: 2, head_dim: 32 };
        transcript.line("the story teller: 6 layers, 2 heads of 32 numbers");
        let _call = enter_call("packed and token_bytes, in the transcript");
        for dtype in KvDtype::ALL {
            let words = packed(dtype, layout).head_dim;
            transcript
                .line(format!("{dtype:<4} {words:>2} words a head, {:>5} bytes a token", token_bytes(dtype, layout)));
        }
        assert_transcript("ch14_kv_quantization", &transcript);
    }
}
