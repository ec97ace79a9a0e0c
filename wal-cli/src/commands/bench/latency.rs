//! How long calls took: counted in buckets that are at most 1/32 wide, whatever the number of calls.
//!
//! `planewal::Histogram` is exact to a factor of two, which is enough to alert on and too coarse to compare
//! disks with.

use std::time::Duration;

/// Buckets for each power of two, as a power of two.
const FINE_BITS: u32 = 5;
const FINE: usize = 1 << FINE_BITS;

/// Times in nanoseconds, in 15 KiB of memory.
#[derive(Debug, Clone)]
pub(super) struct Latency {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Latency {
    pub(super) fn new() -> Latency {
        let powers = (u64::BITS - FINE_BITS) as usize;
        Latency { buckets: vec![0; (powers + 1) * FINE], count: 0, max: 0 }
    }

    pub(super) fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if let Some(times) = self.buckets.get_mut(bucket(ns)) {
            *times += 1;
        }
        self.count += 1;
        self.max = self.max.max(ns);
    }

    pub(super) fn merge(&mut self, other: &Latency) {
        for (times, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *times += more;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// The time that so many of a thousand calls do not exceed, at most 1/32 too high and never too low; 0
    /// without calls.
    pub(super) fn of_thousand(&self, share: u64) -> u64 {
        let wanted = u128::from(self.count) * u128::from(share.min(1000));
        let mut seen = 0u64;
        for (bucket, times) in self.buckets.iter().enumerate() {
            seen += times;
            if *times > 0 && u128::from(seen) * 1000 >= wanted {
                return upper_end(bucket).min(self.max);
            }
        }
        0
    }
}

/// Below 32 each value has its own bucket; above, the five bits behind the highest one choose.
fn bucket(ns: u64) -> usize {
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(FINE_BITS + 1);
    let within = usize::try_from(ns >> shift).unwrap_or(usize::MAX);
    shift as usize * FINE + within
}

fn upper_end(bucket: usize) -> u64 {
    let shift = (bucket / FINE).saturating_sub(1);
    let within = bucket - shift * FINE;
    let end = (u128::try_from(within).unwrap_or(u128::MAX) + 1) << shift;
    u64::try_from(end - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_bucket_that_is_narrow_enough() {
        let mut values: Vec<u64> = (0..2000).collect();
        for power in 5..64 {
            let value = 1u64 << power;
            values.extend([value - 1, value, value + 1, value + value / 3]);
        }
        values.push(u64::MAX);
        for value in values {
            let end = upper_end(bucket(value));
            assert!(end >= value && end - value <= value / 32, "{value} ends at {end}");
            assert!(bucket(value) < Latency::new().buckets.len(), "{value}");
        }
    }

    #[test]
    fn shares_are_never_too_good() {
        let mut latency = Latency::new();
        assert_eq!(latency.of_thousand(500), 0);
        for ns in 1..=1000 {
            latency.add(Duration::from_nanos(ns));
        }
        assert_eq!((latency.count(), latency.max()), (1000, 1000));
        for share in [1, 500, 900, 990, 999, 1000] {
            let told = latency.of_thousand(share);
            assert!(told >= share && told <= share + share / 32 + 1, "{share}: {told}");
        }
        let mut twice = latency.clone();
        twice.merge(&latency);
        assert_eq!((twice.count(), twice.of_thousand(500)), (2000, latency.of_thousand(500)));
    }
}
