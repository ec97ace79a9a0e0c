//! Threads that await their commits under an executor of a few lines: a ticket is a future, and needs no runtime.

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use planewal::{AppendError, Batch, Lsn, Options, Wal};

/// Wakes the thread that sleeps over a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

async fn ten_at_once(wal: &Wal, thread: u8) -> Result<Option<Lsn>, AppendError> {
    let mut tickets = Vec::new();
    for number in 0..10 {
        let mut batch = Batch::new();
        batch.push(0x80, 0x80, &[thread, number])?;
        tickets.push(wal.submit(&mut batch)?); // has its LSN, and is not durable yet
    }
    let mut last = None;
    for ticket in tickets {
        last = Some(ticket.await?.last);
    }
    Ok(last)
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::temp_dir().join(format!("planewal-tickets-{}", std::process::id()));
    let wal = Wal::open(&dir, Options::default())?;
    thread::scope(|scope| {
        for number in 0..4 {
            let wal = &wal;
            scope.spawn(move || match block_on(ten_at_once(wal, number)) {
                Ok(last) => println!("thread {number}: durable up to {last:?}"),
                Err(error) => println!("thread {number}: {error}"),
            });
        }
    });
    let stats = wal.stats();
    println!("{} batches, {} writes, {} syncs", stats.batches, stats.groups.count(), stats.sync_ns.count());
    wal.close()?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
