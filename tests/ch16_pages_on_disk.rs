//! Grader of chapter 16: pages on disk.

grading::grader!();

#[cfg(not(stub = "ch16_pages_on_disk"))]
mod checks {
    use std::io;

    use page_by_page::cache::{KvCache, KvLayout};
    use page_by_page::chapters::ch06_paged::SharedSlab;
    use page_by_page::chapters::ch10_fork::ForkCache;
    use page_by_page::chapters::ch11_prefix_cache::PrefixTrie;
    use page_by_page::chapters::ch16_pages_on_disk::decode;
    use page_by_page::disk::file_disk::FileDisk;
    use page_by_page::disk::record::{RecordError, RecordHeader};
    use page_by_page::disk::{FILE_HEADER_BYTES, PageFile, PageFileError, PageFormat, PageRead};
    use page_by_page::generation::sampler::Sampler;
    use page_by_page::prefix_cache::PrefixCache;

    use grading::disk::{
        FORMAT, FaultyDisk, RECORD, RECORD_HEADER, apply, counting, header_checksum, lengths, prefixes, record,
        record_headers,
    };
    use grading::history::History;
    use grading::oracle::any_layout;
    use grading::packed::hex;
    use grading::pools::{owners, slab_of};
    use grading::prelude::*;
    use grading::rows::{bits, same_numbers};

    const SIZE: usize = FORMAT.page_size;

    /// Pages of 4, and others.
    const FORMATS: [PageFormat; 2] =
        [FORMAT, PageFormat { page_size: 3, layout: KvLayout { n_layers: 2, n_kv_heads: 3, head_dim: 4 }, ..FORMAT }];

    /// The keys (or values) of these tokens from `first` on, in a layer: `[tokens, kv_width]`. A number comes from all that
    /// it depends on. Any bits may come: a number, a NaN, a word of packed rows.
    fn rows(format: &PageFormat, tokens: &[u32], first: usize, layer: usize, kind: usize) -> Vec<f32> {
        let mix = |hash: u32, part: u32| (hash ^ part).wrapping_mul(0x9E37_79B1).rotate_left(13);
        let prefixes = tokens.iter().scan(0x811C_9DC5, |hash, token| {
            *hash = mix(*hash, *token);
            Some(*hash)
        });
        let number = |prefix, i| f32::from_bits([layer as u32, kind as u32, i].into_iter().fold(prefix, mix));
        let row = |prefix| (0..format.layout.kv_width() as u32).map(move |i| number(prefix, i));
        prefixes.skip(first).flat_map(row).collect()
    }

    /// The keys (or values) of the last page of these tokens, which end with it: `[n_layers, page_size, kv_width]`.
    fn page_rows(format: &PageFormat, prefix: &[u32], kind: usize) -> Vec<f32> {
        let first = prefix.len() - format.page_size;
        (0..format.layout.n_layers).flat_map(|layer| rows(format, prefix, first, layer, kind)).collect()
    }

    /// The record of the last page of these tokens.
    fn record_of(format: &PageFormat, id: u64, parent: u64, prefix: &[u32]) -> Vec<u8> {
        let tokens = &prefix[prefix.len() - format.page_size..];
        record(format, id, parent, tokens, &page_rows(format, prefix, 0), &page_rows(format, prefix, 1))
    }

    /// The part of a record that a byte belongs to.
    fn part(format: &PageFormat, byte: usize) -> &'static str {
        let (header, record) = lengths(format);
        match byte {
            0..8 => "a checksum",
            8..16 => "the id",
            16..24 => "the parent",
            24.. if byte < header => "the tokens",
            _ if byte < (header + record) / 2 => "the keys",
            _ => "the values",
        }
    }

    /// A page file, the memory of the process that has it open, and a plain list of what the file must hold.
    struct CheckedFile {
        format: PageFormat,
        slab: SharedSlab,
        trie: PrefixTrie,
        disk: FaultyDisk,
        file: PageFile,
        /// Records that the file has room for.
        places: usize,
        /// The prefixes that can be found, the one to go first at the beginning.
        kept: Vec<Vec<u32>>,
        /// What the last store has written, and where.
        writes: Vec<(u64, Vec<u8>)>,
        history: History,
    }

    /// `places`: the records that the file has room for.
    fn open(disk: &FaultyDisk, format: PageFormat, places: usize) -> PageFile {
        let question = format!("open of a file of {} bytes, records it has room for: {places}", disk.bytes().len());
        expect_ok(question, || PageFile::open(Box::new(disk.clone()), format, format.offset(places)))
    }

    fn memory(format: &PageFormat, n_pages: usize) -> (SharedSlab, PrefixTrie) {
        let size = format.page_size;
        (slab_of(format.layout, size, n_pages), expect_ok("PrefixTrie::new of chapter 11", || PrefixTrie::new(size)))
    }

    /// The prefixes that are in the file's bytes, the one to go first at the beginning.
    fn on_disk(format: &PageFormat, disk: &FaultyDisk) -> Vec<Vec<u32>> {
        prefixes(format, &disk.bytes()).into_iter().map(|(prefix, _)| prefix).collect()
    }

    impl CheckedFile {
        fn new(n_pages: usize, places: usize, rule: &str) -> Self {
            CheckedFile::over(FORMAT, FaultyDisk::default(), n_pages, places, rule)
        }

        fn over(format: PageFormat, disk: FaultyDisk, n_pages: usize, places: usize, rule: &str) -> Self {
            let (slab, trie) = memory(&format, n_pages);
            let file = open(&disk, format, places);
            let kept = on_disk(&format, &disk);
            let history = History::new(format!(
                "where the file has room for {}\n  in this check: {rule}",
                plural(places, "record")
            ));
            CheckedFile { format, slab, trie, disk, file, places, kept, writes: Vec::new(), history }
        }

        /// The process ends, and a new one begins: memory is gone, the file is there.
        fn restart(&mut self) {
            let n_pages = self.slab.borrow().pool().n_pages();
            (self.slab, self.trie) = memory(&self.format, n_pages);
            self.file = open(&self.disk, self.format, self.places);
            self.kept = on_disk(&self.format, &self.disk);
            self.history.record("restart");
            self.check();
        }

        /// Compares what the file finds with what it must find.
        fn check(&self) {
            let now = format!("now, {}", self.history.at());
            for prefix in &self.kept {
                let n = prefix.len() / self.format.page_size;
                same!(self.file.find(prefix).len(), n, "pages that find gives for {}, {now}", shown(prefix));
            }
            same!(self.file.index().n_records(), self.kept.len(), "records that can be found {now}");
            let (len, most) = (self.disk.bytes().len() as u64, self.format.offset(self.places));
            assert!(len <= most, "the file has {len} bytes, and may have {most}, {now}");
        }

        /// Checks that the file's bytes are just the pages that can be found, each with the rows of its tokens.
        fn check_bytes(&self) {
            let now = format!("now, {}", self.history.at());
            let bytes = self.disk.bytes();
            let len = self.format.offset(self.kept.len()) as usize;
            same!(bytes.len(), len, "bytes of the file, {now}");
            for (tokens, header) in prefixes(&self.format, &bytes) {
                let expected = record_of(&self.format, header.id, header.parent, &tokens);
                let found = &bytes[self.format.offset(header.place) as usize..];
                if let Some(byte) = (8..expected.len()).chain(0..8).find(|byte| found[*byte] != expected[*byte]) {
                    let rows = lengths(&self.format).0..expected.len();
                    let has_these = |other: &&Vec<u32>| {
                        found[rows.clone()] == record_of(&self.format, header.id, header.parent, other)[rows.clone()]
                    };
                    let whose = self.kept.iter().find(has_these).filter(|other| **other != tokens);
                    let whose =
                        whose.map_or(String::new(), |other| format!(" (the rows are those of {})", shown(other)));
                    panic!(
                        "record of {}: byte {byte} is wrong, in {}{whose}, {now}",
                        shown(&tokens),
                        part(&self.format, byte)
                    );
                }
            }
            let found = on_disk(&self.format, &self.disk);
            let missing = self.kept.iter().find(|prefix| !found.contains(prefix)).map(|prefix| shown(prefix));
            same!(missing, None, "a prefix that is not in the bytes of the file, of {} that are, {now}", found.len());
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

        /// What store must write on a disk that fails after this many bytes: how many pages, and whether it fails.
        fn must_write(&mut self, tokens: &[u32], fits: usize) -> (usize, bool) {
            let (size, mut written) = (self.format.page_size, 0);
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
                if (written + 1) * self.format.record_bytes() > fits {
                    return (written, true);
                }
                written += 1;
                self.kept.push(prefix.to_vec());
                self.touch(prefix);
            }
            (written, false)
        }

        fn with_prefix(&mut self, tokens: &[u32]) -> ForkCache {
            expect_ok("with_prefix of chapter 11", || ForkCache::with_prefix(&self.slab, &mut self.trie, tokens))
        }

        /// A sequence, with what the prefix cache has of it; the other rows are computed. Its full pages are inserted.
        fn compute(&mut self, tokens: &[u32]) -> ForkCache {
            let mut cache = self.with_prefix(tokens);
            let held = cache.len();
            let new = tokens.len() - held;
            let missing = cache.table().pages_needed(new).saturating_sub(self.slab.borrow().pool().n_free());
            self.evict(missing);
            expect_ok(format!("extend({new}) of chapter 10"), || cache.extend(new));
            for layer in 0..self.format.layout.n_layers {
                let [k, v] = [0, 1].map(|kind| rows(&self.format, tokens, held, layer, kind));
                in_call(format!("write({layer}) after extend({new})"), || cache.write(layer, &k, &v));
            }
            expect_ok("insert_into of chapter 11", || cache.insert_into(&mut self.trie, tokens));
            cache
        }

        fn evict(&mut self, n: usize) {
            expect_ok("evict of chapter 11", || self.slab.borrow_mut().evict(&mut self.trie, n));
        }

        /// Offers the full pages of a sequence to the file.
        fn store(&mut self, tokens: &[u32]) {
            self.store_until(tokens, usize::MAX);
        }

        /// The same, on a disk that fails once, after this many bytes.
        fn store_until(&mut self, tokens: &[u32], fits: usize) {
            let cache = self.compute(tokens);
            let limit = match fits {
                usize::MAX => String::new(),
                _ => format!(", where the disk fails once, after {}", plural(fits, "byte")),
            };
            let call = self.history.call(format!("store of {}{limit}", shown(tokens)));
            let (n, fails) = self.must_write(tokens, fits);
            self.disk.faults().writes.clear();
            self.disk.faults().room = Some(fits);
            // A sequence can have tokens that its table does not hold.
            let all = [tokens, &[3; SIZE]].concat();
            let found = in_call(call.as_str(), || self.file.store(&all, cache.table(), &self.slab.borrow()));
            self.disk.faults().room = None;
            self.writes = std::mem::take(&mut self.disk.faults().writes);
            let (cut_off, record) = (self.disk.faults().cut_off.take().unwrap_or(0), self.format.record_bytes());
            let offset = cut_off - cut_off.saturating_sub(FILE_HEADER_BYTES as u64) % record as u64;
            let full = PageFileError::Unwritable { offset, error: io::ErrorKind::StorageFull.into() };
            let (bytes, expected) = if fails { (fits, Err(full.to_string())) } else { (n * record, Ok(n)) };
            same!(found.map_err(|error| error.to_string()), expected, "pages that it writes, or its error: {call}");
            let found: usize = self.writes.iter().map(|(_, bytes)| bytes.len()).sum();
            same!(found, bytes, "bytes that it writes, each page once: {call}");
            self.check();
        }

        /// Asks for the pages that the file has and memory has not, and reads them.
        fn read_pages(&mut self, tokens: &[u32]) -> Vec<PageRead> {
            let full = self.all_but_one(tokens);
            let held = self.held(tokens) / self.format.page_size;
            let before = self.owners();
            let call = self.history.call(format!("pages_to_load of {}", shown(tokens)));
            let pages = expect_ok(call.as_str(), || self.file.pages_to_load(tokens, &mut self.trie, &self.slab));
            same!(self.owners(), before, "owners of the pages, as many as before, after {call}");
            self.touch(full);
            let found: Vec<_> = pages.iter().map(|page| (page.index, page.place)).collect();
            let places = in_call(format!("find of {}", shown(full)), || self.file.find(full));
            let expected: Vec<_> = places.into_iter().enumerate().skip(held).collect();
            same_list(&found, &expected, &format!("(page, place) to load, {held} in memory, one to compute: {call}"));
            pages.into_iter().map(|page| self.file.read(page)).collect()
        }

        /// Gives what was read to the prefix cache: `n` pages must come back, and memory must then have `held` tokens.
        fn load(&mut self, tokens: &[u32], read: &[PageRead], n: usize, held: usize) {
            let pages: Vec<usize> = read.iter().take(12).map(|read| read.page.index).collect();
            let (tokens_shown, n_pages) = (shown(tokens), plural(read.len(), "page"));
            let call = self.history.call(format!("load of {tokens_shown}, {n_pages} read, first {pages:?}"));
            // A page of the prefix cache has it as an owner; the others are those of sequences.
            let of_sequences = |it: &CheckedFile| it.owners().iter().sum::<u32>() as usize - it.trie.n_pages();
            let before = of_sequences(self);
            let found = expect_ok(call.as_str(), || self.file.load(tokens, read, &mut self.trie, &self.slab));
            same!(of_sequences(self), before, "owners of all pages beside the prefix cache, after {call}");
            let now = self.held(tokens);
            same!((found, now), (n, held), "(pages that come back, tokens in memory then): {call}");
        }

        /// Both, where no sequence runs: pages come back up to the first that is damaged, as far as there is room.
        fn fetch(&mut self, tokens: &[u32]) -> usize {
            let size = self.format.page_size;
            let read = self.read_pages(tokens);
            let held = self.held(tokens) / size;
            let headers = record_headers(&self.format, &self.disk.bytes());
            let whole: Vec<_> =
                headers.iter().filter(|header| header.rows_are_whole).map(|header| (header.place, header.id)).collect();
            let is_whole = |read: &&PageRead| whole.contains(&(read.page.place, read.page.id));
            let whole = read.iter().take_while(is_whole).count();
            let n = whole.min(self.slab.borrow().pool().n_pages() - held);
            self.load(tokens, &read, n, (held + n) * size);
            if whole < read.len() {
                self.lose(&tokens[..(held + whole + 1) * size]);
            }
            self.check();
            n
        }

        fn owners(&self) -> Vec<u32> {
            owners(self.slab.borrow().pool())
        }

        /// The full pages of a sequence, such that a token is left to compute.
        fn all_but_one<'t>(&self, tokens: &'t [u32]) -> &'t [u32] {
            &tokens[..tokens.len().saturating_sub(1) / self.format.page_size * self.format.page_size]
        }

        /// Tokens of a sequence that the prefix cache has, all but one at most, each with the right rows.
        fn held(&mut self, tokens: &[u32]) -> usize {
            let cache = self.with_prefix(tokens);
            let width = self.format.layout.kv_width();
            for layer in 0..self.format.layout.n_layers {
                let (k, v) = in_call(format!("gather({layer}) of {}", shown(tokens)), || cache.gather(layer));
                for (kind, name, found) in [(0, "keys", k), (1, "values", v)] {
                    let expected = rows(&self.format, &tokens[..cache.len()], 0, layer, kind);
                    for (at, (row, expected)) in found.chunks(width).zip(expected.chunks(width)).enumerate() {
                        let differ = bits(row).into_iter().zip(bits(expected)).position(|(a, b)| a != b);
                        if let Some(i) = differ {
                            let what =
                                format!("number {i} of the {name} of the token at position {at} in layer {layer}");
                            let of = format!("of {}; {}", shown(tokens), self.history.about);
                            same!(hex(&row[i..=i]), hex(&expected[i..=i]), "{what}, as the prefix cache has it, {of}");
                        }
                    }
                }
            }
            cache.len()
        }
    }

    // Task 1

    #[test]
    fn task_1_decode_reads_what_was_encoded() {
        let (id, parent, tokens) = (1 << 40, (1 << 40) - 1, [u32::MAX, 0, 7, 1 << 31]);
        for (format, tokens) in FORMATS.iter().map(|format| (format, &tokens[..format.page_size])) {
            let bytes = record_of(format, id, parent, tokens);
            let size = format.page_size;
            let question = format!("decode of record {id} after {parent}, page size {size}, tokens {tokens:?}");
            let (header, found) = expect_ok(question.as_str(), || decode(format, &bytes));
            let rows_checksum = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
            let expected = RecordHeader { id, parent, tokens: tokens.into(), rows_checksum };
            same!(header, expected, "the header in a {question}");
            for (name, others, found, kind) in [("keys", "values", found.k, 0), ("values", "keys", found.v, 1)] {
                let are_others = bits(&found) == bits(&page_rows(format, tokens, 1 - kind));
                assert!(!are_others, "the {name} in a {question}: these are the {others}");
                same_numbers(&found, &page_rows(format, tokens, kind), &format!("the {name} in a {question}"));
            }
        }
    }

    #[test]
    fn task_1_too_short_and_too_long() {
        let bytes = [record_of(&FORMAT, 1, 0, &counting(1, 4)), vec![0; 40]].concat();
        for len in (0..=RECORD_HEADER + 1).chain([RECORD - 4, RECORD - 1, RECORD + 1, RECORD + 4, RECORD + 40]) {
            let expected = RecordError::WrongLength { found: len, expected: RECORD };
            let found = decode(&FORMAT, &bytes[..len]).err();
            same!(found, Some(expected), "decode of {}, where a record has 1,000", plural(len, "byte"));
        }
    }

    #[test]
    fn task_1_a_changed_byte_is_found_wherever_it_is() {
        let good = record_of(&FORMAT, 9, 4, &counting(1, 4));
        for byte in (0..RECORD).step_by(if cfg!(miri) { 41 } else { 1 }) {
            let mut bytes = good.clone();
            bytes[byte] ^= 0x81;
            let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let header = header_checksum(&FORMAT, &bytes[4..RECORD_HEADER]);
            let expected = match byte {
                0..RECORD_HEADER => RecordError::DamagedHeader { stored: u32_at(0), computed: header },
                _ => RecordError::DamagedRows { stored: u32_at(4), computed: crc32fast::hash(&bytes[RECORD_HEADER..]) },
            };
            let question = format!("decode of a record whose byte {byte} has changed, in {}", part(&FORMAT, byte));
            same!(decode(&FORMAT, &bytes).err(), Some(expected), "{question}");
        }
    }

    // Task 2

    #[test]
    fn task_2_records_are_found_by_their_tokens() {
        let (a, b) = ([counting(1, 4), counting(7, 4)].concat(), [counting(1, 4), counting(8, 4)].concat());
        // The same tokens as in a, after others; and a page that lies before the one it follows.
        let c = [counting(50, 4), counting(7, 4)].concat();
        let records: [(u64, u64, &[u32]); 5] = [(2, 1, &a), (1, 0, &a[..4]), (5, 4, &c), (9, 1, &b), (4, 0, &c[..4])];
        let records = records.map(|(id, parent, prefix)| record_of(&FORMAT, id, parent, prefix));
        let disk = FaultyDisk::with([FORMAT.file_header().to_vec(), records.concat()].concat());
        let file = open(&disk, FORMAT, 9);
        for (tokens, places) in [
            (&a[..], vec![1, 0]),
            (&b, vec![1, 3]),
            (&c, vec![4, 2]),
            (&a[..7], vec![1]),
            (&a[..3], vec![]),
            (&[], vec![]),
            (&a[4..], vec![]),
            (&[&a[..], &[1, 2, 3, 4, 5]].concat(), vec![1, 0]),
            (&counting(1, 8), vec![1]),
            (&[1, 2, 3, 5], vec![]),
            (&[&[9, 9, 9, 9], &a[..4]].concat(), vec![]),
        ] {
            same!(file.find(tokens), places, "places of the pages that find gives for {}", shown(tokens));
        }
    }

    // Task 3

    #[test]
    fn task_3_full_pages_are_written_once_and_no_others() {
        let why = "full pages that the file has not are written, and no others";
        for (format, len) in FORMATS.iter().flat_map(|format| (0..=3 * SIZE + 1).map(move |len| (*format, len))) {
            let mut checked = CheckedFile::over(format, FaultyDisk::default(), 12, 12, why);
            // No page of memory has the number of its place in the file.
            let _other = checked.compute(&counting(500, 4));
            checked.store(&counting(1, len));
            checked.check_bytes();
            checked.disk.faults().reads.clear();
            checked.store(&counting(1, len));
            checked.store(&counting(1, len / 2));
            same!(checked.writes.len(), 0, "writes to the disk for pages that it has");
            let n_reads = checked.disk.faults().reads.len();
            same!(n_reads, 0, "reads from the disk for pages that it has: the headers are known");
            checked.store(&[&counting(1, len)[..], &counting(70, 5)].concat());
            checked.check_bytes();
            checked.restart();
            checked.store(&counting(1, len));
            checked.check_bytes();
        }
    }

    /// The records in the file: id, parent, first token.
    fn records(checked: &CheckedFile) -> Vec<(u64, u64, u32)> {
        let headers = record_headers(&FORMAT, &checked.disk.bytes()).into_iter();
        headers.map(|header| (header.id, header.parent, header.tokens[0])).collect()
    }

    #[test]
    fn task_3_a_page_follows_the_page_before_it() {
        let mut checked =
            CheckedFile::new(8, 8, "the parent of a record is the id of the record before, 0 where there is none");
        let tokens = counting(1, 12);
        checked.store(&tokens);
        checked.store(&[&tokens[..8], &counting(60, 4)].concat());
        let expected = [(1, 0, 1), (2, 1, 5), (3, 2, 9), (4, 2, 60)];
        let what = "after a store of 3 pages, and one of a sequence that shares the first two";
        same!(records(&checked), expected, "records in the file as (id, parent, first token), {what}");
    }

    #[test]
    fn task_3_the_end_of_a_sequence_is_the_oldest() {
        let (long, other) = (counting(1, 16), counting(100, 8));
        for (stored, fits, oldest) in [
            (&[&long][..], usize::MAX, 13),
            (&[&long, &other], usize::MAX, 13),
            (&[&long, &other, &long], usize::MAX, 104),
            (&[&long], 2 * RECORD + 700, 5),
        ] {
            let mut checked = CheckedFile::new(40, 9, "a store uses all pages of the sequence, its first page last");
            stored.iter().for_each(|tokens| checked.store_until(tokens, fits));
            let index = checked.file.index();
            let found = index.oldest().map(|(place, _)| index.header(place).tokens[0]);
            let (n, last) = (plural(stored.len(), "store"), shown(stored[stored.len() - 1]));
            let what = format!("the first token of the page used longest ago, after {n}, the last of {last}");
            same!(found, Some(oldest), "{what}; {}", checked.history.at());
        }
    }

    /// Sequences are kept `before`, then one whose writing fails after so many bytes, and others `after` it.
    fn write_fails(places: usize, before: &[&[u32]], (tokens, fits): (&[u32], usize), after: &[&[u32]], why: &str) {
        let mut checked = CheckedFile::new(40, places, why);
        before.iter().for_each(|tokens| checked.store(tokens));
        checked.store_until(tokens, fits);
        after.iter().for_each(|tokens| checked.store(tokens));
        checked.check_bytes();
    }

    /// What follows a page that was not written could never be found, and half a page is none.
    #[test]
    fn task_3_when_a_write_fails() {
        let [a, b, c] = [1, 100, 200].map(|first| counting(first, 8));
        let long = counting(1, 16);
        let half = "half a page is none, and its place goes to the next page that is written";
        let ends = "a write that fails ends it";
        // What is kept before; what fails, after how many bytes; what is kept then.
        for (before, tokens, fits, after, why) in [
            (vec![&a[..]], &b[..], RECORD, vec![&b[..], &c[..]], half),
            (vec![&a], &b, RECORD + 1, vec![&b, &c], half),
            (vec![&a], &b, RECORD + RECORD_HEADER, vec![&b, &c], half),
            (vec![&a], &b, 2 * RECORD - 1, vec![&b, &c], half),
            (vec![], &long, 700, vec![&long], ends),
            (vec![], &long, 2 * RECORD + 700, vec![&long], ends),
        ] {
            write_fails(9, &before, (tokens, fits), &after, why);
        }
    }

    // Task 4

    #[test]
    fn task_4_a_full_file_gives_up_what_was_used_longest_ago() {
        let [a, b, c, d, e] = [1, 100, 200, 300, 400].map(|first| counting(first, 4));
        let (long, other) = (counting(1, 16), counting(100, 16));
        let users: Vec<_> = (0..10).map(|user| [&a[..], &counting(1000 + 10 * user, 4)].concat()).collect();
        let too_long = vec![counting(500, 8), counting(1, 21), counting(1, 21)];
        let its_pages_stay = "only pages of the sequence itself make no room: the others were used before";
        let its_end_first = "a sequence loses its end first: without it, its beginning is still of use";
        let too_long_why = "of a sequence that is longer than the file, the beginning is kept";
        for (places, sequences, why) in [
            (1, vec![a.clone(), b.clone()], its_pages_stay),
            (3, vec![a.clone(), b, c, a, d, e], "the first one is used again, so the second is older"),
            (300, vec![counting(1, 1200), counting(5000, 8)], its_end_first),
            (5, [vec![long], [4, 8, 12, 16].map(|n| other[..n].to_vec()).to_vec()].concat(), its_end_first),
            (4, users, "a page that many sequences begin with is used by all of them"),
            (1, too_long.clone(), too_long_why),
            (4, too_long, too_long_why),
        ] {
            let mut checked = CheckedFile::new(310, places, why);
            for tokens in sequences {
                checked.store(&tokens);
            }
            checked.check_bytes();
        }
    }

    #[test]
    fn task_4_when_a_write_fails_its_number_is_not_given_again() {
        let mut checked = CheckedFile::new(8, 1, "its header may lie in the file, whole");
        checked.store(&counting(1, 4));
        checked.store_until(&counting(100, 4), RECORD - 1);
        let what = "(id, parent, first token) of the header that a failed write has left";
        same!(records(&checked), [(2, 0, 100)], "{what}");
        checked.store(&counting(200, 4));
        same!(records(&checked), [(3, 0, 200)], "(id, parent, first token) of the record that takes its place");
    }

    #[test]
    fn task_4_when_a_write_fails_in_a_full_file() {
        let [a, b, c] = [1, 100, 200].map(|first| counting(first, 4));
        let order = "what was written before the error is in order: its end goes first, and not its beginning";
        write_fails(3, &[], (&counting(1, 16), 2 * RECORD + 700), &[&b, &c], order);
        let free = "the page that made room is half overwritten, and its place is free";
        write_fails(2, &[&a, &b], (&c, 300), &[&a], free);
    }

    // Task 5

    #[test]
    fn task_5_pages_come_back_bit_for_bit() {
        let lens = [0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 1201].map(|len| (FORMAT, len));
        for (format, len) in lens.into_iter().chain([3, 4, 10].map(|len| (FORMATS[1], len))) {
            let why = "what the file has and memory has not comes back";
            let mut checked = CheckedFile::over(format, FaultyDisk::default(), 301, 301, why);
            checked.store(&counting(1, len));
            checked.fetch(&counting(1, len));
            // In the run that wrote them, and in the next one.
            checked.evict(2);
            checked.fetch(&counting(1, len));
            checked.restart();
            for asked in [len / 2, len, len] {
                checked.fetch(&counting(1, asked));
            }
            checked.fetch(&counting(2, len));
        }
    }

    /// A process after a restart, whose file has a sequence of 4 pages; `own` of them are in memory. Others are there
    /// with a page each.
    fn four_pages(n_pages: usize, own: usize, others: &[Vec<u32>], why: &str) -> (CheckedFile, Vec<u32>) {
        let mut checked = CheckedFile::new(n_pages, 20, why);
        let tokens = counting(1, 17);
        checked.store(&tokens);
        checked.restart();
        drop(checked.compute(&tokens[..own * SIZE]));
        others.iter().for_each(|other| drop(checked.compute(other)));
        (checked, tokens)
    }

    /// A page that a different sequence asked for is read for that one, and the pages after it follow it.
    #[test]
    fn task_5_pages_may_be_missing_in_the_middle() {
        for (pages, n) in [(&[0, 2, 3][..], 1), (&[0, 3], 1), (&[0, 1, 3], 2), (&[1], 0), (&[1, 2, 3], 0), (&[], 0)] {
            let (mut checked, tokens) =
                four_pages(9, 0, &[], "of 4 pages to load, those before the first gap come back");
            let mut read = checked.read_pages(&tokens);
            read.retain(|read| pages.contains(&read.page.index));
            checked.load(&tokens, &read, n, n * SIZE);
            checked.fetch(&tokens);
        }
    }

    #[test]
    fn task_5_others_make_room_and_no_more_than_needed() {
        let others: Vec<Vec<u32>> = (1..=5).map(|i| counting(100 * i, 4)).collect();
        let left = |checked: &mut CheckedFile| {
            others.iter().map(|other| checked.held(&[&other[..], &[0]].concat()) / SIZE).collect::<Vec<_>>()
        };
        // The first page of the sequence is the page that was used longest ago. 2 pages are free.
        let (mut checked, tokens) = four_pages(
            8,
            1,
            &others,
            "its first page stays in memory; 2 pages are free, and the oldest of five others makes room",
        );
        let read = checked.read_pages(&tokens);
        // While they are read, the others are used.
        left(&mut checked);
        checked.load(&tokens, &read, 3, 16);
        let why = "one page was missing, and the oldest made room";
        same!(left(&mut checked), [0, 1, 1, 1, 1], "pages left of the five others: {why}");

        let (mut checked, tokens) = four_pages(6, 0, &others, "the second of 4 pages is damaged, and 1 page is free");
        let mut read = checked.read_pages(&tokens);
        read[1].bytes.as_mut().unwrap()[RECORD_HEADER + 9] ^= 1;
        checked.load(&tokens, &read, 1, 4);
        let why = "none makes room for pages that do not come back";
        same!(left(&mut checked), [1; 5], "pages left of the five others: {why}");
    }

    #[test]
    fn task_5_as_many_as_there_is_room_for() {
        // What a sequence has in memory is worth more than what comes after it: its first page makes no room.
        for (own, taken) in [(0, 0), (0, 1), (0, 2), (0, 4), (0, 5), (1, 3)] {
            let why =
                format!("of 5 pages, a sequence that runs has {taken} and this one's beginning {own}: these stay");
            let (mut checked, tokens) = four_pages(5, own, &[], &why);
            let mut running = checked.with_prefix(&[]);
            expect_ok(format!("extend({}) of chapter 10", SIZE * taken), || running.extend(SIZE * taken));
            let read = checked.read_pages(&tokens);
            let n = (4 - own).min(5 - own - taken);
            checked.load(&tokens, &read, n, (own + n) * SIZE);
        }
    }

    #[test]
    fn task_5_a_damaged_page_is_recomputed() {
        type Spoil = fn(&mut PageRead);
        let damages: [(&str, Spoil); 7] = [
            ("a byte of its keys has changed", |read| read.bytes.as_mut().unwrap()[RECORD_HEADER + 9] ^= 1),
            ("a byte of its tokens has changed", |read| read.bytes.as_mut().unwrap()[30] ^= 1),
            ("it is cut off", |read| read.bytes.as_mut().unwrap().truncate(999)),
            ("it cannot be read", |read| read.bytes = Err(io::Error::other("a bad part of the disk"))),
            ("a different record, which is whole, lies there", |read| {
                read.bytes = Ok(record_of(&FORMAT, 77, 1, &counting(900, 4)));
            }),
            ("a record of its id and tokens with other rows lies there", |read| {
                let (id, tokens) = (read.page.id, counting(1 + 4 * read.page.index as u32, 4));
                read.bytes = Ok(record(&FORMAT, id, id - 1, &tokens, &[0.5; 120], &[0.5; 120]));
            }),
            ("a record of its id with other tokens lies there", |read| {
                let id = read.page.id;
                read.bytes = Ok(record_of(&FORMAT, id, id - 1, &counting(900, 4)));
            }),
        ];
        for ((damage, spoil), place) in damages.iter().flat_map(|damage| (0..4).map(move |place| (damage, place))) {
            let why = format!("page {place} of 4 was read, as is the second after it, and {damage}: it is forgotten");
            let (mut checked, tokens) = four_pages(9, 0, &[], &why);
            checked.store(&counting(300, 9));
            checked.restart();
            let mut read = checked.read_pages(&tokens);
            read[place..].iter_mut().step_by(2).for_each(spoil);
            checked.load(&tokens, &read, place, place * SIZE);
            checked.lose(&tokens[..(place + 1) * SIZE]);
            checked.check();
            checked.read_pages(&tokens);
            checked.store(&tokens);
            checked.restart();
            same!(checked.fetch(&tokens), 4, "pages that come back when they are written again, where {why}");
        }
    }

    /// The prefix cache has pages of a different, larger slab: its own pages, or other ones where room is to be made.
    #[test]
    fn task_5_the_errors_of_a_prefix_cache_are_returned() {
        for (asked, own, other, when) in [(17, 1, 0, "a lookup"), (17, 0, 4, "an eviction"), (4, 1, 0, "an insertion")]
        {
            let (mut checked, tokens) = four_pages(9, 0, &[], when);
            let read = checked.read_pages(&tokens);
            let _others: Vec<ForkCache> = (1..=3).map(|i| checked.compute(&counting(100 * i, 4))).collect();
            drop(checked.compute(&tokens[..own * SIZE]));
            drop(checked.compute(&counting(500, other)));
            let slab = memory(&FORMAT, 3).0;
            let call = format!("load of {}, of which 4 pages were read, where {when} fails", shown(&tokens[..asked]));
            let found = in_call(call, || checked.file.load(&tokens[..asked], &read, &mut checked.trie, &slab));
            assert!(
                found.is_err(),
                "load, where {when} fails\n  expected: it returns the error\n  yours:    {found:?}"
            );
        }
    }

    /// The same, where it is the disk that has changed.
    #[test]
    fn task_5_no_byte_of_a_file_can_change_unnoticed() {
        let tokens = counting(1, 9);
        let mut checked = CheckedFile::new(9, 2, "");
        checked.store(&tokens);
        let good = checked.disk.bytes();
        // Every byte of a header, and some of the rows.
        let step = if cfg!(miri) { 211 } else { 7 };
        for byte in (FILE_HEADER_BYTES..good.len())
            .filter(|byte| (byte - FILE_HEADER_BYTES) % RECORD < RECORD_HEADER || byte % step == 0)
        {
            let disk = FaultyDisk::with(good.clone());
            disk.memory.bytes()[byte] ^= 1 << (byte % 8);
            let (place, at) = ((byte - FILE_HEADER_BYTES) / RECORD, (byte - FILE_HEADER_BYTES) % RECORD);
            let what = format!("byte {byte} of the file has changed, in {}", part(&FORMAT, at));
            let mut checked = CheckedFile::over(FORMAT, disk, 9, 2, &what);
            same!(checked.fetch(&tokens), place, "pages that come back of two, where {what}");
            checked.store(&tokens);
            checked.restart();
            same!(checked.fetch(&tokens), 2, "pages that come back after a restart, where {what}");
        }
    }

    /// A write can end at any byte, whatever stops the program.
    #[test]
    fn task_5_a_write_that_was_cut_off_anywhere() {
        let [a, b, c] = [1, 100, 200].map(|first| counting(first, 9));
        let step = if cfg!(miri) { 333 } else { 7 };
        // To a new place, and to that of the page that was used longest ago: the second of a.
        for (places, left) in [(6, 2), (4, 1)] {
            let mut checked = CheckedFile::new(40, places, "");
            checked.store(&a);
            checked.store(&b);
            let before = checked.disk.bytes();
            checked.store(&c[..4]);
            for n in (0..=RECORD).filter(|n| *n <= RECORD_HEADER + 1 || n % step == 0 || n + 2 > RECORD) {
                let mut bytes = before.clone();
                apply(&mut bytes, &checked.writes, n);
                let what = format!("a write was cut off after {n} of {RECORD} bytes");
                let mut checked = CheckedFile::over(FORMAT, FaultyDisk::with(bytes), 40, places, &what);
                same!(checked.fetch(&b), 2, "pages that come back of a sequence that was not touched, where {what}");
                let back = checked.fetch(&a);
                assert!(back >= left, "{back} pages of the other come back, and at least {left} must: {what}");
                let back = checked.fetch(&c[..5]);
                same!(back, usize::from(n == RECORD), "pages that come back of the one being written, where {what}");
                checked.store(&c);
                checked.restart();
                same!(checked.fetch(&c[..5]), 1, "pages that come back of it when it is written again, where {what}");
            }
        }
    }

    #[test]
    fn task_5_pages_that_the_file_has_lost_meanwhile() {
        let mut checked =
            CheckedFile::new(30, 4, "other records lie at their places by now, and these are not damaged");
        let tokens = counting(1, 17);
        checked.store(&tokens);
        checked.restart();
        let mut read = checked.read_pages(&tokens);
        // Others are written to their places before they are read.
        checked.store(&counting(300, 8));
        checked.store(&counting(300, 16));
        read.iter_mut().for_each(|read| *read = checked.file.read(read.page));
        checked.load(&tokens, &read, 0, 0);
        checked.check();
        checked.history.about =
            "reads that failed leave what lies there: its records have other ids than those that were asked for".into();
        read.iter_mut().for_each(|read| read.bytes = Err(io::Error::other("a bad part of the disk")));
        checked.load(&tokens, &read, 0, 0);
        checked.check();
    }

    #[test]
    fn task_5_memory_may_have_changed_meanwhile() {
        for n in 0..=4 {
            let (mut checked, tokens) =
                four_pages(9, 0, &[], "4 pages were to load, and a sequence has computed some of them since");
            let read = checked.read_pages(&tokens);
            drop(checked.compute(&tokens[..4 * n]));
            checked.load(&tokens, &read, 4 - n, 16);
        }
        let (mut checked, tokens) =
            four_pages(9, 2, &[], "memory has lost the one before them, and nothing is wrong with the file");
        let read = checked.read_pages(&tokens);
        checked.evict(1);
        checked.load(&tokens, &read, 0, 4);
        checked.check();
    }

    // The whole chapter

    /// What tokens are called in the transcript.
    const WORDS: [&str; 11] = ["", "once", "upon", "a", "time", "king", "there", "so", "the", "fox", "said"];

    fn in_words(tokens: &[u32]) -> String {
        tokens.iter().map(|token| WORDS[*token as usize]).collect::<Vec<_>>().join(" ")
    }

    /// A line of the transcript: what lies at each place.
    fn told(checked: &CheckedFile) -> String {
        let headers = record_headers(&checked.format, &checked.disk.bytes()).into_iter().map(|header| {
            let rows = if header.rows_are_whole { "" } else { " damaged" };
            format!("{}<{} {}{rows}", header.id, header.parent, in_words(&header.tokens))
        });
        headers.collect::<Vec<String>>().join(" | ")
    }

    #[test]
    fn whole_transcript() {
        let format = PageFormat { page_size: 2, ..FORMAT };
        let mut checked = CheckedFile::over(format, FaultyDisk::default(), 8, 4, "");
        let mut transcript = Transcript::default();
        let (time, king, fox) = ([1, 2, 3, 4, 6], [1, 2, 3, 5, 10], [1, 2, 8, 9, 10]);
        for (operation, tokens) in [
            ("store", &time[..]),
            ("store", &king),
            ("store", &time),
            ("restart", &[]),
            ("load", &time),
            ("load", &king),
            ("store", &[8, 9, 10, 7]),
            ("store", &fox[..4]),
            ("store", &king),
            ("a byte changes", &fox[..4]),
            ("restart", &[]),
            ("load", &fox),
            ("store", &fox),
        ] {
            let name = in_words(tokens);
            let _call = enter_call(format!("{operation} {name}, in the transcript"));
            let line = match operation {
                "store" => {
                    let cache = checked.compute(tokens);
                    let n = expect_ok("store", || checked.file.store(tokens, cache.table(), &checked.slab.borrow()));
                    format!("store {name:<22} {n} new of {}  {}", checked.file.index().n_records(), told(&checked))
                }
                "load" => {
                    let CheckedFile { file, trie, slab, .. } = &mut checked;
                    let pages = expect_ok("pages_to_load", || file.pages_to_load(tokens, trie, slab));
                    let places: Vec<String> = pages.iter().map(|page| page.place.to_string()).collect();
                    let read: Vec<PageRead> = pages.iter().map(|page| file.read(*page)).collect();
                    let n = expect_ok("load", || file.load(tokens, &read, trie, slab));
                    format!("load  {name:<22} reads places {}, loads {n} of {}", places.join(" "), places.len())
                }
                "restart" => {
                    (checked.slab, checked.trie) = memory(&format, 8);
                    checked.file = open(&checked.disk, format, 4);
                    "restart".into()
                }
                _ => {
                    let damaged = checked.file.find(tokens).last().copied().unwrap_or(0);
                    checked.disk.memory.bytes()[format.offset(damaged) as usize + 50] ^= 1;
                    format!("{operation:<41}{}", told(&checked))
                }
            };
            transcript.line(line);
        }
        assert_transcript("ch16_pages_on_disk", &transcript);
    }

    /// Random sequences, evictions, restarts, damages and full disks.
    #[test]
    fn whole_oracle() {
        for (seed, mut rng) in seeded(if cfg!(miri) { 1 } else { 60 }) {
            let (n_pages, places) = (rng.roll(3, 12), rng.roll(1, 10));
            let (size, layout) = (rng.roll(1, 5), any_layout(&mut rng));
            let (format, run) =
                (PageFormat { page_size: size, layout, ..FORMAT }, format!("seed {seed}, page size {size}"));
            let mut checked = CheckedFile::over(format, FaultyDisk::default(), n_pages, places, &run);
            for _ in 0..STEPS {
                // Few tokens, so that sequences have much in common.
                let len = rng.roll(1, (n_pages * size).min(4 * size + 2));
                let token = |at: usize| if at.is_multiple_of(size) { rng.roll(1, 2) as u32 } else { 5 };
                let tokens: Vec<u32> = (0..len).map(token).collect();
                match rng.roll(0, 11) {
                    0..=3 => checked.store(&tokens),
                    4..=6 => drop(checked.fetch(&tokens)),
                    7 => checked.evict(rng.roll(1, 4)),
                    8 | 9 => checked.restart(),
                    10 => {
                        let bytes = checked.disk.bytes().len();
                        if bytes > FILE_HEADER_BYTES {
                            let byte = rng.roll(FILE_HEADER_BYTES, bytes - 1);
                            checked.disk.memory.bytes()[byte] ^= 1 << rng.roll(0, 7);
                            checked.history.record(format!("byte {byte} changes"));
                        }
                    }
                    _ => checked.store_until(&tokens, rng.roll(0, format.record_bytes() - 1)),
                }
            }
            checked.evict(n_pages);
            let n_free = checked.slab.borrow().pool().n_free();
            same!(n_free, n_pages, "pages that are free when all is evicted, seed {seed}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri reads no files")]
    fn whole_story_goes_on_from_pages_of_an_earlier_run() {
        let storyteller = Storyteller::open();
        let prompt = storyteller.tokenizer.encode("Once upon a time there lived a king who had a golden");
        let prompt = prompt.expect("the prompt can be encoded");
        let expected: Vec<u32> = storyteller.alone(&prompt, 20).into_iter().map(|(token, _)| token).collect();
        let folder = tempfile::tempdir().expect("a folder for the file");
        let path = folder.path().join("story.pages");
        let format = PageFormat::for_model(&storyteller.model, 4);
        // In the first run nothing is there; in the second, the prompt and what was generated.
        for (run, n_pages) in [("first", 0), ("second", (prompt.len() - 1) / 4)] {
            let disk = FileDisk::open(&path).expect("a file that can be made");
            let question = format!("open of a file of pages in the {run} run");
            let mut file = expect_ok(question, || PageFile::open(Box::new(disk), format, 1 << 24));
            let (slab, mut trie) = memory(&format, 20);
            let pages = expect_ok("pages_to_load of the prompt", || file.pages_to_load(&prompt, &mut trie, &slab));
            let read: Vec<PageRead> = pages.into_iter().map(|page| file.read(page)).collect();
            let found = expect_ok("load of the prompt", || file.load(&prompt, &read, &mut trie, &slab));
            same!(found, n_pages, "pages of the prompt that come back in the {run} run");
            let mut cache =
                expect_ok("with_prefix of chapter 11", || ForkCache::with_prefix(&slab, &mut trie, &prompt));
            let (mut sampler, mut tokens) = (Sampler::new(SAMPLING), prompt.clone());
            for _ in 0..20 {
                let step = || storyteller.model.step(&tokens[cache.len()..], Some(&mut cache));
                let logits = expect_ok(format!("step after {} of the story", plural(tokens.len(), "token")), step);
                tokens.push(sampler.sample(&logits));
            }
            storyteller.assert_same_story(&tokens[prompt.len()..], &expected);
            expect_ok("insert_into of chapter 11", || cache.insert_into(&mut trie, &tokens));
            expect_ok("store of the story", || file.store(&tokens, cache.table(), &slab.borrow()));
        }
    }
}
