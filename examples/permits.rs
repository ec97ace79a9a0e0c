//! State of one's own beside a log: reserve, submit, change the state, let go of the lock, wait.
//!
//! Room comes first, because a state that has changed cannot be refused any more. The lock is held over
//! submit and change, so the order in the log is that in the state; nobody waits for a disk under it.

use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::thread;

use planewal::{AppendError, Batch, Options, Wal};

const STOCK: u8 = 0x80;
const TAKEN: u8 = 0x80;

struct Stock {
    left: Mutex<u32>,
    wal: Wal,
}

impl Stock {
    /// Takes some; the answer, also "none left", rests on durable records only.
    fn take(&self, wanted: u32) -> Result<Option<u32>, AppendError> {
        let permit = self.wal.reserve(Batch::encoded(4))?; // may wait, or answer `Full`
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(rest) = left.checked_sub(wanted) else {
            drop(left);
            drop(permit);
            self.wal.sync()?; // a refusal rests on what others took
            return Ok(None);
        };
        let mut batch = Batch::new();
        batch.push(STOCK, TAKEN, &wanted.to_le_bytes())?;
        let ticket = permit.submit(&mut batch)?; // no I/O
        *left = rest;
        drop(left);
        ticket.wait()?;
        Ok(Some(rest))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::temp_dir().join(format!("planewal-permits-{}", std::process::id()));
    let stock = Stock { left: Mutex::new(10), wal: Wal::open(&dir, Options::default())? };
    thread::scope(|scope| {
        for customer in 1..=4 {
            let stock = &stock;
            scope.spawn(move || match stock.take(3) {
                Ok(Some(rest)) => println!("customer {customer} has 3, {rest} left"),
                Ok(None) => println!("customer {customer} has none"),
                Err(error) => println!("customer {customer}: {error}"),
            });
        }
    });
    stock.wal.close()?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
