//! A record: one operation, as the layer saw it. The thread that writes makes text of it.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use vfs::{Handle, Name, SetAttributes, Share, Status, XattrName};

use super::Exported;

/// One operation.
pub(super) struct Record {
    pub(super) at: SystemTime,
    pub(super) client: Option<IpAddr>,
    /// User and group after squashing.
    pub(super) user: Option<(u32, u32)>,
    pub(super) operation: &'static str,
    pub(super) export: Arc<Exported>,
    pub(super) subject: Subject,
    pub(super) result: Result<(), Status>,
    /// How many operations it stands for: see [`Repeatable`].
    pub(super) times: u64,
}

/// An operation that changes nothing, or reads or writes data. If the same user repeats it before the thread
/// takes its record, the record is counted up. Ranges of data add up to the offset of the first and the sum
/// of the counts.
pub(super) struct Repeatable<'a> {
    pub(super) client: Option<IpAddr>,
    pub(super) user: Option<(u32, u32)>,
    pub(super) operation: &'static str,
    pub(super) export: &'a Arc<Exported>,
    pub(super) at: &'a Handle,
    pub(super) name: Option<&'a Name>,
    /// Offset and count.
    pub(super) range: Option<(u64, u64)>,
    pub(super) result: Result<(), Status>,
}

impl Repeatable<'_> {
    pub(super) fn hash(&self, by: &impl BuildHasher) -> u64 {
        by.hash_one((self.operation.as_ptr(), self.at, self.name))
    }

    /// Counts the record up, if it is about the same.
    pub(super) fn repeats(&self, record: &mut Record) -> bool {
        let same = record.operation == self.operation
            && record.client == self.client
            && record.user == self.user
            && record.result == self.result
            && record.export.number == self.export.number
            && record.subject.at == *self.at
            && record.subject.name.as_ref() == self.name;
        if !same {
            return false;
        }
        if let (Detail::Range { count, .. }, Some((_, more))) = (&mut record.subject.detail, self.range) {
            *count = count.saturating_add(more);
        }
        record.times += 1;
        true
    }

    pub(super) fn record(&self) -> Record {
        let range = self.range.map(|(offset, count)| Detail::Range { offset, count });
        let (at, name) = (*self.at, self.name.cloned());
        Record {
            at: SystemTime::now(),
            client: self.client,
            user: self.user,
            operation: self.operation,
            export: self.export.clone(),
            subject: Subject { at, name, to: None, detail: range.unwrap_or(Detail::None) },
            result: self.result,
            times: 1,
        }
    }
}

/// The files that an operation is about.
pub(super) struct Subject {
    /// The file, or the directory of `name`.
    pub(super) at: Handle,
    pub(super) name: Option<Name>,
    /// The second file of a rename, a link, or a copy.
    pub(super) to: Option<Box<(Handle, Option<Name>)>>,
    pub(super) detail: Detail,
}

/// The arguments that are recorded besides the files.
pub(super) enum Detail {
    None,
    /// The bytes that are read or written.
    Range {
        offset: u64,
        count: u64,
    },
    Set(Box<SetAttributes>),
    /// The target of a symbolic link.
    Target(Box<[u8]>),
    Open {
        access: Share,
        created: bool,
    },
    Attribute(XattrName),
}

impl Subject {
    pub(super) fn of(handle: &Handle) -> Subject {
        Subject { at: *handle, name: None, to: None, detail: Detail::None }
    }

    pub(super) fn named(directory: &Handle, name: &Name) -> Subject {
        Subject { name: Some(name.clone()), ..Subject::of(directory) }
    }

    pub(super) fn to(self, handle: &Handle, name: Option<&Name>) -> Subject {
        Subject { to: Some(Box::new((*handle, name.cloned()))), ..self }
    }

    pub(super) fn with(self, detail: Detail) -> Subject {
        Subject { detail, ..self }
    }

    pub(super) fn setting(self, set: &SetAttributes) -> Subject {
        self.with(Detail::Set(Box::new(*set)))
    }
}
