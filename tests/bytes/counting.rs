//! An allocator that counts, by thread: tests run side by side.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
    static PAUSED: Cell<bool> = const { Cell::new(false) };
}

fn count(calls: u64, bytes: i64) {
    // A thread that ends has nothing to count any more.
    let _ = PAUSED.try_with(|paused| {
        if !paused.get() {
            CALLS.with(|all| all.set(all.get() + calls));
            LIVE.with(|live| {
                live.set(live.get() + bytes);
                PEAK.with(|peak| peak.set(peak.get().max(live.get())));
            });
        }
    });
}

fn size(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[allow(unsafe_code, reason = "an allocator is unsafe; every call goes to the system's")]
// SAFETY: each method passes its arguments on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, size(layout.size()));
        // SAFETY: the caller's promise is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, size(layout.size()));
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(0, -size(layout.size()));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(1, size(bytes) - size(layout.size()));
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs something without counting it: the disk's own memory, say.
pub(crate) fn uncounted<T>(run: impl FnOnce() -> T) -> T {
    let before = PAUSED.replace(true);
    let result = run();
    PAUSED.set(before);
    result
}

/// Runs something and answers the most bytes that this thread held at once, above what it held before.
pub(crate) fn peak<T>(run: impl FnOnce() -> T) -> (T, u64) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = run();
    (result, u64::try_from(PEAK.get() - before).unwrap_or(0))
}

/// Runs something and answers how often this thread allocated.
pub(crate) fn allocations<T>(run: impl FnOnce() -> T) -> (T, u64) {
    let before = CALLS.get();
    let result = run();
    (result, CALLS.get() - before)
}

#[test]
fn the_allocator_counts() {
    let (memory, calls) = allocations(|| vec![0_u8; 1 << 20]);
    assert_eq!((memory.len(), calls), (1 << 20, 1));
    let (length, bytes) = peak(|| vec![1_u8; 1 << 20].len() + vec![1_u8; 2 << 20].len());
    assert!(length == 3 << 20 && bytes >= 2 << 20);
    let ((), calls) = allocations(|| drop(uncounted(|| vec![0_u8; 100])));
    assert_eq!(calls, 0);
}
