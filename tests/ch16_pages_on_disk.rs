//! Grader of chapter 16: pages on disk.

#[cfg(unstarted = "ch16_pages_on_disk")]
#[test]
#[ignore = "not started: edit exercises/ch16_pages_on_disk.rs, or run with --features solution"]
fn ch16_pages_on_disk() {}

#[cfg(not(unstarted = "ch16_pages_on_disk"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch16_pages_on_disk"))]
whose_code! {
    ch04_page_pool = "ch04_page_pool",
    ch05_page_table = "ch05_page_table",
    ch06_paged = "ch06_paged",
    ch10_fork = "ch10_fork",
    ch11_prefix_cache = "ch11_prefix_cache",
    ch16_pages_on_disk = "ch16_pages_on_disk",
}

#[cfg(not(unstarted = "ch16_pages_on_disk"))]
mod checks {
    use std::collections::BTreeSet;
    use std::io;

    use page_by_page::cache::{CacheError, KvCache, KvLayout, PageId};
    use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
    use page_by_page::chapters::ch10_fork::ForkCache;
    use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
    use page_by_page::chapters::ch16_pages_on_disk::{PageFile, decode};
    use page_by_page::decode::sampler::Sampler;
    use page_by_page::disk::file_disk::FileDisk;
    use page_by_page::disk::record::{Head, RecordError};
    use page_by_page::disk::{HEADER, PageFileError, PageShape, Read, Wanted};
    use page_by_page::kernels::RowFormat;
    use page_by_page::prefixes::Prefixes;

    use crate::support::asking::{asking, granted, made, quietly};
    use crate::support::disk::{MemoryDisk, apply, head_sum, heads, lengths, prefixes, record};
    use crate::support::limits::{often, once};
    use crate::support::oracle::{Dice, STEPS, seeds};
    use crate::support::packed::hex;
    use crate::support::story::{SAMPLING, Storyteller};
    use crate::support::transcript::{Transcript, assert_transcript};
    use crate::support::words::count;

    /// Numbers that cannot be taken for one another: a head has 40 bytes, a record 1,000.
    const SHAPE: PageShape = PageShape {
        model: 0xC0FF_EE16,
        format: RowFormat::F32,
        layout: KvLayout { n_layers: 3, n_kv_heads: 2, head_dim: 5 },
        page_size: 4,
    };
    const SIZE: usize = SHAPE.page_size;
    const HEAD: usize = 40;
    const RECORD: usize = 1000;

    /// The smallest records that there are: 36 bytes.
    const TINY: PageShape =
        PageShape { layout: KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 1 }, page_size: 1, ..SHAPE };

    /// More than 16 bits count.
    const MANY: usize = if cfg!(miri) { 300 } else { 70_000 };

    /// A number of a row, from all that it depends on. Any bits may come: a number, a NaN, a word of packed rows.
    fn word(prefix: &[u32], layer: usize, kind: usize, i: usize) -> f32 {
        let parts = prefix.iter().copied().chain([layer as u32, kind as u32, i as u32]);
        let mix = |hash: u32, part: u32| (hash ^ part).wrapping_mul(0x9E37_79B1).rotate_left(13);
        f32::from_bits(parts.fold(0x811C_9DC5, mix))
    }

    /// The keys (or values) of the last page of these tokens, which end with it: `[n_layers, page_size, kv_width]`.
    fn rows(shape: &PageShape, prefix: &[u32], kind: usize) -> Vec<f32> {
        let first = prefix.len() - shape.page_size;
        let mut rows = Vec::new();
        for layer in 0..shape.layout.n_layers {
            for slot in 0..shape.page_size {
                rows.extend((0..shape.layout.kv_width()).map(|i| word(&prefix[..=first + slot], layer, kind, i)));
            }
        }
        rows
    }

    /// The record of the last page of these tokens.
    fn record_of(shape: &PageShape, number: u64, parent: u64, prefix: &[u32]) -> Vec<u8> {
        let tokens = &prefix[prefix.len() - shape.page_size..];
        record(shape, number, parent, tokens, &rows(shape, prefix, 0), &rows(shape, prefix, 1))
    }

    /// A file with these records: number, parent, and the tokens that the page ends.
    fn file_of(shape: &PageShape, records: &[(u64, u64, &[u32])]) -> Vec<u8> {
        let mut file = shape.header().to_vec();
        for (number, parent, prefix) in records {
            file.extend(record_of(shape, *number, *parent, prefix));
        }
        file
    }

    /// The tokens `first`, `first + 1` …
    fn counting(first: u32, n: usize) -> Vec<u32> {
        (first..first + n as u32).collect()
    }

    /// Room for this many records.
    fn room(shape: &PageShape, records: usize) -> u64 {
        (HEADER + records * lengths(shape).1) as u64
    }

    fn bits(rows: &[f32]) -> Vec<u32> {
        rows.iter().map(|x| x.to_bits()).collect()
    }

    /// Tokens for a failure message.
    fn shown(tokens: &[u32]) -> String {
        match tokens {
            [a, b, .., z] if tokens.len() > 12 => format!("{} tokens [{a}, {b}, …, {z}]", tokens.len()),
            _ => format!("{tokens:?}"),
        }
    }

    /// Pages in memory, and a file of pages. What the file must have is kept beside it, as a plain list.
    struct Desk {
        shape: PageShape,
        slab: SharedSlab,
        trie: PrefixCache,
        disk: MemoryDisk,
        file: PageFile,
        /// Records that the file has room for.
        places: usize,
        /// The prefixes that can be found, the one to go first at the beginning.
        kept: Vec<Vec<u32>>,
        /// What the last keep has written, and where.
        writes: Vec<(u64, Vec<u8>)>,
        /// What a failure says about the rule.
        why: String,
        history: Vec<String>,
    }

    #[track_caller]
    fn open(disk: &MemoryDisk, shape: PageShape, most: u64) -> PageFile {
        let question = format!("open of a file of {} bytes, which may have {most}", disk.bytes().len());
        granted(question, || PageFile::open(Box::new(disk.clone()), shape, most))
    }

    #[track_caller]
    fn memory(shape: &PageShape, n_pages: usize) -> (SharedSlab, PrefixCache) {
        let size = shape.page_size;
        let slab = made("PageSlab::new of chapter 6", || PageSlab::new(shape.layout, size, n_pages));
        (slab, made("PrefixCache::new of chapter 11", || PrefixCache::new(size)))
    }

    /// A cache that holds this many tokens, with no rows written.
    #[track_caller]
    fn running(slab: &SharedSlab, tokens: usize) -> ForkCache {
        let mut cache = made("ForkCache::new of chapter 10", || ForkCache::new(slab));
        granted(format!("extend({tokens}) of chapter 10"), || cache.extend(tokens));
        cache
    }

    impl Desk {
        /// `places`: the records that the file has room for.
        #[track_caller]
        fn new(n_pages: usize, places: usize, why: &str) -> Self {
            Desk::over(SHAPE, MemoryDisk::default(), n_pages, places, why)
        }

        #[track_caller]
        fn over(shape: PageShape, disk: MemoryDisk, n_pages: usize, places: usize, why: &str) -> Self {
            let (slab, trie) = memory(&shape, n_pages);
            let file = open(&disk, shape, room(&shape, places));
            let (why, kept, writes, history) = (why.into(), Vec::new(), Vec::new(), Vec::new());
            let mut desk = Desk { shape, slab, trie, disk, file, places, kept, writes, why, history };
            desk.kept = desk.on_disk();
            desk
        }

        /// The process ends, and a new one begins: memory is gone, the file is there.
        #[track_caller]
        fn restart(&mut self) {
            let n_pages = self.slab.borrow().pool().n_pages();
            (self.slab, self.trie) = memory(&self.shape, n_pages);
            self.file = open(&self.disk, self.shape, room(&self.shape, self.places));
            self.kept = self.on_disk();
            self.history.push("restart".into());
            self.check("restart");
        }

        /// A call in words, with the rule and what came before.
        fn asked(&mut self, call: String) -> String {
            let before = self.history[self.history.len().saturating_sub(6)..].join("; ");
            let before = if before.is_empty() { String::new() } else { format!("\n  before: {before}") };
            let n_pages = self.slab.borrow().pool().n_pages();
            let (memory, file) = (count(n_pages, "page"), count(self.places, "place"));
            let asked = format!("{call}; {memory} of memory, {file} in the file\n  {}{before}", self.why);
            self.history.push(call);
            asked
        }

        /// The prefixes that are in the file's bytes, the one to go first at the beginning.
        fn on_disk(&self) -> Vec<Vec<u32>> {
            let bytes = self.disk.bytes();
            if bytes.is_empty() {
                Vec::new()
            } else {
                prefixes(&self.shape, &bytes).into_iter().map(|(p, _)| p).collect()
            }
        }

        /// Looks whether the file finds what it must.
        #[track_caller]
        fn check(&self, asked: &str) {
            let kept: BTreeSet<_> = self.kept.iter().collect();
            same!(
                self.file.n_records(),
                kept.len(),
                "records that can be found, of the prefixes {kept:?}, after {asked}"
            );
            for prefix in &self.kept {
                let n = prefix.len() / self.shape.page_size;
                same!(self.find(prefix).len(), n, "pages that find gives for {}, after {asked}", shown(prefix));
            }
            let (len, most) = (self.disk.bytes().len() as u64, room(&self.shape, self.places));
            assert!(len <= most, "the file has {len} bytes, and may have {most}, after {asked}");
        }

        #[track_caller]
        fn look(&mut self) {
            let asked = self.asked("a look at what find gives".into());
            self.check(&asked);
        }

        /// Looks whether the file's bytes are just the pages that can be found, each with the rows of its tokens.
        #[track_caller]
        fn check_bytes(&mut self) {
            let asked = self.asked("a look at the bytes of the file".into());
            let bytes = self.disk.bytes();
            let kept: BTreeSet<Vec<u32>> = self.kept.iter().cloned().collect();
            let (_, record_len) = lengths(&self.shape);
            same!(bytes.len(), HEADER + kept.len() * record_len, "bytes of the file: {asked}");
            let heads = heads(&self.shape, &bytes);
            for (tokens, place) in prefixes(&self.shape, &bytes) {
                let head = heads.iter().find(|head| head.place == place).expect("a place that was found");
                let expected = record_of(&self.shape, head.number, head.parent, &tokens);
                // What the checksums are of comes before they do.
                let mut order = (8..expected.len()).chain(4..8).chain(0..4);
                let at = HEADER + place * record_len;
                if let Some(byte) = order.find(|byte| bytes[at + byte] != expected[*byte]) {
                    panic!("the record of {}: byte {byte} is wrong, in {}: {asked}", shown(&tokens), part(byte));
                }
            }
            let found: BTreeSet<Vec<u32>> = self.on_disk().into_iter().collect();
            same!(found, kept, "prefixes that the bytes of the file hold: {asked}");
        }

        /// The pages of these tokens are used now, the first one last.
        fn touch(&mut self, tokens: &[u32]) {
            let (mut used, others): (Vec<_>, Vec<_>) =
                self.kept.drain(..).partition(|prefix| tokens.starts_with(prefix));
            used.sort_by_key(|prefix| std::cmp::Reverse(prefix.len()));
            self.kept = others.into_iter().chain(used).collect();
        }

        /// Pages that begin with these tokens can no longer be found.
        fn lose(&mut self, tokens: &[u32]) {
            self.kept.retain(|prefix| !prefix.starts_with(tokens));
        }

        /// What keep must write on a disk that fails after so many bytes: how many pages, and whether it fails.
        fn must_write(&mut self, tokens: &[u32], fits: usize) -> (usize, bool) {
            let (size, mut written) = (self.shape.page_size, 0);
            let full = tokens.len() / size * size;
            self.touch(&tokens[..full]);
            for prefix in (size..=full).step_by(size).map(|end| &tokens[..end]) {
                if self.kept.iter().any(|kept| kept == prefix) {
                    continue;
                }
                if self.kept.len() == self.places {
                    // None of its own makes room.
                    if tokens.starts_with(&self.kept[0]) {
                        break;
                    }
                    self.kept.remove(0);
                }
                if (written + 1) * lengths(&self.shape).1 > fits {
                    return (written, true);
                }
                written += 1;
                self.kept.push(prefix.to_vec());
                self.touch(prefix);
            }
            (written, false)
        }

        /// A sequence, with what the prefix cache has of it; the other rows are computed. Its full pages are inserted.
        #[track_caller]
        fn compute(&mut self, tokens: &[u32]) -> ForkCache {
            let mut cache =
                made("with_prefix of chapter 11", || ForkCache::with_prefix(&self.slab, &mut self.trie, tokens));
            let new = tokens.len() - cache.len();
            let missing = cache.table().pages_needed(new).saturating_sub(self.slab.borrow().pool().n_free());
            self.evict(missing);
            made(&format!("extend({new}) of chapter 10"), || cache.extend(new));
            let width = self.shape.layout.kv_width();
            for layer in 0..self.shape.layout.n_layers {
                let row = |at: usize, kind| (0..width).map(move |i| word(&tokens[..=at], layer, kind, i));
                let rows = |kind| (tokens.len() - new..tokens.len()).flat_map(|at| row(at, kind)).collect::<Vec<_>>();
                cache.write(layer, &rows(0), &rows(1));
            }
            made("insert_into of chapter 11", || cache.insert_into(&mut self.trie, tokens));
            cache
        }

        #[track_caller]
        fn evict(&mut self, n: usize) -> usize {
            made("evict of chapter 11", || self.slab.borrow_mut().evict(&mut self.trie, n))
        }

        /// Offers the full pages of a sequence to the file; how many it wrote.
        #[track_caller]
        fn keep(&mut self, tokens: &[u32]) -> usize {
            self.keep_until(tokens, usize::MAX)
        }

        /// The same, on a disk that fails once, after so many bytes.
        #[track_caller]
        fn keep_until(&mut self, tokens: &[u32], fits: usize) -> usize {
            let cache = self.compute(tokens);
            let fails = fits < usize::MAX;
            let where_ = if fails { format!(", where the disk fails once, after {fits} bytes") } else { String::new() };
            let asked = self.asked(format!("keep of {}{where_}", shown(tokens)));
            let (n, fails) = self.must_write(tokens, fits);
            self.disk.take_writes();
            if fits < usize::MAX {
                self.disk.fail_once(fits);
            }
            let question = asking(asked.as_str());
            let found = self.file.keep(tokens, cache.table(), &self.slab.borrow());
            drop(question);
            self.disk.set_room(None);
            let found = found.map_err(|error| match error {
                PageFileError::Unwritable { offset, .. } => format!("Unwritable at byte {offset}"),
                error => error.to_string(),
            });
            self.writes = self.disk.take_writes();
            let at = self.writes.last().map_or(0, |(at, _)| *at);
            let expected = if fails { Err(format!("Unwritable at byte {at}")) } else { Ok(n) };
            same!(found, expected, "pages that it writes, or its error: {asked}");
            self.check(&asked);
            n
        }

        fn find(&self, tokens: &[u32]) -> Vec<usize> {
            let _asking = asking(format!("find of {}", shown(tokens)));
            self.file.find(tokens)
        }

        /// The pages that are to be read: those that the file has, after those that memory has.
        #[track_caller]
        fn wanted(&mut self, tokens: &[u32]) -> Vec<Wanted> {
            let size = self.shape.page_size;
            let prefix = |n: usize| &tokens[..n * size];
            let most = tokens.len().saturating_sub(1) / size;
            let held = self.held(prefix(most)) / size;
            let before = self.owners();
            let asked = self.asked(format!("wanted of {}", shown(tokens)));
            let wanted = granted(asked.as_str(), || self.file.wanted(tokens, &mut self.trie, &self.slab));
            same!(self.owners(), before, "owners of the pages, as many as before, after {asked}");
            self.touch(prefix(most));
            let found = (1..=most).take_while(|n| self.kept.iter().any(|kept| kept == prefix(*n))).count();
            let (places, heads) = (self.find(tokens), heads(&self.shape, &self.disk.bytes()));
            // A byte of the head may have changed on the disk.
            let asked_for =
                |place| wanted.iter().find(|wanted| wanted.place == place).map_or(0, |wanted| wanted.number);
            let on_disk = |place| heads.iter().find(|head| head.place == place).map(|head| head.number);
            let number = |place| on_disk(place).unwrap_or_else(|| asked_for(place));
            let expected: Vec<Wanted> = (held..found.max(held))
                .map(|page| Wanted { page, place: places[page], number: number(places[page]) })
                .collect();
            same!(
                wanted,
                expected,
                "pages, with {held} in memory, {found} in the file, and one token to compute: {asked}"
            );
            wanted
        }

        #[track_caller]
        fn read(&mut self, wanted: &[Wanted]) -> Vec<Read> {
            let _asking = asking(format!("read of {wanted:?}"));
            wanted.iter().map(|wanted| self.file.read(*wanted)).collect()
        }

        /// Gives what was read to the prefix cache: `n` pages must come back, and memory must have `held` of the tokens then.
        #[track_caller]
        fn bring_back(&mut self, tokens: &[u32], read: &[Read], n: usize, held: usize) {
            let (owners, pages) = (self.owners(), self.trie.n_pages());
            let read_pages: Vec<usize> = read.iter().map(|read| read.wanted.page).collect();
            let asked = self.asked(format!("bring_back of {}, of which pages {read_pages:?} were read", shown(tokens)));
            let found = granted(asked.as_str(), || self.file.bring_back(tokens, read, &mut self.trie, &self.slab));
            let sum = |owners: &[u32]| owners.iter().sum::<u32>() as usize;
            same!(
                sum(&self.owners()) + pages,
                sum(&owners) + self.trie.n_pages(),
                "owners of all pages, one more for each page that the prefix cache has gained, after {asked}"
            );
            for (page, (before, after)) in owners.iter().zip(self.owners()).enumerate() {
                assert!(after <= *before.max(&1), "page {page} has {after} owners, and had {before}, after {asked}");
            }
            let now = self.held(&tokens[..tokens.len() / self.shape.page_size * self.shape.page_size]);
            same!((found, now), (n, held), "(pages that come back, tokens in memory then): {asked}");
        }

        /// All at once, where no sequence runs: pages come back up to the first that is damaged, as far as there is room.
        #[track_caller]
        fn fetch(&mut self, tokens: &[u32]) -> usize {
            let size = self.shape.page_size;
            let wanted = self.wanted(tokens);
            let held = self.held(&tokens[..tokens.len().saturating_sub(1) / size * size]) / size;
            let heads = heads(&self.shape, &self.disk.bytes());
            let is_whole = |wanted: &&Wanted| {
                let mut heads = heads.iter().filter(|head| head.place == wanted.place);
                heads.any(|head| head.number == wanted.number && head.rows_are_whole)
            };
            let whole = wanted.iter().take_while(is_whole).count();
            let n = whole.min(self.slab.borrow().pool().n_pages() - held);
            let read = self.read(&wanted);
            // The last page can be in memory although it was not asked for.
            let last = self.held(&tokens[..tokens.len() / size * size]) / size;
            let then = if n == 0 { last } else { held + n };
            self.bring_back(tokens, &read, n, then * size);
            if whole < wanted.len() {
                self.lose(&tokens[..(held + whole + 1) * size]);
            }
            self.look();
            n
        }

        fn owners(&self) -> Vec<u32> {
            let slab = self.slab.borrow();
            let pool = slab.pool();
            (0..pool.n_pages() as u32).map(|page| pool.owners(PageId(page)).unwrap_or(u32::MAX)).collect()
        }

        /// Tokens of a sequence that the prefix cache has, each with the right rows.
        #[track_caller]
        fn held(&mut self, tokens: &[u32]) -> usize {
            let one_more = [tokens, &[u32::MAX]].concat();
            let cache =
                made("with_prefix of chapter 11", || ForkCache::with_prefix(&self.slab, &mut self.trie, &one_more));
            let width = self.shape.layout.kv_width();
            for layer in 0..self.shape.layout.n_layers {
                let (k, v) = cache.gather(layer);
                for (kind, name, found) in [(0, "keys", k), (1, "values", v)] {
                    for (at, row) in found.chunks_exact(width).enumerate() {
                        let expected: Vec<f32> = (0..width).map(|i| word(&tokens[..=at], layer, kind, i)).collect();
                        if bits(row) != bits(&expected) {
                            let what = format!("{name} of the token at position {at} in layer {layer}");
                            let of = format!("of {}; {}", shown(tokens), self.why);
                            same!(hex(row), hex(&expected), "{what}, as the prefix cache has them, {of}");
                        }
                    }
                }
            }
            cache.len()
        }
    }

    // Task 1

    /// The parts of a record, for a message.
    fn part(byte: usize) -> String {
        match byte {
            0..4 => "the checksum of the head".into(),
            4..8 => "the checksum of the rows".into(),
            8..16 => "the number".into(),
            16..24 => "the parent".into(),
            24..HEAD => format!("token {}", (byte - 24) / 4),
            HEAD..520 => format!("number {} of the keys", (byte - HEAD) / 4),
            _ => format!("number {} of the values", (byte - 520) / 4),
        }
    }

    #[test]
    fn task_1_decode_reads_what_was_encoded() {
        for (number, parent, tokens) in
            [(1, 0, counting(1, 4)), (1 << 40, (1 << 40) - 1, vec![u32::MAX, 0, 7, 1 << 31])]
        {
            let bytes = record_of(&SHAPE, number, parent, &tokens);
            let (k, v) = (rows(&SHAPE, &tokens, 0), rows(&SHAPE, &tokens, 1));
            let question = format!("decode of record {number} after {parent}, tokens {tokens:?}");
            let (head, found) = granted(question.as_str(), || decode(&SHAPE, &bytes));
            same!((head.number, head.parent), (number, parent), "number and parent in a {question}");
            same!(head.tokens[..], tokens[..], "tokens in a {question}");
            same!(bits(&found.k) == bits(&k), true, "all bits of the keys in a {question}: the same");
            same!(bits(&found.v) == bits(&v), true, "all bits of the values in a {question}: the same");
            let rows_checksum = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
            let expected = Head { number, parent, tokens: tokens.as_slice().into(), rows_checksum };
            same!(head, expected, "the head in a {question}");
        }
    }

    #[test]
    fn task_1_too_short_and_too_long() {
        let bytes = [record_of(&SHAPE, 1, 0, &counting(1, 4)), vec![0; 40]].concat();
        for len in (0..=HEAD + 1).chain([RECORD - 4, RECORD - 1, RECORD + 1, RECORD + 4, RECORD + 40]) {
            let expected = RecordError::WrongLength { found: len, expected: RECORD };
            same!(
                decode(&SHAPE, &bytes[..len]).err(),
                Some(expected),
                "decode of {len} bytes, where a record has 1,000"
            );
        }
    }

    #[test]
    fn task_1_a_changed_byte_is_found_wherever_it_is() {
        let good = record_of(&SHAPE, 9, 4, &counting(1, 4));
        let step = if cfg!(miri) { 41 } else { 1 };
        for byte in (0..RECORD).step_by(step) {
            for mask in [1, 0x80, 0xFF] {
                let mut bytes = good.clone();
                bytes[byte] ^= mask;
                let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
                let of_head = head_sum(&SHAPE, &bytes[4..HEAD]);
                let (expected, why) = match byte {
                    0..HEAD => (RecordError::DamagedHead { found: u32_at(0), expected: of_head }, "the head"),
                    _ => {
                        let of_rows = crc32fast::hash(&bytes[HEAD..]);
                        (RecordError::DamagedRows { found: u32_at(4), expected: of_rows }, "the rows")
                    }
                };
                let question = format!("decode of a record whose byte {byte} has changed, in {}", part(byte));
                same!(decode(&SHAPE, &bytes).err(), Some(expected), "{question}: it belongs to {why}");
            }
        }
    }

    #[test]
    fn task_1_a_record_of_a_different_file_is_refused() {
        let bytes = record_of(&SHAPE, 1, 0, &counting(1, 4));
        let swapped = KvLayout { n_layers: 2, n_kv_heads: 3, head_dim: 5 };
        for (what, other) in [
            ("a different model", PageShape { model: 1, ..SHAPE }),
            ("rows in f16", PageShape { format: RowFormat::F16, ..SHAPE }),
            ("layers and heads that make as many numbers", PageShape { layout: swapped, ..SHAPE }),
        ] {
            let found = quietly(|| decode(&other, &bytes));
            let refused = matches!(found, Some(Err(RecordError::DamagedHead { .. })));
            same!(
                refused,
                true,
                "decode refuses, as a damaged head, a record of {what}: the checksum has the header in it"
            );
        }
    }

    #[test]
    fn task_1_a_parent_is_earlier() {
        for (number, parent) in [(5, 5), (5, 6), (0, 0), (1, u64::MAX), (1 << 32, (1 << 32) + 1)] {
            let bytes = record_of(&SHAPE, number, parent, &counting(1, 4));
            let expected = Some(RecordError::WrongParent { number, parent });
            same!(decode(&SHAPE, &bytes).err(), expected, "decode of record {number} after {parent}");
        }
        same!(decode(&SHAPE, &[0; RECORD]).is_err(), true, "whether decode refuses zeros: no record was written there");
    }

    // Task 2

    #[test]
    fn task_2_records_are_found_by_their_tokens() {
        let (a, b) = ([counting(1, 4), counting(7, 4)].concat(), [counting(1, 4), counting(8, 4)].concat());
        // The same tokens as in a, after others; and a page that lies before the one it follows.
        let c = [counting(50, 4), counting(7, 4)].concat();
        let records: [(u64, u64, &[u32]); 5] = [(2, 1, &a), (1, 0, &a[..4]), (5, 4, &c), (9, 1, &b), (4, 0, &c[..4])];
        let disk = MemoryDisk::of(file_of(&SHAPE, &records));
        let file = open(&disk, SHAPE, room(&SHAPE, 9));
        same!(file.n_records(), 5, "records of a file with 5 that are whole");
        let find = |text: &[u32]| {
            let _asking = asking(format!("find of {}", shown(text)));
            file.find(text)
        };
        for (text, places) in [
            (&a[..], vec![1, 0]),
            (&b, vec![1, 3]),
            (&c, vec![4, 2]),
            (&a[..7], vec![1]),
            (&a[..4], vec![1]),
            (&a[..3], vec![]),
            (&[], vec![]),
            (&a[4..], vec![]),
            (&[&a[..], &[1, 2, 3, 4, 5]].concat(), vec![1, 0]),
            (&counting(1, 8), vec![1]),
            (&[1, 2, 3, 5], vec![]),
            (&[&[9, 9, 9, 9], &a[..4]].concat(), vec![]),
        ] {
            same!(find(text), places, "places of the pages that find gives for {}", shown(text));
        }
    }

    #[test]
    fn task_2_very_many_records() {
        // One sequence of as many pages as there are records, each of one token.
        let tokens: Vec<u32> = (0..MANY as u32).collect();
        let mut bytes = TINY.header().to_vec();
        for (i, token) in tokens.iter().enumerate() {
            bytes.extend(record(&TINY, i as u64 + 1, i as u64, &[*token], &[1.0], &[2.0]));
        }
        let disk = MemoryDisk::of(bytes);
        let file = once("open of a file with one long sequence", || open(&disk, TINY, room(&TINY, MANY)));
        same!(file.n_records(), MANY, "records of a file with one long sequence");
        let places = once("find of one long sequence", || file.find(&tokens));
        same!(places == (0..MANY).collect::<Vec<_>>(), true, "find gives the places of all {MANY} pages, in order");
    }

    // Task 3

    #[test]
    fn task_3_full_pages_are_written_once_and_no_others() {
        for len in 0..=3 * SIZE + 1 {
            let mut desk = Desk::new(12, 12, "full pages that the file has not are written, and no others");
            desk.keep(&counting(1, len));
            desk.check_bytes();
            desk.disk.take_reads();
            desk.keep(&counting(1, len));
            desk.keep(&counting(1, len / 2));
            same!(desk.writes.len(), 0, "writes to the disk for pages that it has");
            same!(desk.disk.take_reads().len(), 0, "reads from the disk for pages that it has: the heads are known");
            desk.keep(&[&counting(1, len)[..], &counting(70, 5)].concat());
            desk.check_bytes();
            desk.restart();
            desk.keep(&counting(1, len));
            desk.check_bytes();
        }
    }

    #[test]
    fn task_3_tokens_without_rows_are_not_written() {
        for held in [0, 3, 4, 6, 8, 9] {
            let mut desk = Desk::new(8, 8, "");
            let tokens = counting(1, 13);
            let cache = desk.compute(&tokens[..held]);
            let question = format!("keep of 13 tokens, of which the table holds {held}");
            let written = granted(question.as_str(), || desk.file.keep(&tokens, cache.table(), &desk.slab.borrow()));
            same!(written, held / SIZE, "pages that {question} writes: the rows of the others are not computed");
        }
    }

    #[test]
    fn task_3_rows_come_from_the_pages_of_the_table() {
        // Two sequences grow by turns: neither has its pages side by side, nor at the numbers of its places.
        let mut desk = Desk::new(12, 12, "two sequences whose pages lie in turns");
        let (a, b) = (counting(1, 12), counting(100, 12));
        let _caches: Vec<_> =
            [4, 8, 12].into_iter().flat_map(|len| [desk.compute(&b[..len]), desk.compute(&a[..len])]).collect();
        desk.keep(&a);
        desk.keep(&b);
        desk.check_bytes();
    }

    /// A full disk may leave the head of the page whole, and with it its number.
    #[test]
    fn task_3_when_a_write_fails_its_number_is_not_given_again() {
        let [a, b, c] = [1, 100, 200].map(|first| counting(first, 4));
        for fits in [HEAD, HEAD + 1, 700, RECORD - 1] {
            // A full file: what is torn lies over the rest of a whole record.
            let mut desk = Desk::new(20, 1, "the place of the torn record is free");
            desk.keep(&a);
            desk.keep_until(&b, fits);
            let number_of = |desk: &Desk, tokens: &[u32]| {
                let found = heads(&SHAPE, &desk.disk.bytes()).into_iter().find(|head| head.tokens == tokens);
                found.map_or(0, |head| head.number)
            };
            let torn = number_of(&desk, &b);
            desk.keep(&c);
            let next = number_of(&desk, &c);
            assert!(
                0 < torn && torn < next,
                "the record of {} has the number {next}, after a write of {} that failed after {fits} bytes, whose number was \
                 {torn}: a write that fails uses up its number, because its head may lie in the file, whole",
                shown(&c),
                shown(&b)
            );
        }
    }

    #[test]
    fn task_3_a_page_follows_the_page_before_it() {
        let mut desk =
            Desk::new(8, 8, "the parent of a record is the number of the record before, 0 where there is none");
        let tokens = counting(1, 12);
        let longer = [&tokens[..8], &counting(60, 4)].concat();
        desk.keep(&tokens);
        desk.keep(&longer);
        let records: Vec<_> =
            heads(&SHAPE, &desk.disk.bytes()).into_iter().map(|head| (head.number, head.parent, head.tokens)).collect();
        let expected = [(1, 0, &tokens[..4]), (2, 1, &tokens[4..8]), (3, 2, &tokens[8..]), (4, 2, &longer[8..])]
            .map(|(number, parent, tokens)| (number, parent, tokens.to_vec()));
        let what = "after a keep of 3 pages, and one of a sequence that shares the first two";
        same!(records, expected, "records in the file as (number, parent, tokens), {what}");
    }

    #[test]
    fn task_3_b_a_full_file_gives_up_what_was_used_longest_ago() {
        let [a, b, c, d, e] = [1, 100, 200, 300, 400].map(|first| counting(first, 4));
        let (long, other) = (counting(1, 16), counting(100, 16));
        let users: Vec<_> = (0..10).map(|user| [&a[..], &counting(1000 + 10 * user, 4)].concat()).collect();
        let too_long = vec![counting(500, 8), counting(1, 21), counting(1, 21)];
        for (places, sequences, why) in [
            (
                1,
                vec![a.clone(), b.clone()],
                "only pages of the sequence itself make no room: the others were used before",
            ),
            (3, vec![a.clone(), b, c, a, d, e], "the first one is used again, so the second is older"),
            (
                5,
                [vec![long], [4, 8, 12, 16].map(|n| other[..n].to_vec()).to_vec()].concat(),
                "a sequence loses its end first: without it, its beginning is still of use",
            ),
            (4, users, "a page that many sequences begin with is used by all of them"),
            (1, too_long.clone(), "of a sequence that is longer than the file, the beginning is kept"),
            (4, too_long, "of a sequence that is longer than the file, the beginning is kept"),
        ] {
            let mut desk = Desk::new(60, places, why);
            for tokens in sequences {
                desk.keep(&tokens);
                if desk.kept.len() == places {
                    desk.check_bytes();
                }
            }
        }
    }

    /// Places, sequences that are kept before, one whose write fails, after how many bytes, those that are kept then, and the rule.
    type FailedWrite<'a> = (usize, Vec<&'a [u32]>, &'a [u32], usize, Vec<&'a [u32]>, &'a str);

    /// What follows a page that was not written could never be found, and half a page is none.
    #[test]
    fn task_3_when_a_write_fails() {
        let [a, b, c] = [1, 100, 200].map(|first| counting(first, 8));
        let long = counting(1, 16);
        let mut cases: Vec<FailedWrite<'_>> = Vec::new();
        for fits in [0, 1, 3, 39, 40, 41, 500, 999] {
            cases.push((9, vec![&a], &b, RECORD + fits, vec![&b, &c], "half a page is none, and its place is used"));
        }
        for good in 0..4 {
            cases.push((9, vec![], &long, good * RECORD + 700, vec![&long], "a write that fails ends it"));
        }
        let why = "what was written before the error is in order: its end goes first, and not its beginning";
        cases.push((3, vec![], &long, 2 * RECORD + 700, vec![&b[..4], &c[..4]], why));
        let why = "the page that made room is half overwritten, and its place is free";
        cases.push((2, vec![&a[..4], &b[..4]], &c[..4], 300, vec![&a[..4]], why));
        for (places, before, tokens, fits, after, why) in cases {
            let mut desk = Desk::new(40, places, why);
            for tokens in before {
                desk.keep(tokens);
            }
            desk.keep_until(tokens, fits);
            for tokens in after {
                desk.keep(tokens);
            }
            desk.check_bytes();
        }
    }

    #[test]
    fn task_3_wrong_tables_are_refused() {
        let mut desk = Desk::new(8, 8, "");
        same!(desk.keep(&counting(50, 4)), 1, "pages that keep of 4 tokens writes, with a table that fits");
        let cache = desk.compute(&counting(1, 9));
        let refused = quietly(|| desk.file.keep(&counting(1, 8), cache.table(), &desk.slab.borrow()).is_ok());
        same!(refused, None, "keep of 8 tokens with a table that holds 9: it panics");
        drop(cache);
        let shape = PageShape { page_size: 3, ..SHAPE };
        let (slab, _trie) = memory(&shape, 4);
        let mut cache = made("ForkCache::new of chapter 10", || ForkCache::new(&slab));
        granted("extend(6) of chapter 10", || cache.extend(6));
        let refused = quietly(|| desk.file.keep(&counting(1, 6), cache.table(), &slab.borrow()).is_ok());
        same!(refused, None, "keep of a table with pages of 3 slots, where the file's have 4: it panics");
        same!(desk.file.n_records(), 1, "records after both");
    }

    #[test]
    fn task_3_very_large_files_cost_no_more() {
        let n = MANY / 4;
        let mut bytes = TINY.header().to_vec();
        for i in 0..n as u32 {
            bytes.extend(record(&TINY, u64::from(i) + 1, 0, &[i], &[1.0], &[2.0]));
        }
        let disk = MemoryDisk::of(bytes);
        let mut file = once("open of a file with many sequences", || open(&disk, TINY, room(&TINY, n)));
        let (slab, _trie) = memory(&TINY, 2);
        let mut cache = made("ForkCache::new of chapter 10", || ForkCache::new(&slab));
        granted("extend(1) of chapter 10", || cache.extend(1));
        often(&format!("keep of a page in a full file of {n}, and a look for the next to go"), n, |call| {
            let token = 1_000_000 + call as u32;
            same!(
                file.keep(&[token], cache.table(), &slab.borrow()).ok(),
                Some(1),
                "pages that keep number {call} writes"
            );
            let gone = file.find(&[call as u32]).is_empty();
            same!(gone, true, "whether page {call} of {n} is gone, as the one that was used longest ago");
            disk.take_writes();
        });
        same!(file.n_records(), n, "records of the file, as many as before");
    }

    // Task 4

    #[test]
    fn task_4_pages_come_back_bit_for_bit() {
        for len in [0, 1, 4, 5, 8, 9, 12, 13, 16, 17] {
            let mut desk = Desk::new(9, 9, "what the file has and memory has not comes back");
            desk.keep(&counting(1, len));
            desk.fetch(&counting(1, len));
            // In the run that wrote them, and in the next one.
            desk.evict(2);
            desk.fetch(&counting(1, len));
            desk.restart();
            for asked in [len / 2, len, len] {
                desk.fetch(&counting(1, asked));
            }
            desk.fetch(&counting(2, len));
        }
    }

    /// A page that a different sequence asked for is read for that one, and the pages after it follow it.
    #[test]
    fn task_4_pages_may_be_missing_in_the_middle() {
        let tokens = counting(1, 17);
        for (pages, n) in [
            (&[0, 2][..], 1),
            (&[0, 2, 3], 1),
            (&[0, 3], 1),
            (&[0, 1, 3], 2),
            (&[1], 0),
            (&[2, 3], 0),
            (&[1, 2, 3], 0),
            (&[], 0),
        ] {
            let mut desk = Desk::new(9, 9, "of 4 pages that were wanted, those before the first gap come back");
            desk.keep(&tokens);
            desk.restart();
            let mut wanted = desk.wanted(&tokens);
            wanted.retain(|wanted| pages.contains(&wanted.page));
            let read = desk.read(&wanted);
            desk.bring_back(&tokens, &read, n, n * SIZE);
            desk.fetch(&tokens);
        }
    }

    #[test]
    fn task_4_pages_come_back_after_those_in_memory() {
        let mut desk = Desk::new(9, 9, "2 pages of 5 are in memory, with other numbers than those that were written");
        let tokens = counting(1, 21);
        desk.keep(&tokens);
        desk.restart();
        drop(desk.compute(&counting(700, 4)));
        drop(desk.compute(&tokens[..9]));
        desk.fetch(&tokens);
        same!(desk.held(&counting(700, 4)), 4, "tokens of the other sequence in memory");
    }

    /// A desk after a restart, whose file has a sequence of 4 pages. Others are in memory, of a page each.
    #[track_caller]
    fn beside_others(n_pages: usize, own: usize, others: &[Vec<u32>], why: &str) -> (Desk, Vec<u32>) {
        let mut desk = Desk::new(n_pages, 20, why);
        let tokens = counting(1, 17);
        desk.keep(&tokens);
        desk.restart();
        drop(desk.compute(&tokens[..own * SIZE]));
        others.iter().for_each(|other| drop(desk.compute(other)));
        (desk, tokens)
    }

    #[test]
    fn task_4_others_make_room_and_no_more_than_needed() {
        let others: Vec<Vec<u32>> = (1..=5).map(|i| counting(100 * i, 4)).collect();
        let left = |desk: &mut Desk| others.iter().map(|other| desk.held(other) / SIZE).collect::<Vec<_>>();
        // The head of the sequence is the page that was used longest ago. 2 pages are free.
        let (mut desk, tokens) = beside_others(8, 1, &others, "its first page is in memory, and must stay");
        let wanted = desk.wanted(&tokens);
        let read = desk.read(&wanted);
        // While they are read, the others are used.
        left(&mut desk);
        desk.bring_back(&tokens, &read, 3, 16);
        let why = "one page was missing, and the oldest made room";
        same!(left(&mut desk), [0, 1, 1, 1, 1], "pages left of the five others: {why}");

        let (mut desk, tokens) = beside_others(6, 0, &others, "the second of 4 pages is damaged, and 1 page is free");
        let wanted = desk.wanted(&tokens);
        let mut read = desk.read(&wanted);
        read[1].bytes.as_mut().unwrap()[HEAD + 9] ^= 1;
        desk.bring_back(&tokens, &read, 1, 4);
        same!(
            left(&mut desk),
            [1; 5],
            "pages left of the five others: none makes room for pages that do not come back"
        );
    }

    #[test]
    fn task_4_as_many_as_there_is_room_for() {
        // What a sequence has in memory is worth more than what comes after it: its first page makes no room.
        for (own, taken) in [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 3)] {
            let (mut desk, tokens) = beside_others(5, own, &[], "a sequence runs, and its pages make no room");
            let _running = running(&desk.slab, 4 * taken);
            let wanted = desk.wanted(&tokens);
            let read = desk.read(&wanted);
            let n = (4 - own).min(5 - own - taken);
            desk.bring_back(&tokens, &read, n, (own + n) * SIZE);
        }
    }

    /// A way in which reading one of several pages may go wrong, in words and in bytes.
    type Damage = (&'static str, fn(&mut Read));

    fn damages() -> Vec<Damage> {
        vec![
            ("a byte of its keys has changed", |read| read.bytes.as_mut().unwrap()[HEAD + 9] ^= 1),
            ("a byte of its values has changed", |read| read.bytes.as_mut().unwrap()[RECORD - 1] ^= 0x80),
            ("a byte of its tokens has changed", |read| read.bytes.as_mut().unwrap()[30] ^= 1),
            ("a byte of its checksum has changed", |read| read.bytes.as_mut().unwrap()[2] ^= 1),
            ("it is all zeros", |read| read.bytes.as_mut().unwrap().fill(0)),
            ("it is cut off", |read| read.bytes.as_mut().unwrap().truncate(999)),
            ("it cannot be read", |read| read.bytes = Err(io::Error::other("a bad part of the disk"))),
            ("a different record, which is whole, lies there", |read| {
                read.bytes = Ok(record_of(&SHAPE, 77, 1, &counting(900, 4)));
            }),
            ("a record of its number with other tokens lies there", |read| {
                let number = read.wanted.number;
                read.bytes = Ok(record_of(&SHAPE, number, number - 1, &counting(900, 4)));
            }),
        ]
    }

    #[test]
    fn task_4_a_damaged_page_is_recomputed() {
        for (damage, spoil) in damages() {
            for place in 0..4 {
                let why = format!("page {place} of 4 was read, and {damage}: it is forgotten, and not asked for again");
                let mut desk = Desk::new(9, 9, &why);
                let tokens = counting(1, 17);
                desk.keep(&tokens);
                desk.keep(&counting(300, 9));
                desk.restart();
                let wanted = desk.wanted(&tokens);
                let mut read = desk.read(&wanted);
                spoil(&mut read[place]);
                desk.bring_back(&tokens, &read, place, place * SIZE);
                desk.lose(&tokens[..(place + 1) * SIZE]);
                desk.look();
                desk.wanted(&tokens);
                desk.keep(&tokens);
                desk.restart();
                same!(desk.fetch(&tokens), 4, "pages that come back when they are written again, where {why}");
            }
        }
    }

    /// The same, where it is the disk that has changed.
    #[test]
    fn task_4_no_byte_of_a_file_can_change_unnoticed() {
        let tokens = counting(1, 9);
        let good = {
            let mut desk = Desk::new(9, 2, "");
            desk.keep(&tokens);
            desk.disk.bytes()
        };
        // Every byte of a head, and some of the rows.
        let step = if cfg!(miri) { 211 } else { 7 };
        for byte in (HEADER..good.len()).filter(|byte| (byte - HEADER) % RECORD < HEAD || byte % step == 0) {
            let disk = MemoryDisk::of(good.clone());
            disk.flip(byte, 1 << (byte % 8));
            let what = format!("byte {byte} of the file has changed, in {}", part((byte - HEADER) % RECORD));
            let mut desk = Desk::over(SHAPE, disk, 9, 2, &what);
            let place = (byte - HEADER) / RECORD;
            same!(desk.fetch(&tokens), place, "pages that come back of two, where {what}");
            desk.keep(&tokens);
            desk.restart();
            same!(desk.fetch(&tokens), 2, "pages that come back after a restart, where {what}");
        }
    }

    /// A write can end at any byte, whatever stops the program.
    #[test]
    fn task_4_a_write_that_was_cut_off_anywhere() {
        let [a, b, c] = [1, 100, 200].map(|first| counting(first, 9));
        let step = if cfg!(miri) { 333 } else { 7 };
        // To a new place, and to that of the page that was used longest ago: the second of a.
        for (places, lost) in [(6, 0), (4, 1)] {
            let mut desk = Desk::new(40, places, "");
            desk.keep(&a);
            desk.keep(&b);
            let before = desk.disk.bytes();
            desk.keep(&c[..4]);
            let writes = desk.writes;
            let total: usize = writes.iter().map(|(_, bytes)| bytes.len()).sum();
            for n in (0..=total).filter(|n| *n <= HEAD + 1 || n % step == 0 || n + 2 > total) {
                let mut bytes = before.clone();
                apply(&mut bytes, &writes, n);
                let what = format!("a write was cut off after {n} of {total} bytes");
                let mut desk = Desk::over(SHAPE, MemoryDisk::of(bytes), 40, places, &what);
                same!(desk.fetch(&b), 2, "pages that come back of a sequence that was not touched, where {what}");
                let back = desk.fetch(&a);
                assert!(
                    back >= 2 - lost,
                    "{back} pages of the other come back, and at least {} must: {what}",
                    2 - lost
                );
                let back = desk.fetch(&c[..5]);
                same!(back, usize::from(n == total), "pages that come back of the one being written, where {what}");
                desk.keep(&c);
                desk.restart();
                same!(desk.fetch(&c[..5]), 1, "pages that come back of it when it is written again, where {what}");
            }
        }
    }

    #[test]
    fn task_4_pages_that_the_file_has_lost_meanwhile() {
        let mut desk = Desk::new(30, 4, "other records lie at their places by now, and these are not damaged");
        let tokens = counting(1, 17);
        desk.keep(&tokens);
        desk.restart();
        let wanted = desk.wanted(&tokens);
        let read = desk.read(&wanted);
        // Before they have come, others are written to their places.
        desk.keep(&counting(300, 8));
        desk.keep(&counting(300, 16));
        let late = desk.read(&wanted);
        desk.bring_back(&tokens, &late, 0, 0);
        desk.look();
        let failed = |wanted: &Wanted| Read { wanted: *wanted, bytes: Err(io::Error::other("a bad part of the disk")) };
        let failed: Vec<Read> = wanted.iter().map(failed).collect();
        desk.bring_back(&tokens, &failed, 0, 0);
        desk.why = "reads that failed leave what lies there: its records have other numbers than those wanted".into();
        desk.look();
        let n = granted("bring_back of pages that were read before they were overwritten", || {
            desk.file.bring_back(&tokens, &read, &mut desk.trie, &desk.slab)
        });
        same!(
            desk.held(&tokens[..16]),
            n * SIZE,
            "tokens in memory, where {n} pages were read before they were overwritten"
        );
        desk.look();
    }

    #[test]
    fn task_4_memory_may_have_changed_meanwhile() {
        let tokens = counting(1, 17);
        for n in 0..=4 {
            let mut desk = Desk::new(9, 9, "4 pages were wanted, and a sequence has computed some of them since");
            desk.keep(&tokens);
            desk.restart();
            let wanted = desk.wanted(&tokens);
            let read = desk.read(&wanted);
            drop(desk.compute(&tokens[..4 * n]));
            desk.bring_back(&tokens, &read, 4 - n, 16);
        }
        let mut desk = Desk::new(9, 9, "memory has lost the one before them, and nothing is wrong with the file");
        desk.keep(&tokens);
        desk.restart();
        drop(desk.compute(&tokens[..8]));
        let wanted = desk.wanted(&tokens);
        let read = desk.read(&wanted);
        desk.evict(1);
        desk.bring_back(&tokens, &read, 0, 4);
        desk.look();
    }

    #[test]
    fn task_4_nothing_is_read_or_written_to_ask() {
        let mut desk = Desk::new(9, 9, "");
        let tokens = counting(1, 17);
        desk.keep(&tokens);
        desk.restart();
        desk.disk.take_reads();
        let wanted = desk.wanted(&tokens);
        same!(desk.disk.take_reads().len(), 0, "reads from the disk while pages are asked for");
        let read = desk.read(&wanted);
        same!(desk.disk.take_reads().len(), 4, "reads from the disk for 4 pages");
        desk.bring_back(&tokens, &read, 4, 16);
        same!(desk.disk.take_reads().len(), 0, "reads from the disk while pages are brought back");
        same!(desk.disk.take_writes().len(), 0, "writes to the disk, from asking on");
    }

    #[test]
    fn task_4_a_different_slab_is_an_error() {
        let mut desk = Desk::new(3, 9, "");
        let tokens = counting(1, 9);
        desk.keep(&tokens);
        let wanted: Vec<Wanted> = (0..2).map(|page| Wanted { page, place: page, number: page as u64 + 1 }).collect();
        let read = desk.read(&wanted);
        // The prefix cache keeps pages of a larger slab.
        let (large, mut trie) = memory(&SHAPE, 9);
        let mut first = made("ForkCache::new of chapter 10", || ForkCache::new(&large));
        granted("extend(28) of chapter 10", || first.extend(28));
        let mut cache = made("ForkCache::new of chapter 10", || ForkCache::new(&large));
        granted("extend(4) of chapter 10", || cache.extend(4));
        granted("insert_into of chapter 11", || cache.insert_into(&mut trie, &tokens));
        let (small, _) = memory(&SHAPE, 3);
        let asked = asking("bring_back to a slab of 3 pages, for a prefix cache that has page 7 of a different one");
        let outcome = desk.file.bring_back(&tokens, &read, &mut trie, &small);
        drop(asked);
        same!(
            outcome,
            Err(CacheError::ForeignPage { page: PageId(7), n_pages: 3 }),
            "bring_back with a different slab"
        );
        same!(small.borrow().pool().n_free(), 3, "pages that are free of the slab after a refusal");
        let outcome = desk.file.wanted(&tokens, &mut trie, &small).err();
        same!(outcome, Some(CacheError::ForeignPage { page: PageId(7), n_pages: 3 }), "wanted with a different slab");
    }

    // The whole chapter

    /// What tokens are called in the transcript.
    const WORDS: [&str; 11] = ["", "once", "upon", "a", "time", "king", "there", "so", "the", "fox", "said"];

    fn in_words(tokens: &[u32]) -> String {
        tokens.iter().map(|token| WORDS[*token as usize]).collect::<Vec<_>>().join(" ")
    }

    /// A line of the transcript: what lies at each place.
    fn told(desk: &Desk) -> String {
        let bytes = desk.disk.bytes();
        let all = heads(&desk.shape, &bytes);
        let places = (bytes.len() - HEADER) / lengths(&desk.shape).1;
        let place = |place: usize| {
            let Some(head) = all.iter().find(|head| head.place == place) else { return "-".into() };
            let rows = if head.rows_are_whole { "" } else { " damaged" };
            format!("{}<{} {}{rows}", head.number, head.parent, in_words(&head.tokens))
        };
        (0..places).map(place).collect::<Vec<String>>().join(" | ")
    }

    #[test]
    fn whole_transcript() {
        let shape = PageShape { page_size: 2, ..SHAPE };
        let mut desk = Desk::over(shape, MemoryDisk::default(), 8, 4, "");
        let mut transcript = Transcript::default();
        let (time, king, fox) = ([1, 2, 3, 4, 6], [1, 2, 3, 5, 10], [1, 2, 8, 9, 10]);
        for (operation, tokens) in [
            ("keep", &time[..]),
            ("keep", &king),
            ("keep", &time),
            ("restart", &[]),
            ("back", &time),
            ("back", &king),
            ("keep", &[8, 9, 10, 7]),
            ("keep", &fox[..4]),
            ("keep", &king),
            ("a byte changes", &fox[..4]),
            ("restart", &[]),
            ("back", &fox),
            ("keep", &fox),
        ] {
            let name = in_words(tokens);
            let _asking = asking(format!("{operation} {name}, in the transcript"));
            let line = match operation {
                "keep" => {
                    let cache = desk.compute(tokens);
                    let n = granted("keep", || desk.file.keep(tokens, cache.table(), &desk.slab.borrow()));
                    format!("keep {name:<22} {n} new of {}  {}", desk.file.n_records(), told(&desk))
                }
                "back" => {
                    let Desk { file, trie, slab, .. } = &mut desk;
                    let wanted = granted("wanted", || file.wanted(tokens, trie, slab));
                    let places: Vec<String> = wanted.iter().map(|wanted| wanted.place.to_string()).collect();
                    let read: Vec<Read> = wanted.iter().map(|wanted| file.read(*wanted)).collect();
                    let n = granted("bring_back", || file.bring_back(tokens, &read, trie, slab));
                    format!("back {name:<22} wanted at {}: {n} of {}", places.join(" "), places.len())
                }
                "restart" => {
                    (desk.slab, desk.trie) = memory(&shape, 8);
                    desk.file = open(&desk.disk, shape, room(&shape, 4));
                    "restart".into()
                }
                _ => {
                    let damaged = desk.find(tokens).last().copied().unwrap_or(0);
                    desk.disk.flip(HEADER + damaged * lengths(&shape).1 + 50, 1);
                    format!("{operation:<40}{}", told(&desk))
                }
            };
            transcript.line(line);
        }
        assert_transcript("ch16_pages_on_disk", &transcript);
    }

    /// Random sequences, evictions, restarts, damages and full disks.
    #[test]
    fn whole_oracle() {
        for seed in seeds(if cfg!(miri) { 1 } else { 60 }) {
            let mut dice = Dice::new(seed);
            let (n_pages, places) = (dice.roll(3, 12), dice.roll(1, 10));
            let mut desk = Desk::new(n_pages, places, &format!("seed {seed}"));
            for _ in 0..STEPS {
                // Few tokens, so that sequences have much in common.
                let len = dice.roll(1, (n_pages * SIZE).min(4 * SIZE + 2));
                let token = |at: usize| if at.is_multiple_of(SIZE) { dice.roll(1, 2) as u32 } else { 5 };
                let tokens: Vec<u32> = (0..len).map(token).collect();
                match dice.roll(0, 11) {
                    0..=3 => drop(desk.keep(&tokens)),
                    4..=6 => drop(desk.fetch(&tokens)),
                    7 => drop(desk.evict(dice.roll(1, 4))),
                    8 | 9 => desk.restart(),
                    10 => {
                        let bytes = desk.disk.bytes().len();
                        if bytes > HEADER {
                            let byte = dice.roll(HEADER, bytes - 1);
                            desk.disk.flip(byte, 1 << dice.roll(0, 7));
                            desk.history.push(format!("byte {byte} changes"));
                        }
                    }
                    _ => drop(desk.keep_until(&tokens, dice.roll(0, RECORD - 1))),
                }
            }
            desk.evict(n_pages);
            same!(desk.slab.borrow().pool().n_free(), n_pages, "pages that are free when all is evicted, seed {seed}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri reads no files")]
    fn whole_story_goes_on_from_pages_of_an_earlier_run() {
        let storyteller = Storyteller::open();
        let expected = storyteller.recompute(40);
        let folder = tempfile::tempdir().expect("a folder for the file");
        let path = folder.path().join("story.pages");
        let shape = PageShape::of(&storyteller.model, 4);
        let n_prompt = storyteller.prompt().len();
        let mut found = Vec::new();
        // In the first run nothing is there; in the second, the prompt and what was generated.
        for run in 1..=2 {
            let disk = FileDisk::open(&path).expect("a file that can be made");
            let question = format!("run {run}: open of a file of pages");
            let mut file = granted(question, || PageFile::open(Box::new(disk), shape, 1 << 24));
            let (slab, mut trie) = memory(&shape, 20);
            let mut tokens = [&storyteller.prompt()[..], &expected[..20]].concat();
            let wanted = granted("wanted of the prompt", || file.wanted(&tokens, &mut trie, &slab));
            let read: Vec<Read> = wanted.into_iter().map(|wanted| file.read(wanted)).collect();
            found.push(granted("bring_back of the prompt", || file.bring_back(&tokens, &read, &mut trie, &slab)));
            let mut cache = made("with_prefix of chapter 11", || ForkCache::with_prefix(&slab, &mut trie, &tokens));
            let mut sampler = Sampler::new(SAMPLING);
            // The sampler has drawn what the prompt holds already.
            for n in 0..20 {
                let logits = storyteller.model.step(&tokens[..n_prompt + n], None);
                sampler.pick(&logits.expect("a short sequence fits"));
            }
            for _ in 20..40 {
                let logits = storyteller.model.step(&tokens[cache.len()..], Some(&mut cache));
                tokens.push(sampler.pick(&logits.expect("the pool has pages")));
            }
            storyteller.assert_same_story(&tokens[n_prompt..], &expected);
            granted("insert_into of chapter 11", || cache.insert_into(&mut trie, &tokens));
            granted("keep of the story", || file.keep(&tokens, cache.table(), &slab.borrow()));
        }
        let all = (n_prompt + 19) / 4;
        same!(found, [0, all], "pages of the prompt that come back in the first run, and in the second");
    }
}
