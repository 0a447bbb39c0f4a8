//! Files that were opened together: notes them, and expects them again. See [`crate::companions`].

use tokio::time::Instant;
use vfs::{Caller, Handle, Name, OpenRequest, Share};

use super::kind_of;
use crate::companions::{Group, Row};
use crate::core::Core;
use crate::names::{Leads, directory_prefix};
use crate::store::{Batch, Table};
use crate::walk::roster::Kind;
use crate::walk::{Expected, FILE_MAX_BYTES};

impl Core {
    /// A file was opened. If only to be read, notes its name.
    pub fn note_companion(&self, request: &OpenRequest, file: &Handle) {
        let Some(prefetch) = &self.prefetch else { return };
        if request.access != Share::READ || request.create.is_some() {
            return;
        }
        let Some((directory, name)) = self.place_of(request, file) else { return };
        let load = || {
            let row = self.disk.index().get(Table::Companions, &directory_prefix(&directory));
            row.and_then(|row| Group::decode(&row)).unwrap_or_default()
        };
        let row = prefetch.companions().note(&directory, &name, Instant::now(), load);
        self.put_groups(row.into_iter().collect());
    }

    /// A file is about to be opened with a call. If it belongs to a group, the others are expected.
    pub fn expect_companions(&self, caller: &Caller, directory: &Handle, name: &Name) {
        let Some(prefetch) = &self.prefetch else { return };
        let names = prefetch.companions().expect(directory, name, Instant::now());
        if names.is_empty() {
            return;
        }
        let expected = names.into_iter().filter_map(|name| self.expected_file(directory, name)).collect();
        prefetch.walks().expect(caller, expected, Instant::now());
    }

    /// A file of a group, unless it can be opened and read here without a call.
    fn expected_file(&self, directory: &Handle, name: Name) -> Option<Expected> {
        let Leads::To(handle) = self.name_entry(directory, &name)?.leads else { return None };
        let (kind, here) = self.with(&self.glance(&handle), |state| {
            (kind_of(state), state.leased().is_some() && state.is_complete())
        });
        match kind? {
            Kind::File { bytes } if bytes <= FILE_MAX_BYTES && !here => {
                Some(Expected { directory: *directory, name, handle, bytes })
            }
            _ => None,
        }
    }

    fn place_of(&self, request: &OpenRequest, file: &Handle) -> Option<(Handle, Name)> {
        match &request.name {
            Some(name) => Some((request.handle, name.clone())),
            None => self
                .with(&self.glance(file), |state| state.place.clone())
                .map(|place| (place.directory, place.name)),
        }
    }

    /// Writes the groups of sessions that pause to the index, or those of all of them at the `end`.
    pub fn flush_companions(&self, end: bool) {
        if let Some(prefetch) = &self.prefetch {
            self.put_groups(prefetch.companions().take_rows(Instant::now(), end));
        }
    }

    fn put_groups(&self, rows: Vec<Row>) {
        let mut batch = Batch::default();
        for (directory, group) in rows {
            batch.put(Table::Companions, directory_prefix(&directory), group.encode());
        }
        if !batch.is_empty() {
            self.disk.index().commit(batch);
        }
    }
}
