//! Checks one call against the model, and updates the model.

use std::time::Duration;

use rustix::io::Errno;

use super::{Content, Hidden, Model, Object, Open};
use crate::program::{Access, Dir, Name, Op, Outcome, Place};
use crate::seat::Event;

/// A call of a client.
#[derive(Clone, Copy)]
struct Call<'a> {
    seat: usize,
    client: usize,
    began: Duration,
    ended: Duration,
    outcome: &'a Outcome,
}

impl Call<'_> {
    fn failed(&self, errno: Errno) -> bool {
        *self.outcome == Outcome::Failed(errno.raw_os_error())
    }

    fn wants<T>(&self, what: impl std::fmt::Display) -> Result<T, String> {
        Err(format!("it came to {}, and {what}", self.outcome))
    }
}

/// The models after a call.
type Then = Result<Vec<Model>, String>;

impl Model {
    /// Applies a call. Returns the possible models after it, or why this outcome is not permitted.
    pub fn apply(&self, client: usize, event: &Event) -> Then {
        let &Event { seat, ref op, ref outcome, began, ended } = event;
        if *outcome == Outcome::Skipped {
            return Ok(vec![self.clone()]);
        }
        let call = Call { seat, client, began, ended, outcome };
        let then = self.clone();
        match op {
            Op::Pause { .. } => Ok(vec![then]),
            Op::Look(place) => then.look(call, *place),
            Op::Open { place, access, slot } => then.open(call, *place, *access, *slot),
            Op::Link(from, to) => then.link(call, *from, *to),
            Op::Rename(from, to) => then.rename(call, *from, *to),
            Op::Unlink(place) | Op::Rmdir(place) => then.remove(call, *place, matches!(op, Op::Rmdir(_))),
            Op::Mkdir(place) => then.make_directory(call, *place),
            Op::List(dir) => then.list(call, *dir),
            Op::Read { slot, .. }
            | Op::Write { slot, .. }
            | Op::Cut { slot, .. }
            | Op::Sync { slot }
            | Op::Close { slot }
            | Op::Lock { slot, .. }
            | Op::Unlock { slot } => then.on_open(call, op, *slot),
        }
    }

    /// The directory that a call reaches through its path. None if the call ended before, because the path
    /// may be absent for this client.
    fn walk(&mut self, call: Call<'_>, dir: Dir) -> Result<Option<usize>, String> {
        let may = self.directories(call.client, call.began, dir);
        let Some(directory) = self.directory(dir) else {
            return if call.failed(Errno::NOENT) { Ok(None) } else { call.wants(format!("{dir} is absent")) };
        };
        if call.failed(Errno::NOENT) && may.contains(&None) {
            return Ok(None);
        }
        Ok(Some(directory))
    }

    /// A call has changed a name in a directory.
    fn change(&mut self, call: Call<'_>, place: Place, directory: usize) {
        self.succeed(call, place, directory);
        let changed = self.changed.entry((call.client, directory)).or_default();
        *changed = call.began.max(*changed);
    }

    /// A call has succeeded in a directory, so the client knows the true state of the name.
    fn succeed(&mut self, call: Call<'_>, place: Place, directory: usize) {
        self.learn(call, place, directory);
        let coherent = self.coherent.entry((call.client, directory)).or_default();
        *coherent = call.began.max(*coherent);
    }

    fn learn(&mut self, call: Call<'_>, place: Place, directory: usize) {
        self.names.entry((directory, place.name)).or_default().learn(call.client);
        if let Dir::Sub(top, sub) = place.dir {
            let history = self.names.entry((top, Name { kind: 's', number: sub })).or_default();
            history.saw(call.client, Some(directory));
        }
    }

    /// May a call on this name return ENOENT?
    fn may_be_absent(&self, call: Call<'_>, directory: usize, name: Name) -> bool {
        let moving = self.names.get(&(directory, name));
        let moving = moving.is_some_and(|history| history.is_replaced_in((call.began, call.ended)));
        moving || self.candidates(call.client, call.began, directory, name).contains(&None)
    }

    fn look(mut self, call: Call<'_>, place: Place) -> Then {
        let mut objects = Vec::new();
        for directory in self.directories(call.client, call.began, place.dir) {
            match directory {
                Some(directory) => {
                    let may = self.candidates(call.client, call.began, directory, place.name);
                    objects.extend(may.into_iter().map(|object| (Some(directory), object)));
                    if call.failed(Errno::NOENT) && self.may_be_absent(call, directory, place.name) {
                        return Ok(vec![self]);
                    }
                }
                None => objects.push((None, None)),
            }
        }
        let Outcome::Stat { ino, size, is_directory } = *call.outcome else {
            if call.failed(Errno::NOENT) && objects.iter().any(|(_, object)| object.is_none()) {
                return Ok(vec![self]);
            }
            let present: Vec<_> = objects.iter().filter_map(|(_, object)| *object).collect();
            return call.wants(if present.is_empty() { "it is absent" } else { "it is there" });
        };
        let mut why = "nothing is there".to_owned();
        for (directory, object) in &objects {
            let (Some(directory), Some(object)) = (*directory, *object) else { continue };
            match self.may_look_like(call, object, ino, size, is_directory) {
                Ok(()) => {
                    if let Some(history) = self.names.get_mut(&(directory, place.name)) {
                        history.saw(call.client, Some(object));
                    }
                    self.objects[object].ino = Some(ino);
                    return Ok(vec![self]);
                }
                Err(other) => why = other,
            }
        }
        call.wants(why)
    }

    fn may_look_like(
        &self,
        call: Call<'_>,
        object: usize,
        ino: u64,
        size: u64,
        is_directory: bool,
    ) -> Result<(), String> {
        let Object { content, ino: known, .. } = &self.objects[object];
        if let Some(known) = known
            && *known != ino
        {
            return Err(format!("its inode is {known}"));
        }
        if content.is_none() != is_directory {
            return Err("it is of another type".to_owned());
        }
        let Some(content) = content else { return Ok(()) };
        content.may_be(call.client, size, call.began, self.clients[call.client].lifetimes.present)
    }

    fn open(mut self, call: Call<'_>, place: Place, access: Access, slot: usize) -> Then {
        let Some(directory) = self.walk(call, place.dir)? else { return Ok(vec![self]) };
        let file = self.leads_to(directory, place.name);
        let Outcome::Inode(ino) = *call.outcome else {
            if access.exclusive && file.is_some() && call.failed(Errno::EXIST) {
                self.learn(call, place, directory);
                return Ok(vec![self]);
            }
            let makes = access.create || access.exclusive;
            if !makes && call.failed(Errno::NOENT) && self.may_be_absent(call, directory, place.name) {
                return Ok(vec![self]);
            }
            return call.wants(if file.is_some() { "it is there" } else { "it is absent" });
        };
        let file = match file {
            Some(_) if access.exclusive => return call.wants("it is there already"),
            None if !access.create && !access.exclusive => return call.wants("it is absent"),
            Some(file) if self.objects[file].ino.is_some_and(|known| Some(known) != ino) => {
                return call.wants(format!("its inode is {:?}", self.objects[file].ino));
            }
            Some(file) => file,
            None => {
                let content = Content::new(place.name.unit(), call.client);
                self.change(call, place, directory);
                self.make(call, place, directory, Some(content), ino)
            }
        };
        self.succeed(call, place, directory);
        let is_free = place.name.kind == 'l' || self.is_free(file, call.client);
        let Some(content) = &mut self.objects[file].content else { return call.wants("it is a directory") };
        content.use_by(call.client, call.ended);
        let mut floors = content.opened(call.client);
        if access.truncate {
            if !is_free {
                content.contest();
            }
            content.cut(call.client, 0, &mut floors);
            content.settle(call.client, call.ended);
        }
        let Call { seat, client, .. } = call;
        let open = Open { object: file, client, write: access.write, place, directory, floors };
        self.open.insert((seat, slot), open);
        Ok(vec![self])
    }

    /// Makes an object under a name.
    fn make(
        &mut self,
        call: Call<'_>,
        place: Place,
        directory: usize,
        content: Option<Content>,
        ino: Option<u64>,
    ) -> usize {
        self.objects.push(Object { content, ino, links: 1, removed_by: None });
        let object = self.objects.len() - 1;
        let history = self.names.entry((directory, place.name)).or_default();
        history.set(call.client, call.ended, Some(object));
        object
    }

    /// An object has lost a name in a directory. If the client has the file open, it keeps a hidden name
    /// there until the last close.
    fn drop_link(&mut self, object: usize, client: usize, directory: usize) {
        if self.open.values().any(|open| (open.object, open.client) == (object, client)) {
            self.hidden.push(Hidden { directory, object, client });
        }
        let object = &mut self.objects[object];
        object.links = object.links.saturating_sub(1);
        if object.links == 0 {
            object.removed_by = Some(client);
        }
    }

    fn make_directory(mut self, call: Call<'_>, place: Place) -> Then {
        let Some(directory) = self.walk(call, place.dir)? else { return Ok(vec![self]) };
        let there = self.leads_to(directory, place.name);
        match *call.outcome {
            Outcome::Inode(ino) if there.is_none() => {
                self.make(call, place, directory, None, ino);
                self.change(call, place, directory);
                Ok(vec![self])
            }
            _ if there.is_some() && call.failed(Errno::EXIST) => {
                self.learn(call, place, directory);
                Ok(vec![self])
            }
            _ => call.wants(if there.is_some() { "it is there already" } else { "it is absent" }),
        }
    }

    fn remove(mut self, call: Call<'_>, place: Place, is_directory: bool) -> Then {
        let Some(directory) = self.walk(call, place.dir)? else { return Ok(vec![self]) };
        let Some(object) = self.leads_to(directory, place.name) else {
            return if call.failed(Errno::NOENT) { Ok(vec![self]) } else { call.wants("it is absent") };
        };
        if call.failed(Errno::NOENT) && self.may_be_absent(call, directory, place.name) {
            return Ok(vec![self]);
        }
        let full = is_directory && self.names_in(object).next().is_some();
        let hidden = |hidden: &Hidden| hidden.directory == object;
        if is_directory && call.failed(Errno::NOTEMPTY) && (full || self.hidden.iter().any(hidden)) {
            return Ok(vec![self]);
        }
        if *call.outcome != Outcome::Done || full {
            return call.wants(if full { "it is not empty" } else { "it is there" });
        }
        self.drop_link(object, call.client, directory);
        let history = self.names.entry((directory, place.name)).or_default();
        history.set(call.client, call.ended, None);
        self.change(call, place, directory);
        Ok(vec![self])
    }

    fn link(mut self, call: Call<'_>, from: Place, to: Place) -> Then {
        let Some(source) = self.walk(call, from.dir)? else { return Ok(vec![self]) };
        let Some(target) = self.walk(call, to.dir)? else { return Ok(vec![self]) };
        if call.failed(Errno::NOENT) && self.may_be_absent(call, source, from.name) {
            return Ok(vec![self]);
        }
        // The kernel looks up the first file before it locks the directory of the second name. So the first
        // name may have led to this object at any moment since the call began.
        let mut sources = self.candidates(call.client, call.began, source, from.name);
        let history = self.names.get(&(source, from.name));
        sources.extend(history.into_iter().flat_map(|history| history.since(call.began)).map(Some));
        let mut sources: Vec<usize> = sources.into_iter().flatten().collect();
        sources.sort_unstable();
        sources.dedup();
        let there = self.leads_to(target, to.name);
        if there.is_some() && call.failed(Errno::EXIST) && !sources.is_empty() {
            self.learn(call, to, target);
            return Ok(vec![self]);
        }
        let Outcome::Inode(ino) = *call.outcome else {
            return call.wants(if there.is_some() { "both are there" } else { "only the first is there" });
        };
        if there.is_some() {
            return call.wants("it is there already");
        }
        // The link may be of an object that the name led to earlier, if the client still trusts that.
        let mut then = Vec::new();
        for object in sources {
            let Object { ino: known, links, .. } = self.objects[object];
            if links == 0 || known.is_some() && ino.is_some() && known != ino {
                continue;
            }
            let mut model = self.clone();
            model.objects[object].links += 1;
            let history = model.names.entry((target, to.name)).or_default();
            history.set(call.client, call.ended, Some(object));
            model.change(call, to, target);
            then.push(model);
        }
        if then.is_empty() { call.wants("that is not what the first name leads to") } else { Ok(then) }
    }

    fn rename(mut self, call: Call<'_>, from: Place, to: Place) -> Then {
        let Some(source) = self.walk(call, from.dir)? else { return Ok(vec![self]) };
        let Some(target) = self.walk(call, to.dir)? else { return Ok(vec![self]) };
        if call.failed(Errno::NOENT) && self.may_be_absent(call, source, from.name) {
            return Ok(vec![self]);
        }
        if *call.outcome != Outcome::Done {
            let there = self.leads_to(source, from.name).is_some();
            return call.wants(if there { "the first is there" } else { "the first is absent" });
        }
        let mut then = Vec::new();
        // If the client knows both as names of one file, it does nothing.
        let sources = self.candidates(call.client, call.began, source, from.name);
        let targets = self.candidates(call.client, call.began, target, to.name);
        if (source, from.name) != (target, to.name)
            && sources.iter().any(|object| object.is_some() && targets.contains(object))
        {
            then.push(self.clone());
        }
        let (object, over) = (self.leads_to(source, from.name), self.leads_to(target, to.name));
        if let Some(object) = object {
            if over != Some(object) {
                if let Some(over) = over {
                    self.drop_link(over, call.client, target);
                }
                self.names.entry((source, from.name)).or_default().set(call.client, call.ended, None);
                let history = self.names.entry((target, to.name)).or_default();
                history.replace(call.client, (call.began, call.ended), object);
                // If there is nothing to do, the kernel does not call.
                self.change(call, from, source);
                self.change(call, to, target);
            }
            then.insert(0, self);
        }
        if then.is_empty() { call.wants("the first is absent") } else { Ok(then) }
    }

    fn list(mut self, call: Call<'_>, dir: Dir) -> Then {
        let Some(directory) = self.walk(call, dir)? else { return Ok(vec![self]) };
        let Outcome::Names(found) = call.outcome else { return call.wants("the directory is there") };
        let mut wanted: Vec<String> = self.names_in(directory).map(|name| name.to_string()).collect();
        wanted.sort();
        if *found != wanted {
            return call.wants(format!("{wanted:?} are there"));
        }
        let coherent = self.coherent.entry((call.client, directory)).or_default();
        *coherent = call.began.max(*coherent);
        Ok(vec![self])
    }

    fn on_open(mut self, call: Call<'_>, op: &Op, slot: usize) -> Then {
        let holder = (call.seat, slot);
        let Some(mut open) = self.open.remove(&holder) else { return call.wants("nothing is open") };
        let is_free = open.place.name.kind == 'l' || self.is_free(open.object, call.client);
        let is_shared = self.is_open_elsewhere(open.object, call.client);
        let object = &mut self.objects[open.object];
        let gone = object.links == 0 && object.removed_by != Some(call.client);
        let Some(content) = &mut object.content else { return call.wants("it is a directory") };
        content.use_by(call.client, call.ended);
        let is_stale = call.failed(Errno::STALE) && gone && self.clients[call.client].goes_stale;
        if matches!(op, Op::Close { .. }) {
            content.close(holder, call.client, call.ended);
            if open.write {
                content.settle(call.client, call.ended);
            }
            let fine = *call.outcome == Outcome::Done || is_stale;
            let still = |hidden: &Hidden| {
                let opens = |open: &Open| (open.object, open.client) == (hidden.object, hidden.client);
                self.open.values().any(opens)
            };
            self.hidden.retain(still);
            return if fine { Ok(vec![self]) } else { call.wants("a close has no reason to fail") };
        }
        if is_stale {
            self.open.insert(holder, open);
            return Ok(vec![self]);
        }
        match (op, call.outcome) {
            (Op::Read { cells, .. }, Outcome::Data(data)) => {
                content.read(cells, data, &mut open.floors).or_else(|what| call.wants(what))?;
            }
            (Op::Write { cells, id, .. }, Outcome::Done) => {
                if !is_free || open.place.name.kind == 'l' && !content.holds(holder, cells) {
                    content.contest();
                }
                content.write(call.client, cells.clone(), *id, &mut open.floors);
                if gone {
                    content.contest();
                }
            }
            (Op::Cut { cells, .. }, Outcome::Done) => {
                if !is_free {
                    content.contest();
                }
                content.cut(call.client, *cells, &mut open.floors);
            }
            (Op::Sync { .. }, Outcome::Done) => content.settle(call.client, call.ended),
            (Op::Lock { cells, exclusive, .. }, Outcome::Locked(granted)) => {
                let late = || content.may_be_locked((holder, call.client), cells, *exclusive, call.began);
                if content.is_locked(holder, cells, *exclusive) == *granted && (*granted || !late()) {
                    return call.wants(if *granted { "another has a lock" } else { "no other has a lock" });
                }
                if *granted {
                    content.lock(holder, cells.clone(), *exclusive);
                    open.floors.raise(&content.floors(call.client));
                    // Under a lease the client grants the lock itself. Then it knows no later work of others
                    // than what they did before they left the file to it.
                    let others = content.used_by_others(call.client).unwrap_or_default();
                    let confirms = if is_shared { call.began } else { others.min(call.began) };
                    let coherent = self.coherent.entry((call.client, open.directory)).or_default();
                    *coherent = confirms.max(*coherent);
                }
            }
            (Op::Unlock { .. }, Outcome::Done) => {
                content.settle(call.client, call.ended);
                content.unlock(holder);
            }
            _ => return call.wants("there is no reason for that"),
        }
        self.open.insert(holder, open);
        Ok(vec![self])
    }
}
