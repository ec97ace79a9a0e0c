//! Holds: named reasons to keep what is in the log from some LSN on.
//!
//! A hold names the first LSN kept. One in memory lasts as long as its guard; a durable one lasts until
//! it is released by name, over restarts, and counts at the position that the control file has. Taking a
//! hold and deciding to retire take one lock, so neither can miss the other.
//!
//! The durable ones are a section of the control file, with tag 2:
//!
//! ```text
//!  0   4  layout version, 1
//!  4   4  number of rows, at most 64
//!  8  72 each  first LSN kept u64, name length u8 (1 to 63), name, zeros up to 63 bytes
//! ```
//!
//! It is valid if and only if D1 to D5 of `docs/format.md` hold. One that is not valid, written by a
//! later version perhaps, holds everything: nobody can say what it does not hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::chain::Chain;
use crate::control::{ControlState, Section};
use crate::error::HoldError;
use crate::lsn::Lsn;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::wire::{Cursor, Put, len_usize, len64};

/// Tag of the section with the durable holds.
const HOLDS_TAG: u32 = 2;

const LAYOUT: u32 = 1;

/// Most durable holds.
const DURABLE_HOLDS_MAX: usize = 64;

/// Most bytes of a hold's name.
const NAME_BYTES_MAX: usize = 63;

const ROW_BYTES: usize = 8 + 1 + NAME_BYTES_MAX;

/// Keeps the log from an LSN on, for as long as it lives.
///
/// It does not survive the process; [`Wal::hold_durably`](crate::Wal::hold_durably) does.
#[derive(Debug)]
pub struct Hold {
    holds: Arc<Holds>,
    entry: Arc<Entry>,
}

impl Hold {
    /// The name that it was taken with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.entry.name
    }

    /// The first LSN that it keeps.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.entry.lsn()
    }

    /// Moves it forwards: what lies below `lsn` may go. Takes no lock.
    ///
    /// # Errors
    /// [`HoldError::Backwards`] below where it is, [`HoldError::Ahead`] above `durable()` + 1. It stays where it
    /// was then.
    pub fn advance(&self, lsn: Lsn) -> Result<(), HoldError> {
        self.holds.check_durable(lsn)?;
        let before = self.entry.position.fetch_max(lsn.number(), Ordering::AcqRel);
        match Lsn::new(before).filter(|at| *at > lsn) {
            Some(at) => Err(HoldError::Backwards { lsn, at }),
            None => Ok(()),
        }
    }

    /// Moves it along with somebody who reads, never back and never above the durable mark.
    pub(crate) fn follow(&self, due: Lsn) {
        let most = self.holds.chain.durable() + 1;
        self.entry.position.fetch_max(due.number().min(most), Ordering::AcqRel);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.holds.inner.lock().entries.retain(|entry| !Arc::ptr_eq(entry, &self.entry));
    }
}

/// A hold, as [`Wal::holds`](crate::Wal::holds) lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldInfo {
    /// Its name; empty for holds that cannot be read.
    pub name: String,
    /// The first LSN that it keeps.
    pub lsn: Lsn,
    /// How long it lasts.
    pub kind: HoldKind,
}

/// How long a hold lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldKind {
    /// As long as its guard.
    InMemory,
    /// Until it is released by name, over restarts.
    Durable,
    /// The durable holds cannot be read: a later version wrote them, perhaps. Everything is held, and the
    /// bytes are kept as they are, for a version that can read them.
    Unreadable,
}

#[derive(Debug)]
struct Entry {
    name: String,
    position: AtomicU64,
    durable: bool,
}

impl Entry {
    fn lsn(&self) -> Lsn {
        Lsn::new(self.position.load(Ordering::Acquire)).unwrap_or(Lsn::FIRST)
    }

    fn info(&self) -> HoldInfo {
        let kind = if self.durable { HoldKind::Durable } else { HoldKind::InMemory };
        HoldInfo { name: self.name.clone(), lsn: self.lsn(), kind }
    }
}

/// All holds of an open log.
#[derive(Debug)]
pub(crate) struct Holds {
    chain: Arc<Chain>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The first LSN that can still be held: below it, it was decided to retire.
    first: u64,
    entries: Vec<Arc<Entry>>,
    unreadable: bool,
}

impl Inner {
    fn durable(&self, name: &str) -> Option<&Arc<Entry>> {
        self.entries.iter().find(|entry| entry.durable && entry.name == name)
    }

    fn rows(&self) -> BTreeMap<String, u64> {
        let durable = self.entries.iter().filter(|entry| entry.durable);
        durable.map(|entry| (entry.name.clone(), entry.lsn().number())).collect()
    }
}

/// What is done to a durable hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Take(Lsn),
    Advance(Lsn),
    Release,
}

impl Holds {
    /// The holds that the control file knows.
    pub(crate) fn new(chain: Arc<Chain>, control: &ControlState) -> Arc<Holds> {
        let rows = durable_rows(&control.sections);
        let unreadable = rows.is_none();
        let entry = |(name, lsn)| Arc::new(Entry { name, position: AtomicU64::new(lsn), durable: true });
        let inner = Inner {
            first: chain.first().unwrap_or(control.base),
            entries: rows.unwrap_or_default().into_iter().map(entry).collect(),
            unreadable,
        };
        Arc::new(Holds { chain, inner: Mutex::new(inner) })
    }

    /// Takes a hold in memory. Names need not differ: readers and copies take holds too.
    pub(crate) fn take(self: &Arc<Self>, name: &str, lsn: Lsn) -> Result<Hold, HoldError> {
        check_name(name)?;
        let mut inner = self.inner.lock();
        self.check_kept(&inner, lsn)?;
        self.check_durable(lsn)?;
        let position = AtomicU64::new(lsn.number());
        let entry = Arc::new(Entry { name: name.to_owned(), position, durable: false });
        inner.entries.push(Arc::clone(&entry));
        drop(inner);
        Ok(Hold { holds: Arc::clone(self), entry })
    }

    /// A hold for somebody who reads from `lsn` on, which may lie above the durable mark.
    pub(crate) fn take_for_reading(self: &Arc<Self>, name: &str, lsn: Lsn) -> Result<Hold, HoldError> {
        let most = Lsn::new(self.chain.durable() + 1).unwrap_or(Lsn::FIRST);
        self.take(name, lsn.min(most))
    }

    /// Every hold, the durable ones first, each kind by name.
    pub(crate) fn list(&self) -> Vec<HoldInfo> {
        let inner = self.inner.lock();
        let mut all: Vec<HoldInfo> = inner.entries.iter().map(|entry| entry.info()).collect();
        all.sort_by(|one, other| {
            let key = |info: &HoldInfo| (info.kind == HoldKind::InMemory, info.name.clone(), info.lsn);
            key(one).cmp(&key(other))
        });
        all.splice(0..0, unreadable(&inner));
        all
    }

    /// Has `decide` choose, under the lock that holds are taken with, what to retire. It is shown the lowest
    /// hold and answers with the first LSN that stays, if any goes.
    pub(crate) fn decide<T>(&self, decide: impl FnOnce(Option<&HoldInfo>) -> (T, Option<u64>)) -> T {
        let mut inner = self.inner.lock();
        let lowest = unreadable(&inner)
            .or_else(|| inner.entries.iter().map(|entry| entry.info()).min_by_key(|info| info.lsn));
        let (decided, first) = decide(lowest.as_ref());
        inner.first = first.unwrap_or(inner.first);
        decided
    }

    /// A decision to retire was not carried out.
    pub(crate) fn undecide(&self) {
        let first = self.chain.first();
        let mut inner = self.inner.lock();
        inner.first = first.unwrap_or(inner.first);
    }

    /// Checks a change of a durable hold and answers with the sections that say so. The caller holds the
    /// control file's lock until [`settle`](Self::settle). A hold that is being taken counts from here on.
    pub(crate) fn begin(
        &self,
        name: &str,
        change: Change,
        sections: &[Section],
    ) -> Result<Vec<Section>, HoldError> {
        check_name(name)?;
        let mut inner = self.inner.lock();
        if inner.unreadable {
            return Err(HoldError::Unreadable);
        }
        let at = inner.durable(name).map(|entry| entry.lsn());
        let mut rows = inner.rows();
        match (change, at) {
            (Change::Take(_), Some(at)) => return Err(HoldError::Exists { name: name.to_owned(), at }),
            (Change::Take(lsn), None) => {
                self.check_kept(&inner, lsn)?;
                self.check_durable(lsn)?;
                if rows.len() >= DURABLE_HOLDS_MAX {
                    return Err(HoldError::TooMany { limit: len64(DURABLE_HOLDS_MAX) });
                }
                rows.insert(name.to_owned(), lsn.number());
                let position = AtomicU64::new(lsn.number());
                inner.entries.push(Arc::new(Entry { name: name.to_owned(), position, durable: true }));
            }
            (_, None) => return Err(HoldError::Unknown { name: name.to_owned() }),
            (Change::Advance(lsn), Some(at)) if lsn < at => return Err(HoldError::Backwards { lsn, at }),
            (Change::Advance(lsn), Some(_)) => {
                self.check_durable(lsn)?;
                rows.insert(name.to_owned(), lsn.number());
            }
            (Change::Release, Some(_)) => {
                rows.remove(name);
            }
        }
        let mut sections: Vec<Section> =
            sections.iter().filter(|section| section.tag != HOLDS_TAG).cloned().collect();
        if !rows.is_empty() {
            sections.push(Section { tag: HOLDS_TAG, bytes: encode(&rows) });
        }
        Ok(sections)
    }

    /// The change is in both slots, or it is not to be relied on.
    pub(crate) fn settle(&self, name: &str, change: Change, persisted: bool) {
        let mut inner = self.inner.lock();
        match change {
            Change::Take(_) if persisted => {}
            Change::Take(_) => inner.entries.retain(|entry| !(entry.durable && entry.name == name)),
            Change::Release if persisted => {
                inner.entries.retain(|entry| !(entry.durable && entry.name == name));
            }
            Change::Advance(lsn) if persisted => {
                if let Some(entry) = inner.durable(name) {
                    entry.position.store(lsn.number(), Ordering::Release);
                }
            }
            Change::Advance(_) | Change::Release => {}
        }
    }

    fn check_kept(&self, inner: &Inner, lsn: Lsn) -> Result<(), HoldError> {
        match Lsn::new(inner.first).filter(|first| lsn < *first) {
            Some(first) => Err(HoldError::Retired { lsn, first }),
            None => Ok(()),
        }
    }

    /// A hold names the first LSN kept, so it may be one above the durable mark and no more.
    fn check_durable(&self, lsn: Lsn) -> Result<(), HoldError> {
        match Lsn::new(self.chain.durable() + 1).filter(|most| lsn > *most) {
            Some(most) => Err(HoldError::Ahead { lsn, most }),
            None => Ok(()),
        }
    }
}

fn check_name(name: &str) -> Result<(), HoldError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    if fits {
        Ok(())
    } else {
        Err(HoldError::Name { bytes: len64(name.len()), limit: len64(NAME_BYTES_MAX) })
    }
}

fn unreadable(inner: &Inner) -> Option<HoldInfo> {
    let lsn = Lsn::new(inner.first).unwrap_or(Lsn::FIRST);
    inner.unreadable.then(|| HoldInfo { name: String::new(), lsn, kind: HoldKind::Unreadable })
}

/// The durable holds that a control file names, by name; one that is unreadable, from `first` on, if they
/// cannot be read.
pub(crate) fn durable_holds(control: &ControlState, first: Lsn) -> Vec<HoldInfo> {
    let Some(rows) = durable_rows(&control.sections) else {
        return vec![HoldInfo { name: String::new(), lsn: first, kind: HoldKind::Unreadable }];
    };
    let info = |(name, lsn)| Some(HoldInfo { name, lsn: Lsn::new(lsn)?, kind: HoldKind::Durable });
    rows.into_iter().filter_map(info).collect()
}

/// The durable holds in some sections; `None` if they cannot be read.
fn durable_rows(sections: &[Section]) -> Option<BTreeMap<String, u64>> {
    let mut found = sections.iter().filter(|section| section.tag == HOLDS_TAG);
    match (found.next(), found.next()) {
        (None, _) => Some(BTreeMap::new()),
        (Some(section), None) => decode(&section.bytes),
        (Some(_), Some(_)) => None,
    }
}

fn encode(rows: &BTreeMap<String, u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u32(LAYOUT);
    bytes.put_u32(u32::try_from(rows.len()).unwrap_or(u32::MAX));
    for (name, lsn) in rows {
        bytes.put_u64(*lsn);
        bytes.put_u8(u8::try_from(name.len()).unwrap_or(u8::MAX));
        bytes.put(name.as_bytes());
        bytes.put_zeros(NAME_BYTES_MAX.saturating_sub(name.len()));
    }
    bytes
}

/// D1 to D5; total.
fn decode(bytes: &[u8]) -> Option<BTreeMap<String, u64>> {
    let mut cursor = Cursor::new(bytes);
    if cursor.u32()? != LAYOUT {
        return None;
    }
    let count = len_usize(u64::from(cursor.u32()?));
    if count > DURABLE_HOLDS_MAX || cursor.remaining() != count * ROW_BYTES {
        return None;
    }
    let mut rows = BTreeMap::new();
    for _ in 0..count {
        let lsn = Lsn::new(cursor.u64()?)?.number();
        let length = usize::from(cursor.u8()?);
        if !(1..=NAME_BYTES_MAX).contains(&length) {
            return None;
        }
        let name = std::str::from_utf8(cursor.bytes(length)?).ok()?.to_owned();
        cursor.zeros(NAME_BYTES_MAX - length)?;
        if rows.last_key_value().is_some_and(|(before, _)| *before >= name) {
            return None;
        }
        rows.insert(name, lsn);
    }
    Some(rows)
}

/// Whether these bytes are no section, or the one form of what they say. For fuzzers.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn section_has_one_form(bytes: &[u8]) -> bool {
    decode(bytes).is_none_or(|rows| encode(&rows) == bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> BTreeMap<String, u64> {
        let names = ["a", "replica", "ünïcode"].map(str::to_owned);
        let mut rows: BTreeMap<String, u64> = names.into_iter().zip([1, 77, Lsn::MAX_NUMBER]).collect();
        rows.insert("x".repeat(63), 5);
        rows
    }

    #[test]
    fn a_section_reads_back() {
        assert_eq!(decode(&encode(&rows())), Some(rows()));
        assert_eq!(decode(&encode(&BTreeMap::new())), Some(BTreeMap::new()));
        let full: BTreeMap<String, u64> = (0..64).map(|n| (format!("{n:063}"), n + 1)).collect();
        assert_eq!(decode(&encode(&full)), Some(full));
    }

    #[test]
    fn what_is_no_section_is_none() {
        let whole = encode(&rows());
        for length in 0..whole.len() {
            assert_eq!(decode(&whole[..length]), None, "cut at {length}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert_eq!(decode(&longer), None, "longer than drawn");
        let changed = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            decode(&bytes)
        };
        assert_eq!(changed(0, 2), None, "D1: a later layout");
        assert_eq!(changed(4, 3), None, "D2: another count");
        assert_eq!(changed(7, 255), None, "D2: a count beyond all bounds");
        assert_eq!(changed(8, 0), None, "D3: LSN 0");
        assert_eq!(changed(15, 0x80), None, "D3: beyond the last LSN");
        assert_eq!(changed(16, 0), None, "D4: no name");
        assert_eq!(changed(16, 64), None, "D4: a name too long");
        assert_eq!(changed(17, 0xff), None, "D4: no UTF-8");
        assert_eq!(changed(18, 1), None, "D4: not zero behind the name");
        assert_eq!(changed(17, b'z'), None, "D5: out of order");
        // Nothing panics, whatever the bytes are.
        let mut word = 1_u64;
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..3 {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = usize::try_from(word >> 33).unwrap() % bytes.len();
                bytes[at] = word.to_le_bytes()[3];
            }
            assert!(section_has_one_form(&bytes));
        }
    }

    #[test]
    fn two_sections_are_as_bad_as_none_that_reads() {
        let section = Section { tag: HOLDS_TAG, bytes: encode(&rows()) };
        let other = Section { tag: 7, bytes: vec![1] };
        assert_eq!(durable_rows(&[other.clone(), section.clone()]), Some(rows()));
        assert_eq!(durable_rows(&[section.clone(), section]), None);
        assert_eq!(durable_rows(&[other]), Some(BTreeMap::new()));
    }

    #[test]
    fn holds_that_cannot_be_read_are_told_as_one() {
        let mut control = ControlState::new([1; 16]);
        assert_eq!(durable_holds(&control, Lsn::FIRST), []);
        control.sections = vec![Section { tag: HOLDS_TAG, bytes: encode(&rows()) }];
        let told = durable_holds(&control, Lsn::FIRST);
        assert_eq!(told.len(), 4);
        assert_eq!(
            (told[1].name.as_str(), told[1].lsn.number(), told[1].kind),
            ("replica", 77, HoldKind::Durable)
        );
        control.sections = vec![Section { tag: HOLDS_TAG, bytes: vec![9] }];
        let first = Lsn::new(5).unwrap();
        let told = durable_holds(&control, first);
        assert_eq!(told, [HoldInfo { name: String::new(), lsn: first, kind: HoldKind::Unreadable }]);
    }
}
