//! What is found when a page file is opened. The grader of chapter 16 reads and writes such files as well.

use page_by_page::cache::KvLayout;
use page_by_page::disk::index::PageFileIndex;
use page_by_page::disk::record::{RecordError, decode_header};
use page_by_page::disk::{FILE_HEADER_BYTES, PageFileError, PageFormat};
use page_by_page::kernels::{KvDtype, MatmulDtype};

use grading::disk::{FORMAT, FaultyDisk, RECORD, RECORD_HEADER, counting, lengths, record};

fn record_of(id: u64, parent: u64, tokens: &[u32]) -> Vec<u8> {
    record(&FORMAT, id, parent, tokens, &[1.0; 120], &[2.0; 120])
}

/// A file with these records: id, parent, tokens.
fn file_of(records: &[(u64, u64, &[u32])]) -> Vec<u8> {
    let mut file = FORMAT.file_header().to_vec();
    records.iter().for_each(|(id, parent, tokens)| file.extend(record_of(*id, *parent, tokens)));
    file
}

/// A file with one sequence of pages: 1 to 4, 5 to 8 …
fn sequence(n_pages: usize) -> Vec<u8> {
    let tokens: Vec<Vec<u32>> = (0..n_pages).map(|page| counting(1 + 4 * page as u32, 4)).collect();
    let records: Vec<_> = (0..n_pages).map(|page| (page as u64 + 1, page as u64, &tokens[page][..])).collect();
    file_of(&records)
}

fn open(disk: &FaultyDisk, max_bytes: u64) -> Result<PageFileIndex, PageFileError> {
    PageFileIndex::open(&mut disk.clone(), &FORMAT, max_bytes)
}

fn open_bytes(bytes: &[u8]) -> PageFileIndex {
    open(&FaultyDisk::with(bytes.to_vec()), FORMAT.offset(99)).unwrap()
}

/// The error of opening these bytes, which stay as they are.
#[track_caller]
fn refused(bytes: &[u8]) -> PageFileError {
    let disk = FaultyDisk::with(bytes.to_vec());
    let error = open(&disk, FORMAT.offset(3)).err().expect("an error");
    assert!(disk.bytes() == bytes, "the file is as it was: {error}");
    error
}

/// The places of the pages that these tokens begin with.
fn find(index: &PageFileIndex, tokens: &[u32]) -> Vec<usize> {
    let (mut places, mut parent) = (Vec::new(), 0);
    for page in tokens.chunks_exact(4) {
        let Some(place) = index.child(parent, page) else { break };
        parent = index.header(place).id;
        places.push(place);
    }
    places
}

/// Files outlive programs: a change of these bytes is a new version.
#[test]
fn a_file_begins_with_these_bytes() {
    let header: String = FORMAT.file_header().iter().map(|byte| format!("{byte:02x}")).collect();
    let numbers = "00000000 0400000000000000 0300000000000000 0200000000000000 0500000000000000 0000000000000000";
    assert_eq!(header, format!("7062707061676573 01000000 16eeffc0 {numbers} 26a326b5").replace(' ', ""));
}

#[test]
fn a_record_has_its_length_and_its_place_also_beyond_four_gib() {
    let storyteller =
        PageFormat { layout: KvLayout { n_layers: 6, n_kv_heads: 2, head_dim: 32 }, page_size: 16, ..FORMAT };
    let qwen3 =
        PageFormat { layout: KvLayout { n_layers: 28, n_kv_heads: 8, head_dim: 128 }, page_size: 256, ..FORMAT };
    for (format, header, record) in
        [(FORMAT, RECORD_HEADER, RECORD), (storyteller, 88, 49_240), (qwen3, 1048, 58_721_304)]
    {
        assert_eq!((format.record_header_bytes(), format.record_bytes()), (header, record), "{format:?}");
        assert_eq!(lengths(&format), (header, record), "{format:?}");
    }
    for place in [0, 1, 255, 65_536, 4_294_967, 4_294_968, 5_000_000_000] {
        assert_eq!(FORMAT.offset(place), FILE_HEADER_BYTES as u64 + 1000 * place as u64);
    }
}

#[test]
fn a_header_that_cannot_be_is_refused() {
    let good = record_of(9, 4, &[1, 2, 3, 4]);
    for len in 0..RECORD_HEADER {
        let expected = RecordError::WrongLength { found: len, expected: RECORD_HEADER };
        assert_eq!(decode_header(&FORMAT, &good[..len]), Err(expected));
    }
    for (id, parent) in [(5, 5), (5, 6), (0, 0), (1, u64::MAX)] {
        let bytes = record_of(id, parent, &[1, 2, 3, 4]);
        assert_eq!(decode_header(&FORMAT, &bytes), Err(RecordError::WrongParent { id, parent }));
    }
    assert!(decode_header(&FORMAT, &record_of(1 << 63, 4, &[1, 2, 3, 4])).is_ok());
    for id in [(1 << 63) + 1, u64::MAX] {
        let bytes = record_of(id, 4, &[1, 2, 3, 4]);
        assert_eq!(decode_header(&FORMAT, &bytes), Err(RecordError::WrongId { id }));
    }
    // A record of a different file: the checksum covers the header.
    for other in [PageFormat { fingerprint: 1, ..FORMAT }, PageFormat { kv_dtype: KvDtype::F16, ..FORMAT }] {
        assert!(matches!(decode_header(&other, &good), Err(RecordError::DamagedHeader { .. })), "{other:?}");
    }
}

#[test]
fn a_new_file_gets_a_header_also_after_one_that_was_cut_off() {
    for len in 0..=FILE_HEADER_BYTES {
        let disk = FaultyDisk::with(FORMAT.file_header()[..len].to_vec());
        let index = open(&disk, FORMAT.offset(3)).unwrap();
        assert_eq!(disk.bytes(), FORMAT.file_header(), "after {len} bytes of a header");
        assert_eq!((index.n_records(), index.n_places()), (0, 3));
    }
}

#[test]
fn what_is_no_page_file_is_left_alone() {
    let long = "Once upon a time there lived a king, and he had a file in which there were no pages at all.";
    for text in ["h", "hello", "pbppagez", long, &long.repeat(20)] {
        assert!(matches!(refused(text.as_bytes()), PageFileError::NotAPageFile), "{text:.20?}");
    }
    let file = sequence(1);
    for byte in 0..FILE_HEADER_BYTES {
        let mut damaged = file.clone();
        damaged[byte] ^= 0x10;
        let error = refused(&damaged);
        assert!(matches!(error, PageFileError::NotAPageFile | PageFileError::DamagedHeader { .. }), "byte {byte}");
    }
    // This begins like a page file, but was not cut off in this header.
    let other = PageFormat { fingerprint: FORMAT.fingerprint ^ 1, ..FORMAT }.file_header();
    assert!(matches!(refused(&other[..FILE_HEADER_BYTES - 1]), PageFileError::DamagedHeader { .. }));
}

#[test]
fn pages_of_a_different_shape_are_refused_with_the_numbers() {
    let layout = KvLayout { n_layers: 4, ..FORMAT.layout };
    let swapped = KvLayout { n_layers: 2, n_kv_heads: 3, ..FORMAT.layout };
    let rows = |found: KvLayout| format!("rows of {found:?}, the model makes rows of {:?}; use", FORMAT.layout);
    let size = PageFormat { page_size: 5, ..FORMAT };
    let model = PageFormat { fingerprint: FORMAT.fingerprint ^ 1, ..size };
    let (two, all) = (PageFormat { layout, ..model }, PageFormat { layout, kv_dtype: KvDtype::F16, ..model });
    for (other, expected) in [
        (size, "pages of 5 slots, and these have 4; ask for --page-size 5, or give a different file".to_string()),
        (PageFormat { page_size: 1 << 33, ..FORMAT }, "pages of 8589934592 slots, and these have 4".into()),
        // Several things are wrong: the first that `open` promises to look for.
        (model, "a different model: its fingerprint is c0ffee17, this model's c0ffee16".into()),
        (two, rows(layout)),
        (
            PageFormat { matmul_dtype: MatmulDtype::Bf16, ..all },
            "rows made with products in bf16, and here products are in f32; ask for --matmul-dtype bf16, or give"
                .into(),
        ),
        (all, "rows in f16, and here rows are kept in f32; ask for --kv-dtype f16, or give".into()),
        (PageFormat { layout: swapped, ..FORMAT }, rows(swapped)),
    ] {
        let error = refused(&[&other.file_header()[..], &[7; 3000]].concat()).to_string();
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn only_the_heads_are_read_and_the_latest_records_count_as_used_last() {
    let [a, b, c, d] = [1, 7, 8, 50].map(|first| counting(first, 4));
    // a b, a c, d b: the same tokens after different parents, and pages that lie before their parent.
    let disk = FaultyDisk::with(file_of(&[(2, 1, &b), (1, 0, &a), (5, 4, &b), (9, 1, &c), (4, 0, &d)]));
    let mut index = open(&disk, FORMAT.offset(9)).unwrap();
    let read: usize = disk.faults().reads.iter().map(|(_, bytes)| bytes).sum();
    assert!(read <= FILE_HEADER_BYTES + 5 * RECORD_HEADER, "{read} bytes");
    assert_eq!(disk.faults().writes.len(), 0);
    // Record 9 and those before it count as used last, and the end of each sequence goes first.
    let order: Vec<usize> = std::iter::from_fn(|| {
        let (place, _) = index.oldest()?;
        index.forget(place);
        Some(place)
    })
    .collect();
    assert_eq!(order, [0, 2, 4, 3, 1]);
}

#[test]
fn of_two_records_of_one_prefix_the_later_counts() {
    let [a, b, c] = [1, 5, 60].map(|first| counting(first, 4));
    // 1 and 3 hold the same page; 2 follows 1, and 4 follows 3. The place of 1 and that of 2 are free, once.
    let mut index = open_bytes(&file_of(&[(3, 0, &a), (1, 0, &a), (2, 1, &b), (4, 3, &c)]));
    assert_eq!((index.n_records(), find(&index, &[&a[..], &c].concat())), (2, vec![0, 3]));
    assert_eq!(find(&index, &[&a[..], &b].concat()), [0]);
    assert_eq!([index.alloc_place(), index.alloc_place(), index.alloc_place()], [Some(1), Some(2), Some(4)]);
    // An id is never given twice: 8 and 9 cannot be found, because 7 is missing, but their ids stay taken.
    let mut index = open_bytes(&file_of(&[(8, 7, &a), (9, 8, &b), (3, 0, &b)]));
    assert_eq!((index.n_records(), index.take_id(), index.take_id()), (1, 10, 11));
    // 4 follows 1, which 3 has replaced: it is not found, and does not count.
    let mut index = open_bytes(&file_of(&[(1, 0, &a), (3, 0, &a), (4, 1, &b)]));
    assert_eq!((index.n_records(), find(&index, &[&a[..], &b].concat())), (1, vec![1]));
    assert_eq!([index.alloc_place(), index.alloc_place(), index.alloc_place()], [Some(0), Some(2), Some(3)]);
}

#[test]
fn a_file_never_has_more_bytes_than_allowed() {
    let good = [sequence(4), vec![1; 300]].concat();
    for most in [1064, 2063, 2064, 4063, 4064, 4363, 4364, 9999] {
        let disk = FaultyDisk::with(good.clone());
        let index = open(&disk, most).unwrap();
        let places = (most as usize - FILE_HEADER_BYTES) / RECORD;
        assert_eq!((index.n_places(), index.n_records()), (places, places.min(4)), "{most} bytes");
        assert!(disk.bytes().len() as u64 <= most, "{most} bytes");
    }
    for most in [0, 1, 63, 64, 65, 1063] {
        let disk = FaultyDisk::default();
        let error = open(&disk, most).err().expect("no room for a page");
        assert_eq!(error.to_string(), PageFileError::TooSmall { max_bytes: most, needed: 1064 }.to_string());
        assert_eq!(disk.bytes().len(), 0);
    }
}

#[test]
fn a_disk_that_fails_is_an_error() {
    let good = sequence(3);
    for bytes in [10..11, 70..71, 2074..2075] {
        let disk = FaultyDisk::with(good.clone());
        disk.faults().unreadable = Some(bytes);
        assert!(matches!(open(&disk, FORMAT.offset(9)), Err(PageFileError::Unreadable(_))));
        assert!(disk.bytes() == good);
    }
    let disk = FaultyDisk::default();
    disk.faults().room = Some(10);
    assert!(matches!(open(&disk, FORMAT.offset(9)), Err(PageFileError::Unwritable { offset: 0, .. })));
    // A file that is too long and cannot be cut would have more bytes than allowed.
    let disk = FaultyDisk::with(good.clone());
    disk.faults().refuses_to_truncate = true;
    assert!(matches!(open(&disk, FORMAT.offset(2)), Err(PageFileError::Unwritable { offset: 2064, .. })));
}

#[test]
fn one_long_sequence_takes_no_recursion() {
    let tiny = PageFormat { layout: KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 1 }, page_size: 1, ..FORMAT };
    let mut bytes = tiny.file_header().to_vec();
    (0..70_000).for_each(|i| bytes.extend(record(&tiny, i + 1, i, &[i as u32], &[1.0], &[2.0])));
    let mut index = PageFileIndex::open(&mut FaultyDisk::with(bytes), &tiny, tiny.offset(70_000)).unwrap();
    assert_eq!(index.n_records(), 70_000);
    index.forget(0);
    assert_eq!((index.n_records(), index.oldest()), (0, None));
}
