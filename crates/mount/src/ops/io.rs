//! READ, WRITE, LSEEK, FALLOCATE, COPY_FILE_RANGE.
//!
//! **Appends.** The kernel appends at the file size that it knows, and learns another size only by its own
//! GETATTR. A reply to an open or a lock does not update the size, although these are the points of
//! coherence. So the first append after an open or a lock is compared with the size known here, and is
//! written at the true end.
//!
//! **Reads of a growing file.** The kernel takes a short READ for the end of the file and fills the page
//! with zeros. If a GETATTR has reported a larger size meanwhile, a program reads these zeros as data. So a
//! short READ is repeated if a larger size was reported while it was in flight.
//!
//! **Direct writes.** Linux drops the pages of the range before a direct write, and again after a
//! synchronous one. After an asynchronous one (io_submit(2), io_uring) it drops none: a page that a reader
//! filled meanwhile keeps the old bytes. So the reply to a direct WRITE waits until the kernel has dropped
//! these pages once more.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::io::Errno;
use vfs::{Extent, Features, Place, Share, Stability, Status, Used, Written};

use crate::errno;
use crate::files::File;
use crate::front::{Front, wall};
use crate::wire::reply::{Answer, Outcome};
use crate::wire::request::{ReadHow, WriteHow};

/// Limit of one COPY_FILE_RANGE in bytes: its reply has 32 bits.
const COPY_MAX_BYTES: u64 = 1 << 30;

/// How often a READ is repeated because the file has grown meanwhile.
const GROWTHS_MAX: usize = 4;
/// How long an append waits for the kernel to drop pages that have its data at a wrong offset.
const PAGES_PATIENCE: Duration = Duration::from_millis(100);
/// How long the reply to a direct WRITE waits for the kernel to drop stale pages. The kernel drops them
/// later in any case.
const RANGE_PATIENCE: Duration = Duration::from_secs(1);

impl Front {
    /// READ. The kernel takes a short reply for the end of the file.
    pub async fn read(&self, fh: u64, offset: u64, size: u32, how: ReadHow) -> Outcome {
        let file = self.file(fh)?;
        let granularity = Duration::from_nanos(self.limits.time_delta_nanoseconds);
        let leased = file.inode.is_leased();
        {
            let mut state = file.inode.state.lock();
            state.opened.pages.heard_of(fh);
            if !how.direct {
                state.opened.pages.read(leased, granularity, wall());
            }
        }
        for _ in 0..GROWTHS_MAX {
            let told = file.inode.state.lock().told_size;
            let data = self.read_once(&file, offset, size).await?;
            if data.len() >= size as usize {
                return Ok(Answer::Data(data));
            }
            let now = file.inode.state.lock().told_size;
            if now <= told || now <= offset + data.len() as u64 {
                return Ok(Answer::Data(data));
            }
        }
        self.read_once(&file, offset, size).await.map(Answer::Data)
    }

    async fn read_once(&self, file: &File, offset: u64, size: u32) -> Result<Bytes, Errno> {
        let (first, eof) = self.read_part(file, offset, size).await?;
        if eof || first.is_empty() || first.len() >= size as usize {
            return Ok(first);
        }
        let mut complete = BytesMut::from(&first[..]);
        while complete.len() < size as usize {
            let rest = size - complete.len() as u32;
            let (part, eof) = self.read_part(file, offset + complete.len() as u64, rest).await?;
            complete.extend_from_slice(&part);
            if eof || part.is_empty() {
                break;
            }
        }
        Ok(complete.freeze())
    }

    async fn read_part(&self, file: &File, offset: u64, size: u32) -> Result<(Bytes, bool), Errno> {
        let handle = &file.inode.handle();
        let read = self.fs.read(&file.caller, handle, file.by(), offset, size).await.map_err(errno::of)?;
        // This does not read from disk: the cache has put the range into the page cache.
        let mut bytes = read.data.to_bytes().map_err(|_| Errno::IO)?;
        bytes.truncate(size as usize);
        self.counters.files.add(handle, Used::read(bytes.len()).with_call());
        Ok((bytes, read.eof))
    }

    /// WRITE.
    pub async fn write(&self, fh: u64, offset: u64, data: Bytes, how: WriteHow) -> Outcome {
        let file = self.file(fh)?;
        if how.flags & libc::O_APPEND as u32 != 0 && is_end_in_doubt(&file) {
            return self.append(&file, offset, data, how).await;
        }
        let length = data.len();
        let written = self.write_at(&file, offset, data, how).await?;
        let stale = {
            let mut state = file.inode.state.lock();
            if !how.direct {
                state.opened.pages.put(length);
            }
            how.direct && state.opened.pages.are_filled()
        };
        if stale {
            let gone = self.notifier.range_gone(file.inode.number, offset, length as u64);
            let _ = tokio::time::timeout(RANGE_PATIENCE, gone).await;
        }
        Ok(written)
    }

    /// Writes at the true end of the file; `offset` is the end that the kernel knows.
    async fn append(&self, file: &File, offset: u64, data: Bytes, how: WriteHow) -> Outcome {
        let _turn = file.inode.waits().appending.lock().await;
        let looks = file.inode.state.lock().opened.looks;
        let end = self.fs.getattr(&file.caller, &file.inode.handle()).await.map_err(errno::of)?.size;
        if end == offset {
            file.inode.state.lock().opened.ends_known = looks;
            return self.write_at(file, offset, data, how).await;
        }
        let length = data.len();
        let written = self.write_at(file, end, data, how).await?;
        // As after every write, the kernel asks for the size before it shows one. But it has put the bytes
        // into its pages.
        let readable = file.inode.state.lock().opened.pages.misplaced(length);
        if readable {
            // Bounded: the kernel keeps one incomplete page locked until the reply.
            let gone = self.notifier.data_gone(file.inode.number);
            let _ = tokio::time::timeout(PAGES_PATIENCE, gone).await;
        }
        Ok(written)
    }

    async fn write_at(&self, file: &File, offset: u64, data: Bytes, how: WriteHow) -> Outcome {
        // Report this now: a layer below that delays the write would report it at the close only.
        let room = self.limits.file_size_max.saturating_sub(offset);
        if room == 0 && !data.is_empty() {
            return Err(Errno::FBIG);
        }
        let data = data.slice(..data.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
        let stability = self.stability(how.flags);
        let most = self.limits.write_max.max(1) as usize;
        let mut done = 0;
        while done < data.len() {
            let part = data.slice(done..data.len().min(done + most));
            match self.write_part(file, offset + done as u64, part, stability).await {
                Ok(written) if written.count > 0 => done += written.count as usize,
                Ok(_) if done == 0 => return Err(Errno::IO),
                // The bytes written so far count; the rest fails when the caller tries again.
                Err(errno) if done == 0 => return Err(errno),
                _ => break,
            }
        }
        if how.kill_set_id {
            self.written_without_privilege(file).await?;
        }
        Ok(Answer::Written(done.min(data.len()) as u32))
    }

    async fn write_part(
        &self,
        file: &File,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Written, Errno> {
        let handle = &file.inode.handle();
        file.dirty.store(true, Ordering::Release);
        let written = self.fs.write(&file.caller, handle, file.by(), offset, data, stability).await;
        let written = written.map_err(errno::of)?;
        self.counters.files.add(handle, Used::written(written.count as usize).with_call());
        if written.stability == Stability::Unstable {
            file.unstable.lock().get_or_insert(written.verifier);
        }
        let leased = file.inode.is_leased();
        let mut state = file.inode.state.lock();
        state.opened.pages.heard_of(file.fh);
        state.wrote(&written.wcc, leased);
        drop(state);
        self.refill_soon(handle);
        Ok(written)
    }

    fn stability(&self, flags: u32) -> Stability {
        let given = |flag: i32| flags & flag as u32 == flag as u32;
        if self.options.sync || given(libc::O_SYNC) {
            Stability::FileSync
        } else if given(libc::O_DSYNC) {
            Stability::DataSync
        } else {
            Stability::Unstable
        }
    }

    /// LSEEK with SEEK_DATA or SEEK_HOLE. If the origin has neither, the kernel treats the entire file as
    /// data.
    pub async fn lseek(&self, fh: u64, offset: u64, whence: u32) -> Outcome {
        let file = self.file(fh)?;
        let what = match whence as i32 {
            libc::SEEK_DATA => Extent::Data,
            libc::SEEK_HOLE => Extent::Hole,
            _ => return Err(Errno::INVAL),
        };
        if !self.has(Features::SEEK) {
            return Err(Errno::NOSYS);
        }
        match self.fs.seek(&file.caller, &file.inode.handle(), file.by(), offset, what).await {
            Ok(sought) if sought.eof && what == Extent::Data => Err(Errno::NXIO),
            Ok(sought) => Ok(Answer::Seek(sought.offset)),
            Err(error) => Err(errno::of(error)),
        }
    }

    /// FALLOCATE: allocates a range, or punches a hole.
    pub async fn fallocate(&self, fh: u64, (offset, length): (u64, u64), mode: u32) -> Outcome {
        const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
        const PUNCH_HOLE: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
        let file = self.file(fh)?;
        if !file.access.contains(Share::WRITE) {
            return Err(Errno::BADF);
        }
        let place = Place { handle: file.inode.handle(), by: file.by(), offset };
        let done = match mode {
            0 if self.has(Features::ALLOCATE) => self.fs.allocate(&file.caller, place, length).await,
            KEEP_SIZE if self.has(Features::ALLOCATE) => {
                // ALLOCATE may extend the file, which KEEP_SIZE forbids.
                let now = self.fs.getattr(&file.caller, &file.inode.handle()).await.map_err(errno::of)?;
                if offset.saturating_add(length) > now.size {
                    return Err(Errno::OPNOTSUPP);
                }
                self.fs.allocate(&file.caller, place, length).await
            }
            mode if mode == KEEP_SIZE | PUNCH_HOLE && self.has(Features::DEALLOCATE) => {
                self.fs.deallocate(&file.caller, place, length).await
            }
            _ => return Err(Errno::OPNOTSUPP),
        };
        let wcc = done.map_err(errno::of)?;
        file.dirty.store(true, Ordering::Release);
        let leased = file.inode.is_leased();
        file.inode.state.lock().opened.pages.wrote(&wcc, leased);
        self.refill_soon(&file.inode.handle());
        Ok(Answer::Done)
    }

    /// COPY_FILE_RANGE. If the origin cannot copy, the kernel copies through this machine.
    pub async fn copy_file_range(&self, from: (u64, u64), to: (u64, u64), length: u64) -> Outcome {
        let (source, target) = (self.file(from.0)?, self.file(to.0)?);
        if !self.has(Features::COPY) {
            return Err(Errno::NOSYS);
        }
        let size = self.fs.getattr(&source.caller, &source.inode.handle()).await.map_err(errno::of)?.size;
        let count = length.min(COPY_MAX_BYTES).min(size.saturating_sub(from.1));
        if count == 0 {
            return Ok(Answer::Written(0));
        }
        let at = |file: &File, offset| Place { handle: file.inode.handle(), by: file.by(), offset };
        let copied = self.fs.copy(&target.caller, at(&source, from.1), at(&target, to.1), count).await;
        let copied = match copied {
            // The server cannot copy between these two files, but the kernel can.
            Err(error) if matches!(error.status, Status::NotSupp | Status::Xdev) => {
                return Err(Errno::OPNOTSUPP);
            }
            other => other.map_err(errno::of)?,
        };
        target.dirty.store(true, Ordering::Release);
        if copied.stability == Stability::Unstable {
            target.unstable.lock().get_or_insert(copied.verifier);
        }
        let leased = target.inode.is_leased();
        target.inode.state.lock().opened.pages.wrote(&copied.wcc, leased);
        self.refill_soon(&target.inode.handle());
        Ok(Answer::Written(copied.count.min(COPY_MAX_BYTES) as u32))
    }
}

/// Has there been an open or a lock since the last append that the kernel sent to the true end?
fn is_end_in_doubt(file: &File) -> bool {
    let state = file.inode.state.lock();
    state.opened.looks != state.opened.ends_known
}
