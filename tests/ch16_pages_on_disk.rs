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
    use page_by_page::disk::file::FileDisk;
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
    fn word(text: &[u32], layer: usize, kind: usize, i: usize) -> f32 {
        let parts = text.iter().copied().chain([layer as u32, kind as u32, i as u32]);
        let mix = |hash: u32, part: u32| (hash ^ part).wrapping_mul(0x9E37_79B1).rotate_left(13);
        f32::from_bits(parts.fold(0x811C_9DC5, mix))
    }

    /// The keys (or values) of the last page of a text, which ends with it: `[n_layers, page_size, kv_width]`.
    fn rows(shape: &PageShape, text: &[u32], kind: usize) -> Vec<f32> {
        let first = text.len() - shape.page_size;
        let mut rows = Vec::new();
        for layer in 0..shape.layout.n_layers {
            for slot in 0..shape.page_size {
                rows.extend((0..shape.layout.kv_width()).map(|i| word(&text[..=first + slot], layer, kind, i)));
            }
        }
        rows
    }

    /// The record of the last page of a text.
    fn record_of(shape: &PageShape, number: u64, parent: u64, text: &[u32]) -> Vec<u8> {
        let tokens = &text[text.len() - shape.page_size..];
        record(shape, number, parent, tokens, &rows(shape, text, 0), &rows(shape, text, 1))
    }

    /// A file with these records: number, parent, and the text that the page ends.
    fn file_of(shape: &PageShape, records: &[(u64, u64, &[u32])]) -> Vec<u8> {
        let mut file = shape.header().to_vec();
        for (number, parent, text) in records {
            file.extend(record_of(shape, *number, *parent, text));
        }
        file
    }

    fn text_of(tokens: impl IntoIterator<Item = u32>) -> Vec<u32> {
        tokens.into_iter().collect()
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

    /// A text for a failure message.
    fn shown(text: &[u32]) -> String {
        match text {
            [a, b, .., z] if text.len() > 12 => format!("{} tokens [{a}, {b}, …, {z}]", text.len()),
            _ => format!("{text:?}"),
        }
    }

    /// Pages in memory, and a file of pages.
    struct Desk {
        shape: PageShape,
        slab: SharedSlab,
        trie: PrefixCache,
        disk: MemoryDisk,
        file: PageFile,
        most: u64,
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

    impl Desk {
        /// `records`: what the file has room for.
        #[track_caller]
        fn new(n_pages: usize, records: usize) -> Self {
            Desk::over(MemoryDisk::default(), n_pages, records)
        }

        #[track_caller]
        fn over(disk: MemoryDisk, n_pages: usize, records: usize) -> Self {
            let (slab, trie) = memory(&SHAPE, n_pages);
            let most = room(&SHAPE, records);
            let file = open(&disk, SHAPE, most);
            Desk { shape: SHAPE, slab, trie, disk, file, most }
        }

        /// The process ends, and another begins: memory is gone, the file is there.
        #[track_caller]
        fn restart(&mut self) {
            let n_pages = self.slab.borrow().pool().n_pages();
            (self.slab, self.trie) = memory(&self.shape, n_pages);
            self.file = open(&self.disk, self.shape, self.most);
        }

        /// A text, with what the prefix cache has of it; the other rows are computed. Its full pages are inserted.
        #[track_caller]
        fn compute(&mut self, text: &[u32]) -> ForkCache {
            let mut cache =
                made("with_prefix of chapter 11", || ForkCache::with_prefix(&self.slab, &mut self.trie, text));
            let new = text.len() - cache.len();
            let missing = cache.table().pages_needed(new).saturating_sub(self.slab.borrow().pool().n_free());
            made("evict of chapter 11", || self.slab.borrow_mut().evict(&mut self.trie, missing));
            made(&format!("extend({new}) of chapter 10"), || cache.extend(new));
            for layer in 0..self.shape.layout.n_layers {
                let of = |kind: usize| -> Vec<f32> {
                    let positions = text.len() - new..text.len();
                    let row =
                        |at: usize| (0..self.shape.layout.kv_width()).map(move |i| word(&text[..=at], layer, kind, i));
                    positions.flat_map(row).collect()
                };
                cache.write(layer, &of(0), &of(1));
            }
            made("insert_into of chapter 11", || cache.insert_into(&mut self.trie, text));
            cache
        }

        /// Offers the full pages of a text to the file; how many it wrote.
        #[track_caller]
        fn keep(&mut self, text: &[u32]) -> usize {
            let cache = self.compute(text);
            let question = format!("keep of {}", shown(text));
            granted(question, || self.file.keep(text, cache.table(), &self.slab.borrow()))
        }

        #[track_caller]
        fn find(&self, text: &[u32]) -> Vec<usize> {
            let _asking = asking(format!("find of {}", shown(text)));
            self.file.find(text)
        }

        #[track_caller]
        fn wanted(&mut self, text: &[u32]) -> Vec<Wanted> {
            let before = self.owners();
            let question = format!("wanted of {}", shown(text));
            let wanted = granted(question.as_str(), || self.file.wanted(text, &mut self.trie, &self.slab));
            same!(self.owners(), before, "owners of the pages after a {question}: no one has one more or less");
            wanted
        }

        #[track_caller]
        fn read(&mut self, wanted: &[Wanted]) -> Vec<Read> {
            let _asking = asking(format!("read of {wanted:?}"));
            wanted.iter().map(|wanted| self.file.read(*wanted)).collect()
        }

        #[track_caller]
        fn bring_back(&mut self, text: &[u32], read: &[Read]) -> usize {
            let before = self.trie.n_pages();
            let question = format!("bring_back of {} of {}", count(read.len(), "page"), shown(text));
            let n = granted(question.as_str(), || self.file.bring_back(text, read, &mut self.trie, &self.slab));
            let owned = self.owners().iter().filter(|owners| **owners > 0).count();
            same!(
                owned,
                self.trie.n_pages(),
                "pages with an owner after a {question}, no one but the prefix cache having any: as many as it has"
            );
            same!(
                self.owners().iter().max().copied().unwrap_or(0) < 2,
                true,
                "after a {question}, no page has two owners"
            );
            assert!(
                self.trie.n_pages() <= before + n,
                "after a {question} the prefix cache has {} pages, and had {before}: your answer is {n}",
                self.trie.n_pages()
            );
            n
        }

        /// All at once; how many pages came back.
        #[track_caller]
        fn fetch(&mut self, text: &[u32]) -> usize {
            let wanted = self.wanted(text);
            let read = self.read(&wanted);
            self.bring_back(text, &read)
        }

        fn owners(&self) -> Vec<u32> {
            let slab = self.slab.borrow();
            let pool = slab.pool();
            (0..pool.n_pages() as u32).map(|page| pool.owners(PageId(page)).unwrap_or(u32::MAX)).collect()
        }

        /// Tokens of a text that the prefix cache has, each with the right rows.
        #[track_caller]
        fn held(&mut self, text: &[u32]) -> usize {
            let one_more = [text, &[u32::MAX]].concat();
            let cache =
                made("with_prefix of chapter 11", || ForkCache::with_prefix(&self.slab, &mut self.trie, &one_more));
            for layer in 0..self.shape.layout.n_layers {
                let (k, v) = cache.gather(layer);
                for (kind, name, found) in [(0, "keys", k), (1, "values", v)] {
                    let width = self.shape.layout.kv_width();
                    for (at, row) in found.chunks_exact(width).enumerate() {
                        let expected: Vec<f32> = (0..width).map(|i| word(&text[..=at], layer, kind, i)).collect();
                        same!(
                            hex(row),
                            hex(&expected),
                            "{name} of the token at position {at} in layer {layer}, as the prefix cache has them, of {}",
                            shown(text)
                        );
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
        for (number, parent, text) in
            [(1, 0, counting(1, 4)), (1 << 40, (1 << 40) - 1, text_of([u32::MAX, 0, 7, 1 << 31]))]
        {
            let bytes = record_of(&SHAPE, number, parent, &text);
            let (k, v) = (rows(&SHAPE, &text, 0), rows(&SHAPE, &text, 1));
            let question = format!("decode of record {number} after {parent}, tokens {text:?}");
            let (head, found) = granted(question.as_str(), || decode(&SHAPE, &bytes));
            same!((head.number, head.parent), (number, parent), "number and parent in a {question}");
            same!(head.tokens[..], text[..], "tokens in a {question}");
            same!(bits(&found.k) == bits(&k), true, "all bits of the keys in a {question}: the same");
            same!(bits(&found.v) == bits(&v), true, "all bits of the values in a {question}: the same");
            let rows_checksum = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
            let expected = Head { number, parent, tokens: text.as_slice().into(), rows_checksum };
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
    fn task_1_a_record_of_another_file_is_none_of_this() {
        let bytes = record_of(&SHAPE, 1, 0, &counting(1, 4));
        let swapped = KvLayout { n_layers: 2, n_kv_heads: 3, head_dim: 5 };
        for (what, other) in [
            ("another model", PageShape { model: 1, ..SHAPE }),
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
    fn task_2_records_are_found_by_their_text() {
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
        // One text of as many pages as there are records, each of one token.
        let text: Vec<u32> = (0..MANY as u32).collect();
        let mut bytes = TINY.header().to_vec();
        for (i, token) in text.iter().enumerate() {
            bytes.extend(record(&TINY, i as u64 + 1, i as u64, &[*token], &[1.0], &[2.0]));
        }
        let disk = MemoryDisk::of(bytes);
        let file = once("open of a file with one long text", || open(&disk, TINY, room(&TINY, MANY)));
        same!(file.n_records(), MANY, "records of a file with one long text");
        let places = once("find of one long text", || file.find(&text));
        same!(places == (0..MANY).collect::<Vec<_>>(), true, "find gives the places of all {MANY} pages, in order");
    }

    // Task 3

    /// The prefixes that are in the file's bytes, the one to go first at the beginning.
    fn on_disk(desk: &Desk) -> Vec<Vec<u32>> {
        prefixes(&desk.shape, &desk.disk.bytes()).into_iter().map(|(text, _)| text).collect()
    }

    /// Looks whether the file's bytes hold just these pages, each with the rows of its text, and whether find gives them.
    #[track_caller]
    fn check_file(desk: &Desk, texts: &[&[u32]], what: &str) {
        let bytes = desk.disk.bytes();
        let found: BTreeSet<Vec<u32>> = on_disk(desk).into_iter().collect();
        let expected: BTreeSet<Vec<u32>> = texts.iter().map(|text| text.to_vec()).collect();
        same!(found, expected, "the prefixes that the bytes of the file hold, {what}");
        for (text, place) in prefixes(&desk.shape, &bytes) {
            let (number, parent) = heads(&desk.shape, &bytes)
                .into_iter()
                .find(|head| head.place == place)
                .map(|head| (head.number, head.parent))
                .unwrap();
            let at = HEADER + place * lengths(&desk.shape).1;
            let expected = record_of(&desk.shape, number, parent, &text);
            // What the checksums are of comes before they do.
            let order = (8..expected.len()).chain(4..8).chain(0..4);
            let differ = order.into_iter().find(|byte| bytes[at + byte] != expected[*byte]);
            if let Some(byte) = differ {
                panic!("the record of {}, {what}: byte {byte} is wrong, in {}", shown(&text), part(byte));
            }
        }
        for text in texts {
            let n = text.len() / desk.shape.page_size;
            same!(desk.find(text).len(), n, "pages that find gives for {}, {what}", shown(text));
        }
        same!(desk.file.n_records(), texts.len(), "n_records, {what}");
    }

    #[test]
    fn task_3_full_pages_are_written_and_no_other() {
        for len in 0..=3 * SIZE + 1 {
            let mut desk = Desk::new(8, 8);
            let text = counting(1, len);
            same!(desk.keep(&text), len / SIZE, "pages that keep of {len} tokens writes, page size 4");
            let pages: Vec<&[u32]> = (1..=len / SIZE).map(|n| &text[..n * SIZE]).collect();
            check_file(&desk, &pages, &format!("after a keep of {len} tokens"));
            let len = desk.disk.bytes().len();
            same!(
                len,
                HEADER + pages.len() * RECORD,
                "bytes of the file after a keep of {}",
                count(pages.len(), "page")
            );
        }
    }

    #[test]
    fn task_3_tokens_without_rows_are_not_written() {
        for held in [0, 3, 4, 6, 8, 9] {
            let mut desk = Desk::new(8, 8);
            let text = counting(1, 13);
            let cache = desk.compute(&text[..held]);
            let question = format!("keep of 13 tokens, of which the table holds {held}");
            let written = granted(question.as_str(), || desk.file.keep(&text, cache.table(), &desk.slab.borrow()));
            same!(written, held / SIZE, "pages that {question} writes: the rows of the others are not computed");
        }
    }

    #[test]
    fn task_3_a_page_is_written_once() {
        let mut desk = Desk::new(12, 12);
        let text = counting(1, 9);
        same!(desk.keep(&text), 2, "pages that the first keep of 9 tokens writes");
        desk.disk.take_writes();
        desk.disk.take_reads();
        same!(desk.keep(&text), 0, "pages that a second keep of the same 9 tokens writes");
        same!(desk.keep(&text[..7]), 0, "pages that a keep of the first 7 of them writes");
        same!(desk.disk.take_writes().len(), 0, "writes to the disk for pages that it has");
        same!(desk.disk.take_reads().len(), 0, "reads from the disk for pages that the file has: the heads are known");
        let longer = counting(1, 14);
        let other = [&longer[..4], &[70, 71, 72, 73, 74]].concat();
        same!(desk.keep(&longer), 1, "pages that a keep of 14 tokens writes, two pages of which are there");
        same!(desk.keep(&other), 1, "pages that a keep writes of a text that goes another way after its first page");
        check_file(&desk, &[&longer[..4], &longer[..8], &longer[..12], &other[..8]], "after both");
        desk.restart();
        check_file(&desk, &[&longer[..4], &longer[..8], &longer[..12], &other[..8]], "after a restart");
        same!(desk.keep(&longer), 0, "pages that a keep writes after a restart of a text that is all there");
    }

    #[test]
    fn task_3_rows_come_from_the_pages_of_the_table() {
        // Two texts grow by turns: neither has its pages side by side, nor at the numbers of its places.
        let mut desk = Desk::new(12, 12);
        let (a, b) = (counting(1, 12), counting(100, 12));
        let mut caches = Vec::new();
        for len in [4, 8, 12] {
            caches.push(desk.compute(&b[..len]));
            caches.push(desk.compute(&a[..len]));
        }
        for (text, cache) in [(&a, &caches[5]), (&b, &caches[4])] {
            granted(format!("keep of {}", shown(text)), || desk.file.keep(text, cache.table(), &desk.slab.borrow()));
        }
        let pages = [&a[..4], &a[..8], &a, &b[..4], &b[..8], &b];
        check_file(&desk, &pages, "after two texts whose pages lie in turns");
    }

    /// A full disk may leave the head of the page whole, and with it its number.
    #[test]
    fn task_3_when_a_write_fails_its_number_is_not_given_again() {
        let [a, b, c] = [1, 100, 200].map(|first| counting(first, 4));
        for fits in [HEAD, HEAD + 1, 700, RECORD - 1] {
            // A full file: what is torn lies over the rest of a whole record.
            let mut desk = Desk::new(20, 1);
            desk.keep(&a);
            desk.disk.fail_once(fits);
            let cache = desk.compute(&b);
            let question = format!("keep of {}, where the disk fails once, {fits} bytes into the record", shown(&b));
            let asked = asking(question.as_str());
            let failed = desk.file.keep(&b, cache.table(), &desk.slab.borrow());
            drop(asked);
            drop(cache);
            same!(failed.is_err(), true, "whether {question} fails");
            let number_of = |desk: &Desk, text: &[u32]| {
                let found = heads(&SHAPE, &desk.disk.bytes()).into_iter().find(|head| head.tokens == text);
                found.map_or(0, |head| head.number)
            };
            let torn = number_of(&desk, &b);
            same!(torn > 0, true, "whether the head of the torn record is whole after a {question}");
            same!(desk.keep(&c), 1, "pages that keep writes after a {question}: the place of the torn record is free");
            let next = number_of(&desk, &c);
            assert!(
                next > torn,
                "the record of {} has the number {next} after a {question}, whose number was {torn}: a write that fails uses up \
                 its number, as its head may lie in the file, whole",
                shown(&c)
            );
        }
    }

    #[test]
    fn task_3_a_page_follows_the_page_before_it() {
        let mut desk = Desk::new(8, 8);
        let text = counting(1, 12);
        let longer = [&text[..8], &counting(60, 4)].concat();
        desk.keep(&text);
        desk.keep(&longer);
        let records: Vec<_> =
            heads(&SHAPE, &desk.disk.bytes()).into_iter().map(|head| (head.number, head.parent, head.tokens)).collect();
        let expected = [(1, 0, &text[..4]), (2, 1, &text[4..8]), (3, 2, &text[8..]), (4, 2, &longer[8..])]
            .map(|(a, b, c)| (a, b, c.to_vec()));
        same!(
            records,
            expected,
            "records in the file as (number, parent, tokens), after a keep of 3 pages, and one of a sequence that shares \
             the first two: the parent is the number of the record before, 0 where there is none"
        );
    }

    #[test]
    fn task_3_a_file_of_one_page_gives_it_up() {
        let mut desk = Desk::new(8, 1);
        let (a, b) = (counting(1, 4), counting(100, 4));
        desk.keep(&a);
        same!(
            desk.keep(&b),
            1,
            "pages that keep writes to a file with one place, which an earlier sequence has: only pages of the sequence \
             itself make no room, and those were used after keep was called"
        );
        same!(
            (desk.find(&a).len(), desk.find(&b).len()),
            (0, 1),
            "pages found (of the earlier sequence, of the new one)"
        );
    }

    #[test]
    fn task_3_a_full_file_gives_up_what_was_used_longest_ago() {
        let mut desk = Desk::new(20, 3);
        let [a, b, c, d, e] = [1, 100, 200, 300, 400].map(|first| counting(first, 4));
        for text in [&a, &b, &c] {
            desk.keep(text);
        }
        check_file(&desk, &[&a, &b, &c], "with three pages in three places");
        same!(desk.keep(&a), 0, "pages that a keep of the first writes again");
        same!(desk.keep(&d), 1, "pages that a keep writes into a full file");
        check_file(&desk, &[&a, &c, &d], "after a fourth page, the first one having been used again");
        same!(desk.keep(&e), 1, "pages that another keep writes");
        check_file(&desk, &[&a, &d, &e], "after a fifth page");
        same!(desk.disk.bytes().len() as u64, desk.most, "bytes of the file: what it may have, and no more");
    }

    #[test]
    fn task_3_a_text_loses_its_end_first() {
        let mut desk = Desk::new(30, 5);
        let (long, other) = (counting(1, 16), counting(100, 16));
        desk.keep(&long);
        desk.keep(&other[..4]);
        for (n, left) in [(2, 3), (3, 2), (4, 1)] {
            desk.keep(&other[..4 * n]);
            same!(
                desk.find(&long).len(),
                left,
                "pages found of a text of 4 pages, when {n} of another were written to the file of 5 places: its head is worth \
                 more than its tail, without which the head is still of use"
            );
            same!(desk.find(&other).len(), n, "pages found of the other text");
        }
    }

    #[test]
    fn task_3_a_page_that_many_begin_with_stays() {
        let mut desk = Desk::new(60, 4);
        let head = counting(1, 4);
        for user in 0..10 {
            let text = [&head[..], &counting(100 + 10 * user, 4)].concat();
            desk.keep(&text);
            same!(desk.find(&text).len(), 2, "pages found of text {user}, just written; all begin with the same page");
        }
        let left = (0..10).filter(|user| desk.find(&[&head[..], &counting(100 + 10 * user, 4)].concat()).len() == 2);
        same!(
            left.collect::<Vec<_>>(),
            vec![7, 8, 9],
            "texts of which both pages are left in 4 places: the latest three"
        );
    }

    #[test]
    fn task_3_of_a_text_that_is_too_long_the_beginning_is_kept() {
        for places in 1..=4 {
            let mut desk = Desk::new(30, places);
            desk.keep(&counting(500, 8));
            let text = counting(1, 21);
            same!(desk.keep(&text), places, "pages that keep writes of a text of 5, to a file with {places} places");
            same!(desk.find(&text).len(), places, "pages found of it");
            desk.disk.take_writes();
            same!(desk.keep(&text), 0, "pages that a second keep of it writes: none of its own makes room for another");
            same!(desk.disk.take_writes().len(), 0, "writes to the disk then");
        }
    }

    #[test]
    fn task_3_when_the_disk_is_full() {
        let [a, b, c] = [1, 100, 200].map(|first| counting(first, 8));
        for fits in [0, 1, 3, 39, 40, 41, 500, 999] {
            let mut desk = Desk::new(40, 9);
            desk.keep(&a);
            desk.disk.set_room(Some(RECORD + fits));
            let cache = desk.compute(&b);
            let asked =
                asking(format!("keep of {}, where the disk is full {fits} bytes into the second page", shown(&b)));
            let error = desk.file.keep(&b, cache.table(), &desk.slab.borrow()).err();
            drop(asked);
            drop(cache);
            let at = (HEADER + 3 * RECORD) as u64;
            let is_it = matches!(error, Some(PageFileError::Unwritable { offset, .. }) if offset == at);
            same!(is_it, true, "whether {error:?} is Unwritable at byte {at}, for a keep of a page that finds no room");
            let what = format!("after a write that ended {fits} bytes into a record");
            same!(
                (desk.find(&a).len(), desk.find(&b).len()),
                (2, 1),
                "pages found (of what was there before, of the sequence being written), {what}"
            );
            same!(desk.file.n_records(), 3, "records, {what}: half a page is none");
            desk.disk.set_room(None);
            same!(desk.keep(&b), 1, "pages that keep writes when there is room again, {what}");
            desk.keep(&c);
            check_file(&desk, &[&a[..4], &a, &b[..4], &b, &c[..4], &c], &what);
            let len = desk.disk.bytes().len();
            same!(len, HEADER + 6 * RECORD, "bytes of the file: the place of the half page is used, {what}");
        }
    }

    /// What follows a page that was not written could never be found.
    #[test]
    fn task_3_when_a_write_fails_nothing_follows_it() {
        let text = counting(1, 16);
        for good in 0..4 {
            let mut desk = Desk::new(40, 9);
            desk.disk.fail_once(good * RECORD + 700);
            let cache = desk.compute(&text);
            let question = format!("keep of 4 pages, where the disk fails once, at page {good}");
            let asked = asking(question.as_str());
            let outcome = desk.file.keep(&text, cache.table(), &desk.slab.borrow());
            drop(asked);
            drop(cache);
            same!(
                outcome.is_err(),
                true,
                "whether {question} fails: an error is not lost because a later page is written"
            );
            same!(desk.find(&text).len(), good, "pages found after a {question}");
            same!(desk.file.n_records(), good, "records after a {question}");
            same!(desk.keep(&text), 4 - good, "pages that another keep writes after a {question}");
            check_file(
                &desk,
                &[&text[..4], &text[..8], &text[..12], &text],
                &format!("when all is well after a {question}"),
            );
        }
    }

    #[test]
    fn task_3_when_a_write_fails_the_end_still_goes_first() {
        let mut desk = Desk::new(40, 3);
        let text = counting(1, 16);
        desk.disk.fail_once(2 * RECORD + 700);
        let cache = desk.compute(&text);
        let question = "keep of 4 pages, where the disk fails once, at page 2";
        let asked = asking(question);
        let failed = desk.file.keep(&text, cache.table(), &desk.slab.borrow());
        drop(asked);
        drop(cache);
        same!(failed.is_err(), true, "whether {question} fails");
        desk.keep(&counting(100, 4));
        same!(desk.find(&text).len(), 2, "pages found after a {question}, and one of another text in the third place");
        desk.keep(&counting(200, 4));
        same!(
            desk.find(&text).len(),
            1,
            "pages found after a {question}, when one more page has made the oldest go: its end, and not its beginning"
        );
    }

    #[test]
    fn task_3_when_a_write_fails_the_page_that_made_room_is_gone() {
        let [a, b, c] = [1, 100, 200].map(|first| counting(first, 4));
        let mut desk = Desk::new(40, 2);
        desk.keep(&a);
        desk.keep(&b);
        desk.disk.set_room(Some(300));
        let cache = desk.compute(&c);
        let failed = desk.file.keep(&c, cache.table(), &desk.slab.borrow());
        same!(failed.is_err(), true, "whether keep fails when the disk does");
        drop(cache);
        let found = [&a, &b, &c].map(|text| desk.find(text).len());
        same!(
            found,
            [0, 1, 0],
            "pages found of the oldest, whose place is half overwritten, of the other, and of the new one"
        );
        desk.disk.set_room(None);
        same!(desk.keep(&a), 1, "pages that keep writes then");
        same!([&a, &b, &c].map(|text| desk.find(text).len()), [1, 1, 0], "pages found: the half place was free");
    }

    /// A file of so many places with two texts, and what is written to keep a page of a third.
    fn keeping_one_more(there: [&[u32]; 2], page: &[u32], places: usize) -> (Vec<u8>, Vec<(u64, Vec<u8>)>) {
        let mut desk = Desk::new(40, places);
        for text in there {
            desk.keep(text);
        }
        let before = desk.disk.bytes();
        desk.disk.take_writes();
        desk.keep(page);
        (before, desk.disk.take_writes())
    }

    #[test]
    fn task_3_wrong_tables_are_refused() {
        let mut desk = Desk::new(8, 8);
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
        let mut file = once("open of a file with many texts", || open(&disk, TINY, room(&TINY, n)));
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
    fn task_4_what_the_file_has_and_memory_has_not_is_wanted() {
        let mut desk = Desk::new(20, 9);
        let text = counting(1, 17);
        desk.keep(&text);
        same!(desk.wanted(&text), vec![], "wanted of a text whose pages are all in memory");
        let evicted = made("evict of chapter 11", || desk.slab.borrow_mut().evict(&mut desk.trie, 2));
        same!(evicted, 2, "pages that chapter 11 evicts");
        let places = desk.find(&text);
        let numbers: Vec<u64> = heads(&SHAPE, &desk.disk.bytes()).iter().map(|head| head.number).collect();
        let of = |page: usize| Wanted { page, place: places[page], number: numbers[places[page]] };
        same!(desk.wanted(&text), vec![of(2), of(3)], "wanted, when memory has the first two of its four pages");
        desk.restart();
        for (len, pages) in [(17, 4), (16, 3), (15, 3), (13, 3), (12, 2), (5, 1), (4, 0), (1, 0), (0, 0)] {
            let expected: Vec<Wanted> = (0..pages).map(of).collect();
            same!(
                desk.wanted(&text[..len]),
                expected,
                "wanted of {len} tokens after a restart: one token is left to compute"
            );
        }
        same!(desk.wanted(&counting(2, 17)), vec![], "wanted of another text");
    }

    #[test]
    fn task_4_pages_come_back_bit_for_bit() {
        for len in [5, 8, 9, 16, 17] {
            let mut desk = Desk::new(9, 9);
            let text = counting(1, len);
            desk.keep(&text);
            desk.restart();
            let pages = (len - 1) / SIZE;
            same!(desk.fetch(&text), pages, "pages that come back of {len} tokens, after a restart");
            same!(desk.trie.n_pages(), pages, "pages of the prefix cache then");
            same!(desk.held(&text), pages * SIZE, "tokens of the text in memory then");
            let owned = desk.owners().iter().filter(|owners| **owners == 1).count();
            same!(owned, pages, "pages with one owner, the prefix cache");
            same!(desk.fetch(&text), 0, "pages that come back a second time");
        }
    }

    #[test]
    fn task_4_pages_come_back_in_the_run_that_wrote_them() {
        let mut desk = Desk::new(9, 9);
        let text = counting(1, 17);
        desk.keep(&text);
        made("evict of chapter 11", || desk.slab.borrow_mut().evict(&mut desk.trie, 9));
        same!(desk.fetch(&text), 4, "pages that come back when they were written and evicted, and no run ended since");
        same!(desk.held(&text), 16, "tokens of the text in memory then");
        same!(desk.find(&text).len(), 4, "pages that find gives then: nothing is wrong with the file");
    }

    /// A page that another text has asked for is read for that one. What is after it belongs after it.
    #[test]
    fn task_4_pages_may_be_missing_in_the_middle() {
        let text = counting(1, 17);
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
            let mut desk = Desk::new(9, 9);
            desk.keep(&text);
            desk.restart();
            let wanted = desk.wanted(&text);
            let some: Vec<Wanted> = wanted.iter().copied().filter(|wanted| pages.contains(&wanted.page)).collect();
            let what = format!("4 pages were wanted, and those read are {pages:?}");
            let read = desk.read(&some);
            same!(desk.bring_back(&text, &read), n, "pages that come back, where {what}: those before the first gap");
            same!(desk.held(&text), n * SIZE, "tokens of the text in memory, where {what}");
            same!(desk.find(&text).len(), 4, "pages that find gives after that, where {what}");
            same!(desk.fetch(&text), 4 - n, "pages that come back when all are read, where first {what}");
            same!(desk.held(&text), 16, "tokens of the text in memory when all are read, where first {what}");
        }
    }

    #[test]
    fn task_4_pages_come_back_behind_those_in_memory() {
        let mut desk = Desk::new(9, 9);
        let text = counting(1, 21);
        desk.keep(&text);
        desk.restart();
        // The pages of memory have other numbers than those that were written.
        drop(desk.compute(&counting(700, 4)));
        drop(desk.compute(&text[..9]));
        same!(desk.fetch(&text), 3, "pages that come back of 5, two of which are in memory");
        same!(desk.held(&text), 20, "tokens of the text in memory then");
        same!(desk.held(&counting(700, 4)), 4, "tokens of the other text");
    }

    #[test]
    fn task_4_others_make_room_and_no_more_than_needed() {
        let mut desk = Desk::new(8, 20);
        let text = counting(1, 17);
        desk.keep(&text);
        desk.restart();
        // The head of the text is the page that was used longest ago. 2 pages are free.
        drop(desk.compute(&text[..4]));
        let others: Vec<Vec<u32>> = (1..=5).map(|i| counting(100 * i, 4)).collect();
        for other in &others {
            drop(desk.compute(other));
        }
        same!(desk.slab.borrow().pool().n_free(), 2, "pages that are free of 8");
        let wanted = desk.wanted(&text);
        let read = desk.read(&wanted);
        // While they are read, the others are used.
        for other in &others {
            desk.held(other);
        }
        same!(desk.bring_back(&text, &read), 3, "pages that come back of 4, one of which is in memory");
        same!(desk.held(&text), 16, "tokens of the text in memory then: its first page has stayed");
        let left: Vec<usize> = others.iter().map(|other| desk.held(other) / SIZE).collect();
        same!(
            left,
            vec![0, 1, 1, 1, 1],
            "pages left of the five others: one page was missing, and the oldest made room"
        );
    }

    #[test]
    fn task_4_pages_that_are_damaged_get_no_room() {
        let mut desk = Desk::new(5, 20);
        let text = counting(1, 17);
        desk.keep(&text);
        desk.restart();
        let others = [100, 200, 300, 400].map(|first| counting(first, 4));
        for other in &others {
            drop(desk.compute(other));
        }
        let wanted = desk.wanted(&text);
        let mut read = desk.read(&wanted);
        read[1].bytes.as_mut().unwrap()[HEAD + 9] ^= 1;
        same!(
            desk.bring_back(&text, &read),
            1,
            "pages that come back of 4, the second of which is damaged, where 1 is free"
        );
        let left: Vec<usize> = others.iter().map(|other| desk.held(other) / SIZE).collect();
        same!(
            left,
            vec![1, 1, 1, 1],
            "pages left of four others: no one has to make room for pages that do not come back"
        );
    }

    /// What the text has in memory is worth more than what comes after it.
    #[test]
    fn task_4_its_own_pages_make_no_room() {
        let mut desk = Desk::new(5, 20);
        let text = counting(1, 17);
        desk.keep(&text);
        desk.restart();
        drop(desk.compute(&text[..4]));
        let mut running = made("ForkCache::new of chapter 10", || ForkCache::new(&desk.slab));
        granted("extend(12) of chapter 10", || running.extend(12));
        let wanted = desk.wanted(&text);
        let read = desk.read(&wanted);
        let question = "bring_back of 3 pages, where 1 is free, 3 are in use, and one is its own first page";
        let n = granted(question, || desk.file.bring_back(&text, &read, &mut desk.trie, &desk.slab));
        same!(n, 1, "pages that come back by a {question}");
        same!(desk.held(&text), 8, "tokens of the text in memory after a {question}");
    }

    #[test]
    fn task_4_as_many_as_there_is_room_for() {
        for taken in 0..=5 {
            let mut desk = Desk::new(5, 20);
            let text = counting(1, 17);
            desk.keep(&text);
            desk.restart();
            // A sequence runs, and needs all pages but these.
            let mut running = made("ForkCache::new of chapter 10", || ForkCache::new(&desk.slab));
            granted(format!("extend({}) of chapter 10", 4 * taken), || running.extend(4 * taken));
            let wanted = desk.wanted(&text);
            let read = desk.read(&wanted);
            let question = format!("bring_back of 4 pages, where {} of 5 are free", 5 - taken);
            let n = granted(question.as_str(), || desk.file.bring_back(&text, &read, &mut desk.trie, &desk.slab));
            same!(n, 4.min(5 - taken), "pages that come back by a {question}");
            same!(desk.held(&text), 4 * n, "tokens of the text in memory after a {question}");
            same!(running.len(), 4 * taken, "tokens of the text that runs");
            drop(running);
            same!(desk.slab.borrow().pool().n_free(), 5 - n, "pages that are free when it has ended");
        }
    }

    /// A way in which reading one of several pages may go wrong, in words and in bytes.
    type Damage = (&'static str, fn(&mut [Read], usize));

    fn damages() -> Vec<Damage> {
        vec![
            ("a byte of its keys has changed", |read, i| read[i].bytes.as_mut().unwrap()[HEAD + 9] ^= 1),
            ("a byte of its values has changed", |read, i| read[i].bytes.as_mut().unwrap()[RECORD - 1] ^= 0x80),
            ("a byte of its tokens has changed", |read, i| read[i].bytes.as_mut().unwrap()[30] ^= 1),
            ("a byte of its checksum has changed", |read, i| read[i].bytes.as_mut().unwrap()[2] ^= 1),
            ("it is all zeros", |read, i| read[i].bytes.as_mut().unwrap().fill(0)),
            ("it is cut off", |read, i| read[i].bytes.as_mut().unwrap().truncate(999)),
            ("it cannot be read", |read, i| read[i].bytes = Err(io::Error::other("a bad part of the disk"))),
            ("another record, which is whole, lies there", |read, i| {
                read[i].bytes = Ok(record_of(&SHAPE, 77, 1, &counting(900, 4)));
            }),
            ("a record of its number with other tokens lies there", |read, i| {
                let number = read[i].wanted.number;
                read[i].bytes = Ok(record_of(&SHAPE, number, number - 1, &counting(900, 4)));
            }),
        ]
    }

    #[test]
    fn task_4_a_damaged_page_is_computed_again() {
        for (damage, spoil) in damages() {
            for place in 0..4 {
                let mut desk = Desk::new(9, 9);
                let (text, other) = (counting(1, 17), counting(300, 9));
                desk.keep(&text);
                desk.keep(&other);
                desk.restart();
                let wanted = desk.wanted(&text);
                let mut read = desk.read(&wanted);
                spoil(&mut read, place);
                let what = format!("page {place} of 4 was read, and {damage}");
                same!(desk.bring_back(&text, &read), place, "pages that come back, where {what}: those before it");
                same!(desk.held(&text), place * SIZE, "tokens of the text in memory, where {what}");
                same!(desk.wanted(&text), vec![], "wanted after that, where {what}: it is not asked for again");
                same!(desk.find(&text).len(), place, "pages that find gives after that, where {what}");
                same!(desk.find(&other).len(), 2, "pages that find gives of another text, where {what}");
                same!(desk.keep(&text), 4 - place, "pages that keep writes when they are computed again, where {what}");
                desk.restart();
                same!(desk.fetch(&text), 4, "pages that come back after that and a restart, where {what}");
                same!(desk.held(&text), 16, "tokens of the text in memory then, where {what}");
            }
        }
    }

    /// The same, where it is the disk that has changed.
    #[test]
    fn task_4_no_byte_of_a_file_can_change_unnoticed() {
        let text = counting(1, 9);
        let good = {
            let mut desk = Desk::new(9, 2);
            desk.keep(&text);
            desk.disk.bytes()
        };
        let step = if cfg!(miri) { 211 } else { 1 };
        for byte in (HEADER..good.len()).step_by(step) {
            let disk = MemoryDisk::of(good.clone());
            disk.flip(byte, 1 << (byte % 8));
            let mut desk = Desk::over(disk, 9, 2);
            let place = (byte - HEADER) / RECORD;
            let what = format!("byte {byte} of the file has changed, in {}", part((byte - HEADER) % RECORD));
            same!(desk.fetch(&text), place, "pages that come back of two, where {what}");
            same!(desk.held(&text), place * SIZE, "tokens of the text in memory, where {what}");
            same!(desk.keep(&text), 2 - place, "pages that keep writes then, where {what}");
            desk.restart();
            same!(desk.fetch(&text), 2, "pages that come back after a restart, where {what}");
            same!(desk.held(&text), 8, "tokens of the text in memory then, where {what}");
        }
    }

    /// Whatever stops the program, and wherever in a write.
    #[test]
    fn task_4_a_write_that_was_cut_off_anywhere() {
        let [a, b, c] = [1, 100, 200].map(|first| counting(first, 8));
        let step = if cfg!(miri) { 333 } else { 1 };
        // To a new place, and to that of the page that was used longest ago: the second of a.
        for (places, lost) in [(6, 0), (4, 1)] {
            let (before, writes) = keeping_one_more([&a, &b], &c[..4], places);
            let total: usize = writes.iter().map(|(_, bytes)| bytes.len()).sum();
            for n in (0..=total).step_by(step) {
                let mut bytes = before.clone();
                apply(&mut bytes, &writes, n);
                let disk = MemoryDisk::of(bytes);
                let mut desk = Desk::over(disk, 40, places);
                let what = format!(
                    "after a write that was cut off after {n} of {total} bytes, in a file with {places} places"
                );
                same!(
                    desk.fetch(&[&b[..], &[0]].concat()),
                    2,
                    "pages that come back of a text that was not touched, {what}"
                );
                same!(desk.held(&b), 8, "tokens of it in memory then, {what}");
                let back = desk.fetch(&[&a[..], &[0]].concat());
                same!(back >= 2 - lost, true, "whether {back} pages of the other are at least {}, {what}", 2 - lost);
                same!(desk.held(&a), 4 * back, "tokens of it in memory then, {what}");
                let back = desk.fetch(&[&c[..4], &[0]].concat());
                same!(back, usize::from(n == total), "pages that come back of the page that was being written, {what}");
                desk.keep(&c);
                same!(desk.find(&c[..4]).len(), 1, "pages found when it is written again, {what}");
                desk.restart();
                same!(desk.fetch(&[&c[..4], &[0]].concat()), 1, "pages that come back of it after a restart, {what}");
                same!(desk.held(&c[..4]), 4, "tokens of it in memory then, {what}");
            }
        }
    }

    #[test]
    fn task_4_pages_that_the_file_has_lost_meanwhile() {
        let mut desk = Desk::new(30, 4);
        let (text, other) = (counting(1, 17), counting(300, 16));
        desk.keep(&text);
        desk.restart();
        let wanted = desk.wanted(&text);
        let read = desk.read(&wanted);
        // Before they have come, others are written to their places.
        for (n, left) in [(2, 2), (4, 0)] {
            desk.keep(&other[..4 * n]);
            same!(desk.find(&text).len(), left, "pages found of the text when {n} pages of another were written");
        }
        let late: Vec<Read> = wanted.iter().map(|wanted| desk.file.read(*wanted)).collect();
        same!(desk.bring_back(&text, &late), 0, "pages that come back when other records lie at their places");
        same!(desk.find(&other).len(), 4, "pages found of the other text after that: its records are not damaged");
        let failed = |wanted: &Wanted| Read { wanted: *wanted, bytes: Err(io::Error::other("a bad part of the disk")) };
        let failed: Vec<Read> = wanted.iter().map(failed).collect();
        same!(desk.bring_back(&text, &failed), 0, "pages that come back when they could not be read");
        same!(
            desk.find(&other).len(),
            4,
            "pages found of the other text after reads that failed: its records have other numbers than those wanted"
        );
        let n = desk.bring_back(&text, &read);
        same!(
            desk.held(&text),
            n * SIZE,
            "tokens of the text in memory, when pages were read before they were overwritten"
        );
        same!(desk.find(&other).len(), 4, "pages found of the other text after that, too");
    }

    #[test]
    fn task_4_memory_may_have_changed_meanwhile() {
        let text = counting(1, 17);
        for n in 0..=4 {
            let mut desk = Desk::new(9, 9);
            desk.keep(&text);
            desk.restart();
            let wanted = desk.wanted(&text);
            let read = desk.read(&wanted);
            drop(desk.compute(&text[..4 * n]));
            let what = format!("4 pages were wanted, and another sequence has computed {n} of them since");
            same!(desk.bring_back(&text, &read), 4 - n, "pages that come back, where {what}");
            same!(desk.held(&text), 16, "tokens of the text in memory, where {what}");
        }
        let mut desk = Desk::new(9, 9);
        desk.keep(&text);
        desk.restart();
        drop(desk.compute(&text[..8]));
        let wanted = desk.wanted(&text);
        same!(wanted.len(), 2, "pages wanted of 4, when memory has 2");
        let read = desk.read(&wanted);
        made("evict of chapter 11", || desk.slab.borrow_mut().evict(&mut desk.trie, 1));
        same!(desk.bring_back(&text, &read), 0, "pages that come back when memory has lost the one before them");
        same!(desk.held(&text), 4, "tokens of the text in memory then");
        same!(desk.find(&text).len(), 4, "pages that find gives then: nothing is wrong with the file");
    }

    #[test]
    fn task_4_nothing_is_read_or_written_to_ask() {
        let mut desk = Desk::new(9, 9);
        let text = counting(1, 17);
        desk.keep(&text);
        desk.restart();
        desk.disk.take_reads();
        desk.disk.take_writes();
        let wanted = desk.wanted(&text);
        same!(desk.disk.take_reads().len(), 0, "reads from the disk while pages are asked for");
        let read = desk.read(&wanted);
        same!(desk.disk.take_reads().len(), 4, "reads from the disk for 4 pages");
        desk.bring_back(&text, &read);
        same!(desk.disk.take_reads().len(), 0, "reads from the disk while pages are brought back");
        same!(desk.disk.take_writes().len(), 0, "writes to the disk, from asking on");
    }

    #[test]
    fn task_4_another_slab_is_an_error() {
        let mut desk = Desk::new(3, 9);
        let text = counting(1, 9);
        desk.keep(&text);
        let wanted: Vec<Wanted> = (0..2).map(|page| Wanted { page, place: page, number: page as u64 + 1 }).collect();
        let read = desk.read(&wanted);
        // The prefix cache keeps pages of a larger slab.
        let (large, mut trie) = memory(&SHAPE, 9);
        let mut first = made("ForkCache::new of chapter 10", || ForkCache::new(&large));
        granted("extend(28) of chapter 10", || first.extend(28));
        let mut cache = made("ForkCache::new of chapter 10", || ForkCache::new(&large));
        granted("extend(4) of chapter 10", || cache.extend(4));
        granted("insert_into of chapter 11", || cache.insert_into(&mut trie, &text));
        let (small, _) = memory(&SHAPE, 3);
        let asked = asking("bring_back to a slab of 3 pages, for a prefix cache that has page 7 of another");
        let outcome = desk.file.bring_back(&text, &read, &mut trie, &small);
        drop(asked);
        same!(outcome, Err(CacheError::ForeignPage { page: PageId(7), n_pages: 3 }), "bring_back with another slab");
        same!(small.borrow().pool().n_free(), 3, "pages that are free of the slab after a refusal");
        let outcome = desk.file.wanted(&text, &mut trie, &small).err();
        same!(outcome, Some(CacheError::ForeignPage { page: PageId(7), n_pages: 3 }), "wanted with another slab");
    }

    // The whole chapter

    /// A line of the transcript: what lies at each place.
    fn told(desk: &Desk) -> String {
        let bytes = desk.disk.bytes();
        let all = heads(&desk.shape, &bytes);
        let places = (bytes.len() - HEADER) / lengths(&desk.shape).1;
        let place = |place: usize| {
            let Some(head) = all.iter().find(|head| head.place == place) else { return "-".into() };
            let word = ["", "once", "upon", "a", "time", "king", "there", "so", "the", "fox", "said"];
            let names: Vec<&str> = head.tokens.iter().map(|token| word[*token as usize]).collect();
            let tokens = names.join(" ");
            let rows = if head.rows_are_whole { "" } else { " damaged" };
            format!("{}<{} {tokens}{rows}", head.number, head.parent)
        };
        (0..places).map(place).collect::<Vec<String>>().join(" | ")
    }

    #[test]
    fn whole_transcript() {
        let shape = PageShape { page_size: 2, ..SHAPE };
        let disk = MemoryDisk::default();
        let (slab, trie) = memory(&shape, 8);
        let most = room(&shape, 4);
        let file = open(&disk, shape, most);
        let mut desk = Desk { shape, slab, trie, disk, file, most };
        let mut transcript = Transcript::default();
        let time = [1, 2, 3, 4, 6];
        let king = [1, 2, 3, 5, 10];
        let name = |text: &[u32]| {
            let words = ["", "once", "upon", "a", "time", "king", "there", "so", "the", "fox", "said"];
            text.iter().map(|token| words[*token as usize]).collect::<Vec<_>>().join(" ")
        };
        macro_rules! keep {
            ($text:expr) => {{
                let n = desk.keep($text);
                let known = desk.file.n_records();
                transcript.line(format!("keep {:<22} {n} new of {known}  {}", name($text), told(&desk)));
            }};
        }
        macro_rules! fetch {
            ($text:expr) => {{
                let wanted = desk.wanted($text);
                let places: Vec<String> = wanted.iter().map(|wanted| wanted.place.to_string()).collect();
                let read = desk.read(&wanted);
                let n = desk.bring_back($text, &read);
                transcript.line(format!(
                    "back {:<22} wanted at {}: {n} of {}",
                    name($text),
                    places.join(" "),
                    places.len()
                ));
            }};
        }
        keep!(&time[..]);
        keep!(&king[..]);
        keep!(&time[..]);
        transcript.line("restart");
        desk.restart();
        fetch!(&time[..]);
        fetch!(&king[..]);
        keep!(&[8, 9, 10, 7][..]);
        keep!(&[1, 2, 8, 9][..]);
        keep!(&king[..]);
        let damaged = desk.find(&[1, 2, 8, 9])[1];
        desk.disk.flip(HEADER + damaged * lengths(&shape).1 + 50, 1);
        transcript.line(format!("a byte changes{:<26}{}", "", told(&desk)));
        desk.restart();
        transcript.line("restart");
        fetch!(&[1, 2, 8, 9, 10][..]);
        keep!(&[1, 2, 8, 9, 10][..]);
        assert_transcript("ch16_pages_on_disk", &transcript);
    }

    /// Random texts, evictions, restarts, damages, full and unreadable disks, against a plain list of what the file has.
    #[test]
    fn whole_oracle() {
        for seed in seeds(if cfg!(miri) { 1 } else { 60 }) {
            let mut dice = Dice::new(seed);
            let (n_pages, places) = (dice.roll(3, 12), dice.roll(1, 10));
            let mut desk = Desk::new(n_pages, places);
            let mut history: Vec<String> = Vec::new();
            // The prefixes that can be found, the one to go first at the beginning.
            let mut kept: Vec<Vec<u32>> = Vec::new();
            let touch = |kept: &mut Vec<Vec<u32>>, text: &[u32]| {
                let (used, mut others): (Vec<_>, Vec<_>) = kept.drain(..).partition(|prefix| text.starts_with(prefix));
                let mut used = used;
                used.sort_by_key(|prefix| std::cmp::Reverse(prefix.len()));
                others.append(&mut used);
                *kept = others;
            };
            for _ in 0..STEPS {
                let first = history.len().saturating_sub(8);
                let story = format!(
                    "run {seed}: {n_pages} pages, {places} places; the last steps: {}",
                    history[first..].join("; ")
                );
                let _asking = asking(story.clone());
                // Few tokens, so that texts have much in common.
                let most = (n_pages * SIZE).min(4 * SIZE + 2);
                let len = dice.roll(1, most);
                let text: Vec<u32> = (0..len).map(|i| if i % SIZE == 0 { dice.roll(1, 2) as u32 } else { 5 }).collect();
                match dice.roll(0, 11) {
                    0..=3 => {
                        history.push(format!("keep {text:?}"));
                        let full = len / SIZE;
                        touch(&mut kept, &text[..full * SIZE]);
                        let mut written = 0;
                        for page in 1..=full {
                            let prefix = text[..page * SIZE].to_vec();
                            if kept.contains(&prefix) {
                                continue;
                            }
                            if kept.len() == places {
                                // None of its own makes room.
                                if text.starts_with(&kept[0]) {
                                    break;
                                }
                                kept.remove(0);
                            }
                            kept.push(prefix);
                            touch(&mut kept, &text[..page * SIZE]);
                            written += 1;
                        }
                        same!(desk.keep(&text), written, "pages that keep of {text:?} writes\n{story}");
                    }
                    4..=6 => {
                        history.push(format!("bring back {text:?}"));
                        let bytes = desk.disk.bytes();
                        let all = heads(&SHAPE, &bytes);
                        let wanted = desk.wanted(&text);
                        touch(&mut kept, &text[..(len - 1) / SIZE * SIZE]);
                        let held = desk.held(&text[..(len - 1) / SIZE * SIZE]) / SIZE;
                        let found =
                            (1..=(len - 1) / SIZE).take_while(|n| kept.iter().any(|p| *p == text[..n * SIZE])).count();
                        let pages: Vec<usize> = wanted.iter().map(|wanted| wanted.page).collect();
                        same!(pages, (held..found.max(held)).collect::<Vec<_>>(), "pages wanted of {text:?}\n{story}");
                        let is_good = |wanted: &&Wanted| {
                            let mut all = all.iter();
                            all.any(|head| {
                                head.place == wanted.place && head.number == wanted.number && head.rows_are_whole
                            })
                        };
                        let good = wanted.iter().take_while(is_good).count();
                        let read = desk.read(&wanted);
                        let room = n_pages - held;
                        let n = desk.bring_back(&text, &read);
                        same!(
                            n,
                            good.min(room),
                            "pages that come back of {text:?}, {good} of which are whole\n{story}"
                        );
                        let now = desk.held(&text[..(len - 1) / SIZE * SIZE]) / SIZE;
                        same!(now, held + n, "pages of {text:?} in memory after that\n{story}");
                        if good < wanted.len() {
                            let gone = text[..(held + good + 1) * SIZE].to_vec();
                            kept.retain(|prefix| !prefix.starts_with(&gone));
                        }
                    }
                    7 => {
                        let n = dice.roll(1, 4);
                        history.push(format!("evict {n}"));
                        made("evict of chapter 11", || desk.slab.borrow_mut().evict(&mut desk.trie, n));
                    }
                    8 | 9 => {
                        history.push("restart".into());
                        desk.restart();
                        kept = on_disk(&desk);
                    }
                    10 => {
                        let bytes = desk.disk.bytes().len();
                        if bytes > HEADER {
                            let byte = dice.roll(HEADER, bytes - 1);
                            history.push(format!("byte {byte} changes"));
                            desk.disk.flip(byte, 1 << dice.roll(0, 7));
                        }
                    }
                    _ => {
                        let fits = dice.roll(0, RECORD - 1);
                        history.push(format!("keep {text:?}, the disk is full after {fits} bytes"));
                        let cache = desk.compute(&text);
                        desk.disk.set_room(Some(fits));
                        let kept_it = desk.file.keep(&text, cache.table(), &desk.slab.borrow());
                        drop(cache);
                        desk.disk.set_room(None);
                        let full = len / SIZE;
                        touch(&mut kept, &text[..full * SIZE]);
                        let missing = (1..=full).any(|n| !kept.iter().any(|prefix| *prefix == text[..n * SIZE]));
                        let makes_room = kept.len() == places;
                        let nothing = !missing || (makes_room && text.starts_with(&kept[0]));
                        same!(kept_it.is_ok(), nothing, "whether keep of {text:?} succeeds on a full disk\n{story}");
                        if !nothing && makes_room {
                            kept.remove(0);
                        }
                    }
                }
                let found: BTreeSet<_> = kept.iter().cloned().collect();
                let prefixes = if found.is_empty() { "none".into() } else { format!("{found:?}") };
                let now = history.last().map_or("", String::as_str);
                same!(
                    desk.file.n_records(),
                    found.len(),
                    "records that can be found, of the prefixes {prefixes}\n{story}; now {now}"
                );
                for prefix in &kept {
                    let n = prefix.len() / SIZE;
                    same!(desk.find(prefix).len(), n, "pages found of {prefix:?}\n{story}; now {now}");
                }
                let len = desk.disk.bytes().len() as u64;
                same!(len <= desk.most, true, "whether a file of {len} bytes has at most {}\n{story}", desk.most);
            }
            made("evict of chapter 11", || desk.slab.borrow_mut().evict(&mut desk.trie, n_pages));
            same!(desk.slab.borrow().pool().n_free(), n_pages, "pages that are free when all is evicted, run {seed}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri reads no files")]
    fn whole_story_goes_on_from_pages_of_another_run() {
        let teller = Storyteller::open();
        let expected = teller.recompute(40);
        let folder = tempfile::tempdir().expect("a folder for the file");
        let path = folder.path().join("story.pages");
        let shape = PageShape::of(&teller.model, 4);
        let mut found = Vec::new();
        // In the first run nothing is there; in the second, the prompt and what was told.
        for run in 1..=2 {
            let disk = FileDisk::open(&path).expect("a file that can be made");
            let question = format!("run {run}: open of a file of pages");
            let mut file = granted(question, || PageFile::open(Box::new(disk), shape, 1 << 24));
            let (slab, mut trie) = memory(&shape, 20);
            let prompt = [&teller.prompt()[..], &expected[..20]].concat();
            let wanted = granted("wanted of the prompt", || file.wanted(&prompt, &mut trie, &slab));
            let read: Vec<Read> = wanted.into_iter().map(|wanted| file.read(wanted)).collect();
            found.push(granted("bring_back of the prompt", || file.bring_back(&prompt, &read, &mut trie, &slab)));
            let mut cache = made("with_prefix of chapter 11", || ForkCache::with_prefix(&slab, &mut trie, &prompt));
            let mut sampler = Sampler::new(SAMPLING);
            // The sampler has drawn what the prompt holds already.
            for n in 0..20 {
                let text = [&teller.prompt()[..], &expected[..n]].concat();
                sampler.pick(&teller.model.step(&text, None).expect("a short text fits"));
            }
            let mut text = prompt.clone();
            for _ in 20..40 {
                let logits = teller.model.step(&text[cache.len()..], Some(&mut cache)).expect("the pool has pages");
                text.push(sampler.pick(&logits));
            }
            teller.assert_same_story(&text[teller.prompt().len()..], &expected);
            granted("insert_into of chapter 11", || cache.insert_into(&mut trie, &text));
            granted("keep of the story", || file.keep(&text, cache.table(), &slab.borrow()));
        }
        let prompt = teller.prompt().len() + 20;
        same!(
            found,
            vec![0, (prompt - 1) / 4],
            "pages of the prompt that come back in the first run, and in the second"
        );
    }
}
