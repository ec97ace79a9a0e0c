//! Backups whose bytes are not what a backup made here has, and backups of logs that lost something.

use std::sync::Arc;

use planewal::storage::MemStorage;
use planewal::{RestoreError, repair, restore};

use crate::support::{
    CONTROL, SLOT, append, closed, contents, edit, groups, numbers, open, put_u32, read, refusal,
    reseal_page, reseal_slot, segment, view, works,
};

fn backed_up(storage: &MemStorage) -> MemStorage {
    let copy = MemStorage::new(50);
    view(storage).backup_to_storage(Arc::new(copy.clone())).unwrap();
    copy
}

#[test]
fn a_backup_of_a_later_version_is_not_restored() {
    let copy = backed_up(&closed(&[4, 4]));
    let slot = copy.fork_live();
    edit(&slot, CONTROL, |bytes| {
        for number in [0, 1] {
            put_u32(bytes, number * SLOT + 12, 2);
            reseal_slot(bytes, number);
        }
    });
    let header = copy.fork_live();
    edit(&header, &segment(1), |bytes| {
        put_u32(bytes, 8, 2);
        reseal_page(bytes);
    });
    for newer in [slot, header] {
        let before = contents(&newer);
        assert!(matches!(restore(Arc::new(newer.clone())), Err(RestoreError::Newer(_))));
        assert_eq!(contents(&newer), before);
    }
}

/// The last records, a whole segment in the middle, the first file, a header page: given up in the log, and so in its
/// backup, which goes on where the log would have gone on.
#[test]
fn what_was_given_up_stays_given_up_in_a_backup() {
    let damage: [&dyn Fn(&MemStorage); 4] = [
        &|disk| {
            let name = segment(3);
            let last = *groups(&disk.read(&name).unwrap()).last().unwrap();
            assert!(disk.flip_bit(&name, 8 * (last.offset as u64 + 34)));
        },
        &|disk| assert!(disk.remove_file(&segment(2))),
        &|disk| assert!(disk.remove_file(&segment(1))),
        &|disk| assert!(disk.flip_bit(&segment(2), 8 * 50)),
    ];
    for (at, change) in damage.iter().enumerate() {
        let disk = closed(&[4, 4, 4]);
        change(&disk);
        refusal(&disk);
        repair(Arc::new(disk.clone())).unwrap();
        for goes_on in [false, true] {
            if goes_on {
                let wal = open(&disk);
                append(&wal, 3);
                wal.close().unwrap();
            }
            let log = view(&disk);
            let copy = backed_up(&disk);
            let seen = view(&copy);
            assert_eq!(seen.report().lost, log.report().lost, "damage {at}");
            assert_eq!(seen.report().next, log.report().next, "damage {at}");
            assert_eq!(seen.report().ancestors, log.report().ancestors, "damage {at}");
            let from = planewal::Lsn::FIRST;
            let (there, here) = (read(log.read(from).unwrap()), read(seen.read(from).unwrap()));
            assert_eq!((here.lsns(), &here.lost), (there.lsns(), &there.lost), "damage {at}");
            restore(Arc::new(copy.clone())).unwrap();
            let (reading, lsn) = works(&copy);
            assert_eq!(lsn, log.report().next.number(), "damage {at}");
            // The rotten header cost no record.
            assert_eq!(reading.lsns().len() == numbers(lsn - 1).len(), at == 3, "damage {at}");
        }
    }
}
